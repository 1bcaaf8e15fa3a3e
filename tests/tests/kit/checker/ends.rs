//! The checker on histories written by hand: waiting, abandoned calls, expiries and releases.

use leasehold_testkit::history::{Effect, Holder, Mode, Outcome, What};

use super::{History, history};

#[test]
fn i6_a_free_lock_with_a_waiter_is_handed_on() {
    let freed = || {
        history()
            .takes(10, "a", "a:1", 500)
            .invoke(20, "b")
            .gives_back(30, "a", "a:1")
    };
    freed()
        .ok(100, "b", "b:1", 900)
        .until(2_000)
        .keeps_everything();
    freed().until(2_000).breaks(&["I6"]);
    freed()
        .ok(500, "b", "b:1", 900)
        .until(2_000)
        .breaks(&["I6"]);
    freed()
        .fault(25, 400, Effect::Delays)
        .ok(500, "b", "b:1", 900)
        .until(2_000)
        .keeps_everything();
    // The waiter went away.
    freed()
        .at(100, "b", What::Cancel { call: 2 })
        .until(2_000)
        .keeps_everything();
    // The holder died: its lease comes on top.
    let died = || {
        history()
            .takes(10, "b", "b:1", 500)
            .invoke(20, "a")
            .at(30, "faults", What::Died { pid: 2 })
    };
    died()
        .ok(1_200, "a", "a:1", 2_000)
        .until(2_500)
        .keeps_everything();
    died().until(3_000).breaks(&["I6"]);
}

#[test]
fn i8_a_bounded_wait_ends_in_time() {
    let asked = || {
        history()
            .takes(1, "b", "b:1", 900)
            .asks(10, "a", Mode::Exclusive, Some(100))
    };
    let failed = |ms| {
        asked()
            .at(
                ms,
                "a",
                What::Fail {
                    call: 2,
                    why: "timed out".into(),
                },
            )
            .until(900)
    };
    failed(105).keeps_everything();
    failed(300).breaks(&["I8"]);
    asked().until(900).breaks(&["I8"]);
    // A fault of the server is no excuse, a frozen process is.
    failed(300).fault(20, 250, Effect::Delays).breaks(&["I8"]);
    failed(300)
        .fault(20, 250, Effect::Freezes(1))
        .keeps_everything();
}

#[test]
fn i9_a_call_that_was_cancelled_or_failed_leaves_no_hold() {
    let ends = |what: What| history().invoke(10, "a").at(20, "a", what);
    let cancelled = || ends(What::Cancel { call: 1 });
    let failed = || {
        ends(What::Fail {
            call: 1,
            why: "timed out".into(),
        })
    };
    cancelled()
        .shows(100, &["a:1"], 900)
        .free(200)
        .keeps_everything();
    cancelled().shows(300, &["a:1"], 900).breaks(&["I9"]);
    failed().shows(300, &["a:1"], 900).breaks(&["I9"]);
    // It may belong to a call that is still open.
    failed()
        .invoke(250, "b")
        .shows(300, &["b:1"], 900)
        .keeps_everything();
    // The process died with it: its lease ends it.
    let died = || {
        history()
            .invoke(10, "b")
            .at(20, "faults", What::Died { pid: 2 })
    };
    died().shows(900, &["b:1"], 200).keeps_everything();
    died().shows(1_300, &["b:1"], 200).breaks(&["I9"]);
}

#[test]
fn i10_every_key_expires_and_none_is_left() {
    let taken = || history().takes(10, "a", "a:1", 500);
    taken().shows(20, &["a:1"], 1_000).keeps_everything();
    taken().shows(20, &["a:1"], -1).breaks(&["I10"]);
    taken()
        .at(
            900,
            "observer",
            What::Quiesced {
                keys: vec!["k".into()],
            },
        )
        .breaks(&["I10"]);
}

#[test]
fn i11_nested_holds_end_with_the_last_release() {
    let nested = || {
        history()
            .takes(10, "a", "a:1", 500)
            .takes(20, "a", "a:1", 500)
            .drops(30, "a", "a:1")
    };
    nested()
        .shows(40, &["a:1"], 900)
        .gives_back(50, "a", "a:1")
        .free(60)
        .keeps_everything();
    nested().free(40).breaks(&["I1", "I11"]);
    nested()
        .gives_back(50, "a", "a:1")
        .drops(60, "a", "a:1")
        .breaks(&["I11"]);
}

#[test]
fn i12_an_expiry_is_at_most_the_lease_and_renewal_does_not_shorten_it() {
    let taken = || history().takes(10, "a", "a:1", 500);
    taken().shows(20, &["a:1"], 1_001).breaks(&["I12"]);
    taken()
        .renewed(20, 21, "a", "a:1", 600)
        .renewed(30, 31, "a", "a:1", 700)
        .keeps_everything();
    taken()
        .renewed(20, 21, "a", "a:1", 600)
        .renewed(30, 31, "a", "a:1", 550)
        .breaks(&["I12"]);
}

#[test]
fn i13_a_repeated_request_grants_once() {
    let taken = || history().takes(10, "a", "a:1", 500);
    taken().ok(15, "a", "a:2", 12).breaks(&["I13"]);
    taken()
        .invoke(11, "b")
        .shows(20, &["a:1", "b:1"], 900)
        .breaks(&["I13"]);
    let twice = What::Server {
        key: "k".into(),
        asked: 20_000,
        holders: vec![Holder {
            id: "a:1".into(),
            count: 2,
        }],
        pttl: 900,
    };
    taken().at(21, "observer", twice).breaks(&["I13"]);
}

#[test]
fn i16_a_release_says_what_it_did() {
    let ends =
        |outcome| move |h: History| h.release(50, "a", "a:1").released(60, "a", "a:1", outcome);
    // Valid until 15, so that what the server shows afterwards contradicts no claim.
    let held = || history().takes(10, "a", "a:1", 15).shows(20, &["a:1"], 900);
    let gone = || history().takes(10, "a", "a:1", 15).free(20);
    ends(Outcome::Released)(held()).keeps_everything();
    ends(Outcome::AlreadyGone)(gone()).keeps_everything();
    ends(Outcome::Unknown)(held()).keeps_everything();
    ends(Outcome::Released)(gone()).breaks(&["I16"]);
    ends(Outcome::AlreadyGone)(held()).breaks(&["I16"]);
}

#[test]
fn a_killed_process_claims_no_longer() {
    let died = history()
        .takes(10, "b", "b:1", 500)
        .at(20, "faults", What::Died { pid: 2 });
    died.takes(30, "a", "a:1", 900).keeps_everything();
}
