//! Ours beside Redisson, in the things that both do: what a user of the one can expect of the other.

use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use leasehold::{Guard, Locks, Release};

use super::{handover, renewals};
use crate::cpu;
use crate::floor::raw_blocking::RawBlocking;
use crate::harness::{Effort, Harness, Placement, Samples};
use crate::ours::lock::connect_beside;
use crate::peers::redisson::Redisson;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures, percentile};
use crate::server::Server;
use crate::statistics::Statistics;

const OURS: &str = "leasehold";
const BESIDE: &str = "leasehold-redisson";
const THEIRS: &str = "Redisson";

/// Names for samples, and for readers.
const WORKLOADS: [(&str, &str); 7] = [
    ("pair", "uncontended pair"),
    ("fenced", "the same, fenced"),
    ("fair", "the same, fair"),
    ("tasks", "64 tasks, a key each"),
    ("1x64", "hand-off, 64 waiters in one process"),
    ("2x16", "hand-off, 2 x 16 waiters"),
    ("renewals", "20 000 renewals"),
];
const TASKS: usize = 64;
const HELD: u64 = 20_000;
/// Each lock is renewed at a third of it.
const LEASE: Duration = Duration::from_secs(9);
/// After so long a JVM has compiled all that is called often.
const WARM_UP: Duration = Duration::from_secs(10);

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let redisson = Redisson::build();
    let candidates: &[&str] = match redisson {
        Some(_) => &[OURS, BESIDE, THEIRS],
        None => &[OURS, BESIDE],
    };
    let server = Server::start(0)?;
    let (mut rows, mut aims) = (Vec::new(), Vec::new());
    for (workload, name) in WORKLOADS {
        let samples = harness.interleave(harness.rounds(3), candidates, |candidate| {
            // Whatever a sample leaves would be a part of the next one.
            RawBlocking::open(server.port)?.call(&[b"FLUSHALL"])?;
            match redisson.as_ref().filter(|_| candidate == THEIRS) {
                Some(redisson) => theirs(harness, redisson, workload, server.port),
                None => harness.sample(
                    Placement::Anywhere,
                    &Request {
                        work: "redisson".into(),
                        candidate: candidate.into(),
                        variant: workload.into(),
                        port: server.port,
                        workers: 2,
                        millis: harness.millis(3000),
                        count: HELD,
                    },
                ),
            }
        })?;
        rows.extend(candidates.iter().map(|candidate| {
            Row {
                candidate: format!("{name}: {candidate}"),
                cells: [
                    "per_s",
                    "p50_us",
                    "server_us",
                    "commands",
                    "client_us",
                    "lost",
                ]
                .map(|figure| samples.median(candidate, figure))
                .to_vec(),
            }
        }));
        aims.extend(redisson.as_ref().map(|_| aim(workload, name, &samples)));
    }
    Ok(Section {
        title: "Beside Redisson",
        how: format!(
            "The same in Rust and in Java, which is warmed up for {} s. A pair is a lock and its release, by one task; fenced \
             is `RFencedLock`, fair `getFairLock`. In a hand-off all tasks want one lock all the time, of two clients of one process \
             in `2 x 16`; p50 is from asking for the release to the next one running. Renewals are of {HELD} locks with a lease of \
             {} s. CPU is for each pair, turn or renewal; commands are all that the server ran, in \
             scripts too. `{BESIDE}` is with `Interop::Redisson`. The server is on one CPU, the clients on any.",
            WARM_UP.as_secs(),
            LEASE.as_secs()
        ),
        columns: [
            "per s",
            "p50 us",
            "server us",
            "commands",
            "client us",
            "lost",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
        aims,
    })
}

fn theirs(harness: &Harness, redisson: &Redisson, workload: &str, port: u16) -> Result<Figures> {
    let warm_up = match (workload, harness.effort) {
        // Until the renewals are spread.
        ("renewals", _) => LEASE / 2,
        (_, Effort::Quick) => WARM_UP / 2,
        _ => WARM_UP,
    };
    let millis = |time: Duration| time.as_millis() as u64;
    let numbers = [millis(warm_up), harness.millis(3000), HELD, millis(LEASE)];
    let mut command = redisson.command(workload, port, &numbers);
    harness.foreign_sample(Placement::Anywhere, &mut command)
}

