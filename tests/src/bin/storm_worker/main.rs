//! A worker process of the storms: tasks that take locks in every possible way, work under them and
//! record what happens, until they are stopped, killed or frozen.
//!
//! `storm_worker URL DIRECTORY SEED MODE`: locks are taken through URL, where the faults are injected;
//! MODE says whether replicas have to confirm. It prints nothing unless it fails.

mod task;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Locks, Replicas};
use leasehold_testkit::Ledger;
use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::Recorder;
use leasehold_testkit::storm::{COMMAND_TIMEOUT, GiveUp, LEASE, LOCKS, Linger, Mode, TASKS};
use tokio::sync::Notify;
use tokio::time::sleep;

/// State shared by the tasks of a process.
struct Worker {
    locks: Locks,
    ledgers: Vec<Ledger>,
    dir: PathBuf,
    /// Tells all tasks to give up what they wait for.
    give_up: Notify,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, dir, seed, mode] = args.as_slice() else {
        println!("storm_worker URL DIRECTORY SEED MODE");
        return ExitCode::FAILURE;
    };
    let mode = Mode::named(mode).expect("a mode");
    let dir = Path::new(dir);
    let recorder = Recorder::open(dir, "worker");
    let worker = Arc::new(Worker {
        locks: connect(url, mode).await,
        ledgers: LOCKS
            .iter()
            .map(|name| Ledger::open(dir.join(name)))
            .collect(),
        dir: dir.to_owned(),
        give_up: Notify::new(),
    });
    tokio::spawn(give_up_when_told(Arc::clone(&worker)));
    let seed: u64 = seed.parse().expect("a seed");
    let tasks: Vec<_> = (0..TASKS)
        .map(|n| {
            let recorder = recorder.client(&format!("task-{n}"));
            tokio::spawn(task::run(
                Arc::clone(&worker),
                recorder,
                Chance::new(seed.wrapping_add(n)),
            ))
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

/// Follows the storm's instructions to give up.
async fn give_up_when_told(worker: Arc<Worker>) {
    let file = GiveUp::file(&worker.dir, std::process::id());
    loop {
        if file.exists() {
            worker.give_up.notify_waiters();
            // While their futures are being dropped, or just before.
            let _ = std::fs::remove_file(&file);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Connects, however long faults prevent it.
async fn connect(url: &str, mode: Mode) -> Locks {
    let give_up = Instant::now() + Duration::from_secs(60);
    let replicas = match mode {
        Mode::Fast => Replicas::None,
        Mode::Safe => Replicas::All,
    };
    loop {
        let builder = Locks::builder(url).lease(LEASE).replicated(replicas);
        match builder
            .command_timeout(COMMAND_TIMEOUT)
            .connect_timeout(COMMAND_TIMEOUT)
            .connect()
            .await
        {
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

    /// The time for which the storm wants this hold of `key` to be kept.
    fn lingers(&self, key: &str) -> Option<Duration> {
        Linger::take(&Linger::file(&self.dir, std::process::id()), key)
    }
}
