//! Worker processes without proxies, for storms in which the servers themselves change their roles.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::{Effect, Recorder, What};
use leasehold_testkit::process::{Watched, freeze, thaw};
use leasehold_testkit::storm::{LEASE, LOCKS};
use leasehold_testkit::{Ledger, Scratch, until};
use tokio::time::sleep;

/// Worker processes at a time.
const WORKERS: usize = 3;

/// How long workers may take to end when they are told to: a bound against hangs.
const STOP: Duration = Duration::from_secs(60);

/// How long a process is waited for to hold a lock, before it is struck all the same.
const AIM: Duration = Duration::from_secs(4);

/// The workers, and what they write.
pub(crate) struct Fleet {
    /// The histories of all processes, the ledgers, the workers' logs.
    pub(crate) dir: Scratch,
    recorder: Recorder,
    url: String,
    workers: Vec<Watched>,
    faults: u64,
}

impl Fleet {
    /// Starts the workers; they begin at once.
    pub(crate) fn start(url: String, chance: &mut Chance) -> Self {
        let dir = Scratch::new();
        let recorder = Recorder::open(dir.path(), "storm");
        let mut fleet = Self { dir, recorder, url, workers: Vec::new(), faults: 0 };
        fleet.workers = (0..WORKERS).map(|_| fleet.spawn(chance.below(u64::MAX))).collect();
        fleet
    }

    fn spawn(&self, seed: u64) -> Watched {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_storm_worker"));
        // No server to ask who holds: it would be another one after each failover.
        let args = [self.url.clone(), "-".into(), self.dir.path().display().to_string(), seed.to_string()];
        Watched::spawn(&program, &args, self.dir.path(), &self.dir.join("log"))
    }

    /// Writes down a fault around `work`.
    pub(crate) async fn fault<T>(&mut self, kind: &str, effect: Effect, work: impl Future<Output = T>) -> T {
        let id = self.faults;
        self.faults += 1;
        println!("fault {id}: {kind}");
        self.recorder.record(What::FaultStart { id, kind: kind.into(), effect });
        let done = work.await;
        self.recorder.record(What::FaultEnd { id });
        done
    }

    /// SIGKILL to a worker, and another one takes its place.
    pub(crate) async fn kill_one(&mut self, chance: &mut Chance) {
        let index = chance.below(WORKERS as u64) as usize;
        self.aim(index).await;
        let pid = self.workers[index].pid();
        let recorder = self.recorder.clone();
        let next = self.spawn(chance.below(u64::MAX));
        let mut killed = std::mem::replace(&mut self.workers[index], next);
        let work = async {
            killed.kill();
            // Afterwards: until then it may have written more. What it held is held until its lease ends.
            recorder.record(What::Died { pid });
        };
        self.fault("KillWorker", Effect::Delays, work).await;
    }

    /// Stops a worker that holds a lock, for longer than the lease, and lets it go on as if nothing had been.
    pub(crate) async fn freeze_one(&mut self, chance: &mut Chance) {
        let index = chance.below(WORKERS as u64) as usize;
        self.aim(index).await;
        let pid = self.workers[index].pid();
        let time = LEASE + chance.millis(500, 1_500);
        let work = async {
            freeze(pid);
            sleep(time).await;
            thaw(pid);
        };
        self.fault("FreezeWorker", Effect::Freezes(pid), work).await;
    }

    /// Waits until a worker has a lock and lingers on it, if it gets one soon.
    async fn aim(&self, index: usize) {
        let mark = self.dir.join(&format!("linger-{}", self.workers[index].pid()));
        std::fs::write(&mark, "").expect("the directory is writable");
        let give_up = Instant::now() + AIM;
        while mark.exists() && Instant::now() < give_up {
            sleep(Duration::from_millis(5)).await;
        }
        // Else it would linger later, for nothing.
        let _ = std::fs::remove_file(mark);
    }

    /// Waits until every lock was worked under again.
    pub(crate) async fn progresses(&self) {
        let before: Vec<u64> = self.ledgers().iter().map(Ledger::writes).collect();
        until("every lock is taken again", async || {
            let now: Vec<u64> = self.ledgers().iter().map(Ledger::writes).collect();
            let moved = before.iter().zip(&now).all(|(before, now)| now > before);
            if moved { Ok(()) } else { Err(format!("writes were {before:?}, are {now:?}; logs:\n{}", self.logs())) }
        })
        .await;
    }

    /// Tells the workers to stop and waits for them.
    pub(crate) async fn stop(&mut self) {
        std::fs::write(self.dir.join("stop"), "").expect("the directory is writable");
        let give_up = Instant::now() + STOP;
        let logs = self.logs();
        for worker in &mut self.workers {
            while worker.is_running() {
                assert!(Instant::now() < give_up, "worker {} does not end; logs:\n{logs}", worker.pid());
                sleep(Duration::from_millis(20)).await;
            }
            let done = self.dir.join(&format!("done-{}", worker.pid()));
            assert!(done.exists(), "worker {} failed; logs:\n{logs}", worker.pid());
        }
    }

    /// The ids of the workers that run at the end.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(Watched::pid).collect()
    }

    /// What the workers printed.
    pub(crate) fn logs(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    pub(crate) fn ledgers(&self) -> Vec<Ledger> {
        LOCKS.iter().map(|name| Ledger::open(self.dir.join(name))).collect()
    }
}
