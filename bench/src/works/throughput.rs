//! Sixty-four tasks on one connection: pairs a second, and CPU of each.

use std::io::{Error, Result};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::client::PairClient;
use crate::cpu;
use crate::floor::mux::Mux;
use crate::harness::{Harness, Placement, Samples};
use crate::ours::cluster::Cluster;
use crate::ours::resp::Resp;
use crate::peers::fred::Fred;
use crate::peers::redis::Redis;
use crate::peers::rslock::Rslock;
use crate::peers::rustis::Rustis;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures};
use crate::scripts::{Job, LEASE_MS, TOGGLE};
use crate::statistics::Statistics;

/// Tasks that share the connection.
pub const TASKS: usize = 64;
/// Candidates that can run a given number of pairs.
pub const CLIENTS: &[&str] = &[
    "floor-mux",
    "leasehold-resp",
    "leasehold-cluster",
    "redis",
    "rustis",
    "rslock",
    "fred",
];
/// The peers.
pub const PEERS: &[&str] = &["redis", "rustis", "fred"];

const TOOL: &str = "redis-benchmark";
const WARM_UP: Duration = Duration::from_millis(200);

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let one = samples(harness, 1)?;
    let two = samples(harness, 2)?;
    let cells = |samples: &Samples, candidate: &str| {
        vec![
            samples.median(candidate, "pairs_s"),
            samples.ratio(candidate, TOOL, "pairs_s"),
            samples.median(candidate, "cpu_us"),
            samples.ratio(candidate, "floor-mux", "cpu_us"),
        ]
    };
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: [cells(&one, candidate), cells(&two, candidate)].concat(),
    };
    let aim = |samples: &Samples, what: &str, to: &str, figure: &str, bound: Bound| Aim {
        what: what.into(),
        floor: samples.ratio("floor-mux", to, figure),
        peer: bound.best(PEERS.iter().map(|peer| samples.ratio(peer, to, figure))),
        ours: samples.ratio("leasehold-cluster", to, figure),
        bound,
    };
    let columns = ["pairs/s", "x tool", "CPU us/pair", "x mux CPU"];
    let missing = if harness.server.benchmark_tool().is_some() {
        ""
    } else {
        " **redis-benchmark is not installed, so there is nothing to compare pairs/s to.**"
    };
    Ok(Section {
        title: "Throughput, 64 tasks on one connection",
        how: format!(
            "Server and client on a CPU each; `2w` is the runtime with two workers, both on the client's CPU. \
             `redis-benchmark` runs 50 connections with 64 requests in flight each and a script that takes or releases \
             by turns, so two calls are a pair; its ratios are the `x tool`. CPU is the client's.{missing}"
        ),
        columns: columns
            .iter()
            .map(|c| (*c).to_owned())
            .chain(columns.map(|c| format!("2w {c}")))
            .collect(),
        rows: std::iter::once(&TOOL).chain(CLIENTS).map(row).collect(),
        aims: vec![
            aim(
                &one,
                "client CPU per pair over floor-mux, one thread",
                "floor-mux",
                "cpu_us",
                Bound::AtMost(1.4),
            ),
            aim(
                &two,
                "client CPU per pair over floor-mux, two workers",
                "floor-mux",
                "cpu_us",
                Bound::AtMost(1.4),
            ),
            aim(
                &one,
                "pairs/s over redis-benchmark, one thread",
                TOOL,
                "pairs_s",
                Bound::AtLeast(0.93),
            ),
            aim(
                &two,
                "pairs/s over redis-benchmark, two workers",
                TOOL,
                "pairs_s",
                Bound::AtLeast(0.87),
            ),
        ],
    })
}

fn samples(harness: &Harness, workers: usize) -> Result<Samples> {
    let tool = harness.server.benchmark_tool();
    let candidates: Vec<&'static str> = tool
        .iter()
        .map(|_| TOOL)
        .chain(CLIENTS.iter().copied())
        .collect();
    harness.interleave(harness.rounds(5), &candidates, |candidate| {
        let millis = harness.millis(2000);
        match &tool {
            Some(tool) if candidate == TOOL => benchmark_tool(harness, Command::new(tool), millis),
            _ => harness.sample(
                Placement::CrossCpu,
                &request(harness, candidate, workers, millis, 0),
            ),
        }
    })
}

