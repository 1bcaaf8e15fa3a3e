//! The worker processes of a storm, which contend for a few locks, and the record of its faults.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::{Effect, Recorder, What};
use leasehold_testkit::process::{Watched, freeze, thaw};
use leasehold_testkit::storm::{LEASE, LOCKS, Linger, Mode};
use leasehold_testkit::{Ledger, Scratch};
use tokio::sync::Mutex;
use tokio::time::sleep;

/// Upper bound on the time in which workers stop.
const STOP: Duration = Duration::from_secs(60);

/// Upper bound on the time in which the workers get every lock once more.
const PROGRESS: Duration = Duration::from_secs(60);

/// Upper bound on the wait for a process to hold a lock; afterwards the fault is injected without.
const AIM: Duration = Duration::from_secs(4);

/// Upper bound on the wait for others to take the locks of a frozen process, once its lease is
/// over.
const SUCCESSION: Duration = Duration::from_secs(10);

/// The duration of a storm if all faults were injected by then: `short`, or two minutes and a half
/// with `LEASEHOLD_LONG`.
pub(crate) fn time(short: Duration) -> Duration {
    if std::env::var_os("LEASEHOLD_LONG").is_some() {
        Duration::from_secs(150)
    } else {
        short
    }
}

/// The workers and the record.
pub(crate) struct Fleet {
    /// The name of this storm: there may be another one at the same time.
    pub(crate) name: String,
    pub(crate) seed: u64,
    mode: Mode,
    /// The histories of all processes, the ledgers, the workers' logs.
    pub(crate) dir: Scratch,
    pub(crate) recorder: Recorder,
    posts: Vec<Post>,
    faults: AtomicU64,
}

/// A place for one worker process at a time.
struct Post {
    /// The URL of its locks.
    url: String,
    /// The server that is asked for the holders; `-` for none.
    witness: String,
    /// Locked during a fault of the process.
    worker: Mutex<Watched>,
}

impl Fleet {
    /// Starts a worker for each `(url, witness)`; they begin at once. `LEASEHOLD_SEED` repeats all
    /// random choices.
    pub(crate) fn start(name: &str, mode: Mode, posts: &[(String, String)]) -> Self {
        let seed = Chance::seed();
        println!("{name}-{mode}: LEASEHOLD_SEED={seed}");
        let dir = Scratch::new();
        let recorder = Recorder::open(dir.path(), "storm");
        let posts = posts.iter().zip(1..).map(|((url, witness), n)| {
            let worker = spawn(url, witness, dir.path(), seed.wrapping_add(1_000 * n), mode);
            Post {
                url: url.clone(),
                witness: witness.clone(),
                worker: Mutex::new(worker),
            }
        });
        let posts = posts.collect();
        Self {
            name: format!("{name}-{mode}"),
            seed,
            mode,
            dir,
            recorder,
            posts,
            faults: AtomicU64::new(0),
        }
    }

    /// Records a fault around `work`.
    pub(crate) async fn fault<T>(
        &self,
        kind: &str,
        effect: Effect,
        work: impl Future<Output = T>,
    ) -> T {
        let id = self.faults.fetch_add(1, Ordering::Relaxed);
        self.recorder.record(What::FaultStart {
            id,
            kind: kind.into(),
            effect,
        });
        let begun = Instant::now();
        let done = work.await;
        self.recorder.record(What::FaultEnd { id });
        println!(
            "{}: fault {id}, {kind}, over after {:?}",
            self.name,
            begun.elapsed()
        );
        done
    }

    /// One of the workers at random.
    pub(crate) fn pick(&self, chance: &mut Chance) -> usize {
        chance.below(self.posts.len() as u64) as usize
    }

    /// SIGKILL to a worker, mostly while it holds a lock; another one takes its place.
    pub(crate) async fn kill(&self, index: usize, chance: &mut Chance) {
        let post = &self.posts[index];
        let mut worker = post.worker.lock().await;
        let pid = worker.pid();
        if chance.percent(70) {
            self.aim(pid, "", 2 * LEASE).await;
        }
        let work = async {
            worker.kill();
            // After the kill: until then it may have written more. Its holds last until their
            // leases end.
            self.recorder.record(What::Died { pid });
            *worker = spawn(
                &post.url,
                &post.witness,
                self.dir.path(),
                chance.below(u64::MAX),
                self.mode,
            );
        };
        self.fault("KillWorker", Effect::Delays, work).await;
    }

