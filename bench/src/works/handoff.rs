//! Sixty-four tasks of one process wait for one lock: the time from a release until the next owner
//! runs.

use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::client::{Locker, PairClient, Waiting};
use crate::floor::grant::Grant;
use crate::floor::raw_tokio::RawTokio;
use crate::harness::{Harness, Placement};
use crate::ours::lock::Waited;
use crate::peers::rslock::{Eager, Rslock};
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures, percentile};
use crate::scripts::Job;

const CANDIDATES: &[&str] = &["floor-grant", "leasehold", "rslock", "rslock, 5 ms"];
const WAITERS: usize = 64;

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let samples = harness.interleave(harness.rounds(5), CANDIDATES, |candidate| {
        let request = Request {
            work: "handoff".into(),
            candidate: candidate.into(),
            port: harness.server.port,
            workers: 1,
            millis: harness.millis(2000),
            ..Request::default()
        };
        harness.sample(Placement::SameCpu, &request)
    })?;
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: ["p50_rtt", "p99_rtt", "p50_us", "per_s"]
            .map(|figure| samples.median(candidate, figure))
            .to_vec(),
    };
    let bound = Bound::AtMost(2.5);
    let aim = Aim {
        what: "contended hand-off, 64 waiters, p50 in round trips".into(),
        floor: samples.median("floor-grant", "p50_rtt"),
        peer: bound.best(["rslock", "rslock, 5 ms"].map(|peer| samples.median(peer, "p50_rtt"))),
        ours: samples.median("leasehold", "p50_rtt"),
        bound,
    };
    Ok(Section {
        title: "Contended hand-off, 64 waiters in one process",
        how: "A holder releases to 64 waiting tasks, each of which takes the lock once and releases; again and again. \
              Timed from the moment a holder asks for the release to the next one running, on one CPU with the server. \
              A round trip is one EVALSHA of raw-tokio, timed in the same process."
            .into(),
        columns: ["p50 RTT", "p99 RTT", "p50 us", "hand-offs/s"].map(str::to_owned).to_vec(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: vec![aim],
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    match request.candidate.as_str() {
        "floor-grant" => measure::<Grant>(request),
        "leasehold" => measure::<Waited>(request),
        "rslock" => measure::<Rslock>(request),
        "rslock, 5 ms" => measure::<Eager>(request),
        other => panic!("no candidate {other}"),
    }
}

fn measure<L: Waiting>(request: &Request) -> Figures {
    let (port, duration) = (request.port, request.duration());
    request.run(async move {
        let rtt = round_trip(port).await;
        let locker = L::connect(port, WAITERS + 1).await;
        drain(&locker).await;
        let (mut nanos, mut draining) = (Vec::new(), Duration::ZERO);
        let start = Instant::now();
        while start.elapsed() < duration {
            let (latencies, time) = drain(&locker).await;
            nanos.extend(latencies);
            draining += time;
        }
        let (p50, p99) = (percentile(&mut nanos, 0.5), percentile(&mut nanos, 0.99));
        figures([
            ("p50_rtt", p50 / rtt),
            ("p99_rtt", p99 / rtt),
            ("p50_us", p50 / 1e3),
            ("per_s", nanos.len() as f64 / draining.as_secs_f64()),
        ])
    })
}

/// Lets all waiters queue behind a holder and then pass; the nanoseconds of each hand-off and of
/// all together.
async fn drain<L: Locker>(locker: &L) -> (Vec<u64>, Duration) {
    let key = "lock:handoff";
    let base = Instant::now();
    let released = Arc::new(AtomicU64::new(0));
    let first = locker.lock(key, WAITERS).await;
    let tasks: Vec<_> = (0..WAITERS)
        .map(|waiter| {
            let (locker, released) = (locker.clone(), Arc::clone(&released));
            tokio::spawn(async move {
                let guard = locker.lock(key, waiter).await;
                let now = base.elapsed().as_nanos() as u64;
                let waited = now - released.swap(now, Relaxed);
                locker.unlock(guard).await;
                waited
            })
        })
        .collect();
    // Long enough for all to learn that the lock is taken.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let start = Instant::now();
    released.store(base.elapsed().as_nanos() as u64, Relaxed);
    locker.unlock(first).await;
    let mut latencies = Vec::with_capacity(WAITERS);
    for task in tasks {
        latencies.push(task.await.expect("a waiter does not panic"));
    }
    (latencies, start.elapsed())
}

/// The median nanoseconds of one EVALSHA.
pub async fn round_trip(port: u16) -> f64 {
    let mut client = RawTokio::connect(port).await;
    let job = Job::new(0);
    let mut nanos = Vec::with_capacity(4000);
    for _ in 0..4000 {
        let start = Instant::now();
        client.pair(&job).await;
        nanos.push(start.elapsed().as_nanos() as u64 / 2);
    }
    percentile(&mut nanos, 0.5)
}
