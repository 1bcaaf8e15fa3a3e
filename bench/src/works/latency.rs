//! One task, one request at a time: the cost of a client over a round trip, and its allocations.

use std::io::Result;
use std::time::Instant;

use crate::alloc;
use crate::client::PairClient;
use crate::cpu;
use crate::floor::mux::Mux;
use crate::floor::raw_blocking::RawBlocking;
use crate::floor::raw_tokio::{RawTokio, WithTimer};
use crate::harness::{Harness, Placement, Samples};
use crate::ours::cluster::Cluster;
use crate::ours::resp::Resp;
use crate::peers::fred::Fred;
use crate::peers::redis::Redis;
use crate::peers::rslock::Rslock;
use crate::peers::rustis::Rustis;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures, percentile};
use crate::scripts::Job;

const CANDIDATES: &[&str] = &[
    "raw-blocking",
    "raw-tokio",
    "raw-tokio, timer",
    "floor-mux",
    "leasehold-resp",
    "leasehold-cluster",
    "redis",
    "rustis",
    "rslock",
    "fred",
];
const PEERS: &[&str] = &["redis", "rustis", "fred"];
const FLOOR: &str = "raw-tokio";

/// Pairs before the measurement starts.
const WARM_UP: usize = 500;
/// Pairs over which allocations are counted.
const COUNTED: u64 = 1000;

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let one = samples(harness, 1)?;
    let two = samples(harness, 2)?;
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: vec![
            one.median(candidate, "p50_us"),
            one.ratio(candidate, FLOOR, "p50_us"),
            one.median(candidate, "p99_us"),
            one.median(candidate, "cpu_us"),
            one.median(candidate, "allocs"),
            one.median(candidate, "bytes"),
            two.median(candidate, "p50_us"),
            two.ratio(candidate, FLOOR, "p50_us"),
        ],
    };
    let p50 = |samples: &Samples, runtime: &str| Aim {
        what: format!("EVALSHA, one task, p50 over raw-tokio, {runtime}"),
        floor: samples.ratio("floor-mux", FLOOR, "p50_us"),
        peer: Bound::AtMost(1.03).best(
            PEERS
                .iter()
                .map(|peer| samples.ratio(peer, FLOOR, "p50_us")),
        ),
        ours: samples.ratio("leasehold-cluster", FLOOR, "p50_us"),
        bound: Bound::AtMost(1.03),
    };
    let allocs = Aim {
        what: "allocations per EVALSHA pair".into(),
        floor: one.median(FLOOR, "allocs"),
        peer: Bound::AtMost(1.0).best(PEERS.iter().map(|peer| one.median(peer, "allocs"))),
        ours: one.median("leasehold-cluster", "allocs"),
        bound: Bound::AtMost(1.0),
    };
    let columns = [
        "p50 us",
        "x raw-tokio",
        "p99 us",
        "CPU us/pair",
        "allocs/pair",
        "bytes/pair",
        "2w p50 us",
        "2w x",
    ];
    Ok(Section {
        title: "Latency of one EVALSHA",
        how: "One task acquires and releases by turns, server and client on one CPU; a pair is two round trips and \
              p50 and p99 are halves of a pair. `x` is the ratio within each round. `2w` is the multi-thread runtime \
              with two workers on that CPU. The task is spawned. `rslock` takes with SET and releases by script."
            .into(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: vec![p50(&one, "current thread"), p50(&two, "two workers"), allocs],
    })
}

fn samples(harness: &Harness, workers: usize) -> Result<Samples> {
    harness.interleave(harness.rounds(9), CANDIDATES, |candidate| {
        let request = Request {
            work: "latency".into(),
            candidate: candidate.into(),
            port: harness.server.port,
            workers,
            millis: harness.millis(1000),
            ..Request::default()
        };
        harness.sample(Placement::SameCpu, &request)
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    match request.candidate.as_str() {
        "raw-blocking" => measure::<RawBlocking>(request),
        "raw-tokio" => measure::<RawTokio>(request),
        "raw-tokio, timer" => measure::<WithTimer>(request),
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

/// Times one task that runs pairs, one after the other; then counts what they allocate.
pub fn measure<C: PairClient>(request: &Request) -> Figures {
    let (port, duration) = (request.port, request.duration());
    request.run(async move {
        let mut client = C::connect(port).await;
        let job = Job::new(0);
        for _ in 0..WARM_UP {
            client.pair(&job).await;
        }

        let mut nanos = Vec::with_capacity(1 << 20);
        let cpu = cpu::of_this_process();
        let start = Instant::now();
        let mut last = start;
        while last - start < duration {
            client.pair(&job).await;
            let now = Instant::now();
            nanos.push((now - last).as_nanos() as u64);
            last = now;
        }
        let cpu = cpu::of_this_process() - cpu;

        alloc::start();
        for _ in 0..COUNTED {
            client.pair(&job).await;
        }
        let allocated = alloc::stop();

        figures([
            ("p50_us", percentile(&mut nanos, 0.5) / 2e3),
            ("p99_us", percentile(&mut nanos, 0.99) / 2e3),
            ("cpu_us", cpu * 1e6 / nanos.len() as f64),
            ("allocs", allocated.calls as f64 / COUNTED as f64),
            ("bytes", allocated.bytes as f64 / COUNTED as f64),
        ])
    })
}
