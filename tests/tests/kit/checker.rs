//! The checker on histories written by hand: for every invariant one that keeps it and one that
//! breaks it.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_testkit::checker::{Limits, Report, check};
use leasehold_testkit::history::{Effect, Event, Holder, Mode, Outcome, What};

const LIMITS: Limits = Limits {
    lease: Duration::from_millis(1_000),
    loss_notice: Duration::from_millis(400),
    handoff: Duration::from_millis(200),
    overrun: Duration::from_millis(100),
    cleanup: Duration::from_millis(100),
};

/// A history of one key, `k`, in milliseconds. Client `b` runs in process 2, the others in 1.
#[derive(Default)]
struct History {
    events: Vec<Event>,
    calls: u64,
    tokens: u64,
}

impl History {
    fn at(mut self, ms: u64, client: &str, what: What) -> Self {
        let process = if client == "b" { 2 } else { 1 };
        self.events.push(Event {
            at: ms * 1_000,
            process,
            client: client.into(),
            what,
        });
        self
    }

    fn invoke(self, ms: u64, client: &str) -> Self {
        self.asks(ms, client, Mode::Exclusive, None)
    }

    fn asks(mut self, ms: u64, client: &str, mode: Mode, bound: Option<u64>) -> Self {
        self.calls += 1;
        let bound = bound.map(|ms| ms * 1_000);
        let what = What::Invoke {
            call: self.calls,
            key: "k".into(),
            mode,
            waits: true,
            bound,
        };
        self.at(ms, client, what)
    }

    /// Grants the call that began last, with the next token.
    fn ok(mut self, ms: u64, client: &str, hold: &str, until: u64) -> Self {
        self.tokens += 1;
        let token = self.tokens;
        self.ok_with(ms, client, hold, until, token)
    }

    fn ok_with(self, ms: u64, client: &str, hold: &str, until: u64, token: u64) -> Self {
        let what = What::Ok {
            call: self.calls,
            hold: hold.into(),
            token,
            valid_until: until * 1_000,
        };
        self.at(ms, client, what)
    }

    /// A request that is granted a millisecond later.
    fn takes(self, ms: u64, client: &str, hold: &str, until: u64) -> Self {
        self.invoke(ms - 1, client).ok(ms, client, hold, until)
    }

    fn release(self, ms: u64, client: &str, hold: &str) -> Self {
        self.at(ms, client, What::ReleaseInvoke { hold: hold.into() })
    }

    fn released(self, ms: u64, client: &str, hold: &str, outcome: Outcome) -> Self {
        self.at(
            ms,
            client,
            What::ReleaseOk {
                hold: hold.into(),
                outcome,
            },
        )
    }

    /// A release that takes a millisecond.
    fn gives_back(self, ms: u64, client: &str, hold: &str) -> Self {
        self.release(ms, client, hold)
            .released(ms + 1, client, hold, Outcome::Released)
    }

    fn drops(self, ms: u64, client: &str, hold: &str) -> Self {
        self.at(ms, client, What::Drop { hold: hold.into() })
    }

    fn renewed(self, sent: u64, ms: u64, client: &str, hold: &str, until: u64) -> Self {
        let what = What::RenewOk {
            hold: hold.into(),
            sent: sent * 1_000,
            valid_until: until * 1_000,
        };
        self.at(ms, client, what)
    }

    fn lost(self, ms: u64, client: &str, hold: &str) -> Self {
        self.at(
            ms,
            client,
            What::Lost {
                hold: hold.into(),
                reason: "gone".into(),
            },
        )
    }

    /// The server shows these holders, once each; the question took a millisecond.
    fn shows(self, ms: u64, holders: &[&str], pttl: i64) -> Self {
        let holders = holders
            .iter()
            .map(|id| Holder {
                id: (*id).into(),
                count: 1,
            })
            .collect();
        self.at(
            ms,
            "observer",
            What::Server {
                key: "k".into(),
                asked: (ms - 1) * 1_000,
                holders,
                pttl,
            },
        )
    }

    fn free(self, ms: u64) -> Self {
        self.shows(ms, &[], -2)
    }

    fn uses(self, since: u64, ms: u64, client: &str, token: u64, accepted: bool) -> Self {
        let what = What::Use {
            key: "k".into(),
            hold: "h".into(),
            token,
            since: since * 1_000,
            accepted,
        };
        self.at(ms, client, what)
    }

    fn fault(self, from: u64, to: u64, effect: Effect) -> Self {
        self.at(
            from,
            "faults",
            What::FaultStart {
                id: from,
                kind: "test".into(),
                effect,
            },
        )
        .at(to, "faults", What::FaultEnd { id: from })
    }

    /// The history goes on until then.
    fn until(self, ms: u64) -> Self {
        self.at(ms, "observer", What::Quiesced { keys: Vec::new() })
    }

    fn check(mut self) -> Report {
        self.events.sort_by_key(|e| e.at);
        check(&self.events, &LIMITS)
    }

