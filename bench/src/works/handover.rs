//! Many processes that want one lock all the time, each with a connection of its own: the cost of a hand-over, and how evenly
//! the lock goes round.

use std::future::Future;
use std::io::Result;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::{Locker, Waiting};
use crate::cpu;
use crate::floor::grant::Grant;
use crate::harness::{Harness, Placement, Samples};
use crate::ours::lock::Waited;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures, percentile};
use crate::statistics::Statistics;

const CANDIDATES: &[&str] = &["floor-grant", "leasehold"];
/// How many processes, and how many tasks wait in each.
const FLEETS: [(&str, usize, usize); 6] = [
    ("8 x 1", 8, 1),
    ("64 x 1", 64, 1),
    ("256 x 1", 256, 1),
    ("1024 x 1", 1024, 1),
    ("1 x 64", 1, 64),
    ("100 x 100", 100, 100),
];

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let (mut rows, mut aims) = (Vec::new(), Vec::new());
    let mut cpu_of_8 = None;
    for (fleet, processes, tasks) in FLEETS {
        let samples = harness.interleave(harness.rounds(3), CANDIDATES, |candidate| {
            let request = Request {
                work: "handover".into(),
                candidate: candidate.into(),
                variant: format!("{processes}x{tasks}"),
                port: harness.server.port,
                workers: 1,
                millis: harness.millis(3000),
                ..Request::default()
            };
            harness.sample(Placement::SameCpu, &request)
        })?;
        rows.extend(CANDIDATES.iter().map(|candidate| {
            Row {
                candidate: format!("{candidate}, {fleet}"),
                cells: ["per_s", "requests", "p50_us", "jain", "server_us"]
                    .map(|figure| samples.median(candidate, figure))
                    .to_vec(),
            }
        }));
        let server_us = samples.median("leasehold", "server_us");
        let cpu_of_8 = *cpu_of_8.get_or_insert(server_us);
        aims.extend(aims_of(fleet, tasks, &samples));
        if let (Some(eight), Some(now)) = (cpu_of_8, server_us)
            && tasks > 64
        {
            aims.push(Aim {
                what: format!("{fleet}: server CPU a hand-over, to 8 processes"),
                floor: None,
                peer: None,
                ours: Some(now / eight),
                bound: Bound::AtMost(1.3),
            });
        }
    }
    Ok(Section {
        title: "Handing over between processes",
        how: "So many clients, each with a connection of its own as if it were a process, with so many tasks each, take one lock \
              in a loop and release it at once. Hand-overs a second; script calls a hand-over; the time from asking for the \
              release to the next one running; Jain's index of the grants of all tasks; CPU time of the server. Server and \
              clients on one CPU."
            .into(),
        columns: ["per s", "requests", "p50 us", "Jain", "server us"]
            .map(str::to_owned)
            .to_vec(),
        rows,
        aims,
    })
}

fn aims_of(fleet: &str, tasks: usize, samples: &Samples) -> Vec<Aim> {
    let part = if tasks == 1 { 0.8 } else { 0.9 };
    let aim = |what: &str, floor, ours, bound| Aim {
        what: format!("{fleet}: {what}"),
        floor,
        peer: None,
        ours,
        bound,
    };
    let mut aims = vec![
        aim(
            "requests a hand-over",
            samples.median("floor-grant", "requests"),
            samples.median("leasehold", "requests"),
            Bound::AtMost(2.05),
        ),
        aim(
            "hand-overs a second, to the floor",
            Some(1.0),
            samples.ratio("leasehold", "floor-grant", "per_s"),
            Bound::AtLeast(part),
        ),
        aim(
            "Jain's index",
            samples.median("floor-grant", "jain"),
            samples.median("leasehold", "jain"),
            Bound::AtLeast(0.99),
        ),
    ];
    if tasks == 1 {
        aims.push(aim(
            "p50, to the floor",
            Some(1.0),
            samples.ratio("leasehold", "floor-grant", "p50_us"),
            Bound::AtMost(1.3),
        ));
    }
    aims
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    match request.candidate.as_str() {
        "floor-grant" => of_server::<Grant>(request),
        "leasehold" => of_server::<Waited>(request),
        "leasehold-redisson" => of_server::<Waited<true>>(request),
        other => panic!("no candidate {other}"),
    }
}

fn of_server<L: Waiting>(request: &Request) -> Figures {
    let port = request.port;
    let connect = move |tasks| L::connect(port, tasks);
    measure(request, &request.variant, vec![port], connect)
}

/// Measures the turns of a `fleet`, so many processes `x` so many tasks, at the servers on these ports.
pub fn measure<L: Locker, C: Future<Output = L> + Send>(
    request: &Request,
    fleet: &str,
    ports: Vec<u16>,
    connect: impl Fn(usize) -> C + Send + 'static,
) -> Figures {
    let duration = request.duration();
    let (processes, tasks) = fleet.split_once('x').expect("processes x tasks");
    let (processes, tasks): (usize, usize) = (
        processes.parse().expect("a number"),
        tasks.parse().expect("a number"),
    );
    // What an earlier sample left would be waited for.
    let key = format!("lock:{}:{}", request.candidate, std::process::id());
    let key: Arc<str> = key.into();
    request.run(async move {
        let released = Arc::new(AtomicU64::new(0));
        let base = Instant::now();
        let (mut running, mut turns) = (JoinSet::new(), Vec::new());
        for _ in 0..processes {
            let locker = connect(tasks).await;
            for task in 0..tasks {
                let (locker, key) = (locker.clone(), Arc::clone(&key));
                let (released, own) = (Arc::clone(&released), Arc::<Mutex<Vec<_>>>::default());
                turns.push(Arc::clone(&own));
                running.spawn(async move {
                    loop {
                        let guard = locker.lock(&key, task).await;
                        let now = base.elapsed().as_nanos() as u64;
                        let waited = now.saturating_sub(released.load(Relaxed));
                        own.lock().expect("no panic").push((now, waited));
                        released.store(base.elapsed().as_nanos() as u64, Relaxed);
                        locker.unlock(guard).await;
                    }
                });
            }
        }
        // Until all of them wait.
        let each = Duration::from_millis((processes * tasks) as u64);
        tokio::time::sleep(each.max(duration / 3)).await;
        let now = || base.elapsed().as_nanos() as u64;
        let (start, before) = (now(), Statistics::of_all(&ports));
        let cpu = cpu::of_this_process();
        tokio::time::sleep(duration).await;
        let (end, after) = (now(), Statistics::of_all(&ports));
        let cpu = cpu::of_this_process() - cpu;
        assert!(running.try_join_next().is_none(), "a task has ended");
        drop(running);
        let (mut nanos, mut grants) = (Vec::new(), Vec::new());
        for own in turns {
            let own = own.lock().expect("no panic");
            let in_time = own.iter().filter(|(at, _)| (start..end).contains(at));
            let known = nanos.len();
            nanos.extend(in_time.map(|(_, waited)| *waited));
            grants.push((nanos.len() - known) as f64);
        }
        let all = nanos.len() as f64;
        figures([
            (
                "per_s",
                all / Duration::from_nanos(end - start).as_secs_f64(),
            ),
            ("requests", (after.scripts - before.scripts) / all),
            ("p50_us", percentile(&mut nanos, 0.5) / 1e3),
            ("jain", jain(&grants)),
            ("server_us", (after.cpu - before.cpu) * 1e6 / all),
            ("commands", (after.commands - before.commands) / all),
            ("client_us", cpu * 1e6 / all),
        ])
    })
}

/// Jain's index of fairness: 1 if all have the same, 1/n if one has it all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}
