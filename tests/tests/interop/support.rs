//! Helpers of the tests beside Redisson.

use std::time::Duration;

pub(crate) use leasehold_testkit::ms;
use leasehold_testkit::wait::{self, Answer};
use leasehold_testkit::{Raw, RawValue, until_for};

/// Upper bound on each wait: shorter than the leases of 30 s, so that nothing passes only because a lease has ended.
const BOUND: Duration = Duration::from_secs(20);

/// A wait that was shorter ended by a message. One of ours looks by itself after a second for the first time; one of Redisson's asks
/// again when the lease is over that it saw, after two thirds of 6 s at the earliest here, or a lock of several its 1.5 s for each.
const NO_LOOK: Duration = Duration::from_secs(1);

/// How many hand-offs of a kind may come too late to tell a message from a look, as on a machine that stood still.
const UNTOLD: usize = 12;

/// Awaits `future`, but not for ever.
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    wait::within(BOUND, what, future).await
}

/// Asks again and again until it is so.
pub(crate) async fn until<A: Answer>(what: &str, ask: impl AsyncFnMut() -> A) -> A::Value {
    until_for(BOUND, what, ask).await
}

/// Hand-offs of one kind: the times that they took, and whether each came by a message.
///
/// That is told by what else could have woken the waiter, and not by a bound on the time from the release: where it began to
/// wait so late that it cannot have asked again by itself, only a message is left. On a machine that stood still nothing can be
/// told, and there is another round.
pub(crate) struct HandOffs {
    what: String,
    micros: Vec<u64>,
    by_message: usize,
}

impl HandOffs {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            micros: Vec::new(),
            by_message: 0,
        }
    }

    /// Whether fewer than `rounds` were by message so far. Fails if that could not be told of too many.
    pub(crate) fn are_fewer_than(&self, rounds: usize) -> bool {
        let untold = self.micros.len() - self.by_message;
        let (what, micros) = (&self.what, &self.micros);
        assert!(untold <= UNTOLD, "{what}: by no message: {micros:?} µs");
        self.by_message < rounds
    }

    /// To one that began to wait at `began`, for what was released at `released` and is its own since `held`.
    pub(crate) fn add(&mut self, began: u64, released: u64, held: u64) {
        self.micros.push(held.saturating_sub(released));
        if Duration::from_micros(held.saturating_sub(began)) < NO_LOOK {
            self.by_message += 1;
        }
    }

    /// Prints them.
    pub(crate) fn print(mut self) {
        self.micros.sort_unstable();
        let middle = Duration::from_micros(self.micros[self.micros.len() / 2]);
        println!(
            "hand-off {}: {:?} of {:?} µs, {} surely by message",
            self.what, middle, self.micros, self.by_message
        );
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

/// The queue of Redisson's fair lock `name`: its holders' ids, and markers of ours.
pub(crate) async fn queue(raw: &mut Raw, name: &str) -> Vec<String> {
    let key = beside("redisson_lock_queue", name);
    let all = raw.cmd(&["LRANGE", &key, "0", "-1"]).await;
    let all = all.array().iter().map(RawValue::str);
    all.map(str::to_owned).collect()
}

/// Whether there is a key of this name.
pub(crate) async fn exists(raw: &mut Raw, key: &str) -> bool {
    raw.cmd(&["EXISTS", key]).await.int() == 1
}

/// A key or channel that belongs to the lock `name`: Redisson adds braces to a name without any.
pub(crate) fn beside(prefix: &str, name: &str) -> String {
    if name.contains('{') {
        format!("{prefix}:{name}")
    } else {
        format!("{prefix}:{{{name}}}")
    }
}
