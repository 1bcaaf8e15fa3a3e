//! I17: the permits of a semaphore.

use leasehold_testkit::history::{Effect, Mode};

use super::{History, history};

/// A permit of two, until the time 500.
fn permit(h: History, ms: u64, hold: &str) -> History {
    h.asks(ms, "a", Mode::Permit(2), None)
        .ok(ms, "a", hold, 500)
}

#[test]
fn i17_no_more_permits_are_out_than_there_are() {
    let two = || permit(permit(history(), 10, "a:1"), 11, "a:2");
    two().keeps_everything();
    permit(two(), 12, "a:3").breaks(&["I17"]);
    permit(two().gives_back(12, "a", "a:1"), 14, "a:3").keeps_everything();
    // Leases that are over count no more.
    permit(two(), 501, "a:3").keeps_everything();
    // A server that forgets who has permits gives them out once more.
    permit(two().fault(11, 12, Effect::LosesLocks), 13, "a:3").breaks_with_excuse("I17");
    permit(two(), 13, "a:3")
        .fault(20, 30, Effect::LosesLocks)
        .breaks(&["I17"]);
}

#[test]
fn i17_nor_does_the_server_show_more() {
    let two = || permit(permit(history(), 10, "a:1"), 11, "a:2");
    let asked = || two().asks(12, "a", Mode::Permit(2), None);
    asked().shows(20, &["a:1", "a:2"], 480).keeps_everything();
    asked()
        .shows(20, &["a:1", "a:2", "a:3"], 480)
        .breaks(&["I17"]);
}
