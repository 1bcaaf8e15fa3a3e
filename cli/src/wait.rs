//! How long to wait for a lock.

use std::time::Duration;

use clap::Args as Arguments;

use crate::duration;

/// The arguments that say how long; without any, as long as others have it.
#[derive(Arguments, Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Does not wait: exits with 75 if others have it.
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    try_once: bool,
    /// Waits for so long at most, then exits with 75.
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse)]
    wait: Option<Duration>,
}

impl Waiting {
    /// The longest wait; `None` for one without an end.
    pub(crate) fn at_most(&self) -> Option<Duration> {
        if self.try_once {
            return Some(Duration::ZERO);
        }
        self.wait
    }

    /// Whether there is a single attempt.
    pub(crate) fn is_try(&self) -> bool {
        self.try_once || self.wait == Some(Duration::ZERO)
    }
}
