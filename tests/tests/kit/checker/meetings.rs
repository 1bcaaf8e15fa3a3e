//! I14: latches and barriers.

use leasehold_testkit::history::{Effect, What};

use super::{History, history};

fn latch(count: u32) -> History {
    history().at(1, "a", What::SetCount { key: key(), count })
}

fn key() -> String {
    "meeting".into()
}

fn counts(h: History, ms: u64, client: &str) -> History {
    h.at(ms, client, What::CountDown { key: key() }).at(
        ms + 1,
        client,
        What::Counted { key: key() },
    )
}

fn awaits(h: History, ms: u64, client: &str) -> History {
    h.at(ms, client, What::Awaits { key: key() })
}

fn opened(h: History, ms: u64, client: &str) -> History {
    h.at(ms, client, What::Opened { key: key() })
}

fn arrives(h: History, ms: u64, client: &str) -> History {
    let (key, parties) = (key(), 2);
    h.at(ms, client, What::Arrive { key, parties })
}

fn passes(h: History, ms: u64, client: &str, leader: bool) -> History {
    let (key, generation) = (key(), 7);
    h.at(
        ms,
        client,
        What::Passed {
            key,
            generation,
            leader,
        },
    )
}

#[test]
fn i14_a_latch_opens_at_zero_and_for_everybody() {
    let one_left = || counts(awaits(latch(2), 5, "b"), 10, "a");
    opened(counts(one_left(), 20, "a"), 30, "b").keeps_everything();
    // Too early: one is still missing.
    counts(opened(one_left(), 15, "b"), 20, "a").breaks(&["I14"]);
    // Nobody ever counted.
    opened(awaits(latch(1), 5, "b"), 10, "b").breaks(&["I14"]);
    // At zero, and one of two waiters sleeps on.
    let forgotten = awaits(counts(one_left(), 20, "a"), 25, "a");
    opened(opened(forgotten, 30, "b"), 1_000, "b").breaks(&["I14"]);
    // A server that forgot the count opens it, which is said.
    opened(one_left(), 15, "b")
        .fault(12, 13, Effect::LosesLocks)
        .breaks_with_excuse("I14");
}

#[test]
fn i14_a_latch_shows_what_was_counted() {
    let shown = |h: History, ms: u64, count| {
        let asked = (ms - 1) * 1_000;
        h.at(
            ms,
            "b",
            What::Counts {
                key: key(),
                asked,
                count,
            },
        )
    };
    let one_counted = || counts(latch(3), 10, "a");
    shown(one_counted(), 20, 2).keeps_everything();
    // Once more than anybody counted, and one that was answered is missing.
    shown(one_counted(), 20, 1).breaks(&["I14"]);
    shown(one_counted(), 20, 3).breaks(&["I14"]);
    // A call that is not answered may have counted or not.
    for count in [1, 2] {
        let open = one_counted().at(15, "b", What::CountDown { key: key() });
        shown(open, 20, count).keeps_everything();
    }
    shown(one_counted(), 20, 3)
        .fault(12, 13, Effect::LosesLocks)
        .breaks_with_excuse("I14");
}

#[test]
fn i14_who_is_complete_goes_on() {
    let both = || arrives(arrives(history(), 5, "a"), 10, "b");
    both().until(200).keeps_everything();
    both().until(500).breaks(&["I14"]);
    // A fault holds them up.
    both()
        .fault(50, 400, Effect::Delays)
        .until(500)
        .keeps_everything();
    // One of them gave up or was killed.
    let withdrawn = both().at(100, "a", What::Withdrawn { key: key() });
    withdrawn.until(500).keeps_everything();
    let died = both().at(100, "faults", What::Died { pid: 2 });
    died.until(500).keeps_everything();
}

#[test]
fn i14_a_generation_is_complete_and_has_one_leader() {
    let both = || arrives(arrives(history(), 5, "a"), 10, "b");
    passes(passes(both(), 20, "a", false), 21, "b", true).keeps_everything();
    passes(passes(both(), 20, "a", true), 21, "b", true).breaks(&["I14"]);
    passes(passes(both(), 20, "a", false), 21, "b", false).breaks(&["I14"]);
    // Before the second has arrived.
    let early = passes(arrives(history(), 5, "a"), 8, "a", false);
    passes(arrives(early, 10, "b"), 20, "b", true).breaks(&["I14"]);
    // One is missing, unless it gave up or was killed just then.
    let alone = || passes(arrives(history(), 5, "a"), 20, "a", true);
    alone().breaks(&["I14"]);
    arrives(alone(), 8, "b").keeps_everything();
    let gave_up = |ms| arrives(alone(), 3, "b").at(ms, "b", What::Withdrawn { key: key() });
    gave_up(10).keeps_everything();
    arrives(alone(), 3, "b")
        .at(10, "faults", What::Died { pid: 2 })
        .keeps_everything();
    // Its lease was over.
    let late = |h: History| passes(arrives(h, 2_000, "a"), 2_010, "a", true);
    late(arrives(history(), 3, "b").at(10, "b", What::Withdrawn { key: key() })).breaks(&["I14"]);
    // A third one.
    let third = arrives(both(), 11, "c");
    let two = passes(passes(third, 20, "a", false), 21, "b", true);
    passes(two, 22, "c", false).breaks(&["I14"]);
}
