//! Waiting for something to become true, with a bound and a reason.

use std::time::{Duration, Instant};

/// A bound against hangs, not a promise: on a machine that is busy with other tests everything takes its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a server that is awake, but may be busy, is waited for.
pub(crate) const GLANCE: Duration = Duration::from_secs(2);

/// Asks again and again until the answer is a value. A refusal says why not yet.
///
/// # Panics
///
/// After a minute, with the last refusal.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<T, String>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(value) => return value,
            Err(why) => assert!(
                Instant::now() < give_up,
                "{what}: not within {PATIENCE:?}; {why}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
