//! What observers are told of losses, by each reason, of connections that are made again, and of masters that are replaced.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Error, ErrorKind, Locks, LostReason};
use leasehold_testkit::chance::Chance;
use leasehold_testkit::{Cluster, Failover, Proxy, Sentinels, Server};

use crate::observed::Record;
use crate::support::{granted, ms, take, until, within};

const LEASE: Duration = ms(1_200);

async fn short(url: String) -> (Locks, Record) {
    Record::of(Locks::builder(url).lease(LEASE)).await
}

/// What is told of a mutex that is lost like this.
fn lost(reason: &str) -> [String; 3] {
    let lost = format!("mutex lost {reason}");
    ["mutex waiting".into(), "mutex granted at_once".into(), lost]
}

async fn assert_lost(record: &Record, key: &str, reason: &str) {
    let expected = lost(reason);
    record
        .is(key, &expected.each_ref().map(String::as_str))
        .await;
}

#[tokio::test]
async fn every_loss_is_told_once_with_its_reason() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (locks, record) = short(server.url()).await;
    let deleted = take(&locks, "deleted").await;
    let forced = take(&locks, "forced").await;
    let longest = locks.mutex("longest").lock().max_hold(ms(300));
    let longest = longest.await.unwrap();
    let fixed = locks.mutex("fixed").lock().lease(ms(200)).await.unwrap();
    let closed = take(&locks, "closed").await;
    raw.cmd(&["DEL", "deleted"]).await;
    assert!(locks.mutex("forced").force_unlock().await.unwrap());
    assert_eq!(
        within("the longest hold", longest.lost()).await,
        LostReason::MaxHold
    );
    assert_eq!(within("the lease", fixed.lost()).await, LostReason::Expired);
    assert_eq!(
        within("a renewal", deleted.lost()).await,
        LostReason::Stolen
    );
    until("renewals", async || record.count("closed", "renewed") > 0).await;
    locks.shutdown().await.unwrap();
    for (key, reason) in [
        ("deleted", "stolen"),
        ("forced", "stolen"),
        ("longest", "max_hold"),
        ("fixed", "expired"),
        ("closed", "closed"),
    ] {
        assert_lost(&record, key, reason).await;
    }
    drop((deleted, forced, longest, fixed, closed));
    let stats = locks.stats();
    assert_eq!(
        (stats.acquired(), stats.lost(), stats.released()),
        (5, 5, 0)
    );
    assert_eq!(stats.lost_for(LostReason::Stolen), 2);
    assert_eq!(stats.held(), 0);
    // Their guards say no more.
    assert_eq!(record.events("forced").len(), 3);
}

#[tokio::test]
async fn a_silent_server_is_told_as_trouble_and_then_as_a_loss() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let (locks, record) = short(proxy.url()).await;
    let guard = take(&locks, "a").await;
    until("a renewal", async || record.count("a", "renewed") > 0).await;
    proxy.blackhole();
    assert_eq!(within("the end", guard.lost()).await, LostReason::Expired);
    assert!(record.count("a", "renewal_failed") > 0);
    assert!(locks.stats().failed_renewals() > 0);
    proxy.heal();
    assert_lost(&record, "a", "expired").await;
}

#[tokio::test]
async fn a_restart_and_killed_connections_are_told() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (locks, record) = short(server.url()).await;
    let guard = take(&locks, "a").await;
    until("both connections", async || {
        record.count("a", "renewed") > 0
    })
    .await;
    assert_eq!(record.count("", "reconnected"), 0);
    raw.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
        .await;
    let reconnected = async |count: usize| {
        until("both are made again", async || {
            let of =
                |whose: &str| record.count("", &format!("reconnected {whose} {}", server.addr()));
            (of("all"), of("renewals")) == (count, count)
        })
        .await;
    };
    reconnected(1).await;
    assert!(guard.is_held(), "the server still has it");
    assert_eq!(locks.stats().reconnects(), 2);

    server.kill();
    server.restart().await;
    assert_eq!(within("the loss", guard.lost()).await, LostReason::NodeGone);
    reconnected(2).await;
    assert_lost(&record, "a", "node_gone").await;
}

