//! Commands while the map of the cluster is learned anew all the time, and while it is not.

use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::client::PairClient;
use crate::floor::raw_blocking::RawBlocking;
use crate::floor::slots::Slots;
use crate::harness::{Harness, Placement};
use crate::ours::cluster::Sharded;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures, percentile};
use crate::scripts::Job;

const TASKS: usize = 8;
/// Number of changes between the two in a sample, so that disturbances of the machine affect both.
const TURNS: u32 = 4;
/// Interval of replies that make the client refresh its map: shorter than its own limit.
const REFRESH: Duration = Duration::from_millis(5);

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let port = harness.cluster()?.port(0);
    let samples = harness.interleave(harness.rounds(5), &["leasehold-cluster"], |candidate| {
        let request = Request {
            work: "refresh".into(),
            candidate: candidate.into(),
            port,
            workers: 1,
            millis: harness.millis(4000),
            ..Request::default()
        };
        harness.sample(Placement::Anywhere, &request)
    })?;
    let ours = "leasehold-cluster";
    let ratio = |refreshing: &str, calm: &str| samples.ratio_to(ours, refreshing, ours, calm);
    let ratios = [
        ratio("p50_refreshing", "p50_calm"),
        ratio("p99_refreshing", "p99_calm"),
    ];
    let row = |state: &str, cells: [Option<f64>; 3]| Row {
        candidate: state.into(),
        cells: cells.to_vec(),
    };
    let median = |figure: &str| samples.median(ours, figure);
    let aim = |what: &str, ours: Option<f64>, bound: f64| Aim {
        what: format!("{what} of commands while the map is refreshed, over without"),
        floor: None,
        peer: None,
        ours,
        bound: Bound::AtMost(bound),
    };
    Ok(Section {
        title: "Commands while the map is refreshed",
        how:
            "Eight tasks run pairs over three masters. Every 5 ms one more task has a script refused: with an error of \
              its own, or with one that has the client ask for the map again, which it does as often as it ever would. \
              Both by turns in one process; p50 and p99 are of a pair, and the ratio is taken within each round."
                .into(),
        columns: ["p50 us", "p99 us", "map asked for /s"].map(str::to_owned).to_vec(),
        rows: vec![
            row("calm", [median("p50_calm"), median("p99_calm"), median("rate_calm")]),
            row("refreshing", [median("p50_refreshing"), median("p99_refreshing"), median("rate_refreshing")]),
            row("ratio", [ratios[0], ratios[1], None]),
        ],
        aims: vec![aim("p50", ratios[0], 1.05), aim("p99", ratios[1], 1.1)],
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    let (port, turn) = (request.port, request.duration() / (2 * TURNS));
    request.run(async move {
        let ports = Slots::learn(port).ports;
        let client = Sharded::connect(port).await;
        phase(&client, false, turn / 2).await;
        let (mut nanos, mut asked) = ([Vec::new(), Vec::new()], [0; 2]);
        for doubt in [false, true].repeat(TURNS as usize) {
            let before = maps_asked_for(&ports);
            nanos[usize::from(doubt)].extend(phase(&client, doubt, turn).await);
            asked[usize::from(doubt)] += maps_asked_for(&ports) - before;
        }
        let [mut calm, mut refreshing] = nanos;
        let rate = |asked: u64| asked as f64 / (turn * TURNS).as_secs_f64();
        figures([
            ("p50_calm", percentile(&mut calm, 0.5) / 1e3),
            ("p99_calm", percentile(&mut calm, 0.99) / 1e3),
            ("p50_refreshing", percentile(&mut refreshing, 0.5) / 1e3),
            ("p99_refreshing", percentile(&mut refreshing, 0.99) / 1e3),
            ("rate_calm", rate(asked[0])),
            ("rate_refreshing", rate(asked[1])),
        ])
    })
}

/// Pairs for `duration`, some thousand a second: the nanoseconds each took.
async fn phase(client: &Sharded, doubt: bool, duration: Duration) -> Vec<u64> {
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..TASKS)
        .map(|n| tokio::spawn(timed(client.clone(), Job::new(n), Arc::clone(&stop))))
        .collect();
    let start = Instant::now();
    while start.elapsed() < duration {
        client.refused(b"lock:refused", doubt).await;
        tokio::time::sleep(REFRESH).await;
    }
    stop.store(true, Relaxed);
    let mut nanos = Vec::new();
    for task in tasks {
        nanos.extend(task.await.expect("a task does not panic"));
    }
    nanos
}

/// Pairs one after the other until the flag is set: the nanoseconds each took.
pub async fn timed<C: PairClient>(mut client: C, job: Job, stop: Arc<AtomicBool>) -> Vec<u64> {
    let mut nanos = Vec::with_capacity(1 << 14);
    while !stop.load(Relaxed) {
        let start = Instant::now();
        client.pair(&job).await;
        nanos.push(start.elapsed().as_nanos() as u64);
    }
    nanos
}

/// Number of requests for the map at all nodes.
fn maps_asked_for(ports: &[u16]) -> u64 {
    let asked = |port: &u16| {
        let stats = RawBlocking::open(*port)
            .and_then(|mut node| node.call(&[b"INFO", b"commandstats"]))
            .expect("a node");
        let stats = String::from_utf8_lossy(&stats).into_owned();
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_cluster|slots:calls="));
        line.and_then(|calls| calls.split(',').next()?.parse().ok())
            .unwrap_or(0)
    };
    ports.iter().map(asked).sum()
}
