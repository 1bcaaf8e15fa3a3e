//! A frozen shard, and the commands to the other shards.

use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::client::PairClient;
use crate::floor::raw_blocking::RawBlocking;
use crate::floor::slots::{MuxCluster, Slots};
use crate::harness::{Harness, Placement};
use crate::ours::cluster::Sharded;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures, percentile};
use crate::scripts::Job;
use crate::works::refresh::timed;

const CANDIDATES: &[&str] = &["floor-mux", "leasehold-cluster"];
/// Tasks at the shards that answer.
const HEALTHY: usize = 8;
/// Tasks at the frozen one.
const STUCK: usize = 8;
/// Timeout of these, and their pause after a pair that did not time out.
const GIVE_UP: Duration = Duration::from_millis(300);

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let port = harness.cluster()?.port(0);
    let samples = harness.interleave(harness.rounds(5), CANDIDATES, |candidate| {
        let request = Request {
            work: "isolation".into(),
            candidate: candidate.into(),
            port,
            workers: 1,
            millis: harness.millis(4000),
            ..Request::default()
        };
        harness.sample(Placement::Anywhere, &request)
    })?;
    let ratio = |candidate: &str, share: &str| {
        samples.ratio_to(
            candidate,
            &format!("{share}_frozen"),
            candidate,
            &format!("{share}_calm"),
        )
    };
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: vec![
            samples.median(candidate, "p99_calm"),
            samples.median(candidate, "p99_frozen"),
            ratio(candidate, "p99"),
            ratio(candidate, "p50"),
        ],
    };
    let aim = Aim {
        what: "p99 at the other shards while one is frozen, over without".into(),
        floor: ratio("floor-mux", "p99"),
        peer: None,
        ours: ratio("leasehold-cluster", "p99"),
        bound: Bound::AtMost(1.1),
    };
    Ok(Section {
        title: "One frozen shard",
        how: "Eight tasks run pairs at two of three masters, eight more at the third, which is stopped (SIGSTOP) for the \
              second of three parts of a sample; they give up a pair after 300 ms and begin another. p99 is of the first \
              eight's pairs; the ratio is to the two other parts, within each sample."
            .into(),
        columns: ["calm p99 us", "frozen p99 us", "x p99", "x p50"].map(str::to_owned).to_vec(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: vec![aim],
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    match request.candidate.as_str() {
        "floor-mux" => measure::<MuxCluster>(request),
        "leasehold-cluster" => measure::<Sharded>(request),
        other => panic!("no candidate {other}"),
    }
}

fn measure<C: PairClient + Clone + Sync>(request: &Request) -> Figures {
    let (port, part) = (request.port, request.duration() / 4);
    request.run(async move {
        let slots = Slots::learn(port);
        let victim = slots.ports.len() - 1;
        let frozen = |job: &Job| slots.owner(job.key.as_bytes()) == victim;
        let (stuck, healthy): (Vec<Job>, Vec<Job>) = (0..100).map(Job::new).partition(frozen);
        let load = Load {
            client: C::connect(port).await,
            healthy: healthy.into_iter().take(HEALTHY).collect(),
            stuck: stuck.into_iter().take(STUCK).collect(),
        };
        let process = process_of(slots.ports[victim]);
        load.apply(part / 4).await;
        let mut calm = load.apply(part).await;
        let frozen = Frozen::new(process);
        let mut during = load.apply(2 * part).await;
        drop(frozen);
        calm.extend(load.apply(part).await);
        figures([
            ("p50_calm", percentile(&mut calm, 0.5) / 1e3),
            ("p99_calm", percentile(&mut calm, 0.99) / 1e3),
            ("p50_frozen", percentile(&mut during, 0.5) / 1e3),
            ("p99_frozen", percentile(&mut during, 0.99) / 1e3),
        ])
    })
}

struct Load<C> {
    client: C,
    healthy: Vec<Job>,
    stuck: Vec<Job>,
}

impl<C: PairClient + Clone + Sync> Load<C> {
    /// Pairs for `duration`: the nanoseconds that each took at the healthy shards.
    async fn apply(&self, duration: Duration) -> Vec<u64> {
        let stop = Arc::new(AtomicBool::new(false));
        let stuck = self.stuck.iter().map(|job| {
            tokio::spawn(impatient(
                self.client.clone(),
                job.clone(),
                Arc::clone(&stop),
            ))
        });
        let stuck: Vec<_> = stuck.collect();
        let healthy = self
            .healthy
            .iter()
            .map(|job| tokio::spawn(timed(self.client.clone(), job.clone(), Arc::clone(&stop))));
        let healthy: Vec<_> = healthy.collect();
        tokio::time::sleep(duration).await;
        stop.store(true, Relaxed);
        let mut nanos = Vec::new();
        for task in healthy {
            nanos.extend(task.await.expect("a task does not panic"));
        }
        for task in stuck {
            task.await.expect("a task does not panic");
        }
        nanos
    }
}

/// Pairs that are given up if they take long, and few of them if they do not.
async fn impatient<C: PairClient>(mut client: C, job: Job, stop: Arc<AtomicBool>) {
    let mut number = 0;
    while !stop.load(Relaxed) {
        // An abandoned pair may still be executed, and leave its lock behind.
        let unique = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |elapsed| elapsed.as_nanos());
        let job = Job {
            key: format!("{{{}}}:{unique}:{number}", job.key),
            token: job.token.clone(),
        };
        number += 1;
        let _ = tokio::time::timeout(GIVE_UP, client.pair(&job)).await;
        tokio::time::sleep(GIVE_UP / 10).await;
    }
}

/// A stopped process; goes on when dropped.
struct Frozen(Pid);

impl Frozen {
    fn new(pid: Pid) -> Self {
        kill_process(pid, Signal::STOP).expect("our own process");
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// The process of the node on `port`.
fn process_of(port: u16) -> Pid {
    let info = RawBlocking::open(port)
        .and_then(|mut node| node.call(&[b"INFO", b"server"]))
        .expect("a node");
    let info = String::from_utf8_lossy(&info).into_owned();
    let pid = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:")?.trim().parse().ok());
    pid.and_then(Pid::from_raw).expect("a process id")
}
