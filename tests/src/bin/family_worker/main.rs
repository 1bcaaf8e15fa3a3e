//! A worker process of the storms of the whole family: tasks that take locks and permits of every kind, meet at latches and
//! barriers, and record what happens, until they are stopped, killed or frozen.
//!
//! `family_worker URL BESIDE DIRECTORY SEED MODE`: BESIDE are the URLs of further servers, separated by commas, and MODE says
//! whether replicas have to confirm. It prints nothing unless it fails.

mod held;
mod meeting;
mod task;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Error, Locks, Redlock, Replicas};
use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::Recorder;
use leasehold_testkit::storm::{COMMAND_TIMEOUT, LEASE, Mode};
use tokio::time::sleep;

/// Tasks of a process.
const TASKS: u64 = 6;

/// State shared by the tasks of a process.
struct Worker {
    locks: Locks,
    /// Locks at the majority of the servers beside.
    red: Redlock,
    mode: Mode,
    dir: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, beside, dir, seed, mode] = args.as_slice() else {
        println!("family_worker URL BESIDE DIRECTORY SEED MODE");
        return ExitCode::FAILURE;
    };
    let mode = Mode::named(mode).expect("a mode");
    let dir = Path::new(dir);
    let recorder = Recorder::open(dir, "worker");
    let worker = Arc::new(Worker {
        locks: connected(async || connect(url, mode).await).await,
        red: connected(async || connect_beside(beside).await).await,
        mode,
        dir: dir.to_owned(),
    });
    let seed: u64 = seed.parse().expect("a seed");
    let tasks: Vec<_> = (0..TASKS)
        .map(|n| {
            let recorder = recorder.client(&format!("task-{n}"));
            let chance = Chance::new(seed.wrapping_add(n));
            tokio::spawn(task::run(Arc::clone(&worker), recorder, chance, n))
        })
        .collect();
    for task in tasks {
        // The panic has been printed.
        if task.await.is_err() {
            return ExitCode::FAILURE;
        }
    }
    std::fs::write(dir.join(format!("done-{}", std::process::id())), "")
        .expect("the directory is writable");
    ExitCode::SUCCESS
}

async fn connect(url: &str, mode: Mode) -> Result<Locks, Error> {
    let replicas = match mode {
        Mode::Fast => Replicas::None,
        Mode::Safe => Replicas::All,
    };
    let builder = Locks::builder(url)
        .lease(LEASE)
        .replicated(replicas)
        .command_timeout(COMMAND_TIMEOUT)
        .connect_timeout(COMMAND_TIMEOUT);
    builder.connect().await
}

async fn connect_beside(urls: &str) -> Result<Redlock, Error> {
    let builder = Redlock::builder(urls.split(','))
        .lease(LEASE)
        .command_timeout(COMMAND_TIMEOUT)
        .connect_timeout(COMMAND_TIMEOUT);
    builder.connect().await
}

/// Connects, however long faults prevent it.
async fn connected<T>(connect: impl AsyncFn() -> Result<T, Error>) -> T {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        match connect().await {
            Ok(connected) => return connected,
            Err(error) => assert!(
                Instant::now() < give_up,
                "no connection for a minute: {error}"
            ),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

impl Worker {
    /// Whether the storm is over.
    fn is_over(&self) -> bool {
        self.dir.join("stop").exists()
    }
}
