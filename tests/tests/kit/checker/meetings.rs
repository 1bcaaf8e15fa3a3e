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
fn i14_a_generation_is_complete_and_has_one_leader() {
    let both = || arrives(arrives(history(), 5, "a"), 10, "b");
    passes(passes(both(), 20, "a", false), 21, "b", true).keeps_everything();
    passes(passes(both(), 20, "a", true), 21, "b", true).breaks(&["I14"]);
    // Before the second has arrived.
    let early = passes(arrives(history(), 5, "a"), 8, "a", false);
    passes(arrives(early, 10, "b"), 20, "b", true).breaks(&["I14"]);
    // A third one.
    let third = arrives(both(), 11, "c");
    let two = passes(passes(third, 20, "a", false), 21, "b", true);
    passes(two, 22, "c", false).breaks(&["I14"]);
}
