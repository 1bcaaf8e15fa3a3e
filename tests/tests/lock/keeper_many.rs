//! The renewal thread with many locks: releases that failed all at once, and few calls in a cluster.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use leasehold::{Guard, Locks};
use leasehold_testkit::{Cluster, Server, calls};

use crate::support::{leased, ms, until, within};

/// Takes `count` locks, `n0` and so on.
async fn many(locks: &Locks, count: usize) -> Vec<Guard> {
    let mut tasks = Vec::new();
    for part in 0..16 {
        let locks = locks.clone();
        tasks.push(tokio::spawn(async move {
            let mut guards = Vec::new();
            for n in (part..count).step_by(16) {
                guards.push(locks.mutex(format!("n{n}")).lock().await.unwrap());
            }
            guards
        }));
    }
    let mut guards = Vec::new();
    for task in tasks {
        guards.extend(within("a part of the locks", task).await.unwrap());
    }
    guards
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_releases_that_failed_together_are_finished_together() {
    const COUNT: usize = 10_000;
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = leased(server.url(), Duration::from_secs(120)).await;
    let guards = many(&locks, COUNT).await;
    raw.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
        .await;
    raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"])
        .await;
    let began = Instant::now();
    drop(guards);
    println!("dropped after {:?}", began.elapsed());
    // What is left are the counters of the tokens.
    until("all are free", async || {
        raw.cmd(&["DBSIZE"]).await.int() == COUNT as i64
    })
    .await;
    println!("all free after {:?}", began.elapsed());
    assert!(began.elapsed() < ms(20_000), "{:?}", began.elapsed());
    within("the shutdown", locks.shutdown()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_gets_one_renewal_for_each_slot_and_not_for_each_lock() {
    const LOCKS: usize = 10_000;
    const SLOTS: usize = 100;
    let lease = Duration::from_secs(24);
    let cluster = Cluster::builder().replicas(0).start().await;
    let locks = leased(cluster.url(), lease).await;
    let mut tasks = Vec::new();
    for part in 0..16 {
        let locks = locks.clone();
        tasks.push(tokio::spawn(async move {
            let mut guards = Vec::new();
            for n in (part..LOCKS).step_by(16) {
                let name = format!("{{tag{}}}n{n}", n % SLOTS);
                guards.push(locks.mutex(name).lock().await.unwrap());
            }
            guards
        }));
    }
    let mut guards = Vec::new();
    for task in tasks {
        guards.extend(within("a part of the locks", task).await.unwrap());
    }
    let slots: HashSet<u16> = (0..SLOTS)
        .map(|n| leasehold_cluster::slot::slot(format!("{{tag{n}}}").as_bytes()))
        .collect();
    assert!(slots.len() > SLOTS * 9 / 10);
    let mut masters = Vec::new();
    for n in 0..3 {
        let mut raw = cluster.raw(n).await;
        raw.cmd(&["CONFIG", "RESETSTAT"]).await;
        masters.push(raw);
    }
    // About two renewals of each lock.
    tokio::time::sleep(lease * 2 / 3).await;
    let mut asked = 0;
    for raw in &mut masters {
        asked += calls(raw, "evalsha").await + calls(raw, "eval").await;
    }
    println!("{asked} calls");
    // Taken 128 at a time, most calls would renew one or two locks.
    assert!(
        asked < 2 * LOCKS as u64 / 8,
        "{asked} calls for two renewals of {LOCKS} locks"
    );
    assert!(guards.iter().all(Guard::is_held));
}
