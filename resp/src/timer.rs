//! Instants for the timers of the runtime.

use std::time::Instant;

/// When a timer is to fire that is meant for `at`.
#[cfg(not(feature = "in-process"))]
pub fn timer_at(at: Instant) -> tokio::time::Instant {
    at.into()
}

/// When a timer is to fire that is meant for `at`.
///
/// Counted from the runtime's own time: in a test with paused time that runs ahead of the machine's, and a timer for an instant
/// of the machine would fire again and again.
#[cfg(feature = "in-process")]
pub fn timer_at(at: Instant) -> tokio::time::Instant {
    tokio::time::Instant::now() + at.saturating_duration_since(Instant::now())
}