    #[track_caller]
    fn keeps_everything(self) -> Report {
        let report = self.check();
        assert!(report.violations.is_empty(), "{report}");
        report
    }

    #[track_caller]
    fn breaks(self, invariants: &[&str]) {
        let report = self.check();
        assert_eq!(
            report.broken(),
            invariants.iter().copied().collect::<BTreeSet<_>>(),
            "{report}"
        );
    }

    #[track_caller]
    fn breaks_with_excuse(self, invariant: &str) {
        let report = self.check();
        assert!(report.is_clean(), "{report}");
        assert!(
            report.violations.iter().any(|v| v.invariant == invariant),
            "{report}"
        );
    }
}

fn history() -> History {
    History::default()
}

#[test]
fn an_ordinary_history_is_clean_and_counted() {
    let report = history()
        .takes(10, "a", "a:1", 900)
        .shows(20, &["a:1"], 980)
        .invoke(30, "b")
        .uses(40, 41, "a", 1, true)
        .gives_back(50, "a", "a:1")
        .ok(55, "b", "b:1", 950)
        .shows(60, &["b:1"], 990)
        .gives_back(70, "b", "b:1")
        .free(80)
        .until(90)
        .keeps_everything();
    assert_eq!(
        (report.calls, report.grants, report.handoffs, report.uses),
        (2, 2, 1, (1, 0))
    );
}

#[test]
fn i1_claims_of_two_owners_must_not_overlap() {
    // The first one's validity is over, released or not.
    history()
        .takes(10, "a", "a:1", 100)
        .takes(110, "b", "b:1", 900)
        .keeps_everything();
    // It was notified of the loss before.
    history()
        .takes(10, "a", "a:1", 500)
        .lost(90, "a", "a:1")
        .takes(110, "b", "b:1", 900)
        .keeps_everything();

    history()
        .takes(10, "a", "a:1", 500)
        .takes(110, "b", "b:1", 900)
        .breaks(&["I1"]);
    // A renewal claims as much as a grant.
    let renewed = history()
        .takes(10, "a", "a:1", 100)
        .renewed(50, 51, "a", "a:1", 500);
    renewed.takes(110, "b", "b:1", 900).breaks(&["I1"]);
}

#[test]
fn i1_an_overlap_is_excused_only_by_a_fault_that_loses_locks() {
    let double = || {
        history()
            .takes(10, "a", "a:1", 500)
            .takes(110, "b", "b:1", 900)
    };
    double()
        .fault(50, 60, Effect::LosesLocks)
        .breaks_with_excuse("I1");
    double().fault(50, 60, Effect::Delays).breaks(&["I1"]);
    // One that was over before the first grant excuses nothing.
    double().fault(1, 5, Effect::LosesLocks).breaks(&["I1"]);
    double().fault(200, 300, Effect::LosesLocks).breaks(&["I1"]);
}

#[test]
fn i1_readers_share_and_permits_are_counted() {
    let read = |h: History, ms, hold| h.asks(ms, "a", Mode::Shared, None).ok(ms, "a", hold, 500);
    let two_readers = || read(read(history(), 10, "a:1"), 11, "a:2");
    two_readers().keeps_everything();
    two_readers().takes(20, "b", "b:1", 500).breaks(&["I1"]);

    let permit = |h: History, ms, hold| {
        h.asks(ms, "a", Mode::Permit(2), None)
            .ok(ms, "a", hold, 500)
    };
    let two_permits = || permit(permit(history(), 10, "a:1"), 11, "a:2");
    two_permits().keeps_everything();
    permit(two_permits(), 12, "a:3").breaks(&["I1"]);
    permit(two_permits().gives_back(12, "a", "a:1"), 14, "a:3").keeps_everything();
}

#[test]
fn i1_what_is_claimed_is_held_at_the_server() {
    history()
        .takes(10, "a", "a:1", 500)
        .shows(20, &["a:1"], 900)
        .keeps_everything();
    // Not claimed any more when the answer came.
    history()
        .takes(10, "a", "a:1", 100)
        .free(100)
        .keeps_everything();
    history()
        .takes(10, "a", "a:1", 300)
        .free(20)
        .breaks(&["I1"]);
    history()
        .takes(10, "a", "a:1", 300)
        .fault(11, 12, Effect::LosesLocks)
        .free(20)
        .breaks_with_excuse("I1");
}

