//! Worker processes that fight over a few locks while everything goes wrong around them.

mod fault;

pub(crate) use fault::Kind;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::{Effect, Recorder, What};
use leasehold_testkit::process::Watched;
use leasehold_testkit::storm::LOCKS;
use leasehold_testkit::{Ledger, Proxy, Raw, Scratch, Server};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Worker processes at a time.
const WORKERS: usize = 4;

/// How long workers may take to end when they are told to: a bound against hangs.
const STOP: Duration = Duration::from_secs(60);

/// The stage of a storm.
pub(crate) struct Storm {
    pub(crate) server: Server,
    /// The histories of all processes, the ledgers, the workers' logs.
    pub(crate) dir: Scratch,
    pub(crate) recorder: Recorder,
    slots: Vec<Slot>,
    faults: AtomicU64,
}

/// A place for one worker process at a time, behind a proxy of its own.
struct Slot {
    proxy: Proxy,
    /// Locked by the fault that strikes the process.
    worker: Mutex<Watched>,
    /// Locked by the fault that strikes the proxy.
    line: Mutex<()>,
}

impl Storm {
    /// Starts everything; the workers begin at once.
    pub(crate) async fn start(seed: u64) -> Arc<Self> {
        let server = Server::start().await;
        let dir = Scratch::new();
        let recorder = Recorder::open(dir.path(), "storm");
        let slots = (0..WORKERS as u64).map(|n| {
            let proxy = Proxy::start(server.addr());
            let worker = Mutex::new(spawn(&proxy, server.addr(), dir.path(), seed.wrapping_add(1_000 * (n + 1))));
            Slot { proxy, worker, line: Mutex::default() }
        });
        let slots = slots.collect();
        Arc::new(Self { server, dir, recorder, slots, faults: AtomicU64::new(0) })
    }

    /// Lets faults happen for that long, one every half to one and a half seconds, some of them at the same time. Returns
    /// how many there were of each kind.
    ///
    /// The kinds are dealt like cards, so that each of them comes up before any comes up again.
    pub(crate) async fn rage(self: &Arc<Self>, time: Duration, chance: &mut Chance) -> BTreeMap<Kind, usize> {
        let mut count: BTreeMap<Kind, usize> = Kind::ALL.into_iter().map(|kind| (kind, 0)).collect();
        let mut running = JoinSet::new();
        let mut deck = Vec::new();
        let end = Instant::now() + time;
        loop {
            sleep(chance.millis(500, 1_500)).await;
            if Instant::now() >= end {
                break;
            }
            if deck.is_empty() {
                deck = Kind::ALL.to_vec();
                // These two are what leases are for.
                deck.extend([Kind::Kill, Kind::Freeze]);
                chance.shuffle(&mut deck);
            }
            let kind = deck.pop().expect("a new deck has cards");
            let (storm, chance) = (Arc::clone(self), Chance::new(chance.below(u64::MAX)));
            running.spawn(async move { kind.strike(&storm, chance).await.then_some(kind) });
        }
        while let Some(struck) = running.join_next().await {
            if let Some(kind) = struck.expect("a fault that can be injected") {
                *count.entry(kind).or_default() += 1;
            }
        }
        count
    }

    /// Tells the workers to stop and waits for them.
    pub(crate) async fn stop(&self) {
        std::fs::write(self.dir.join("stop"), "").expect("the directory is writable");
        let give_up = Instant::now() + STOP;
        for slot in &self.slots {
            let mut worker = slot.worker.lock().await;
            while worker.is_running() {
                assert!(Instant::now() < give_up, "worker {} does not end; logs:\n{}", worker.pid(), self.logs());
                sleep(Duration::from_millis(20)).await;
            }
            let done = self.dir.join(&format!("done-{}", worker.pid()));
            assert!(done.exists(), "worker {} failed; logs:\n{}", worker.pid(), self.logs());
            // A cut that ended in silence leaves the server with a connection of nobody.
            slot.proxy.reset_all();
        }
    }

    /// What the workers printed: nothing, if all is well.
    pub(crate) fn logs(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    pub(crate) fn ledgers(&self) -> Vec<Ledger> {
        LOCKS.iter().map(|name| Ledger::open(self.dir.join(name))).collect()
    }

    /// Writes down a fault around `work`.
    async fn fault<T>(&self, kind: &str, effect: Effect, work: impl Future<Output = T>) -> T {
        let id = self.faults.fetch_add(1, Ordering::Relaxed);
        self.recorder.record(What::FaultStart { id, kind: kind.into(), effect });
        let done = work.await;
        self.recorder.record(What::FaultEnd { id });
        done
    }

    /// A connection past the faults.
    async fn raw(&self) -> Raw {
        self.server.raw().await
    }
}

/// Starts a worker. Its history, its log and the ledgers are in `dir`.
fn spawn(proxy: &Proxy, server: SocketAddr, dir: &Path, seed: u64) -> Watched {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_storm_worker"));
    let args = [proxy.url(), server.to_string(), dir.display().to_string(), seed.to_string()];
    Watched::spawn(&program, &args, dir, &dir.join("log"))
}
