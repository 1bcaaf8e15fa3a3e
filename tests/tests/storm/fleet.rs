//! The worker processes of a storm, which contend for a few locks, and the record of its faults.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::{Effect, Recorder, What};
use leasehold_testkit::line_watch::LineWatch;
use leasehold_testkit::process::{Watched, freeze, thaw};
use leasehold_testkit::storm::{GiveUp, LEASE, LOCKS, Linger, Mode};
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

/// What a worker does when it is killed or frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moment {
    /// It holds a lock.
    Holding,
    /// It waits, and perhaps holds. A process that is frozen in line is granted locks meanwhile.
    Waiting,
    /// All its tasks give up waiting.
    Cancelling,
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
    /// Locked during a fault of the process.
    worker: Mutex<Watched>,
}

impl Fleet {
    /// Starts a worker for each of these URLs; they begin at once. `LEASEHOLD_SEED` repeats all random
    /// choices.
    pub(crate) fn start(name: &str, mode: Mode, urls: &[String]) -> Self {
        let seed = Chance::seed();
        println!("{name}-{mode}: LEASEHOLD_SEED={seed}");
        let dir = Scratch::new();
        let recorder = Recorder::open(dir.path(), "storm");
        let posts = urls.iter().zip(1..).map(|(url, n)| {
            let worker = spawn(url, dir.path(), seed.wrapping_add(1_000 * n), mode);
            Post {
                url: url.clone(),
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

    /// Records what the server at `addr` does with the locks' lines, until dropped.
    pub(crate) fn watch(&self, addr: SocketAddr) -> LineWatch {
        let locks = LOCKS.map(String::from).into();
        LineWatch::start(addr, locks, self.recorder.client("line"))
    }

    /// SIGKILL to a worker; another one takes its place.
    pub(crate) async fn kill(&self, index: usize, moment: Moment, chance: &mut Chance) {
        let post = &self.posts[index];
        let mut worker = post.worker.lock().await;
        let pid = worker.pid();
        self.await_moment(pid, moment).await;
        let work = async {
            worker.kill();
            // After the kill: until then it may have written more. Its holds last until their
            // leases end.
            self.recorder.record(What::Died { pid });
            *worker = spawn(
                &post.url,
                self.dir.path(),
                chance.below(u64::MAX),
                self.mode,
            );
        };
        let kind = format!("KillWorker {moment:?}");
        self.fault(&kind, Effect::Delays, work).await;
    }

    /// SIGSTOP to a worker, then SIGCONT. Returns whether it had an effect.
    ///
    /// One that holds a lock is stopped for longer than the lease. That has an effect if others got
    /// the lock meanwhile: then it is notified of a loss, and a write without a check is stale.
    /// Others wake up before the lease of a grant is over, or after it.
    pub(crate) async fn freeze(&self, index: usize, moment: Moment, chance: &mut Chance) -> bool {
        let worker = self.posts[index].worker.lock().await;
        let pid = worker.pid();
        let met = self.await_moment(pid, moment).await;
        let work = async {
            freeze(pid);
            if moment != Moment::Holding {
                sleep(chance.millis(300, 2_500)).await;
                thaw(pid);
                return true;
            }
            sleep(LEASE + chance.millis(500, 1_500)).await;
            // On a machine that was suspended no other worker has taken its place yet. And if it
            // was stopped during a write, the resource blocks the others.
            let others = self.works_on(SUCCESSION).await;
            thaw(pid);
            others
        };
        let kind = format!("FreezeWorker {moment:?}");
        self.fault(&kind, Effect::Freezes(pid), work).await && met
    }

    async fn await_moment(&self, pid: u32, moment: Moment) -> bool {
        match moment {
            Moment::Holding => self.aim(pid, "", 2 * LEASE).await,
            Moment::Waiting => true,
            Moment::Cancelling => {
                let file = GiveUp::file(self.dir.path(), pid);
                std::fs::write(&file, "").expect("the directory is writable");
                followed(&file).await
            }
        }
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
        followed(&file).await
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

/// Waits for a worker to remove the file with an instruction, if it does so soon.
async fn followed(file: &Path) -> bool {
    let give_up = Instant::now() + AIM;
    while file.exists() && Instant::now() < give_up {
        sleep(Duration::from_millis(1)).await;
    }
    // Otherwise it would follow it later, without a purpose.
    std::fs::remove_file(file).is_err()
}

/// Starts a worker. Its history, its log and the ledgers are in `dir`.
fn spawn(url: &str, dir: &Path, seed: u64, mode: Mode) -> Watched {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_storm_worker"));
    let args = [
        url.to_owned(),
        dir.display().to_string(),
        seed.to_string(),
        mode.to_string(),
    ];
    Watched::spawn(&program, &args, dir, &dir.join("log"))
}
