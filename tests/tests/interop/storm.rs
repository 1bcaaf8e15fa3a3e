//! A storm: three processes of Redisson's and three of ours over locks and permits of every kind, while some are killed and
//! frozen. The history of all is checked.
//!
//! A client of Redisson's does not know when its lease is over, so it claims what it holds until it gives it back. One that stood
//! still, and wakes up when others hold its lock, breaks the invariants by that; such violations are counted apart, and no
//! others are allowed. So is a fair lock that stays free while waiters of a process of Redisson's that died are first in its queue.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_testkit::chance::Chance;
use leasehold_testkit::checker::{self, Limits, Report, Violation};
use leasehold_testkit::history::{self, Effect, Event, Recorder, What, micros};
use leasehold_testkit::process::{Watched, freeze, thaw};
use leasehold_testkit::storm::PERMITS;
use leasehold_testkit::{Raw, Scratch, Server};
use tokio::time::{sleep, timeout};

use crate::jvm::{self, Jvm, Pending};
use crate::stage::leased;

const TIME: Duration = Duration::from_secs(30);

/// Of all locks and permits, and Redisson's watchdog.
const LEASE: Duration = Duration::from_secs(3);

/// Processes of ours, and of Redisson's.
const PROCESSES: usize = 3;

/// Of the storm with a process that does not keep to the locks.
const SHORT: Duration = Duration::from_secs(4);

/// Threads of each process of Redisson's.
const THREADS: usize = 4;

/// Bounds against hangs, for a busy machine.
const LIMITS: Limits = Limits {
    lease: LEASE,
    loss_notice: Duration::from_secs(5),
    handoff: Duration::from_secs(15),
    overrun: Duration::from_secs(10),
    cleanup: Duration::from_secs(4),
};

/// A client that woke up needs this long to find out what it lost, on a busy machine.
const AFTER_THAW: Duration = Duration::from_secs(2);

/// The name of the fair lock.
const FAIR: &str = "interop:fair";

/// A dead waiter of Redisson's keeps its place in the queue for its time, and all threads of a process can die there.
const OUTSTAYED: Duration = Duration::from_secs(3 * THREADS as u64 + 3);

/// In which all processes stop. Redisson takes the waiters of a process that died for dead one after the other.
const STOP: Duration = Duration::from_secs(60);

struct Storm {
    url: String,
    seed: u64,
    mode: &'static str,
    dir: Scratch,
    recorder: Recorder,
    java: Vec<(Arc<Jvm>, Vec<Pending>)>,
    ours: Vec<Watched>,
    faults: u64,
}

#[tokio::test]
async fn redissons_and_our_processes_keep_their_promises_together() {
    if jvm::shared().is_none() {
        return;
    }
    let server = Server::start().await;
    let mut storm = Storm::start(server.url(), "storm", PROCESSES).await;
    let mut chance = Chance::new(storm.seed);
    let end = Instant::now() + TIME;
    sleep(Duration::from_secs(2)).await;
    for turn in 0.. {
        storm.strike(turn, &mut chance).await;
        sleep(chance.millis(200, 1_000)).await;
        if Instant::now() >= end {
            break;
        }
    }
    storm.stop().await;
    everything_is_free(&server.url()).await;
    storm.judge();
}

/// What shows that the storm can fail: nobody stands still here, so what is found is not taken for Redisson's.
#[tokio::test]
async fn a_process_that_does_not_keep_to_the_locks_is_caught() {
    if jvm::shared().is_none() {
        return;
    }
    let server = Server::start().await;
    let mut storm = Storm::start(server.url(), "storm-broken", 1).await;
    sleep(SHORT).await;
    storm.stop().await;
    let events = history::read(storm.dir.path());
    let report = checker::check(&events, &LIMITS);
    let (theirs, others) = apart(&events, &report);
    println!("{} violations", others.len());
    assert!(theirs.is_empty(), "{theirs:?}");
    for key in ["interop:mutex", "interop:fenced", "interop:rw"] {
        let of_it = |violation: &&Violation| violation.message.contains(key);
        assert!(others.iter().any(of_it), "{key}: {others:?}");
    }
}

