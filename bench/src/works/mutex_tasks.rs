//! The mutex of the library, sixty-four tasks on one connection, each with a lock of its own: what a busy server and client
//! spend on a lock.

use std::io::Result;

use crate::floor::mux::Mux;
use crate::harness::{Harness, Placement, Samples};
use crate::ours::lock::Lock;
use crate::peers::rslock::Rslock;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request};
use crate::works::throughput::measure;

const CANDIDATES: &[&str] = &["floor-mux", "leasehold", "rslock"];

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let one = samples(harness, 1)?;
    let two = samples(harness, 2)?;
    let cells = |samples: &Samples, candidate: &str| {
        vec![
            samples.median(candidate, "pairs_s"),
            samples.ratio(candidate, "rslock", "pairs_s"),
            samples.median(candidate, "cpu_us"),
            samples.median(candidate, "server_us"),
        ]
    };
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: [cells(&one, candidate), cells(&two, candidate)].concat(),
    };
    let aim = |samples: &Samples, runtime: &str| Aim {
        what: format!("mutex, 64 tasks, pairs/s over rslock, {runtime}"),
        floor: samples.ratio("floor-mux", "rslock", "pairs_s"),
        peer: Some(1.0),
        ours: samples.ratio("leasehold", "rslock", "pairs_s"),
        bound: Bound::AtLeast(1.0),
    };
    let columns = ["pairs/s", "x rslock", "CPU us/pair", "server us/pair"];
    Ok(Section {
        title: "Mutex, 64 tasks on one connection",
        how: "Each task locks and releases a mutex of its own; server and client on a CPU each, `2w` is the runtime with two \
              workers. CPU is the client's, and the server's by its own word. `floor-mux` runs SET and compare-and-delete \
              by script, and `rslock` sends SET and that script; `leasehold` has a fencing token, renewal and a line for those \
              who wait as well."
            .into(),
        columns: columns
            .iter()
            .map(|c| (*c).to_owned())
            .chain(columns.map(|c| format!("2w {c}")))
            .collect(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: vec![aim(&one, "one thread"), aim(&two, "two workers")],
    })
}

fn samples(harness: &Harness, workers: usize) -> Result<Samples> {
    harness.interleave(harness.rounds(5), CANDIDATES, |candidate| {
        let request = Request {
            work: "mutex-tasks".into(),
            candidate: candidate.into(),
            port: harness.server.port,
            workers,
            millis: harness.millis(2000),
            ..Request::default()
        };
        harness.sample(Placement::CrossCpu, &request)
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    match request.candidate.as_str() {
        "floor-mux" => measure::<Mux>(request),
        "leasehold" => measure::<Lock>(request),
        "rslock" => measure::<Rslock>(request),
        other => panic!("no candidate {other}"),
    }
}
