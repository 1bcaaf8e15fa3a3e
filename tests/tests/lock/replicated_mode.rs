//! Locks that count only when replicas have confirmed them.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Guard, Locks, LocksBuilder, Release, Replicas};
use leasehold_testkit::{Raw, Server, replicas};

use crate::support::{exists, ms, until, within};

/// A request for a replica that is down takes this long.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(700);

/// The servers of these tests are younger than any lease, and have forgotten nothing.
const YOUNG: Duration = Duration::from_millis(10);

/// A master with two replicas that both confirm.
async fn servers() -> replicas::Replicas {
    let servers = replicas::Replicas::builder().replicas(2).start().await;
    let mut master = servers.node(0).raw().await;
    master.cmd(&["SET", "probe", "1", "PX", "60000"]).await;
    assert_eq!(master.cmd(&["WAIT", "2", "20000"]).await.int(), 2);
    servers
}

fn builder(servers: &replicas::Replicas) -> LocksBuilder {
    Locks::builder(servers.url())
        .command_timeout(COMMAND_TIMEOUT)
        .restart_guard(YOUNG)
}

/// A free lock, also on a machine that is so busy that a replica is late.
async fn take(locks: &Locks, name: &str, replicas: Replicas) -> Guard {
    until("a lock", async || {
        match locks.mutex(name).try_lock().replicated(replicas).await {
            Ok(Some(guard)) => Ok(guard),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// The replicas were asked, and were too few. A master that is late to say so leaves that open:
/// then it is asked again.
async fn assert_not_replicated(mut attempt: impl AsyncFnMut() -> Option<Error>) {
    until("the master counts its replicas", async || {
        let Some(error) = attempt().await else {
            return Err("it was granted, or is not given back yet".into());
        };
        match error.kind() {
            ErrorKind::NotReplicated => Ok(()),
            ErrorKind::Unknown => Err(error.to_string()),
            _ => panic!("{error}"),
        }
    })
    .await;
}

/// A failed acquire removes its hold.
async fn assert_nothing_is_left(raw: &mut Raw, name: &str) {
    until("it is given back", async || !exists(raw, name).await).await;
}

#[tokio::test]
async fn a_guard_says_how_many_replicas_have_the_lock() {
    let servers = servers().await;
    let locks = builder(&servers)
        .replicated(Replicas::All)
        .connect()
        .await
        .unwrap();
    let all = take(&locks, "a", Replicas::All).await;
    assert_eq!(all.acknowledged(), 2);
    for replica in 1..=2 {
        let mut raw = servers.node(replica).raw().await;
        assert!(
            exists(&mut raw, "a").await,
            "replica {replica} confirmed what it does not have"
        );
    }
    assert!((1..=2).contains(&take(&locks, "b", Replicas::AtLeast(1)).await.acknowledged()));
    assert_eq!(take(&locks, "c", Replicas::None).await.acknowledged(), 0);
    assert_eq!(
        take(&locks, "d", Replicas::AtLeast(0)).await.acknowledged(),
        0
    );
    // A held lock is refused at once, without waiting for replicas.
    let others = builder(&servers)
        .replicated(Replicas::All)
        .connect()
        .await
        .unwrap();
    assert!(others.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(all.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_replica_that_is_down_keeps_all_but_not_one_from_confirming() {
    let servers = servers().await;
    let locks = builder(&servers)
        .replicated(Replicas::All)
        .connect()
        .await
        .unwrap();
    let mut raw = servers.node(0).raw().await;
    // From here on two are expected, however many are connected.
    drop(take(&locks, "a", Replicas::All).await);
    servers.node(1).pause();

    assert_not_replicated(async || locks.mutex("b").try_lock().await.err()).await;
    assert_nothing_is_left(&mut raw, "b").await;
    assert_not_replicated(async || locks.mutex("b").lock().await.err()).await;
    assert_nothing_is_left(&mut raw, "b").await;
    assert_eq!(
        take(&locks, "b", Replicas::AtLeast(1)).await.acknowledged(),
        1
    );

    // Also when the master does not know the other one any more.
    servers.node(1).kill();
    until("the master forgets the replica", async || {
        raw.cmd(&["INFO", "replication"])
            .await
            .str()
            .contains("connected_slaves:1")
    })
    .await;
    assert_nothing_is_left(&mut raw, "b").await;
    assert_not_replicated(async || locks.mutex("b").try_lock().await.err()).await;
    assert_nothing_is_left(&mut raw, "b").await;

    servers.node(1).restart().await;
    assert_eq!(take(&locks, "b", Replicas::All).await.acknowledged(), 2);
}

#[tokio::test]
async fn each_lock_may_ask_for_more_or_less_than_the_others() {
    let servers = servers().await;
    let mut raw = servers.node(0).raw().await;
    let (fast, safe) = (
        builder(&servers),
        builder(&servers).replicated(Replicas::All),
    );
    let (fast, safe) = (fast.connect().await.unwrap(), safe.connect().await.unwrap());
    drop(take(&fast, "a", Replicas::All).await);
    servers.node(1).pause();
    servers.node(2).pause();

    drop(fast.mutex("a").lock().await.unwrap());
    drop(
        within("no replica is asked", async {
            safe.mutex("b").lock().replicated(Replicas::None).await
        })
        .await
        .unwrap(),
    );
    assert_not_replicated(async || {
        fast.mutex("c")
            .lock()
            .replicated(Replicas::AtLeast(1))
            .await
            .err()
    })
    .await;
    assert_not_replicated(async || {
        fast.mutex("c")
            .try_lock_for(ms(100))
            .replicated(Replicas::All)
            .await
            .err()
    })
    .await;
    for name in ["a", "b", "c"] {
        assert_nothing_is_left(&mut raw, name).await;
    }
}

/// A renewal that replicas have not confirmed is worth nothing: the master may have been replaced
/// by one of them.
#[tokio::test]
async fn a_hold_that_replicas_do_not_confirm_any_more_is_lost_within_its_lease_and_released() {
    let servers = servers().await;
    let mut raw = servers.node(0).raw().await;
    let lease = ms(1_500);
    let locks = builder(&servers)
        .replicated(Replicas::All)
        .lease(lease)
        .connect()
        .await
        .unwrap();
    let guard = take(&locks, "a", Replicas::All).await;
    let plain = take(&locks, "b", Replicas::None).await;
    let one = take(&locks, "c", Replicas::AtLeast(1)).await;
    tokio::time::sleep(lease * 2).await;
    assert!(guard.is_held(), "{:?}", guard.lost().await);

    servers.node(1).pause();
    let frozen = std::time::Instant::now();
    within("the loss", guard.lost()).await;
    println!("lost {:?} after the replica was frozen", frozen.elapsed());
    assert!(!guard.is_held());
    // Although its guard is still there.
    until("it is released", async || !exists(&mut raw, "a").await).await;
    tokio::time::sleep(lease).await;
    assert!(plain.is_held() && one.is_held(), "{plain:?} {one:?}");
}

#[tokio::test]
async fn releases_do_not_wait_for_replicas() {
    let servers = servers().await;
    let mut raw = servers.node(0).raw().await;
    let locks = builder(&servers)
        .replicated(Replicas::All)
        .connect()
        .await
        .unwrap();
    let guard = take(&locks, "a", Replicas::All).await;
    for replica in 1..=2 {
        servers.node(replica).pause();
    }
    // An attempt before the one that was granted may still be counted.
    let mut seen = waits(&mut raw).await;
    until("no `WAIT` is under way", async || {
        tokio::time::sleep(ms(300)).await;
        let before = std::mem::replace(&mut seen, waits(&mut raw).await);
        before == seen
    })
    .await;
    assert!(seen > 0);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert!(!exists(&mut raw, "a").await);
    assert_eq!(waits(&mut raw).await, seen);
}

/// Number of `WAIT` requests to the server.
async fn waits(raw: &mut Raw) -> u64 {
    crate::support::calls(raw, "wait").await
}

#[tokio::test]
async fn all_of_no_replicas_are_not_enough() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = Locks::builder(server.url())
        .replicated(Replicas::All)
        .restart_guard(YOUNG)
        .command_timeout(COMMAND_TIMEOUT);
    let locks = locks.connect().await.unwrap();
    assert_not_replicated(async || locks.mutex("a").try_lock().await.err()).await;
    assert_nothing_is_left(&mut raw, "a").await;
    drop(
        locks
            .mutex("a")
            .lock()
            .replicated(Replicas::None)
            .await
            .unwrap(),
    );
}

/// More than there are can never confirm: that is said at once, and not after waiting for them.
#[tokio::test]
async fn more_replicas_than_there_are_is_an_error_at_once() {
    let servers = servers().await;
    let locks = Locks::builder(servers.url()).restart_guard(YOUNG);
    let locks = locks.connect().await.unwrap();
    let mut raw = servers.node(0).raw().await;
    drop(take(&locks, "a", Replicas::All).await);
    let seen = waits(&mut raw).await;
    let attempt = locks.mutex("b").try_lock();
    let error = attempt.replicated(Replicas::AtLeast(3)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    assert!(error.to_string().contains("there are 2"), "{error}");
    assert_eq!(waits(&mut raw).await, seen);
    assert_nothing_is_left(&mut raw, "b").await;
}
