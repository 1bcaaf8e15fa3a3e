//! A request to bytes: `EVALSHA` with two keys and three arguments, 170 bytes.

use std::hint::black_box;
use std::io::Result;

use bytes::BytesMut;

use crate::alloc;
use crate::floor::write;
use crate::harness::{Harness, Placement};
use crate::ours;
use crate::peers;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, cpu_seconds_per_step, figures};

const CANDIDATES: &[&str] = &[
    "floor-write",
    "leasehold-cluster",
    "redis",
    "redis-protocol",
];

const SHA: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
const KEYS: [&[u8]; 2] = [b"lock:{order:42}", b"lock:{order:42}:token"];
const ARGS: [&[u8]; 3] = [b"30000", b"7c9e6679-7425-40de-944b-e07fc1f90ae7", b"600000"];
/// Requests encoded between two readings of the clock.
const BATCH: usize = 256;

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let samples = harness.interleave(harness.rounds(5), CANDIDATES, |candidate| {
        let request = Request {
            work: "encode".into(),
            candidate: candidate.into(),
            millis: harness.millis(400),
            ..Request::default()
        };
        harness.sample(Placement::CrossCpu, &request)
    })?;
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: vec![
            samples.median(candidate, "ns"),
            samples.ratio(candidate, "floor-write", "ns"),
            samples.median(candidate, "allocs"),
        ],
    };
    let aim = |what: &str, figure, bound: Bound| Aim {
        what: what.into(),
        floor: samples.median("floor-write", figure),
        peer: bound.best(["redis", "redis-protocol"].map(|peer| samples.median(peer, figure))),
        ours: samples.median("leasehold-cluster", figure),
        bound,
    };
    Ok(Section {
        title: "Encode",
        how: "`EVALSHA` with two keys and three arguments, by CPU time. The floor, ours and `redis-protocol` write into a reused buffer; \
              `redis` is used as its users do."
            .into(),
        columns: ["ns", "x floor", "allocs"].map(str::to_owned).to_vec(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: vec![
            aim("encode EVALSHA, ns", "ns", Bound::AtMost(80.0)),
            aim("allocations per encoded EVALSHA", "allocs", Bound::AtMost(0.0)),
        ],
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    let mut encode = encoder(&request.candidate);
    let mut step = || (0..BATCH).for_each(|_| encode());
    let seconds = cpu_seconds_per_step(request.duration(), &mut step);
    alloc::start();
    step();
    let allocated = alloc::stop();
    figures([
        ("ns", seconds * 1e9 / BATCH as f64),
        ("allocs", allocated.calls as f64 / BATCH as f64),
    ])
}

fn encoder(candidate: &str) -> Box<dyn FnMut()> {
    match candidate {
        "floor-write" => {
            let mut out = Vec::new();
            Box::new(move || {
                out.clear();
                write::evalsha(
                    &mut out,
                    black_box(SHA).as_bytes(),
                    black_box(&KEYS),
                    black_box(&ARGS),
                );
                black_box(&out);
            })
        }
        "leasehold-cluster" => {
            let mut out = Vec::new();
            Box::new(move || {
                out.clear();
                ours::cluster::encode(&mut out, black_box(&KEYS), black_box(&ARGS));
                black_box(&out);
            })
        }
        "redis" => Box::new(|| {
            black_box(peers::redis::encode(
                black_box(SHA),
                black_box(&KEYS),
                black_box(&ARGS),
            ));
        }),
        "redis-protocol" => {
            let mut out = BytesMut::new();
            Box::new(move || {
                out.clear();
                peers::redis_protocol::encode(
                    &mut out,
                    black_box(SHA).as_bytes(),
                    black_box(&KEYS),
                    black_box(&ARGS),
                );
                black_box(&out);
            })
        }
        other => panic!("no candidate {other}"),
    }
}
