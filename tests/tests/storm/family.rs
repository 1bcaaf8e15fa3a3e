//! Storms of the whole family: processes that take locks and permits of every kind, alone and together, and meet at latches and
//! barriers, while they are killed and frozen and their servers restart scripts, drop connections, change roles and move slots.
//! Beside these there are three servers for a lock that is held at two of them, which freeze and come back empty.
//!
//! One server, a cluster and sentinels, for 20 seconds each or two minutes and a half with `LEASEHOLD_LONG=1`. The history is
//! checked, and in the end everything must be free, and no key may be left that somebody holds or waits with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_testkit::chance::Chance;
use leasehold_testkit::checker::{self, Limits, Report};
use leasehold_testkit::history::{self, Effect, Recorder, What};
use leasehold_testkit::process::{Watched, freeze, thaw};
use leasehold_testkit::storm::{FAIR, LEASE, Mode, PARTS, PLAIN, POOL, RW};
use leasehold_testkit::{Cluster, Scratch, Sentinels, Server};
use tokio::time::sleep;

use crate::fleet::time;
use crate::leftover::{data, everything_is_free, keys_left};
use crate::roles::Stage;
use crate::verdict::{Evidence, kept};

/// Worker processes at a time.
const WORKERS: usize = 4;

/// Servers beside, for a lock at the majority of them.
const BESIDE: usize = 3;

/// Upper bound on the time in which workers stop.
const STOP: Duration = Duration::from_secs(60);

