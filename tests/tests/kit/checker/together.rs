//! I18: requests for several locks at once.

use leasehold_testkit::history::{Effect, Holder, Mode, Outcome, Part, What};

use super::{History, history};

/// A request of client `a` for `x` and `y`, at the time 10: the calls 1 and 2, for the holds `a:1` and `a:2`.
fn both() -> History {
    let part = |call: u64| Part {
        call,
        hold: format!("a:{call}"),
    };
    let parts = vec![part(1), part(2)];
    let h = history().at(10, "a", What::Together { parts });
    asks(asks(h, 1, "x"), 2, "y")
}

fn asks(h: History, call: u64, key: &str) -> History {
    h.at(
        10,
        "a",
        What::Invoke {
            call,
            key: key.into(),
            mode: Mode::Exclusive,
            waits: true,
            bound: None,
        },
    )
}

fn granted(h: History, ms: u64, call: u64) -> History {
    let (hold, token) = (format!("a:{call}"), ms);
    h.at(
        ms,
        "a",
        What::Ok {
            call,
            hold,
            token,
            valid_until: 800_000,
        },
    )
}

fn failed(h: History, ms: u64, call: u64) -> History {
    let why = "held by others".into();
    h.at(ms, "a", What::Fail { call, why })
}

/// The server shows who holds a key; the question took a millisecond.
fn shows(h: History, ms: u64, key: &str, holds: &[&str]) -> History {
    let holder = |id: &&str| Holder {
        id: (*id).into(),
        count: 1,
    };
    h.at(
        ms,
        "observer",
        What::Server {
            key: key.into(),
            asked: (ms - 1) * 1_000,
            holders: holds.iter().map(holder).collect(),
            pttl: 300,
        },
    )
}

fn taken() -> History {
    granted(granted(both(), 20, 1), 20, 2)
}

#[test]
fn i18_all_are_granted_or_none() {
    taken().keeps_everything();
    failed(failed(both(), 20, 1), 20, 2).keeps_everything();
    failed(granted(both(), 20, 1), 21, 2).breaks(&["I18"]);
    // The second grant is never told.
    granted(both(), 20, 1).until(1_000).breaks(&["I18"]);
    // Or its process was killed before it could write it.
    granted(both(), 20, 1)
        .at(21, "faults", What::Died { pid: 1 })
        .until(1_000)
        .keeps_everything();
}

#[test]
fn i18_all_are_held_while_one_is_claimed() {
    let held = || shows(taken(), 30, "x", &["a:1"]);
    shows(held(), 31, "y", &["a:2"]).keeps_everything();
    // What is claimed is not there (I1), and the other part is claimed on.
    shows(held(), 31, "y", &[]).breaks(&["I1", "I18"]);
    shows(held().fault(25, 26, Effect::LosesLocks), 31, "y", &[]).breaks_with_excuse("I18");
}

#[test]
fn i18_one_that_is_lost_ends_the_others() {
    taken().lost(30, "a", "a:1").until(900).breaks(&["I18"]);
    taken()
        .lost(30, "a", "a:1")
        .lost(31, "a", "a:2")
        .until(900)
        .keeps_everything();
}

#[test]
fn i18_nothing_is_left_of_a_request_that_is_over() {
    let refused = || failed(failed(both(), 20, 1), 20, 2);
    shows(refused(), 100, "x", &["a:1"]).keeps_everything();
    // The lease would end it, later than a request that is refused may leave anything. Nobody was told of it, either (I9).
    shows(refused(), 200, "x", &["a:1"]).breaks(&["I18", "I9"]);
    let released = |outcome| {
        taken()
            .gives_back(30, "a", "a:1")
            .release(30, "a", "a:2")
            .released(31, "a", "a:2", outcome)
    };
    shows(released(Outcome::Released), 40, "y", &[]).keeps_everything();
    // It is there after its end as well (I4).
    shows(released(Outcome::Released), 40, "y", &["a:2"]).breaks(&["I18", "I4"]);
    // Without an answer nobody knows, until the lease is over.
    shows(released(Outcome::Unknown), 40, "y", &["a:2"]).keeps_everything();
}
