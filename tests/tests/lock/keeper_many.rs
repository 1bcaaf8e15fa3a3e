//! The renewal thread with many locks: releases that failed all at once, few calls in a cluster, and a thread that panics.

use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use leasehold::{Guard, Locks};
use leasehold_testkit::{Cluster, Server, calls, until_for};

use crate::support::{exists, leased, ms, short_locks, until, within};

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
        guards.extend(task.await.unwrap());
    }
    guards
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_releases_that_failed_together_are_finished_together() {
    const COUNT: usize = 10_000;
    const LEASE: Duration = Duration::from_secs(120);
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = leased(server.url(), LEASE).await;
    let guards = many(&locks, COUNT).await;
    raw.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
        .await;
    raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"])
        .await;
    let began = Instant::now();
    drop(guards);
    println!("dropped after {:?}", began.elapsed());
    // What is left are the counters of the tokens, and the entry of the process.
    until_for(LEASE / 2, "all are free", async || {
        raw.cmd(&["DBSIZE"]).await.int() == COUNT as i64 + 1
    })
    .await;
    println!("all free after {:?}", began.elapsed());
    within("the shutdown", locks.shutdown()).await.unwrap();
}

/// Panics where it is woken by the renewal thread.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        let thread = std::thread::current();
        assert!(
            thread.name() != Some("leasehold-keeper"),
            "this waker panics, as it should"
        );
    }
}

#[tokio::test]
async fn a_waker_that_panics_in_the_renewal_thread_costs_no_other_lock() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(1_500)).await;
    let mutexes = [locks.mutex("lost"), locks.mutex("kept")];
    let lost = mutexes[0].lock().await.unwrap();
    let kept = mutexes[1].lock().await.unwrap();
    let mut watched = pin!(lost.lost());
    let waker = Waker::from(Arc::new(Bomb));
    assert!(
        watched
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    raw.cmd(&["DEL", "lost"]).await;
    until("the loss", async || !lost.is_held()).await;
    let end = Instant::now() + ms(4_000);
    while Instant::now() < end {
        assert!(kept.is_held(), "it is not renewed any more");
        tokio::time::sleep(ms(20)).await;
    }
    // New ones are renewed, too.
    let later = locks.mutex("later").lock().await.unwrap();
    tokio::time::sleep(ms(2_500)).await;
    assert!(later.is_held() && exists(&mut raw, "later").await);
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
        guards.extend(task.await.unwrap());
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