/// Bounds against hangs, for a busy machine.
const LIMITS: Limits = Limits {
    lease: LEASE,
    loss_notice: Duration::from_secs(5),
    handoff: Duration::from_secs(15),
    overrun: Duration::from_secs(10),
    cleanup: Duration::from_secs(4),
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_one_server_everything_keeps_its_promise_whatever_happens() {
    storm("family-single", Alone(Server::start().await), Mode::Fast).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_everything_keeps_its_promise_whatever_happens() {
    storm("family-cluster", cluster().await, Mode::Fast).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_nothing_that_replicas_confirmed_is_lost() {
    storm("family-cluster", cluster().await, Mode::Safe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_sentinels_everything_keeps_its_promise_whatever_happens() {
    storm("family-sentinel", sentinels().await, Mode::Fast).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_sentinels_nothing_that_replicas_confirmed_is_lost() {
    storm("family-sentinel", sentinels().await, Mode::Safe).await;
}

async fn cluster() -> Cluster {
    let cluster = Cluster::builder().node_timeout(Duration::from_secs(2));
    cluster.start().await
}

async fn sentinels() -> Sentinels {
    let sentinels = Sentinels::builder().down_after(Duration::from_secs(2));
    sentinels.start().await
}

/// A single server.
struct Alone(Server);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Freeze {
    Freeze,
}

impl Stage for Alone {
    type Kind = Freeze;

    const ALL: &'static [Freeze] = &[Freeze::Freeze];

    const IN_LINE: &'static [Freeze] = &[];

    fn forgets(_: Freeze) -> bool {
        false
    }

    fn moves(_: Freeze) -> bool {
        false
    }

    fn url(&self) -> String {
        self.0.url()
    }

    fn nodes(&self) -> Vec<&Server> {
        vec![&self.0]
    }

    async fn master_of(&self, _: &str) -> usize {
        0
    }

    async fn strike(&self, _: Freeze, _: &str, _: usize, _: Mode, chance: &mut Chance) {
        self.0.pause();
        sleep(chance.millis(100, 2_500)).await;
        self.0.resume();
    }

    async fn is_whole(&self) {}
}

/// The workers, and the record of the faults.
struct Family {
    name: String,
    url: String,
    beside: Vec<Server>,
    mode: Mode,
    seed: u64,
    dir: Scratch,
    recorder: Recorder,
    workers: Vec<Watched>,
    faults: AtomicU64,
}

async fn storm<S: Stage>(name: &str, stage: S, mode: Mode) {
    let time = time(Duration::from_secs(20));
    let mut beside = Vec::new();
    for _ in 0..BESIDE {
        beside.push(Server::start().await);
    }
    let mut family = Family::start(name, stage.url(), beside, mode);
    let servers = stage.nodes().into_iter().chain(&family.beside);
    let _evidence = Evidence::of(family.dir.path(), servers.map(Server::dir), family.kept());
    let mut chance = Chance::new(family.seed);
    let end = Instant::now() + time;
    let mut turn = 0;
    sleep(Duration::from_secs(1)).await;
    while Instant::now() < end {
        family.strike(turn, &stage, &mut chance).await;
        turn += 1;
        sleep(chance.millis(200, 1_200)).await;
    }
    // Without faults, for a while.
    sleep(2 * LEASE).await;
    family.stop(&stage).await;
    // The leases of abandoned holds are over by now.
    sleep(LEASE + Duration::from_secs(1)).await;
    everything_is_free(&stage.url(), &family.beside).await;
    let keys = family.keys_left(&stage).await;
    family.recorder.record(What::Quiesced { keys });
    let report = family.judge(mode == Mode::Fast);
    assert!(
        report.grants >= 5 * time.as_secs() as usize && report.handoffs > report.grants / 20,
        "{}: little work: {report}",
        family.evidence()
    );
}

impl Family {
    fn start(name: &str, url: String, beside: Vec<Server>, mode: Mode) -> Self {
        let seed = Chance::seed();
        println!("{name}-{mode}: LEASEHOLD_SEED={seed}");
        let dir = Scratch::new();
        let recorder = Recorder::open(dir.path(), "storm");
        let mut this = Self {
            name: format!("{name}-{mode}"),
            url,
            beside,
            mode,
            seed,
            dir,
            recorder,
            workers: Vec::new(),
            faults: AtomicU64::new(0),
        };
        for n in 0..WORKERS as u64 {
            let worker = this.spawn(seed.wrapping_add(1_000 * n));
            this.workers.push(worker);
        }
        this
    }

    fn spawn(&self, seed: u64) -> Watched {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_family_worker"));
        let dir = self.dir.path();
        let beside: Vec<_> = self.beside.iter().map(Server::url).collect();
        let args = [
            self.url.clone(),
            beside.join(","),
            dir.display().to_string(),
            seed.to_string(),
            self.mode.to_string(),
        ];
        Watched::spawn(&program, &args, dir, &dir.join("log"))
    }

    /// Each kind of fault in its turn.
    async fn strike<S: Stage>(&mut self, turn: usize, stage: &S, chance: &mut Chance) {
        let index = chance.below(WORKERS as u64) as usize;
        match turn % (5 + S::ALL.len()) {
            0 => {
                let seed = chance.below(u64::MAX);
                let pid = self.workers[index].pid();
                let id = self.begins("KillWorker", Effect::Delays);
                self.workers[index].kill();
                self.recorder.record(What::Died { pid });
                self.workers[index] = self.spawn(seed);
                self.ends(id);
            }
            1 => {
                let pid = self.workers[index].pid();
                let id = self.begins("FreezeWorker", Effect::Freezes(pid));
                freeze(pid);
                sleep(LEASE + chance.millis(100, 1_500)).await;
                thaw(pid);
                self.ends(id);
            }
            2 => self.tell_everybody(stage, &[&["SCRIPT", "FLUSH"]]).await,
            3 => {
                let kill = |of| ["CLIENT", "KILL", "TYPE", of];
                let commands = [&kill("normal")[..], &kill("pubsub")[..]];
                self.tell_everybody(stage, &commands).await;
            }
            4 => self.strike_beside(chance).await,
            n => {
                let kind = S::ALL[n - 5];
                let key = *chance.pick(&[FAIR, RW, POOL, PARTS[0], PARTS[2], PLAIN]);
                let forgets = self.mode == Mode::Fast && S::forgets(kind);
                let effect = if forgets {
                    Effect::LosesLocks
                } else {
                    Effect::Delays
                };
                let master = stage.master_of(key).await;
                let id = self.begins(&format!("{kind:?} {key} at {master}"), effect);
                stage.strike(kind, key, master, self.mode, chance).await;
                stage.is_whole().await;
                self.ends(id);
            }
        }
    }

    /// One of the servers beside freezes, or comes back empty, which costs it its vote until the leases that it forgot are over.
    async fn strike_beside(&self, chance: &mut Chance) {
        let server = chance.pick(&self.beside);
        let (kind, restarts) = if chance.percent(50) {
            ("restart beside", true)
        } else {
            ("freeze beside", false)
        };
        let id = self.begins(kind, Effect::Delays);
        if restarts {
            server.restart().await;
        } else {
            server.pause();
            sleep(chance.millis(100, 2_500)).await;
            server.resume();
        }
        self.ends(id);
    }

    async fn tell_everybody<S: Stage>(&self, stage: &S, commands: &[&[&str]]) {
        let id = self.begins(&format!("{commands:?}"), Effect::Delays);
        for server in stage.nodes() {
            let mut raw = server.raw().await;
            for command in commands {
                raw.cmd(command).await;
            }
        }
        self.ends(id);
    }

    fn begins(&self, kind: &str, effect: Effect) -> u64 {
        let id = self.faults.fetch_add(1, Ordering::Relaxed);
        let kind = kind.to_owned();
        self.recorder.record(What::FaultStart { id, kind, effect });
        id
    }

    fn ends(&self, id: u64) {
        self.recorder.record(What::FaultEnd { id });
    }

    async fn stop<S: Stage>(&mut self, stage: &S) {
        std::fs::write(self.dir.join("stop"), "").expect("the directory is writable");
        let give_up = Instant::now() + STOP;
        for index in 0..self.workers.len() {
            let pid = self.workers[index].pid();
            while self.workers[index].is_running() {
                if Instant::now() > give_up {
                    let (evidence, waiting) = (self.evidence(), self.waiting());
                    let data = data(stage).await;
                    panic!("{evidence}: worker {pid} does not end\n{waiting}\n{data}");
                }
                sleep(Duration::from_millis(20)).await;
            }
            let done = self.dir.join(&format!("done-{pid}"));
            assert!(done.exists(), "{}: worker {pid} failed", self.evidence());
        }
    }

    /// Keys that nobody needs any more. The last release may still be on its way to some of the servers.
    async fn keys_left<S: Stage>(&self, stage: &S) -> Vec<String> {
        let give_up = Instant::now() + LEASE;
        loop {
            let mut keys = Vec::new();
            for server in stage.nodes().into_iter().chain(&self.beside) {
                keys.extend(keys_left(server).await);
            }
            if keys.is_empty() || Instant::now() > give_up {
                return keys;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// What the tasks of the workers that run wait for.
    fn waiting(&self) -> String {
        let pids: Vec<_> = self.workers.iter().map(Watched::pid).collect();
        let mut latest = BTreeMap::new();
        for event in history::read(self.dir.path()) {
            if pids.contains(&event.process) {
                latest.insert((event.process, event.client), (event.at, event.what));
            }
        }
        let lines = latest
            .iter()
            .map(|(task, last)| format!("{task:?} {last:?}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// `forgets` says whether servers may have lost locks: that excuses overlaps, which the checker says.
    fn judge(&self, forgets: bool) -> Report {
        let events = history::read(self.dir.path());
        let report = checker::check(&events, &LIMITS);
        println!("{}: {report}", self.name);
        let evidence = self.evidence();
        assert!(report.is_clean(), "{evidence}\n{report}");
        assert!(
            forgets || report.violations.is_empty(),
            "{evidence}: there is nothing to excuse\n{report}"
        );
        report
    }

    fn evidence(&self) -> String {
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let (seed, kept) = (self.seed, self.kept().display().to_string());
        format!("LEASEHOLD_SEED={seed}, history in {kept}; the workers say: {log}")
    }

    fn kept(&self) -> PathBuf {
        kept(&self.name, self.seed)
    }
}
