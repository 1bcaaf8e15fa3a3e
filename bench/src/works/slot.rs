//! The slot of a name: every command pays for it in a cluster.

use std::hint::black_box;
use std::io::Result;

use crate::floor;
use crate::harness::{Harness, Placement};
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, cpu_seconds_per_step, figures};

const CANDIDATES: &[&str] = &["floor-slots", "leasehold-cluster", "redis-protocol"];
const NAMES: usize = 1000;
const LENGTH: usize = 40;

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let samples = harness.interleave(harness.rounds(5), CANDIDATES, |candidate| {
        let request = Request {
            work: "slot".into(),
            candidate: candidate.into(),
            millis: harness.millis(400),
            ..Request::default()
        };
        harness.sample(Placement::CrossCpu, &request)
    })?;
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: ["plain_ns", "tagged_ns"]
            .map(|figure| samples.median(candidate, figure))
            .to_vec(),
    };
    let aim = |what: &str, figure| Aim {
        what: format!("slot of a 40-byte name {what}, ns"),
        floor: samples.median("floor-slots", figure),
        peer: samples.median("redis-protocol", figure),
        ours: samples.median("leasehold-cluster", figure),
        bound: Bound::AtMost(40.0),
    };
    Ok(Section {
        title: "Slot of a name",
        how: "A thousand names of 40 bytes in turn, by CPU time; the tag of a tagged one has 20 bytes, and only those \
              are hashed. The floor is the same CRC with one table. `redis-protocol` computes it for `fred`."
            .into(),
        columns: ["plain ns", "tagged ns"].map(str::to_owned).to_vec(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: vec![aim("without a tag", "plain_ns"), aim("with a tag", "tagged_ns")],
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    match request.candidate.as_str() {
        "floor-slots" => measure(request, floor::slots::slot),
        "leasehold-cluster" => measure(request, leasehold_cluster::slot::slot),
        "redis-protocol" => measure(request, redis_protocol::redis_keyslot),
        other => panic!("no candidate {other}"),
    }
}

fn measure(request: &Request, slot: impl Fn(&[u8]) -> u16) -> Figures {
    let nanos = |name: fn(usize) -> String| {
        let names: Vec<String> = (0..NAMES).map(name).collect();
        assert!(names.iter().all(|name| name.len() == LENGTH));
        let seconds = cpu_seconds_per_step(request.duration(), || {
            for name in &names {
                black_box(slot(black_box(name.as_bytes())));
            }
        });
        seconds * 1e9 / NAMES as f64
    };
    figures([
        (
            "plain_ns",
            nanos(|n| format!("lock:order:7c9e6679-7425-40de-{n:010}")),
        ),
        (
            "tagged_ns",
            nanos(|n| format!("lock:{{order-{n:014}}}:payments:eur")),
        ),
    ])
}
