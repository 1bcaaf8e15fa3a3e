//! The mutex of the library, one task: the cost of guard, token, deadline and renewal over the
//! scripts themselves.

use std::io::Result;

use crate::floor::raw_mutex::RawMutex;
use crate::harness::{Harness, Placement, Samples};
use crate::ours::lock::Lock;
use crate::peers::rslock::Rslock;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request};
use crate::works::latency::measure;

const CANDIDATES: &[&str] = &["raw-mutex", "leasehold", "rslock"];
const FLOOR: &str = "raw-mutex";

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
        what: format!(
            "mutex lock and release, p50 over the same scripts on a raw socket, {runtime}"
        ),
        floor: samples.ratio(FLOOR, FLOOR, "p50_us"),
        peer: samples.ratio("rslock", FLOOR, "p50_us"),
        ours: samples.ratio("leasehold", FLOOR, "p50_us"),
        bound: Bound::AtMost(1.08),
    };
    let allocs = Aim {
        what: "allocations per mutex lock and release".into(),
        floor: one.median(FLOOR, "allocs"),
        peer: one.median("rslock", "allocs"),
        ours: one.median("leasehold", "allocs"),
        bound: Bound::AtMost(4.0),
    };
    let columns = [
        "p50 us",
        "x raw-mutex",
        "p99 us",
        "CPU us/pair",
        "allocs/pair",
        "bytes/pair",
        "2w p50 us",
        "2w x",
    ];
    Ok(Section {
        title: "Mutex, lock and release",
        how: "As the latency of one EVALSHA, on the scripts of the mutex: `raw-mutex` sends the very same ones with the \
              same keys and arguments on a raw tokio socket. `leasehold` keeps the `Mutex` and calls `lock` and \
              `release`, its lease registered for renewal each time. `rslock` sends cheaper commands (SET, and a script \
              that compares and deletes), without a fencing token and a message to waiters, so its ratio is not to the \
              same work."
            .into(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: vec![p50(&one, "current thread"), p50(&two, "two workers"), allocs],
    })
}

fn samples(harness: &Harness, workers: usize) -> Result<Samples> {
    harness.interleave(harness.rounds(9), CANDIDATES, |candidate| {
        let request = Request {
            work: "mutex".into(),
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
        "raw-mutex" => measure::<RawMutex>(request),
        "leasehold" => measure::<Lock>(request),
        "rslock" => measure::<Rslock>(request),
        other => panic!("no candidate {other}"),
    }
}
