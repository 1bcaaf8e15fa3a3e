//! Waiting for something to become true, with a bound and a reason.

use std::time::{Duration, Instant};

use tokio::time::timeout;

/// Upper bound on each wait for servers: failovers, replication links, votes. It ends hangs and
/// promises no speed.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Upper bound on one question to a server that may be frozen.
pub(crate) const PROBE: Duration = Duration::from_secs(2);

/// Pause between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(5);

/// Milliseconds.
#[must_use]
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Awaits `future` for at most `bound`.
///
/// # Panics
///
/// When it takes longer.
pub async fn within<F: Future>(bound: Duration, what: &str, future: F) -> F::Output {
    timeout(bound, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {bound:?}"))
}

/// As [`until_for`], for at most a minute: for what servers do by themselves.
///
/// # Panics
///
/// After that time.
pub async fn until<A: Answer>(what: &str, ask: impl AsyncFnMut() -> A) -> A::Value {
    until_for(BOUND, what, ask).await
}

/// Asks again and again until the answer is `true` or `Ok`, whose value is returned.
///
/// # Panics
///
/// When it is still `false` or `Err` after `bound`; the message has the last error.
pub async fn until_for<A: Answer>(
    bound: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> A,
) -> A::Value {
    let give_up = Instant::now() + bound;
    loop {
        match ask().await.into_result() {
            Ok(value) => return value,
            Err(why) => assert!(
                Instant::now() < give_up,
                "{what}: not within {bound:?}; {why}"
            ),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// An answer to the question of [`until`].
pub trait Answer {
    /// The value that ends the wait.
    type Value;

    /// The value that ends the wait, or why it goes on.
    ///
    /// # Errors
    ///
    /// Why the wait goes on.
    fn into_result(self) -> Result<Self::Value, String>;
}

impl Answer for bool {
    type Value = ();

    fn into_result(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("not yet".into()) }
    }
}

impl<T> Answer for Result<T, String> {
    type Value = T;

    fn into_result(self) -> Self {
        self
    }
}