    /// SIGSTOP to a worker that holds a lock, for longer than the lease, then SIGCONT. Returns
    /// whether it held one that others got meanwhile: then it is notified of a loss, and a write
    /// without a check is stale.
    pub(crate) async fn freeze(&self, index: usize, chance: &mut Chance) -> bool {
        let worker = self.posts[index].worker.lock().await;
        let pid = worker.pid();
        let held = self.aim(pid, "", 2 * LEASE).await;
        let work = async {
            freeze(pid);
            sleep(LEASE + chance.millis(500, 1_500)).await;
            // On a machine that was suspended no other worker has taken its place yet. And if it
            // was stopped during a write, the resource blocks the others.
            let others = self.works_on(SUCCESSION).await;
            thaw(pid);
            others
        };
        self.fault("FreezeWorker", Effect::Freezes(pid), work).await && held
    }

    /// Waits until a worker has the lock `key` (any if empty) and keeps it for `time`, if it gets
    /// it soon.
    pub(crate) async fn aim(&self, pid: u32, key: &str, time: Duration) -> bool {
        let file = Linger::file(self.dir.path(), pid);
        Linger {
            time,
            key: key.into(),
        }
        .write(&file);
        let give_up = Instant::now() + AIM;
        while file.exists() && Instant::now() < give_up {
            sleep(Duration::from_millis(5)).await;
        }
        // Otherwise it would linger later, without a purpose.
        std::fs::remove_file(file).is_err()
    }

    /// Waits until every lock was used again.
    pub(crate) async fn progresses(&self) {
        assert!(
            self.works_on(PROGRESS).await,
            "{}: not every lock is taken again; {}",
            self.evidence(),
            self.logs()
        );
    }

    /// Whether every lock is used again within `bound`.
    async fn works_on(&self, bound: Duration) -> bool {
        let writes = || {
            self.ledgers()
                .iter()
                .map(Ledger::writes)
                .collect::<Vec<u64>>()
        };
        let (before, give_up) = (writes(), Instant::now() + bound);
        while Instant::now() < give_up {
            if before
                .iter()
                .zip(writes())
                .all(|(before, now)| now > *before)
            {
                return true;
            }
            sleep(Duration::from_millis(10)).await;
        }
        false
    }

    /// Stops the workers and waits for them.
    pub(crate) async fn stop(&self) {
        std::fs::write(self.dir.join("stop"), "").expect("the directory is writable");
        let give_up = Instant::now() + STOP;
        for post in &self.posts {
            let mut worker = post.worker.lock().await;
            let pid = worker.pid();
            while worker.is_running() {
                assert!(
                    Instant::now() < give_up,
                    "{}: worker {pid} does not end; {}",
                    self.evidence(),
                    self.logs()
                );
                sleep(Duration::from_millis(20)).await;
            }
            let done = self.dir.join(&format!("done-{pid}"));
            assert!(
                done.exists(),
                "{}: worker {pid} failed; {}",
                self.evidence(),
                self.logs()
            );
        }
    }

    /// The ids of the running workers.
    pub(crate) async fn pids(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        for post in &self.posts {
            pids.push(post.worker.lock().await.pid());
        }
        pids
    }

    /// The output of the workers: empty, unless they fail.
    pub(crate) fn logs(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The ledger of each lock.
    pub(crate) fn ledgers(&self) -> Vec<Ledger> {
        LOCKS
            .iter()
            .map(|name| Ledger::open(self.dir.join(name)))
            .collect()
    }
}

/// Starts a worker. Its history, its log and the ledgers are in `dir`.
fn spawn(url: &str, witness: &str, dir: &Path, seed: u64, mode: Mode) -> Watched {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_storm_worker"));
    let args = [
        url.to_owned(),
        witness.to_owned(),
        dir.display().to_string(),
        seed.to_string(),
        mode.to_string(),
    ];
    Watched::spawn(&program, &args, dir, &dir.join("log"))
}