impl Storm {
    /// `mode` is that of our processes; there are so many of either kind.
    async fn start(url: String, mode: &'static str, processes: usize) -> Self {
        let seed = Chance::seed();
        println!("LEASEHOLD_SEED={seed}");
        let dir = Scratch::new();
        let recorder = Recorder::open(dir.path(), "storm");
        let mut this = Self {
            url,
            seed,
            mode,
            dir,
            recorder,
            java: Vec::new(),
            ours: Vec::new(),
            faults: 0,
        };
        let client = start_jvm();
        let pool = client.client(&this.url, &[]).await.thread();
        let set = format!("pes(interop:pool).trySetPermits({PERMITS})");
        assert!(pool.says(set).await);
        client.kill();
        for n in 0..processes as u64 {
            this.ours.push(this.spawn(seed.wrapping_add(1_000 * n)));
        }
        // All start before the first is waited for.
        let jvms: Vec<_> = (0..processes).map(|_| start_jvm()).collect();
        for (jvm, n) in jvms.into_iter().zip(0..) {
            let threads = this.play(&jvm, seed.wrapping_add(1_000 * n + 500)).await;
            this.java.push((jvm, threads));
        }
        this
    }

    fn spawn(&self, seed: u64) -> Watched {
        let program = Path::new(env!("CARGO_BIN_EXE_interop_worker"));
        let dir = self.dir.path();
        let args = [
            self.mode.into(),
            self.url.clone(),
            LEASE.as_millis().to_string(),
            dir.display().to_string(),
            seed.to_string(),
        ];
        Watched::spawn(program, &args, dir, &dir.join("log"))
    }

    /// The threads of a process of Redisson's.
    async fn play(&self, jvm: &Arc<Jvm>, seed: u64) -> Vec<Pending> {
        let lease = LEASE.as_millis();
        let [watchdog, wait] = ["watchdog", "fairWait"].map(|option| format!("{option}={lease}"));
        let client = jvm.client(&self.url, &[&watchdog, &wait]).await;
        let begin = |n| {
            let seed = seed.wrapping_add(n as u64);
            let dir = self.dir.path().display();
            client
                .thread()
                .begin(format!("storm {dir} {seed} {n} {lease}"))
        };
        (0..THREADS).map(begin).collect()
    }

    /// Each kind of fault in its turn.
    async fn strike(&mut self, turn: u64, chance: &mut Chance) {
        let index = chance.below(PROCESSES as u64) as usize;
        let seed = chance.below(u64::MAX >> 1);
        match turn % 4 {
            0 => self.freeze(self.java[index].0.pid(), chance).await,
            1 => {
                let pid = self.ours[index].pid();
                let id = self.begins("KillOurs", Effect::Delays);
                self.ours[index].kill();
                self.recorder.record(What::Died { pid });
                self.ours[index] = self.spawn(seed);
                self.ends(id);
            }
            2 => self.freeze(self.ours[index].pid(), chance).await,
            _ => {
                let pid = self.java[index].0.pid();
                let id = self.begins("KillJava", Effect::Delays);
                self.java[index].0.kill();
                self.recorder.record(What::Died { pid });
                let jvm = start_jvm();
                let threads = self.play(&jvm, seed).await;
                self.java[index] = (jvm, threads);
                self.ends(id);
            }
        }
    }

    /// For longer than a lease.
    async fn freeze(&mut self, pid: u32, chance: &mut Chance) {
        let id = self.begins("Freeze", Effect::Freezes(pid));
        freeze(pid);
        sleep(LEASE + chance.millis(100, 1_000)).await;
        thaw(pid);
        self.ends(id);
    }

