//! What it costs to keep 20 000 locks: plain ones, and ones whose renewals replicas confirm.

use std::io::Result;
use std::time::Duration;

use leasehold::{Guard, Locks, Replicas};
use tokio::task::JoinSet;

use crate::cpu;
use crate::floor::raw_blocking::RawBlocking;
use crate::harness::{Harness, Placement};
use crate::report::{Row, Section};
use crate::sample::{Figures, Request, figures};
use crate::server::Server;

const CANDIDATES: &[&str] = &["plain", "confirmed by a replica"];
const HELD: u64 = 20_000;
/// Each lock is renewed at a third of it.
const LEASE: Duration = Duration::from_secs(9);
/// Locks that are being taken at the same time.
const AT_ONCE: usize = 64;

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let (master, replica) = (Server::start(0)?, Server::start(0)?);
    let port = master.port.to_string();
    RawBlocking::open(replica.port)?.call(&[b"REPLICAOF", b"127.0.0.1", port.as_bytes()])?;
    let samples = harness.interleave(harness.rounds(3).min(3), CANDIDATES, |candidate| {
        let request = Request {
            work: "renewals".into(),
            candidate: candidate.into(),
            port: master.port,
            workers: 1,
            count: HELD,
            ..Request::default()
        };
        harness.sample(Placement::Anywhere, &request)
    })?;
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: vec![
            samples.median(candidate, "cpu_ms"),
            samples.median(candidate, "cpu_us"),
            samples.median(candidate, "waits"),
            samples.median(candidate, "lost"),
        ],
    };
    Ok(Section {
        title: "20 000 renewals",
        how: format!(
            "A process holds {HELD} locks with a lease of {} s on a master with a replica, for a lease and a half after all \
             were taken. CPU is that of the client process while every lock is renewed once: a third of the lease.",
            LEASE.as_secs()
        ),
        columns: ["CPU ms", "CPU us/renewal", "WAITs", "lost"]
            .map(str::to_owned)
            .to_vec(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: Vec::new(),
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    let replicas = match request.candidate.as_str() {
        "plain" => Replicas::None,
        _ => Replicas::All,
    };
    let Request { port, count, .. } = *request;
    request.run(async move {
        let locks = Locks::builder(format!("redis://127.0.0.1:{port}"))
            .lease(LEASE)
            .replicated(replicas)
            // The servers are younger than the lease, and have forgotten nothing.
            .restart_guard(Duration::from_millis(10))
            .connect()
            .await
            .expect("a server");
        let guards = take(&locks, count).await;
        // Until the renewals are spread.
        tokio::time::sleep(LEASE / 2).await;
        let (cpu, waits) = (cpu::of_this_process(), waits(port));
        tokio::time::sleep(LEASE).await;
        // In a lease each is renewed three times.
        let cpu_ms = (cpu::of_this_process() - cpu) * 1000.0 / 3.0;
        let waits = (self::waits(port) - waits) / 3.0;
        let lost = guards.iter().filter(|guard| !guard.is_held()).count();
        for guard in guards {
            let _ = guard.release().await;
        }
        figures([
            ("cpu_ms", cpu_ms),
            ("cpu_us", cpu_ms * 1000.0 / count as f64),
            ("waits", waits),
            ("lost", lost as f64),
        ])
    })
}

pub(super) async fn take(locks: &Locks, count: u64) -> Vec<Guard> {
    let (mut guards, mut taking) = (Vec::new(), JoinSet::new());
    for n in 0..count {
        if taking.len() == AT_ONCE
            && let Some(guard) = taking.join_next().await
        {
            guards.push(guard.expect("no panic"));
        }
        let attempt = locks.mutex(format!("renewed:{n}")).lock();
        taking.spawn(async move { attempt.await.expect("the lock") });
    }
    guards.extend(taking.join_all().await);
    guards
}

/// How often the server was asked to wait for replicas.
fn waits(port: u16) -> f64 {
    let stats = RawBlocking::open(port).and_then(|mut raw| raw.call(&[b"INFO", b"commandstats"]));
    let stats = String::from_utf8_lossy(&stats.expect("an answer")).into_owned();
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_wait:calls="))
        .and_then(|line| line.split(',').next()?.parse().ok());
    calls.unwrap_or(0.0)
}
