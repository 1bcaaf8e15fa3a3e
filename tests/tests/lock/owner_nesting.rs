//! Locks of one owner nest; all others wait.

use std::future::IntoFuture;
use std::time::Duration;

use leasehold::{ErrorKind, Locks, LostReason, Release};
use leasehold_testkit::{Replicas, Server};

use crate::support::{exists, locks, ms, scripts_run, short_locks, until, within};

#[tokio::test]
async fn a_nested_lock_asks_nobody_and_the_last_guard_releases() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let me = locks(&server).await.owner();
    // A fixed lease, so that no renewal is counted.
    let outer = me
        .mutex("a")
        .lock()
        .lease(Duration::from_secs(30))
        .await
        .unwrap();
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    let inner = within("a nested lock", me.mutex("a").lock().into_future())
        .await
        .unwrap();
    let tried = me
        .mutex("a")
        .try_lock()
        .await
        .unwrap()
        .expect("a nested lock is never refused");
    let bounded = me
        .mutex("a")
        .try_lock_for(ms(10))
        .await
        .unwrap()
        .expect("nor is this one");
    assert!(inner.token() == outer.token() && tried.is_held() && bounded.is_held());
    assert_eq!(outer.release().await.unwrap(), Release::StillHeld);
    drop((tried, bounded));
    assert!(exists(&mut raw, "a").await);
    assert!(inner.is_held());
    assert_eq!(scripts_run(&mut raw).await, 0);
    assert_eq!(inner.release().await.unwrap(), Release::Released);
    assert_eq!(scripts_run(&mut raw).await, 1, "n locks, one release");
    let again = me.mutex("a").lock().await.unwrap();
    assert!(again.is_held());
}

#[tokio::test]
async fn other_owners_and_plain_locks_wait() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let (me, you) = (locks.owner(), locks.owner());
    let mine = me.mutex("a").lock().await.unwrap();
    assert!(you.mutex("a").try_lock().await.unwrap().is_none());
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    assert!(you.mutex("b").try_lock().await.unwrap().is_some());
    let waiter = tokio::spawn(you.mutex("a").lock().into_future());
    let nested = me.mutex("a").lock().await.unwrap();
    drop(mine);
    tokio::time::sleep(ms(50)).await;
    assert!(!waiter.is_finished(), "one guard is left");
    drop(nested);
    let yours = within("the hand-over", waiter).await.unwrap().unwrap();
    assert!(me.mutex("a").try_lock().await.unwrap().is_none());
    drop(yours);
}

/// Java's thread identity does not survive `spawn`; an owner is a value and does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_one_owner_share_its_locks_even_when_they_queued_before() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let me = locks.owner();
    let foreign = locks.mutex("a").lock().await.unwrap();
    let first = tokio::spawn(me.mutex("a").lock().into_future());
    tokio::time::sleep(ms(20)).await;
    let stranger = tokio::spawn(locks.mutex("a").lock().into_future());
    tokio::time::sleep(ms(20)).await;
    let second = tokio::spawn({
        let me = me.clone();
        async move { me.mutex("a").lock().await }
    });
    tokio::time::sleep(ms(20)).await;
    drop(foreign);
    let first = within("the first", first).await.unwrap().unwrap();
    let second = within("the second, past the stranger", second)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(first.token(), second.token());
    assert!(!stranger.is_finished());
    drop((first, second));
    drop(within("the stranger", stranger).await.unwrap().unwrap());
    until("the release", async || !exists(&mut raw, "a").await).await;
}

#[tokio::test]
async fn nesting_under_a_lost_lock_is_refused() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(2_000)).await;
    let me = locks.owner();
    let outer = me.mutex("a").lock().await.unwrap();
    raw.cmd(&["DEL", "a"]).await;
    assert_eq!(within("the loss", outer.lost()).await, LostReason::Stolen);
    for error in [
        me.mutex("a").lock().await.unwrap_err(),
        me.mutex("a").try_lock().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
    drop(outer);
    assert!(
        me.mutex("a").lock().await.unwrap().is_held(),
        "anew, once the lost guard is gone"
    );
}

#[tokio::test]
async fn a_nested_lock_lives_on_the_outer_ones_lease() {
    let server = Server::start().await;
    let me = locks(&server).await.owner();
    let outer = me.mutex("a").lock().lease(ms(400)).await.unwrap();
    let inner = me.mutex("a").lock().await.unwrap();
    assert!(inner.valid_for() <= ms(400));
    assert_eq!(within("the end", inner.lost()).await, LostReason::Expired);
    assert!(!outer.is_held());
}

#[tokio::test]
async fn a_nested_lock_never_has_less_than_it_asks_for() {
    let servers = Replicas::builder().replicas(1).start().await;
    let locks = Locks::connect(servers.url()).await.unwrap();
    let me = locks.owner();
    let a = me.mutex("a");
    let outer = a.lock().await.unwrap();
    for refused in [
        a.lock().replicated(leasehold::Replicas::All),
        a.lock().replicated(leasehold::Replicas::AtLeast(1)),
        a.lock().max_hold(ms(60_000)),
    ] {
        let error = within("an answer", refused.into_future())
            .await
            .expect_err("the outer lock does not give that");
        assert_eq!(error.kind(), ErrorKind::Nested, "{error}");
        assert!(error.to_string().contains("`a`"), "{error}");
    }
    assert!(outer.is_held(), "it is as it was");
    drop(a.lock().await.unwrap());
    assert_eq!(outer.release().await.unwrap(), Release::Released);

    // Young replicas may take a moment to follow.
    let mut outer = None;
    until("the replica confirms", async || {
        let again = a
            .lock()
            .replicated(leasehold::Replicas::All)
            .max_hold(ms(30_000));
        outer = again.await.ok();
        outer.is_some()
    })
    .await;
    let outer = outer.unwrap();
    let inner = a
        .lock()
        .replicated(leasehold::Replicas::All)
        .max_hold(ms(60_000));
    let inner = inner.await.unwrap();
    assert_eq!(inner.token(), outer.token());
    let longer = a.try_lock().max_hold(ms(1_000)).await.unwrap_err();
    assert_eq!(longer.kind(), ErrorKind::Nested, "{longer}");
}
