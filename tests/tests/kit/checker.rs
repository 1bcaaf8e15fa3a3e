//! The checker on histories written by hand: for every invariant one that keeps it and one that
//! breaks it.

mod ends;
mod majority;
mod meetings;
mod order;
mod permits;
mod together;

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
        self.uses_as(since, ms, client, "h", token, accepted)
    }

    fn uses_as(
        self,
        since: u64,
        ms: u64,
        client: &str,
        hold: &str,
        token: u64,
        accepted: bool,
    ) -> Self {
        let what = What::Use {
            key: "k".into(),
            hold: hold.into(),
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
fn i1_readers_share_and_a_writer_is_alone() {
    let read = |h: History, ms, hold| h.asks(ms, "a", Mode::Shared, None).ok(ms, "a", hold, 500);
    let two_readers = || read(read(history(), 10, "a:1"), 11, "a:2");
    two_readers().keeps_everything();
    two_readers().takes(20, "b", "b:1", 500).breaks(&["I1"]);
    // A reader beside a writer.
    read(history().takes(5, "b", "b:1", 500), 10, "a:1").breaks(&["I1"]);
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
    two(7, 7).fault(21, 22, Effect::LosesLocks).breaks(&["I2"]);
    two(7, 7).fault(29, 30, Effect::LosesLocks).breaks(&["I2"]);
    // Grants of two masters at the same time may be learned of in either order, and have the same token.
    let crossed = |hold: &str, token| {
        let h = history()
            .invoke(5, "b")
            .invoke(9, "a")
            .ok_with(10, "a", "a:1", 500, 9)
            .gives_back(20, "a", "a:1");
        let ok = What::Ok {
            call: 1,
            hold: hold.into(),
            token,
            valid_until: 500_000,
        };
        h.at(30, "b", ok)
    };
    for token in [7, 9] {
        crossed("b:1", token)
            .fault(4, 8, Effect::LosesLocks)
            .breaks_with_excuse("I2");
        crossed("b:1", token)
            .fault(4, 8, Effect::Delays)
            .breaks(&["I2"]);
        crossed("b:1", token).breaks(&["I2"]);
    }
    // One hold is granted by one master.
    let once = crossed("a:1", 9).fault(4, 8, Effect::LosesLocks).check();
    assert!(once.broken().contains("I2"), "{once}");
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
    // Two masters gave it to two holders: the one with the greater id has it.
    let twice = |first, second| {
        history()
            .uses_as(10, 11, "a", first, 5, true)
            .uses_as(20, 21, "b", second, 5, true)
    };
    twice("a:1", "b:1").keeps_everything();
    twice("b:1", "a:1").breaks(&["I2"]);
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
    // Passed on to a waiter of its process, which was killed before it had recorded that; not to one elsewhere.
    let dies = |by, pid| {
        let waits = history().invoke(5, by);
        waits
            .takes(10, "a", "a:1", 500)
            .gives_back(20, "a", "a:1")
            .at(25, "c", What::Died { pid })
            .shows(30, &["a:1"], 900)
    };
    dies("c", 1).keeps_everything();
    dies("c", 2).breaks(&["I4"]);
    dies("b", 1).breaks(&["I4"]);
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
