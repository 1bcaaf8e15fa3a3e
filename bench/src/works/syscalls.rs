//! System calls of sixty-four tasks on one connection.

use std::io::{Error, Result};
use std::process::{Command, Stdio};

use crate::harness::{Harness, Placement, Samples};
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, figures};
use crate::server::in_path;
use crate::works::throughput::{CLIENTS, PEERS, TASKS, request};

const EVENT: &str = "raw_syscalls:sys_enter";

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let able = can_count();
    let (one, two) = if able {
        (samples(harness, 1)?, samples(harness, 2)?)
    } else {
        (Samples::default(), Samples::default())
    };
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: vec![
            one.median(candidate, "calls"),
            two.median(candidate, "calls"),
        ],
    };
    let aim = |samples: &Samples, runtime: &str, bound: Bound| Aim {
        what: format!("system calls per pair, 64 tasks, {runtime}"),
        floor: samples.median("floor-mux", "calls"),
        peer: bound.best(PEERS.iter().map(|peer| samples.median(peer, "calls"))),
        ours: samples.median("leasehold-cluster", "calls"),
        bound,
    };
    let missing = if able {
        ""
    } else {
        " **Not counted: `perf` is missing or may not count.**"
    };
    Ok(Section {
        title: "System calls per pair, 64 tasks on one connection",
        how: format!(
            "`perf stat -e {EVENT}` over a whole process that runs a number of pairs, and over one that runs twice as \
             many; the difference belongs to the pairs. Placed as for throughput.{missing}"
        ),
        columns: ["one thread", "two workers"].map(str::to_owned).to_vec(),
        rows: if able {
            CLIENTS.iter().map(row).collect()
        } else {
            Vec::new()
        },
        aims: vec![
            aim(&one, "one thread", Bound::AtMost(0.35)),
            aim(&two, "two workers", Bound::AtMost(0.9)),
        ],
    })
}

fn samples(harness: &Harness, workers: usize) -> Result<Samples> {
    let count = harness.millis(2000);
    harness.interleave(harness.rounds(3), CLIENTS, |candidate| {
        let once = counted(harness, candidate, workers, count)?;
        let twice = counted(harness, candidate, workers, 2 * count)?;
        Ok::<Figures, Error>(figures([(
            "calls",
            (twice - once) / (count as f64 * TASKS as f64),
        )]))
    })
}

/// The system calls of a process that runs `count` pairs a task.
fn counted(harness: &Harness, candidate: &str, workers: usize, count: u64) -> Result<f64> {
    let mut perf = Command::new("perf");
    perf.args(["stat", "-x", ",", "--log-fd", "1", "-e", EVENT, "--"]);
    perf.arg(harness.program())
        .arg("sample")
        .args(request(harness, candidate, workers, 0, count).to_args());
    let output = harness.undisturbed(Placement::CrossCpu, &mut perf)?;
    let line = output.lines().find(|line| line.contains(EVENT));
    let calls = line
        .and_then(|line| line.split(',').next())
        .and_then(|calls| calls.parse().ok());
    calls.ok_or_else(|| Error::other(format!("perf said {output:?}")))
}

fn can_count() -> bool {
    let trial = Command::new("perf")
        .args(["stat", "-e", EVENT, "true"])
        .stderr(Stdio::null())
        .status();
    in_path("perf").is_some() && trial.is_ok_and(|status| status.success())
}
