//! User instructions of one operation: the one cost that does not depend on how busy the machine is.

use std::io::{Error, Result};
use std::process::Command;

use crate::client::PairClient;
use crate::floor::mux::Mux;
use crate::floor::raw_tokio::{RawTokio, WithTimer};
use crate::harness::{Harness, Placement, Samples};
use crate::ours::cluster::Cluster;
use crate::ours::lock::{Lock, Observed};
use crate::ours::resp::Resp;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures};
use crate::scripts::Job;
use crate::server::in_path;
use crate::works::throughput::{self, TASKS};

/// One task each.
const ALONE: &[&str] = &[
    "raw-tokio",
    "raw-tokio, timer",
    "floor-mux",
    "leasehold-resp",
    "leasehold-cluster",
    "leasehold",
    "leasehold, observed",
];
/// Of those, the clients that many tasks can share.
const SHARED: &[&str] = &["floor-mux", "leasehold-resp", "leasehold-cluster"];

/// Names of the variants.
const ONE_TASK: &str = "one";
const MANY_TASKS: &str = "many";

/// Pairs of the shorter of two runs.
const PAIRS: u64 = 2_000;

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let able = in_path("valgrind").is_some();
    let (alone, shared) = if able {
        (
            samples(harness, ALONE, ONE_TASK, 1)?,
            samples(harness, SHARED, MANY_TASKS, TASKS as u64)?,
        )
    } else {
        (Samples::default(), Samples::default())
    };
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: vec![
            alone.median(candidate, "instructions"),
            shared.median(candidate, "instructions"),
        ],
    };
    let aim = |what: &str, samples: &Samples, floor: &str, bound| Aim {
        what: format!("instructions of one EVALSHA, {what}"),
        floor: samples.median(floor, "instructions"),
        peer: None,
        ours: samples.median("leasehold-resp", "instructions"),
        bound: Bound::AtMost(bound),
    };
    let missing = if able {
        ""
    } else {
        " **Not counted: `valgrind` is missing. `.ci/install valgrind` installs it.**"
    };
    Ok(Section {
        title: "User instructions of one operation",
        how: format!(
            "callgrind over a whole process that runs a number of pairs, and over one that runs twice as many; half of \
             the difference, for each pair, belongs to one EVALSHA, or to one lock or release for `leasehold`, with and without an \
             observer. Current \
             thread; system calls count as one instruction.{missing}"
        ),
        columns: ["one task", "64 tasks"].map(str::to_owned).to_vec(),
        rows: if able {
            ALONE.iter().map(row).collect()
        } else {
            Vec::new()
        },
        aims: vec![
            aim("one task", &alone, "raw-tokio, timer", 5_000.0),
            aim("64 tasks", &shared, "floor-mux", 2_400.0),
        ],
    })
}

fn samples(
    harness: &Harness,
    candidates: &[&'static str],
    variant: &str,
    tasks: u64,
) -> Result<Samples> {
    // The same each time, but for the few instructions that depend on when replies arrive.
    harness.interleave(harness.rounds(3), candidates, |candidate| {
        let count = PAIRS / tasks;
        let once = counted(harness, candidate, variant, count)?;
        let twice = counted(harness, candidate, variant, 2 * count)?;
        let operations = 2 * count * tasks;
        Ok::<Figures, Error>(figures([(
            "instructions",
            (twice - once) / operations as f64,
        )]))
    })
}

/// The instructions of a process that runs `count` pairs a task.
fn counted(harness: &Harness, candidate: &str, variant: &str, count: u64) -> Result<f64> {
    let request = Request {
        work: "instructions".into(),
        candidate: candidate.into(),
        variant: variant.into(),
        port: harness.server.port,
        workers: 1,
        count,
        ..Request::default()
    };
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.args(["--log-fd=1", "--"]);
    valgrind
        .arg(harness.program())
        .arg("sample")
        .args(request.to_args());
    // Nothing here depends on time, so a busy machine does not matter.
    let output = harness.run(Placement::Anywhere, &mut valgrind)?;
    let collected = output
        .lines()
        .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    collected.ok_or_else(|| Error::other(format!("valgrind said {output:?}")))
}

/// Runs what is to be counted.
pub fn sample(request: &Request) -> Figures {
    match (request.variant.as_str(), request.candidate.as_str()) {
        (MANY_TASKS, _) => throughput::sample(request),
        (_, "raw-tokio") => alone::<RawTokio>(request),
        (_, "raw-tokio, timer") => alone::<WithTimer>(request),
        (_, "floor-mux") => alone::<Mux>(request),
        (_, "leasehold-resp") => alone::<Resp>(request),
        (_, "leasehold-cluster") => alone::<Cluster>(request),
        (_, "leasehold") => alone::<Lock>(request),
        (_, "leasehold, observed") => alone::<Observed>(request),
        (_, other) => panic!("no candidate {other}"),
    }
}

/// One task that runs pairs, one after the other.
fn alone<C: PairClient>(request: &Request) -> Figures {
    let Request { port, count, .. } = *request;
    request.run(async move {
        let mut client = C::connect(port).await;
        let job = Job::new(0);
        for _ in 0..count {
            client.pair(&job).await;
        }
        Figures::new()
    })
}