#[tokio::test]
async fn a_failover_of_the_sentinels_is_told_as_another_map() {
    let sentinels = Sentinels::start().await;
    let (locks, record) = short(sentinels.url()).await;
    let guard = granted(&locks, "a").await;
    let before = locks.stats().map_changes();
    sentinels.failover().await;
    until("another map", async || locks.stats().map_changes() > before).await;
    until("it is told", async || record.count("", "map_changed 1") > 0).await;
    // The new master may have it or not; either is told once.
    drop(guard);
    until("an end", async || record.held() == 0).await;
    record.check();
}

#[tokio::test]
async fn a_failover_in_a_cluster_is_told_as_another_map() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let (locks, record) = short(cluster.url()).await;
    let name = cluster.key_at(0, "k").await;
    let guard = granted(&locks, &name).await;
    let replica = cluster.replicas_of(0).await[0];
    let other = cluster.key_at(0, "other").await;
    let before = locks.stats().map_changes();
    cluster.failover(replica, Failover::Takeover).await;
    // The first request to the former master is told where to go.
    until("another map", async || {
        let _ = locks.mutex(&other).try_lock().await;
        locks.stats().map_changes() > before
    })
    .await;
    until("it is told", async || record.count("", "map_changed 3") > 0).await;
    drop(guard);
    until("an end", async || record.held() == 0).await;
    record.check();
}

/// Locks of all kinds are taken, waited for, given up and broken for a while. Whatever happened, the numbers add up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statistics_and_events_add_up_after_a_storm() {
    let server = Server::start().await;
    let (locks, record) = Record::of(Locks::builder(server.url()).lease(ms(600))).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for n in 0..24 {
        let (locks, over) = (locks.clone(), Arc::clone(&over));
        tasks.push(tokio::spawn(async move { contend(&locks, n, &over).await }));
    }
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        let _ = locks.mutex("m1").force_unlock().await;
        let _ = locks.rw_lock("r0").force_unlock().await;
        tokio::time::sleep(ms(70)).await;
    }
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        within("the end of a task", task).await.unwrap();
    }
    let kept = take(&locks, "kept").await;
    let stats = locks.stats();
    assert_eq!(stats.waiting(), 0, "{stats:?}");
    assert_eq!(stats.held(), 1, "{stats:?}");
    assert_eq!(stats.acquired(), stats.released() + stats.lost() + 1);
    assert!(stats.cancelled() > 0 && stats.timed_out() > 0, "{stats:?}");
    assert!(stats.lost() > 0 && stats.acquired() > 100, "{stats:?}");
    if stats.untold() == 0 {
        until("all events", async || record.held() == 1).await;
    }
    record.check();
    drop(kept);
    assert_eq!(locks.stats().held(), 0);
}

async fn contend(locks: &Locks, seed: u64, over: &AtomicBool) {
    let mut chance = Chance::new(seed);
    while !over.load(Ordering::Relaxed) {
        let name = chance.below(2);
        let held = ms(chance.below(8));
        match chance.below(6) {
            0 => {
                let waiting = locks.mutex(format!("m{name}")).lock().into_future();
                if let Ok(Ok(_guard)) = tokio::time::timeout(ms(5), waiting).await {
                    tokio::time::sleep(held).await;
                }
            }
            1 => {
                let waiting = locks.fair_mutex(format!("f{name}")).try_lock_for(ms(4));
                let _guard = waiting.await.map_err(too_late);
                tokio::time::sleep(held).await;
            }
            2 => {
                let _guard = locks.rw_lock(format!("r{name}")).read().await;
                tokio::time::sleep(held).await;
            }
            3 => {
                let writing = locks.rw_lock(format!("r{name}")).try_write_for(ms(20));
                if let Ok(Some(guard)) = writing.await {
                    let _guard = guard.downgrade().await;
                    tokio::time::sleep(held).await;
                }
            }
            4 => {
                let semaphore = locks.semaphore(format!("s{name}"), 3);
                let waiting = semaphore.try_acquire_many_for(2, ms(10));
                let _permit = waiting.await.map_err(too_late);
                tokio::time::sleep(held).await;
            }
            _ => {
                let multi = locks.multi(["m0", "m1"]).try_lock_for(ms(30));
                let _guard = multi.await;
                tokio::time::sleep(held).await;
            }
        }
    }
}

/// On a busy machine an answer may take longer than the lease.
fn too_late(error: Error) {
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}
