//! `make demo`: four processes of sixteen tasks fight over three locks. What a lock protects is a number in a file, which
//! its holder reads, changes and writes back. One process is killed while it holds a lock, another one is frozen past
//! its lease and woken, and in the end not one update may be missing.
//!
//! Exit status: 0, 1 when an update was lost, 2 when the demo could not run.

mod event;
mod fleet;
mod screen;
mod server;
mod stage;
mod stats;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use stage::Ending;

/// What is fought over. Each name is a lock and a ledger.
pub(crate) const LOCKS: [&str; 3] = ["stock", "orders", "payments"];
pub(crate) const WORKERS: usize = 4;
pub(crate) const TASKS: usize = 16;

/// Short, so that what happens when one runs out is soon seen.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// The first argument of a worker process, and the option that takes the locks away.
pub(crate) const WORKER: &str = "worker";
pub(crate) const WITHOUT_LOCKS: &str = "--without-locks";

/// How a worker is told where the server is.
pub(crate) const URL_VARIABLE: &str = "LEASEHOLD_DEMO_URL";

/// Whatever keeps the demo from running.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "usage: demo [--without-locks]

--without-locks   show what the ledgers look like when nobody takes a lock
LEASEHOLD_URL     use this server instead of a private one, as in redis://127.0.0.1:6379
LEASEHOLD_SERVER  the program to start a private server with";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [WORKER, directory, namespace] => worker::main(directory, namespace, false),
        [WORKER, directory, namespace, WITHOUT_LOCKS] => worker::main(directory, namespace, true),
        [] => orchestrate(false),
        [WITHOUT_LOCKS] => orchestrate(true),
        ["--help" | "-h"] => {
            screen::print(&format!("{USAGE}\n"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn orchestrate(without_locks: bool) -> ExitCode {
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::from)
        .and_then(|runtime| runtime.block_on(stage::perform(without_locks)));
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