    fn begins(&mut self, kind: &str, effect: Effect) -> u64 {
        self.faults += 1;
        let (id, kind) = (self.faults, kind.to_owned());
        self.recorder.record(What::FaultStart { id, kind, effect });
        id
    }

    fn ends(&self, id: u64) {
        self.recorder.record(What::FaultEnd { id });
    }

    async fn stop(&mut self) {
        std::fs::write(self.dir.join("stop"), "").expect("the directory is writable");
        let give_up = Instant::now() + STOP;
        for (jvm, threads) in std::mem::take(&mut self.java) {
            for thread in threads {
                let left = give_up.saturating_duration_since(Instant::now());
                if let Err(call) = thread.answer_within(left).await {
                    let kept = self.keep();
                    let state = state(&self.url).await;
                    panic!(
                        "{call} of {} goes on, history in {kept}:\n{state}",
                        jvm.pid()
                    );
                }
            }
        }
        for process in &mut self.ours {
            while process.is_running() {
                assert!(Instant::now() < give_up, "a process of ours does not end");
                sleep(Duration::from_millis(20)).await;
            }
        }
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        assert!(log.is_empty(), "{log}");
    }

    /// Copies the history to where it stays, and says where.
    fn keep(&self) -> String {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("interop-{}", self.seed));
        std::fs::create_dir_all(&kept).expect("the target folder is writable");
        for entry in std::fs::read_dir(self.dir.path()).expect("it is readable") {
            let entry = entry.expect("it is readable");
            let copied = std::fs::copy(entry.path(), kept.join(entry.file_name()));
            copied.expect("the target folder is writable");
        }
        kept.display().to_string()
    }

    fn judge(&self) {
        let events = history::read(self.dir.path());
        let report = checker::check(&events, &LIMITS);
        let (theirs, others) = apart(&events, &report);
        println!("{}", Summary(&report, theirs.len()));
        for violation in &theirs {
            println!("Redisson's: {}: {}", violation.invariant, violation.message);
        }
        if !others.is_empty() {
            let kept = self.keep();
            panic!("seed {}, history in {kept}: {others:#?}", self.seed);
        }
        for kind in ["java-", "ours-"] {
            let of = |event: &&Event| {
                event.client.starts_with(kind) && matches!(event.what, What::Ok { .. })
            };
            let grants = events.iter().filter(of).count();
            println!("{grants} grants to {kind}*");
            assert!(grants > 20 * TIME.as_secs() as usize, "{kind}: little work");
        }
    }
}

fn start_jvm() -> Arc<Jvm> {
    jvm::another().expect("there is a JDK")
}

/// The violations that are Redisson's, and the others.
fn apart<'a>(events: &[Event], report: &'a Report) -> (Vec<&'a Violation>, Vec<&'a Violation>) {
    let frozen = frozen_jvms(events);
    let ends = ends(events);
    let by_frozen = |event: &Event| {
        let end = match &event.what {
            What::Ok { hold, .. } => ends.get(hold.as_str()).copied().unwrap_or(u64::MAX),
            _ => event.at,
        };
        let stood_still = |(pid, since, until): &(u32, u64, u64)| {
            *pid == event.process && *since < end && event.at < until + micros(AFTER_THAW)
        };
        frozen.iter().any(stood_still)
    };
    let deaths = deaths_in_the_queue(events);
    // The release behind which the fair lock was free.
    let behind_dead = |event: &Event| {
        let near = event.at.saturating_sub(micros(OUTSTAYED))..event.at + micros(LIMITS.handoff);
        deaths.iter().any(|at| near.contains(at))
    };
    let is_redissons = |violation: &&Violation| match violation.invariant {
        "I1" | "I2" | "I16" => violation.events.iter().any(by_frozen),
        "I6" => violation.message.starts_with(FAIR) && behind_dead(&violation.events[0]),
        _ => false,
    };
    report.violations.iter().partition(is_redissons)
}

