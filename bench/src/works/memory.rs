//! Resident memory of an idle connection.

use std::io::Result;

use crate::client::PairClient;
use crate::floor::mux::Mux;
use crate::floor::raw_tokio::RawTokio;
use crate::harness::{Harness, Placement};
use crate::ours::cluster::Cluster;
use crate::ours::resp::Resp;
use crate::peers::fred::Fred;
use crate::peers::redis::Redis;
use crate::peers::rslock::Rslock;
use crate::peers::rustis::Rustis;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures};
use crate::scripts::Job;

const CANDIDATES: &[&str] = &[
    "raw-tokio",
    "floor-mux",
    "leasehold-resp",
    "leasehold-cluster",
    "redis",
    "rustis",
    "rslock",
    "fred",
];
const PEERS: &[&str] = &["redis", "rustis", "fred"];
const CONNECTIONS: u64 = 400;
/// Connections opened before the first reading, so that one-time allocations are done.
const WARM_UP: usize = 50;

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let samples = harness.interleave(harness.rounds(5).min(5), CANDIDATES, |candidate| {
        let request = Request {
            work: "memory".into(),
            candidate: candidate.into(),
            port: harness.server.port,
            workers: 1,
            count: CONNECTIONS,
            ..Request::default()
        };
        harness.sample(Placement::CrossCpu, &request)
    })?;
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: vec![samples.median(candidate, "kb")],
    };
    let bound = Bound::AtMost(10.0);
    let aim = Aim {
        what: "resident memory per idle connection, KB".into(),
        floor: samples.median("raw-tokio", "kb"),
        peer: bound.best(PEERS.iter().map(|peer| samples.median(peer, "kb"))),
        ours: samples.median("leasehold-resp", "kb"),
        bound,
    };
    Ok(Section {
        title: "Resident memory per idle connection",
        how: format!(
            "The growth of the process between its {WARM_UP}th connection and {CONNECTIONS} more, each of which has run \
             one pair. The buffers of raw-tokio are 5 KB, those of floor-mux 48."
        ),
        columns: vec!["KB".into()],
        rows: CANDIDATES.iter().map(row).collect(),
        aims: vec![aim],
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    match request.candidate.as_str() {
        "raw-tokio" => measure::<RawTokio>(request),
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

fn measure<C: PairClient>(request: &Request) -> Figures {
    let Request { port, count, .. } = *request;
    request.run(async move {
        let mut clients = Vec::with_capacity(WARM_UP + count as usize);
        let job = Job::new(0);
        for _ in 0..WARM_UP {
            clients.push(connected::<C>(port, &job).await);
        }
        let before = resident_kb();
        for _ in 0..count {
            clients.push(connected::<C>(port, &job).await);
        }
        figures([("kb", (resident_kb() - before) / count as f64)])
    })
}

async fn connected<C: PairClient>(port: u16, job: &Job) -> C {
    let mut client = C::connect(port).await;
    client.pair(job).await;
    client
}

fn resident_kb() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: f64 = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("statm");
    pages * rustix::param::page_size() as f64 / 1024.0
}
