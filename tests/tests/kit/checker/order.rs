//! I7 and I15: who is served before whom.

use leasehold_testkit::history::{Effect, Mode};

use super::{History, history};

/// A request of `client` at this time, which waits in order, and its grant.
fn waits(ms: u64, client: &str) -> impl Fn(History) -> History {
    let client = client.to_owned();
    move |h: History| h.asks(ms, &client, Mode::Ordered, None)
}

#[test]
fn i7_who_came_first_is_served_first() {
    let both = || waits(2_000, "b")(waits(10, "a")(history()));
    // The last call is that of `b`: so its grant is written first.
    let passed = || {
        both()
            .ok(3_000, "b", "b:1", 3_400)
            .gives_back(3_300, "b", "b:1")
    };
    passed().breaks(&["I7"]);
    // The first is over by then.
    history()
        .asks(10, "a", Mode::Ordered, None)
        .ok(20, "a", "a:1", 1_000)
        .gives_back(900, "a", "a:1")
        .asks(2_000, "b", Mode::Ordered, None)
        .ok(2_010, "b", "b:1", 2_900)
        .keeps_everything();
    // The requests are too close to tell which joined the line first.
    waits(900, "b")(waits(10, "a")(history()))
        .ok(1_900, "b", "b:1", 2_000)
        .keeps_everything();
    // A fault may cost a waiter its turn.
    passed().fault(20, 30, Effect::Delays).keeps_everything();
    // Where no order is promised.
    history()
        .asks(10, "a", Mode::Exclusive, None)
        .asks(2_000, "b", Mode::Exclusive, None)
        .ok(3_000, "b", "b:1", 3_100)
        .keeps_everything();
}

#[test]
fn i15_a_reader_does_not_pass_a_writer_that_waits_for_long() {
    let read = |h: History, ms, hold: &str| {
        h.asks(ms, "a", Mode::Shared, None)
            .ok(ms + 1, "a", hold, ms + 500)
    };
    let writer = || {
        let reads = read(history(), 10, "a:1");
        reads.asks(20, "b", Mode::Exclusive, None)
    };
    read(writer(), 100, "a:2").keeps_everything();
    read(writer(), 2_000, "a:2").breaks(&["I15"]);
    read(writer(), 2_000, "a:2")
        .fault(50, 60, Effect::Delays)
        .keeps_everything();
    // The writer waits for another one.
    let of_writers = read(history(), 10, "a:1")
        .takes(600, "a", "a:7", 1_600)
        .asks(620, "b", Mode::Exclusive, None);
    read(of_writers, 2_000, "a:2").keeps_everything();
}
