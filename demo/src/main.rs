//! `make demo`: four processes of sixteen tasks contend for three locks. A lock protects a number
//! in a file, which its holder reads, changes and writes back. One process is killed while it holds
//! a lock, another one is frozen past its lease and woken, and in the end not one update may be
//! missing.
//!
//! `make demo-cluster`: the same on a cluster with a lock on each of its masters. A master is
//! killed and comes back as a replica, and the slot of a lock moves, while the locks are in use.
//!
//! Exit status: 0, 1 when an update was lost, 2 when the demo could not run.

mod cluster;
mod event;
mod fleet;
mod placement;
mod screen;
mod server;
mod stage;
mod stats;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use stage::Ending;
use tokio::task::LocalSet;

/// The contended resources. Each name is a lock and a ledger.
pub(crate) const LOCKS: [&str; 3] = ["stock", "orders", "payments"];
pub(crate) const WORKERS: usize = 4;
pub(crate) const TASKS: usize = 16;

/// Short, so that a lease soon runs out.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// The first argument of a worker process, and the option that takes the locks away.
pub(crate) const WORKER: &str = "worker";
const WITHOUT_LOCKS: &str = "--without-locks";
const CLUSTER: &str = "--cluster";

/// The environment variable with the server's URL for a worker.
pub(crate) const URL_VARIABLE: &str = "LEASEHOLD_DEMO_URL";

/// An error that keeps the demo from running.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The variant of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One server, and faults of the workers.
    Server,
    /// A cluster, and faults of its nodes besides.
    Cluster,
    /// One server, and no locks.
    WithoutLocks,
}

impl Mode {
    /// By its option, if that is one.
    fn parse(options: &[&str]) -> Option<Self> {
        [Self::Server, Self::Cluster, Self::WithoutLocks]
            .into_iter()
            .find(|mode| mode.option().as_slice() == options)
    }

    pub(crate) fn option(self) -> Option<&'static str> {
        match self {
            Self::Server => None,
            Self::Cluster => Some(CLUSTER),
            Self::WithoutLocks => Some(WITHOUT_LOCKS),
        }
    }
}

const USAGE: &str = "usage: demo [--cluster | --without-locks]

--cluster         on a private cluster, whose nodes fail as well
--without-locks   show what the ledgers look like when nobody takes a lock
LEASEHOLD_URL     use this server instead of a private one, as in redis://127.0.0.1:6379
LEASEHOLD_SERVER  the program to start private servers with";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = || {
        eprintln!("{USAGE}");
        ExitCode::from(2)
    };
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [WORKER, directory, namespace, ref options @ ..] => {
            Mode::parse(options).map_or_else(usage, |mode| worker::main(directory, namespace, mode))
        }
        ["--help" | "-h"] => {
            screen::print(&format!("{USAGE}\n"));
            ExitCode::SUCCESS
        }
        ref options => Mode::parse(options).map_or_else(usage, orchestrate),
    }
}

fn orchestrate(mode: Mode) -> ExitCode {
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::from)
        // Local, because the futures of the test kit are not `Send`.
        .and_then(|runtime| LocalSet::new().block_on(&runtime, stage::perform(mode)));
    match outcome {
        Ok(Ending::Whole) => {
            screen::print("\nNo update was lost.\n");
            ExitCode::SUCCESS
        }
        Ok(Ending::Lost(updates)) => {
            screen::print(&format!("\nFAILED: {updates} updates were lost.\n"));
            ExitCode::from(1)
        }
        Ok(Ending::Interrupted) => {
            screen::print("\nInterrupted; everything was cleaned up.\n");
            ExitCode::from(130)
        }
        Err(failure) => {
            eprintln!("\nThe demo could not run: {failure}");
            ExitCode::from(2)
        }
    }
}