/// Ours, set up for a fleet of both, is ahead of Redisson.
fn aim(workload: &str, name: &str, samples: &Samples) -> Aim {
    let (figure, what, bound) = if workload == "renewals" {
        ("server_us", "server CPU", Bound::AtMost(1.0))
    } else {
        ("per_s", "turns a second", Bound::AtLeast(1.0))
    };
    Aim {
        what: format!("{name}: {what}, to Redisson's"),
        floor: None,
        peer: Some(1.0),
        ours: samples.ratio(BESIDE, THEIRS, figure),
        bound,
    }
}

/// Takes one sample of ours.
pub fn sample(request: &Request) -> Figures {
    let beside_redisson = request.candidate == BESIDE;
    match request.variant.as_str() {
        "pair" | "fenced" => pairs(request, beside_redisson, 1, false),
        "fair" => pairs(request, beside_redisson, 1, true),
        "tasks" => pairs(request, beside_redisson, TASKS, false),
        "renewals" => renewed(request, beside_redisson),
        _ => handover::sample(request),
    }
}

/// Each task locks and releases a lock of its own.
fn pairs(request: &Request, beside_redisson: bool, tasks: usize, is_fair: bool) -> Figures {
    let (port, duration) = (request.port, request.duration());
    request.run(async move {
        let locks = connect_beside(port, beside_redisson).await;
        let [is_open, is_over]: [Arc<AtomicBool>; 2] = Default::default();
        let mut running = Vec::new();
        for task in 0..tasks {
            let (locks, is_open, is_over) = (locks.clone(), is_open.clone(), is_over.clone());
            running.push(tokio::spawn(async move {
                let name = format!("lock:{task}");
                let (mutex, fair) = (locks.mutex(&name), locks.fair_mutex(&name));
                let mut nanos = Vec::new();
                while !is_over.load(Relaxed) {
                    let begin = Instant::now();
                    let lock = if is_fair { fair.lock() } else { mutex.lock() };
                    release(lock.await.expect("the lock")).await;
                    if is_open.load(Relaxed) {
                        nanos.push(begin.elapsed().as_nanos() as u64);
                    }
                }
                nanos
            }));
        }
        tokio::time::sleep(duration / 3).await;
        let before = (Statistics::read(port), cpu::of_this_process());
        is_open.store(true, Relaxed);
        tokio::time::sleep(duration).await;
        is_open.store(false, Relaxed);
        let spent = spent_since(before, port);
        is_over.store(true, Relaxed);
        let mut nanos = Vec::new();
        for task in running {
            nanos.extend(task.await.expect("a task does not panic"));
        }
        let mut all = spent(nanos.len() as f64);
        let per_s = nanos.len() as f64 / duration.as_secs_f64();
        let p50 = percentile(&mut nanos, 0.5) / 1e3;
        all.extend(figures([("per_s", per_s), ("p50_us", p50)]));
        all
    })
}

async fn release(guard: Guard) {
    assert_eq!(guard.release().await.expect("an answer"), Release::Released);
}

/// Holds many locks while each is renewed three times.
fn renewed(request: &Request, beside_redisson: bool) -> Figures {
    let Request { port, count, .. } = *request;
    request.run(async move {
        let builder = Locks::builder(format!("redis://127.0.0.1:{port}")).lease(LEASE);
        let builder = if beside_redisson {
            builder.interop(leasehold::Interop::Redisson)
        } else {
            builder
        };
        let locks = builder.connect().await.expect("a server");
        let guards = renewals::take(&locks, count).await;
        // Until the renewals are spread.
        tokio::time::sleep(LEASE / 2).await;
        let begin = (Statistics::read(port), cpu::of_this_process());
        let before = begin.0.renewals;
        tokio::time::sleep(LEASE).await;
        let spent = spent_since(begin, port);
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        let renewals = Statistics::read(port).renewals - before;
        let mut all = spent(renewals);
        let per_s = renewals / LEASE.as_secs_f64();
        all.extend(figures([("per_s", per_s), ("lost", lost as f64)]));
        all
    })
}

/// The cost of one of so many turns, since then.
fn spent_since((before, client): (Statistics, f64), port: u16) -> impl FnOnce(f64) -> Figures {
    let (after, client) = (Statistics::read(port), cpu::of_this_process() - client);
    move |turns| {
        figures([
            ("server_us", (after.cpu - before.cpu) * 1e6 / turns),
            ("commands", (after.commands - before.commands) / turns),
            ("client_us", client * 1e6 / turns),
        ])
    }
}
