//! A budget of commands a second, shared by everything that looks at the servers of one program.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Spends commands no faster than the budget allows.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Commands a second.
    budget: u32,
    /// When all that was spent so far is paid for.
    paid: Mutex<Instant>,
}

impl Pace {
    pub(crate) fn new(budget: u32) -> Self {
        Self {
            budget: budget.max(1),
            paid: Mutex::new(Instant::now()),
        }
    }

    /// Waits until so many commands may be sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future keeps them spent.
    pub(crate) async fn spend(&self, commands: u32) {
        let due = {
            let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
            let start = (*paid).max(Instant::now());
            *paid = start + Duration::from_secs(1) * commands / self.budget;
            start
        };
        tokio::time::sleep_until(due).await;
    }
}
