//! Every primitive of the library that can be waited for: what a turn costs, by how many wait and in how many processes.

use std::io::Result;

use super::family::{listed, other_servers, ports, read_ports};
use super::handover;
use crate::harness::{Effort, Harness, Placement};
use crate::ours::family::Kind;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request};

/// Of those that nobody waits for in turn there are no rows.
const CANDIDATES: [&str; 11] = [
    "mutex",
    "mutex, Redisson",
    "mutex, polled",
    "plain",
    "fair",
    "fair, Redisson",
    "write",
    "read and write",
    "semaphore of 5",
    "multi of 2",
    "Redlock of 5",
];
/// How many processes, and how many tasks in each, which wait while one of all has it.
const FLEETS: [(usize, usize); 8] = [
    (1, 2),
    (2, 1),
    (1, 64),
    (4, 16),
    (16, 4),
    (1, 1024),
    (4, 256),
    (16, 64),
];
/// Of them, for a first look.
const QUICK_FLEETS: [(usize, usize); 3] = [(2, 1), (1, 64), (16, 4)];
/// What the queue of a fair lock costs by its length. The first is one that waits while another one has the lock.
const FAIR_FLEETS: [(usize, usize); 4] = [(1, 2), (1, 10), (1, 100), (1, 1000)];

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let others = other_servers(harness, 4)?;
    let ports = listed(&ports(harness, &others));
    let fleets = match harness.effort {
        Effort::Quick => &QUICK_FLEETS[..],
        Effort::Normal | Effort::Full => &FLEETS[..],
    };
    let mut rows = Vec::new();
    for candidate in CANDIDATES {
        for fleet in fleets {
            rows.push(measured(harness, candidate, *fleet, &ports, 1)?);
        }
    }
    let mut aims = Vec::new();
    for candidate in ["fair", "fair, Redisson"] {
        let mut cpu_of_one = None;
        for fleet in FAIR_FLEETS {
            let row = measured(harness, candidate, fleet, &ports, harness.rounds(3))?;
            let server_us = *row.cells.last().expect("it has cells");
            let one = *cpu_of_one.get_or_insert(server_us);
            if let (Some(one), Some(now), (_, 1000)) = (one, server_us, fleet) {
                aims.push(Aim {
                    what: format!("{}: server CPU a turn, to one waiter", row.candidate),
                    floor: None,
                    peer: None,
                    ours: Some(now / one),
                    bound: Bound::AtMost(2.0),
                });
            }
            if !fleets.contains(&fleet) {
                rows.push(row);
            }
        }
    }
    Ok(Section {
        title: "Turns, by primitive",
        how: "So many clients, each with a connection of its own as if it were a process, with so many tasks each, take one lock \
              in a loop and give it back at once. Turns a second; script calls a turn; the time from asking for the release to \
              the next one running, where one has it at a time; Jain's index of the turns of all tasks; CPU time of the servers. \
              Servers and clients on one CPU. One task of eight writes where others read. Those that poll use the default \
              backoff."
            .into(),
        columns: ["per s", "requests", "p50 us", "Jain", "server us"]
            .map(str::to_owned)
            .to_vec(),
        rows,
        aims,
    })
}

fn measured(
    harness: &Harness,
    candidate: &'static str,
    (processes, tasks): (usize, usize),
    ports: &str,
    rounds: usize,
) -> Result<Row> {
    let samples = harness.interleave(rounds, &[candidate], |candidate| {
        let request = Request {
            work: "turns".into(),
            candidate: candidate.into(),
            variant: format!("{processes}x{tasks} {ports}"),
            port: harness.server.port,
            workers: 1,
            millis: harness.millis(1200),
            ..Request::default()
        };
        harness.sample(Placement::SameCpu, &request)
    })?;
    let p50 = samples.median(candidate, "p50_us");
    let figure = |figure| samples.median(candidate, figure);
    Ok(Row {
        candidate: format!("{candidate}, {processes} x {tasks}"),
        cells: vec![
            figure("per_s"),
            figure("requests"),
            p50.filter(|_| Kind::named(candidate).is_exclusive()),
            figure("jain"),
            figure("server_us"),
        ],
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    let (fleet, ports) = request.variant.split_once(' ').expect("a fleet and ports");
    let (kind, ports) = (Kind::named(&request.candidate), read_ports(ports));
    let servers = ports.clone();
    handover::measure(request, fleet, servers, move |_| {
        let ports = ports.clone();
        async move { kind.connect(&ports).await }
    })
}
