//! A worker process of the storms of the whole family: tasks that take locks and permits of every kind, meet at latches and
//! barriers, and record what happens, until they are stopped, killed or frozen.
//!
//! `family_worker URL DIRECTORY SEED MODE`: MODE says whether replicas have to confirm. It prints nothing unless it fails.

mod held;
mod meeting;
mod task;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Locks, Replicas};
use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::Recorder;
use leasehold_testkit::storm::{COMMAND_TIMEOUT, LEASE, Mode};
use tokio::time::sleep;

/// Tasks of a process.
const TASKS: u64 = 6;

/// State shared by the tasks of a process.
struct Worker {
    locks: Locks,
    dir: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, dir, seed, mode] = args.as_slice() else {
        println!("family_worker URL DIRECTORY SEED MODE");
        return ExitCode::FAILURE;
    };
    let mode = Mode::named(mode).expect("a mode");
    let dir = Path::new(dir);
    let recorder = Recorder::open(dir, "worker");
    let worker = Arc::new(Worker {
        locks: connect(url, mode).await,
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

/// Connects, however long faults prevent it.
async fn connect(url: &str, mode: Mode) -> Locks {
    let give_up = Instant::now() + Duration::from_secs(60);
    let replicas = match mode {
        Mode::Fast => Replicas::None,
        Mode::Safe => Replicas::All,
    };
    loop {
        let builder = Locks::builder(url)
            .lease(LEASE)
            .replicated(replicas)
            .command_timeout(COMMAND_TIMEOUT)
            .connect_timeout(COMMAND_TIMEOUT);
        match builder.connect().await {
            Ok(locks) => return locks,
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
