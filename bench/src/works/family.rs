//! Every primitive of the library, taken and given back by one task that nobody disturbs.

use std::io::Result;
use std::net::TcpListener;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::handoff::round_trip;
use crate::client::Locker;
use crate::harness::{Harness, Placement, Samples};
use crate::ours::family::Kind;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures, percentile};
use crate::server::Server;
use crate::statistics::Statistics;

const WARM_UP: usize = 200;
const REDLOCK: &str = "Redlock of 5";
/// Stopped, so that it takes what is sent and never answers; and gone.
const DEAD: [&str; 2] = ["Redlock of 5, one frozen", "Redlock of 5, one killed"];

/// Lets a stopped server go on when dropped.
struct Frozen(Pid);

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let others = other_servers(harness, 4)?;
    let ports = ports(harness, &others);
    // Nothing listens there any more.
    let nowhere = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let candidates: Vec<_> = Kind::ALL
        .into_iter()
        // A task alone does one or the other.
        .filter(|(_, kind)| *kind != Kind::ReadWrite)
        .map(|(name, _)| name)
        .chain(DEAD)
        .collect();
    let samples = harness.interleave(harness.rounds(3), &candidates, |candidate| {
        let (mut ports, mut frozen) = (ports.clone(), 0);
        match DEAD.iter().position(|dead| *dead == candidate) {
            Some(0) => frozen = others[3].pid(),
            Some(_) => ports[4] = nowhere,
            None => {}
        }
        let request = Request {
            work: "family".into(),
            candidate: candidate.into(),
            variant: listed(&ports),
            port: harness.server.port,
            workers: 1,
            millis: harness.millis(600),
            count: frozen.into(),
        };
        harness.sample(Placement::SameCpu, &request)
    })?;
    let rows = candidates.iter().map(|candidate| Row {
        candidate: (*candidate).into(),
        cells: cells(&samples, candidate),
    });
    let aims = DEAD.map(|dead| Aim {
        what: format!("{dead}: p50, to five that live"),
        floor: None,
        peer: None,
        ours: samples.ratio(dead, REDLOCK, "p50_us"),
        bound: Bound::AtMost(1.1),
    });
    Ok(Section {
        title: "Primitives, taken and given back",
        how: "One task takes each and gives it back, by turns; all servers and the client on one CPU. p50 of such a pair, in \
              microseconds, in round trips (one EVALSHA of raw-tokio, timed in the same process) and to the mutex; script calls, \
              executed commands, and CPU time of the servers for a pair. The handles are made anew each time. A latch is set to \
              one and counted down; at a barrier of one party nobody waits; `Redlock of 5` is at five servers, of which one is \
              stopped (SIGSTOP), or gone."
            .into(),
        columns: ["p50 us", "round trips", "x mutex", "requests", "commands", "server us", "x mutex"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
        aims: aims.into(),
    })
}

fn cells(samples: &Samples, candidate: &str) -> Vec<Option<f64>> {
    let figure = |figure| samples.median(candidate, figure);
    let to_mutex = |figure| samples.ratio(candidate, "mutex", figure);
    vec![
        figure("p50_us"),
        figure("p50_rtt"),
        to_mutex("p50_us"),
        figure("requests"),
        figure("commands"),
        figure("server_us"),
        to_mutex("server_us"),
    ]
}

/// So many servers beside that of the harness, on its CPU.
pub fn other_servers(harness: &Harness, count: usize) -> Result<Vec<Server>> {
    (0..count)
        .map(|_| Server::start(harness.server_cpu()))
        .collect()
}

/// The ports of all of them.
pub fn ports(harness: &Harness, others: &[Server]) -> Vec<u16> {
    let others = others.iter().map(|server| server.port);
    std::iter::once(harness.server.port).chain(others).collect()
}

/// Ports as a sample is told them.
pub fn listed(ports: &[u16]) -> String {
    let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
    ports.join(",")
}

/// The reverse of [`listed`].
pub fn read_ports(list: &str) -> Vec<u16> {
    let ports = list.split(',').map(|port| port.parse().expect("a port"));
    ports.collect()
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    let (name, is_dead) = match DEAD.contains(&request.candidate.as_str()) {
        true => (REDLOCK, true),
        false => (request.candidate.as_str(), false),
    };
    let (kind, ports) = (Kind::named(name), read_ports(&request.variant));
    let (pid, duration) = (Pid::from_raw(request.count as i32), request.duration());
    let key = format!("lock:{}:{}", request.candidate, std::process::id());
    // A dead one has no statistics.
    let live = if is_dead {
        ports[..4].to_vec()
    } else {
        ports.clone()
    };
    request.run(async move {
        let rtt = round_trip(ports[0]).await;
        let family = kind.connect(&ports).await;
        let pair = async || {
            let held = family.lock(&key, 0).await;
            family.unlock(held).await;
        };
        for _ in 0..WARM_UP {
            pair().await;
        }
        let _frozen = pid.map(Frozen::stop);
        let before = Statistics::of_all(&live);
        let mut nanos = Vec::with_capacity(1 << 17);
        let start = Instant::now();
        let mut last = start;
        while last - start < duration {
            pair().await;
            let now = Instant::now();
            nanos.push((now - last).as_nanos() as u64);
            last = now;
        }
        let after = Statistics::of_all(&live);
        let pairs = nanos.len() as f64;
        let p50 = percentile(&mut nanos, 0.5);
        figures([
            ("p50_us", p50 / 1e3),
            ("p50_rtt", p50 / rtt),
            ("requests", (after.scripts - before.scripts) / pairs),
            ("commands", (after.commands - before.commands) / pairs),
            ("server_us", (after.cpu - before.cpu) * 1e6 / pairs),
        ])
    })
}

impl Frozen {
    fn stop(pid: Pid) -> Self {
        kill_process(pid, Signal::STOP).expect("a process of the benchmark");
        Self(pid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}
