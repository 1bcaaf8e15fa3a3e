//! The fair mutex: what a turn costs, by how many wait and in how many processes.

use std::io::Result;

use super::handover;
use crate::harness::{Harness, Placement};
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::Request;

const CANDIDATES: &[&str] = &["leasehold-fair", "leasehold-fair-redisson"];
/// How many processes, and how many tasks wait in each. The first is one that waits while another one holds the lock.
const FLEETS: [(&str, usize, usize); 9] = [
    ("1 x 2", 1, 2),
    ("1 x 10", 1, 10),
    ("1 x 100", 1, 100),
    ("1 x 1000", 1, 1000),
    ("2 x 1", 2, 1),
    ("4 x 16", 4, 16),
    ("4 x 256", 4, 256),
    ("16 x 4", 16, 4),
    ("16 x 64", 16, 64),
];

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let (mut rows, mut aims) = (Vec::new(), Vec::new());
    let mut cpu_of_one = [None; 2];
    for (fleet, processes, tasks) in FLEETS {
        let samples = harness.interleave(harness.rounds(3), CANDIDATES, |candidate| {
            let request = Request {
                work: "fair".into(),
                candidate: candidate.into(),
                variant: format!("{processes}x{tasks}"),
                port: harness.server.port,
                workers: 1,
                millis: harness.millis(3000),
                ..Request::default()
            };
            harness.sample(Placement::SameCpu, &request)
        })?;
        for (candidate, cpu_of_one) in CANDIDATES.iter().zip(&mut cpu_of_one) {
            let cells = ["per_s", "requests", "p50_us", "jain", "server_us"]
                .map(|figure| samples.median(candidate, figure));
            rows.push(Row {
                candidate: format!("{candidate}, {fleet}"),
                cells: cells.to_vec(),
            });
            let [.., server_us] = cells;
            let one = *cpu_of_one.get_or_insert(server_us);
            if let (Some(one), Some(now)) = (one, server_us)
                && tasks == 1000
            {
                aims.push(Aim {
                    what: format!("{candidate}, {fleet}: server CPU a turn, to one waiter"),
                    floor: None,
                    peer: None,
                    ours: Some(now / one),
                    bound: Bound::AtMost(2.0),
                });
            }
        }
    }
    Ok(Section {
        title: "Fair turns",
        how: "So many clients, each with a connection of its own as if it were a process, with so many tasks each, take one fair \
              lock in a loop and release it at once. Turns a second; script calls a turn; the time from asking for the release to \
              the next one running; Jain's index of the turns of all tasks; CPU time of the server. Server and clients on one CPU."
            .into(),
        columns: ["per s", "requests", "p50 us", "Jain", "server us"]
            .map(str::to_owned)
            .to_vec(),
        rows,
        aims,
    })
}

pub use handover::sample;
