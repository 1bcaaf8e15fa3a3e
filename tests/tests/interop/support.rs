//! Helpers of the tests beside Redisson.

use std::time::Duration;

use leasehold_testkit::history::now;
pub(crate) use leasehold_testkit::ms;
use leasehold_testkit::wait::{self, Answer};
use leasehold_testkit::{Raw, until_for};

/// Upper bound on each wait: shorter than the leases of 30 s, so that nothing passes only because a lease has ended.
const BOUND: Duration = Duration::from_secs(20);

/// Upper bound on the middle one of some hand-offs, for a busy machine. Those by a lease take half a minute, and those by a look
/// of ours a second.
const BY_MESSAGE: Duration = Duration::from_millis(500);

/// Awaits `future`, but not for ever.
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    wait::within(BOUND, what, future).await
}

/// Asks again and again until it is so.
pub(crate) async fn until<A: Answer>(what: &str, ask: impl AsyncFnMut() -> A) -> A::Value {
    until_for(BOUND, what, ask).await
}

/// The times that hand-offs of one kind took.
pub(crate) struct HandOffs {
    what: String,
    micros: Vec<u64>,
}

impl HandOffs {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            micros: Vec::new(),
        }
    }

    /// From the begin of a release until now, when the next one holds.
    pub(crate) fn until_now(&mut self, released: u64) {
        self.add(released, now());
    }

    pub(crate) fn add(&mut self, released: u64, held: u64) {
        self.micros.push(held.saturating_sub(released));
    }

    /// Prints them, and fails if they were not by message.
    pub(crate) fn were_by_message(mut self) {
        self.micros.sort_unstable();
        let middle = Duration::from_micros(self.micros[self.micros.len() / 2]);
        println!(
            "hand-off {}: {:?} of {:?} µs",
            self.what, middle, self.micros
        );
        assert!(middle < BY_MESSAGE, "{}: {:?}", self.what, self.micros);
    }
}

/// The fields of a lock, sorted: `u:1=2 u:2=1`.
pub(crate) async fn fields(raw: &mut Raw, key: &str) -> String {
    let all = raw.cmd(&["HGETALL", key]).await;
    let mut pairs: Vec<String> = all
        .array()
        .chunks(2)
        .map(|pair| format!("{}={}", pair[0].str(), pair[1].str()))
        .collect();
    pairs.sort();
    pairs.join(" ")
}

/// A key or channel that belongs to the lock `name`: Redisson adds braces to a name without any.
pub(crate) fn beside(prefix: &str, name: &str) -> String {
    if name.contains('{') {
        format!("{prefix}:{name}")
    } else {
        format!("{prefix}:{{{name}}}")
    }
}
