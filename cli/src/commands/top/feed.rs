//! Looks at the servers again and again, beside the screen.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::look::Looker;
use crate::look::processes::Processes;
use crate::look::seen::Seen;
use crate::look::survey::{Wanted, in_use};

/// The result of one look.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) locks: Vec<Seen>,
    pub(super) processes: Processes,
    /// Servers that could not be asked.
    pub(super) failures: Vec<String>,
    /// No server answered.
    pub(super) is_blind: bool,
    /// How long it took.
    pub(super) took: Duration,
}

/// Starts looking; ends when the receiver is dropped.
pub(super) fn start(
    looker: Looker,
    pattern: Option<Vec<u8>>,
    interval: Duration,
) -> mpsc::Receiver<Snapshot> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let wanted = Wanted {
            pattern,
            tickets: 1,
        };
        loop {
            let start = Instant::now();
            let (survey, processes) = looker.survey(&wanted).await;
            let mut locks = survey.locks;
            locks.retain(in_use);
            let snapshot = Snapshot {
                locks,
                processes,
                is_blind: survey.failures.len() == survey.masters,
                failures: survey.failures.iter().map(ToString::to_string).collect(),
                took: start.elapsed(),
            };
            if sender.send(snapshot).await.is_err() {
                return;
            }
            tokio::time::sleep(interval.saturating_sub(start.elapsed())).await;
        }
    });
    receiver
}
