//! A writer beside readers that come in loops: how long it waits, and what it leaves to them.

use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use leasehold::{Locks, RwLock};
use tokio::task::JoinSet;

use crate::harness::{Harness, Placement};
use crate::report::{Row, Section};
use crate::sample::{Figures, Request, figures, percentile};

/// How many processes, and how many readers in each.
const CANDIDATES: &[&str] = &["8 x 1", "2 x 4", "1 x 8"];
/// How long a reader reads, and the writer pauses after each of its turns.
const READ: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_millis(5);

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let samples = harness.interleave(harness.rounds(1), CANDIDATES, |candidate| {
        let request = Request {
            work: "writers".into(),
            candidate: candidate.into(),
            port: harness.server.port,
            workers: 1,
            millis: harness.millis(5000),
            ..Request::default()
        };
        harness.sample(Placement::CrossCpu, &request)
    })?;
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: ["p50_ms", "p99_ms", "max_ms", "writes", "reads"]
            .map(|figure| samples.median(candidate, figure))
            .to_vec(),
    };
    Ok(Section {
        title: "A writer beside eight readers",
        how: "So many clients, each with a connection of its own, with so many readers each, read for 5 ms at a time in loops, \
              without a pause. Another client writes, and pauses for 5 ms each time. Milliseconds from asking to writing; writes \
              and reads a second. What is promised is the longest read and two round trips."
            .into(),
        columns: ["p50 ms", "p99 ms", "longest ms", "writes/s", "reads/s"]
            .map(str::to_owned)
            .to_vec(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: Vec::new(),
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    let (processes, readers) = request.candidate.split_once(" x ").expect("a fleet");
    let [processes, readers] = [processes, readers].map(|n| n.parse::<usize>().expect("a number"));
    let (port, duration) = (request.port, request.duration());
    let name = format!("lock:writers:{}", std::process::id());
    request.run(async move {
        let connect = async || {
            let locks = Locks::connect(format!("redis://127.0.0.1:{port}")).await;
            locks.expect("a server").rw_lock(&name)
        };
        let reads = Arc::<AtomicU64>::default();
        let mut reading = JoinSet::new();
        for _ in 0..processes {
            let lock = connect().await;
            for _ in 0..readers {
                reading.spawn(read(lock.clone(), Arc::clone(&reads)));
            }
        }
        let writer = connect().await;
        let (start, mut waits) = (Instant::now(), Vec::new());
        while start.elapsed() < duration {
            tokio::time::sleep(PAUSE).await;
            let asked = Instant::now();
            let guard = writer.write().await.expect("the server is up");
            waits.push(asked.elapsed().as_nanos() as u64);
            guard.release().await.expect("the server is up");
        }
        let seconds = start.elapsed().as_secs_f64();
        assert!(reading.try_join_next().is_none(), "a reader has ended");
        let longest = waits
            .iter()
            .max()
            .map_or(f64::NAN, |longest| *longest as f64);
        let (p50, p99) = (percentile(&mut waits, 0.5), percentile(&mut waits, 0.99));
        figures([
            ("p50_ms", p50 / 1e6),
            ("p99_ms", p99 / 1e6),
            ("max_ms", longest / 1e6),
            ("writes", waits.len() as f64 / seconds),
            ("reads", reads.load(Relaxed) as f64 / seconds),
        ])
    })
}

async fn read(lock: RwLock, reads: Arc<AtomicU64>) {
    loop {
        let guard = lock.read().await.expect("the server is up");
        tokio::time::sleep(READ).await;
        reads.fetch_add(1, Relaxed);
        guard.release().await.expect("the server is up");
    }
}