#[test]
fn i2_tokens_increase_and_are_unique() {
    let two = |first, second| {
        let h = history()
            .invoke(9, "a")
            .ok_with(10, "a", "a:1", 500, first)
            .gives_back(20, "a", "a:1");
        h.invoke(29, "b").ok_with(30, "b", "b:1", 500, second)
    };
    two(7, 9).keeps_everything();
    two(9, 7).breaks(&["I2"]);
    two(7, 7).breaks(&["I2"]);
    // No fault is an excuse where the order is known.
    two(9, 7).fault(21, 22, Effect::LosesLocks).breaks(&["I2"]);
    two(9, 7).fault(29, 30, Effect::LosesLocks).breaks(&["I2"]);
    // Grants of two masters at the same time may be learned of in either order.
    let crossed = || {
        let h = history()
            .invoke(5, "b")
            .invoke(9, "a")
            .ok_with(10, "a", "a:1", 500, 9)
            .gives_back(20, "a", "a:1");
        let ok = What::Ok {
            call: 1,
            hold: "b:1".into(),
            token: 7,
            valid_until: 500_000,
        };
        h.at(30, "b", ok)
    };
    crossed()
        .fault(4, 8, Effect::LosesLocks)
        .breaks_with_excuse("I2");
    crossed().fault(4, 8, Effect::Delays).breaks(&["I2"]);
    crossed().breaks(&["I2"]);
    // A grant learned of when it was over may have been given at any time before.
    let late = history().invoke(9, "a").ok_with(300, "a", "a:1", 200, 1);
    late.invoke(9, "b")
        .ok_with(250, "b", "b:1", 500, 2)
        .keeps_everything();
}

#[test]
fn i2_the_guarded_resource_takes_no_older_token() {
    history()
        .uses(10, 11, "a", 5, true)
        .uses(20, 21, "b", 6, true)
        .uses(30, 31, "a", 5, false)
        .keeps_everything();
    // At the same time: either order is possible.
    history()
        .uses(10, 21, "a", 6, true)
        .uses(12, 22, "b", 5, true)
        .keeps_everything();
    history()
        .uses(10, 11, "a", 6, true)
        .uses(20, 21, "b", 5, true)
        .breaks(&["I2"]);
}

#[test]
fn i3_only_its_owner_ends_a_hold() {
    let held = || history().takes(10, "a", "a:1", 15).shows(20, &["a:1"], 500);
    held()
        .gives_back(100, "a", "a:1")
        .free(110)
        .keeps_everything();
    held().drops(100, "a", "a:1").free(110).keeps_everything();
    // Expired.
    held().free(600).keeps_everything();
    held().free(110).breaks(&["I3"]);
    held()
        .shows(110, &["b:1"], 900)
        .asks(105, "b", Mode::Exclusive, None)
        .breaks(&["I3"]);
    held()
        .fault(50, 60, Effect::LosesLocks)
        .free(110)
        .breaks_with_excuse("I3");
}

#[test]
fn i4_nothing_renews_or_resurrects_a_released_hold() {
    let over = || {
        history()
            .takes(10, "a", "a:1", 500)
            .gives_back(20, "a", "a:1")
    };
    // A renewal that was already out.
    over().renewed(19, 25, "a", "a:1", 800).keeps_everything();
    over().renewed(30, 31, "a", "a:1", 800).breaks(&["I4"]);

    over().free(30).keeps_everything();
    over().shows(30, &["a:1"], 900).breaks(&["I4"]);
    // An owner takes the lock again, under the same id.
    over()
        .invoke(25, "a")
        .shows(30, &["a:1"], 900)
        .ok(31, "a", "a:1", 900)
        .keeps_everything();
}

#[test]
fn i4_a_dropped_hold_is_gone_soon_and_a_lost_one_with_its_lease() {
    let dropped = || history().takes(10, "a", "a:1", 500).drops(20, "a", "a:1");
    dropped().shows(100, &["a:1"], 900).keeps_everything();
    dropped().shows(200, &["a:1"], 900).breaks(&["I4"]);
    // While the server cannot be reached, the holder cannot learn of it.
    dropped()
        .fault(15, 150, Effect::Delays)
        .shows(200, &["a:1"], 900)
        .keeps_everything();

    let lost = || history().takes(10, "a", "a:1", 500).lost(20, "a", "a:1");
    lost().shows(900, &["a:1"], 100).keeps_everything();
    lost().shows(1_200, &["a:1"], 100).breaks(&["I4"]);
}

#[test]
fn i5_loss_is_told_in_time() {
    let gone = || {
        history()
            .takes(10, "a", "a:1", 2_000)
            .fault(15, 16, Effect::LosesLocks)
            .free(20)
    };
    gone()
        .lost(300, "a", "a:1")
        .until(2_000)
        .breaks_with_excuse("I1");
    gone().lost(600, "a", "a:1").until(2_000).breaks(&["I5"]);
    gone().until(2_000).breaks(&["I5"]);
    // A frozen process notices when it runs again.
    gone()
        .fault(18, 500, Effect::Freezes(1))
        .lost(600, "a", "a:1")
        .until(2_000)
        .breaks_with_excuse("I1");
    gone()
        .fault(18, 500, Effect::Freezes(2))
        .lost(600, "a", "a:1")
        .until(2_000)
        .breaks(&["I5"]);
}

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
    // It may be of somebody who still waits for the answer.
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
