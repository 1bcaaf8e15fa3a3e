//! Sixty-four tasks over three masters: the cost of routing over a shared connection.

use std::io::Result;

use crate::floor::slots::MuxCluster;
use crate::harness::{Harness, Placement, Samples};
use crate::ours::cluster::Sharded;
use crate::peers::fred::FredCluster;
use crate::peers::redis::RedisCluster;
use crate::peers::rustis::RustisCluster;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request};
use crate::works::throughput::measure;

const CANDIDATES: &[&str] = &["floor-mux", "leasehold-cluster", "redis", "rustis", "fred"];
const PEERS: &[&str] = &["redis", "rustis", "fred"];
const FLOOR: &str = "floor-mux";

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let one = samples(harness, 1)?;
    let two = samples(harness, 2)?;
    let cells = |samples: &Samples, candidate: &str| {
        ["pairs_s", "cpu_us"]
            .map(|figure| {
                [
                    samples.median(candidate, figure),
                    samples.ratio(candidate, FLOOR, figure),
                ]
            })
            .concat()
    };
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: [cells(&one, candidate), cells(&two, candidate)].concat(),
    };
    let aim = |samples: &Samples, what: &str, figure: &str, bound: Bound| Aim {
        what: format!("cluster, {what}"),
        floor: samples.ratio(FLOOR, FLOOR, figure),
        peer: bound.best(PEERS.iter().map(|peer| samples.ratio(peer, FLOOR, figure))),
        ours: samples.ratio("leasehold-cluster", FLOOR, figure),
        bound,
    };
    let columns = ["pairs/s", "x mux", "CPU us/pair", "x mux CPU"];
    Ok(Section {
        title: "Cluster, 64 tasks over three masters",
        how: "As throughput, each task with a key of its own, over three masters; nobody is pinned, so masters and \
              client share all CPUs. `floor-mux` is one hand-made connection a master behind a slot table that is \
              learned once; ratios are to it, within each round. CPU is the client's."
            .into(),
        columns: columns.iter().map(|c| (*c).to_owned()).chain(columns.map(|c| format!("2w {c}"))).collect(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: vec![
            aim(&one, "pairs/s over floor-mux, one thread", "pairs_s", Bound::AtLeast(0.9)),
            aim(&two, "pairs/s over floor-mux, two workers", "pairs_s", Bound::AtLeast(0.9)),
            aim(&one, "client CPU per pair over floor-mux, one thread", "cpu_us", Bound::AtMost(1.4)),
            aim(&two, "client CPU per pair over floor-mux, two workers", "cpu_us", Bound::AtMost(1.4)),
        ],
    })
}

fn samples(harness: &Harness, workers: usize) -> Result<Samples> {
    let port = harness.cluster()?.port(0);
    harness.interleave(harness.rounds(5), CANDIDATES, |candidate| {
        let request = Request {
            work: "cluster".into(),
            candidate: candidate.into(),
            port,
            workers,
            millis: harness.millis(2000),
            ..Request::default()
        };
        harness.sample(Placement::Anywhere, &request)
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    match request.candidate.as_str() {
        "floor-mux" => measure::<MuxCluster>(request),
        "leasehold-cluster" => measure::<Sharded>(request),
        "redis" => measure::<RedisCluster>(request),
        "rustis" => measure::<RustisCluster>(request),
        "fred" => measure::<FredCluster>(request),
        other => panic!("no candidate {other}"),
    }
}
