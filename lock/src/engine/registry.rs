//! All holds and waiters of one `Locks`, as the users' tasks and the renewal worker share them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use leasehold_cluster::Client;

use super::clock::Clock;
use super::hold::Hold;
use super::home::Home;
use super::presence::Presence;
use super::table::Table;
use super::telemetry::Telemetry;
use super::work_queue::WorkQueue;
use crate::error::{Error, ErrorKind};
use crate::options::Interop;

/// Starts the renewal worker.
pub(crate) type SpawnWorker = Box<dyn Fn(Arc<Registry>) -> io::Result<()> + Send + Sync>;

pub(crate) struct Registry {
    pub(crate) table: Table,
    pub(crate) work: WorkQueue,
    pub(crate) telemetry: Arc<Telemetry>,
    /// The process whose locks these are.
    pub(crate) home: Home,
    pub(crate) interop: Interop,
    /// The entry of this process on the server.
    pub(crate) presence: Presence,
    pub(crate) clock: Clock,
    spawn: SpawnWorker,
}

impl Registry {
    /// An empty registry. `spawn` starts the worker when there is work for it.
    pub(crate) fn new(
        seed: u64,
        interop: Interop,
        presence: Presence,
        clock: Clock,
        telemetry: Arc<Telemetry>,
        spawn: SpawnWorker,
    ) -> Arc<Self> {
        Arc::new(Self {
            table: Table::new(clock.clone()),
            work: WorkQueue::new(seed, clock.clone()),
            telemetry,
            home: Home::here(),
            interop,
            presence,
            clock,
            spawn,
        })
    }

    /// Something was taken for this long, or is waited for: others shall find out by whom.
    pub(crate) fn note_use(self: &Arc<Self>, client: &Client, lease: Duration) {
        let Some(submitted) = self.presence.used(client, lease) else {
            return;
        };
        let this = Arc::clone(self);
        submitted.detach(move |outcome| {
            if this.presence.settle(&outcome) {
                this.work.wake();
                // Without a thread they do not find out, and that is all.
                let _ = this.start_worker();
            }
        });
    }

    /// Whether anything is held or waited for.
    pub(crate) fn is_busy(&self) -> bool {
        self.table.is_busy() || self.presence.is_watching()
    }

    /// How long `hold` may be trusted here; zero when it is over, or this process was forked from the one that has it.
    pub(crate) fn left(&self, hold: &Hold) -> Duration {
        if self.home.is_elsewhere() {
            return Duration::ZERO;
        }
        hold.left()
    }

    /// Starts the renewal worker, unless it runs.
    pub(crate) fn start_worker(self: &Arc<Self>) -> Result<(), Error> {
        self.work
            .start(|| (self.spawn)(Arc::clone(self)))
            .map_err(|error| Error::new(ErrorKind::Thread, error.to_string()))
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}