/// A sample of this work; of `count` pairs a task, if not 0.
pub fn request(
    harness: &Harness,
    candidate: &str,
    workers: usize,
    millis: u64,
    count: u64,
) -> Request {
    Request {
        work: "throughput".into(),
        candidate: candidate.into(),
        variant: String::new(),
        port: harness.server.port,
        workers,
        millis,
        count,
    }
}

fn benchmark_tool(harness: &Harness, mut tool: Command, millis: u64) -> Result<Figures> {
    // About as long as the others take: the tool takes only a count.
    let requests = 300 * millis;
    tool.args([
        "-p",
        &harness.server.port.to_string(),
        "-c",
        "50",
        "-P",
        "64",
        "-n",
        &requests.to_string(),
        "--csv",
    ]);
    tool.args([
        "EVALSHA",
        &TOGGLE.sha,
        "1",
        "lock:toggle",
        "7c9e6679-7425-40de-944b-e07fc1f90ae7",
        LEASE_MS,
    ]);
    let output = harness.undisturbed(Placement::CrossCpu, &mut tool)?;
    // "test","rps",...
    let rps = output
        .lines()
        .last()
        .and_then(|line| line.split("\",\"").nth(1))
        .and_then(|rps| rps.parse::<f64>().ok());
    let rps = rps.ok_or_else(|| Error::other(format!("redis-benchmark said {output:?}")))?;
    Ok(figures([("pairs_s", rps / 2.0)]))
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    match request.candidate.as_str() {
        "floor-mux" => measure::<Mux>(request),
        "leasehold-resp" => measure::<Resp>(request),
        "leasehold-cluster" => measure::<Cluster>(request),
        "redis" => measure::<Redis>(request),
        "rustis" => measure::<Rustis>(request),
        "rslock" => measure::<Rslock>(request),
        "fred" => measure::<Fred>(request),
        other => panic!("no candidate {other}"),
    }
}

/// Takes one sample of a client.
pub fn measure<C: PairClient + Clone>(request: &Request) -> Figures {
    let Request { port, count, .. } = *request;
    let duration = request.duration();
    request.run(async move {
        let client = C::connect(port).await;
        if count > 0 {
            exactly(client, count).await
        } else {
            during(client, port, duration).await
        }
    })
}

/// As many pairs as there is time for.
async fn during<C: PairClient + Clone>(client: C, port: u16, duration: Duration) -> Figures {
    let stop = Arc::new(AtomicBool::new(false));
    let counters: Arc<Vec<AtomicU64>> = Arc::new((0..TASKS).map(|_| AtomicU64::new(0)).collect());
    let done = || {
        counters
            .iter()
            .map(|counter| counter.load(Relaxed))
            .sum::<u64>()
    };
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (mut client, stop, counters) =
                (client.clone(), Arc::clone(&stop), Arc::clone(&counters));
            tokio::spawn(async move {
                let job = Job::new(task);
                while !stop.load(Relaxed) {
                    client.pair(&job).await;
                    counters[task].fetch_add(1, Relaxed);
                }
            })
        })
        .collect();

    tokio::time::sleep(WARM_UP).await;
    let server = Statistics::read(port);
    let (start, cpu, pairs) = (Instant::now(), cpu::of_this_process(), done());
    tokio::time::sleep(duration).await;
    let (elapsed, cpu, pairs) = (
        start.elapsed(),
        cpu::of_this_process() - cpu,
        done() - pairs,
    );
    let server = Statistics::read(port).cpu - server.cpu;

    stop.store(true, Relaxed);
    for task in tasks {
        task.await.expect("a task does not panic");
    }
    figures([
        ("pairs_s", pairs as f64 / elapsed.as_secs_f64()),
        ("cpu_us", cpu * 1e6 / pairs as f64),
        ("server_us", server * 1e6 / pairs as f64),
    ])
}

/// `count` pairs a task, for measurements from outside of the process.
async fn exactly<C: PairClient + Clone>(client: C, count: u64) -> Figures {
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let job = Job::new(task);
                for _ in 0..count {
                    client.pair(&job).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task does not panic");
    }
    Figures::new()
}
