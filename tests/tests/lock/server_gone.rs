//! Servers that are gone, for a second or for good: who waits for them, and who fails at once.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::{Error, ErrorKind, Locks};
use leasehold_testkit::{Cluster, Sentinels, Server};

use crate::support::{ms, take, until, within};

/// Far above what a busy machine needs for what takes no time.
const LONG: Duration = Duration::from_secs(30);

async fn connected(url: impl Into<String>, timeout: Duration) -> Locks {
    let builder = Locks::builder(url).command_timeout(timeout).lease(LONG * 4);
    let locks = builder.connect().await;
    let locks = locks.expect("the server is up");
    drop(take(&locks, "warm").await);
    locks
}

fn assert_refused(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable());
    assert!(
        error.to_string().contains("no server listens there"),
        "{error}"
    );
}

/// A ping says so, before its timeout. One on the connection that has just ended may say that instead.
async fn is_refused(locks: &Locks) -> Error {
    let error = until("a refusal", async || {
        let error = within("an answer", locks.ping()).await.unwrap_err();
        let is_refused = error.to_string().contains("no server listens there");
        is_refused
            .then_some(error)
            .ok_or_else(|| "another one".to_owned())
    });
    let error = error.await;
    assert_refused(&error);
    error
}

/// What every kind of call that asks the server says of it.
async fn errors(locks: &Locks) -> Vec<Error> {
    let semaphore = locks.semaphore("s", 3);
    vec![
        locks.mutex("a").try_lock().await.unwrap_err(),
        locks.mutex("a").lock().await.unwrap_err(),
        locks.mutex("a").try_lock_for(LONG).await.unwrap_err(),
        locks.mutex("a").holder().await.unwrap_err(),
        locks.mutex("a").force_unlock().await.unwrap_err(),
        locks.fair_mutex("f").lock().await.unwrap_err(),
        locks.rw_lock("rw").write().await.unwrap_err(),
        locks.multi(["a", "b"]).lock().await.unwrap_err(),
        semaphore.acquire().await.unwrap_err(),
        semaphore.counting().acquire(1).await.unwrap_err(),
        locks.latch("l").count_down().await.unwrap_err(),
        locks.barrier("b", 2).wait().await.map(drop).unwrap_err(),
        locks.ping().await.unwrap_err(),
    ]
}

#[tokio::test]
async fn one_that_is_back_within_a_second_is_missed_by_nobody_but_a_ping() {
    let server = Server::start().await;
    let locks = connected(server.url(), LONG).await;
    server.kill();
    is_refused(&locks).await;
    let mutexes: Vec<_> = ["a", "b", "c"].map(|name| locks.mutex(name)).into();
    let semaphore = locks.semaphore("s", 3);
    let waits = tokio::spawn(mutexes[0].lock().into_future());
    let tries = tokio::spawn(mutexes[1].try_lock().into_future());
    let bounded = tokio::spawn(mutexes[2].try_lock_for(LONG).into_future());
    let permits = tokio::spawn(async move { semaphore.available().await });
    tokio::time::sleep(ms(700)).await;
    server.restart().await;
    drop(within("lock", waits).await.unwrap().unwrap());
    let tried = within("try_lock", tries).await.unwrap().unwrap();
    assert!(tried.is_some());
    let bounded = within("try_lock_for", bounded).await.unwrap().unwrap();
    assert!(bounded.is_some());
    assert_eq!(within("a look", permits).await.unwrap().unwrap(), 3);
    locks.ping().await.unwrap();
}

#[tokio::test]
async fn one_that_is_gone_is_waited_for_once_and_calls_fail_at_once_then() {
    let timeout = Duration::from_secs(3);
    let server = Server::start().await;
    let locks = connected(server.url(), timeout).await;
    let guard = take(&locks, "held").await;
    let owner = locks.owner();
    let outer = owner.mutex("nested").lock().await.unwrap();
    server.kill();
    is_refused(&locks).await;
    let began = Instant::now();
    assert_refused(&locks.mutex("a").try_lock().await.unwrap_err());
    assert!(began.elapsed() >= timeout - ms(100), "it was waited for");
    // Attempts to connect are a second apart at most.
    tokio::time::sleep(ms(1_200)).await;
    let began = Instant::now();
    for _ in 0..2 {
        for error in within("answers", errors(&locks)).await {
            assert_refused(&error);
        }
    }
    assert!(
        began.elapsed() < timeout * 5,
        "24 of these calls would have waited"
    );
    // What needs no server goes on.
    assert!(guard.is_held());
    let inner = owner.mutex("nested").lock().await.unwrap();
    drop((inner, outer));

    // The first call finds that it is back.
    server.restart().await;
    drop(locks.mutex("a").try_lock().await.unwrap().unwrap());
    locks.ping().await.unwrap();
}

/// Another node may be about to take over what this one has.
#[tokio::test]
async fn where_there_are_others_it_is_waited_for_each_time() {
    let timeout = ms(1_500);
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let sentinels = Sentinels::start().await;
    let of_cluster = connected(cluster.url(), timeout).await;
    let of_sentinels = connected(sentinels.url(), LONG).await;
    let key = cluster.key_at(0, "k").await;
    cluster.kill(0);
    let error = is_refused(&of_cluster).await;
    assert_eq!(error.node(), cluster.addr(0).to_string());
    for _ in 0..2 {
        let began = Instant::now();
        let error = of_cluster.mutex(&key).try_lock().await.unwrap_err();
        assert_refused(&error);
        assert!(began.elapsed() >= timeout - ms(100), "it was waited for");
    }

    // A failover behind sentinels is missed by nobody either.
    let master = sentinels.master().await.expect("there is one");
    sentinels.node(master).kill();
    drop(
        within("the lock", of_sentinels.mutex("a").lock().into_future())
            .await
            .unwrap(),
    );
}