/// When processes of Redisson's died that waited for the fair lock.
fn deaths_in_the_queue(events: &[Event]) -> Vec<u64> {
    let mut waiting: HashSet<(u32, &str, u64)> = HashSet::new();
    let mut deaths = Vec::new();
    for event in events {
        let of = |call| (event.process, event.client.as_str(), call);
        match &event.what {
            What::Invoke { call, key, .. } if key == FAIR && event.client.starts_with("java-") => {
                waiting.insert(of(*call));
            }
            What::Ok { call, .. } | What::Fail { call, .. } => {
                waiting.remove(&of(*call));
            }
            What::Died { pid } if waiting.iter().any(|(process, ..)| process == pid) => {
                deaths.push(event.at);
            }
            _ => {}
        }
    }
    deaths
}

struct Summary<'a>(&'a Report, usize);

impl std::fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(report, theirs) = self;
        write!(
            f,
            "{} grants, {} hand-offs, {} faults: {} violations, {theirs} of them Redisson's",
            report.grants,
            report.handoffs,
            report.faults,
            report.violations.len()
        )
    }
}

/// When holds were given back.
fn ends(events: &[Event]) -> HashMap<&str, u64> {
    let mut ends = HashMap::new();
    for event in events {
        if let What::ReleaseInvoke { hold } = &event.what {
            ends.insert(hold.as_str(), event.at);
        }
    }
    ends
}

/// Processes of Redisson's that stood still, with the times of begin and end.
fn frozen_jvms(events: &[Event]) -> Vec<(u32, u64, u64)> {
    let is_java = |pid| {
        let of = |event: &Event| event.process == pid && event.client.starts_with("java-");
        events.iter().any(of)
    };
    let mut frozen = Vec::new();
    for start in events {
        let What::FaultStart {
            id,
            effect: Effect::Freezes(pid),
            ..
        } = &start.what
        else {
            continue;
        };
        let ends = |event: &&Event| matches!(&event.what, What::FaultEnd { id: of } if of == id);
        let end = events.iter().find(ends).map_or(u64::MAX / 2, |end| end.at);
        if is_java(*pid) {
            frozen.push((*pid, start.at, end));
        }
    }
    frozen
}

/// Everything that is on the server.
async fn state(url: &str) -> String {
    let mut raw = Raw::connect(url.trim_start_matches("redis://"))
        .await
        .expect("the server is up");
    let mut lines = Vec::new();
    for key in raw.cmd(&["KEYS", "*"]).await.array() {
        let key = key.str();
        let kind = raw.cmd(&["TYPE", key]).await;
        let value = match kind.str() {
            "hash" => raw.cmd(&["HGETALL", key]).await,
            "list" => raw.cmd(&["LRANGE", key, "0", "-1"]).await,
            "zset" => raw.cmd(&["ZRANGE", key, "0", "-1", "WITHSCORES"]).await,
            _ => raw.cmd(&["GET", key]).await,
        };
        let left = raw.cmd(&["PTTL", key]).await;
        lines.push(format!("{key} {left:?} {value:?}"));
    }
    lines.join("\n")
}

/// Takes everything at once: nothing is left of those that died.
async fn everything_is_free(url: &str) {
    let locks = leased(url, LEASE).await;
    let pool = locks.semaphore("interop:pool", PERMITS);
    let taken = timeout(Duration::from_secs(20), async {
        (
            locks
                .mutex("interop:mutex")
                .lock()
                .await
                .expect("the mutex"),
            locks
                .fair_mutex("interop:fair")
                .lock()
                .await
                .expect("the fair mutex"),
            locks
                .rw_lock("interop:rw")
                .write()
                .await
                .expect("the write lock"),
            locks
                .mutex("interop:fenced")
                .lock()
                .await
                .expect("the fenced lock"),
            pool.acquire_many(PERMITS).await.expect("all permits"),
        )
    });
    drop(taken.await.expect("everything is free"));
    locks.shutdown().await.expect("everything is released");
}
