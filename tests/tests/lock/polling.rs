//! Waiting without publish and subscribe.

use std::time::Duration;

use leasehold::{Backoff, Guard, Interop, Locks};
use leasehold_testkit::{Cluster, Raw, Server};

use crate::support::{
    add_mute_user, calls, connect, exists, in_line, its_turn, locks, ms, nobody_in_line, tickets,
    until, within,
};

async fn polling(
    raw: &mut Raw,
    locks: &Locks,
    backoff: Backoff,
) -> tokio::task::JoinHandle<Result<Guard, leasehold::Error>> {
    let before = tickets(raw, "a").await;
    let lock = locks.mutex("a").lock().polling(backoff);
    let waiter = tokio::spawn(lock.into_future());
    until("a ticket", async || tickets(raw, "a").await == before + 1).await;
    waiter
}

#[tokio::test]
async fn a_lock_is_handed_on_without_a_subscription_or_a_message() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for interop in [Interop::Off, Interop::Redisson] {
        let builder = || Locks::builder(server.url()).interop(interop);
        let (ours, theirs) = (
            builder().connect().await.unwrap(),
            builder().connect().await.unwrap(),
        );
        raw.cmd(&["CONFIG", "RESETSTAT"]).await;
        let mut guard = ours.mutex("a").lock().await.unwrap();
        for n in 0..6 {
            let next = [&theirs, &ours][n % 2];
            let waiter = polling(&mut raw, next, Backoff::default()).await;
            let token = guard.token();
            drop(guard);
            guard = its_turn(waiter).await;
            assert!(guard.is_held() && guard.token() > token);
        }
        drop(guard);
        until("a free lock", async || !exists(&mut raw, "a").await).await;
        assert_eq!(tickets(&mut raw, "a").await, 0);
        assert_eq!(calls(&mut raw, "subscribe").await, 0);
        if interop == Interop::Off {
            assert_eq!(calls(&mut raw, "publish").await, 0);
        }
    }
}

#[tokio::test]
async fn a_user_without_pub_sub_waits_for_its_turn() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    add_mute_user(&mut raw).await;
    let url = format!("redis://mute:secret@{}", server.addr());
    let (first, second) = (connect(url.clone()).await, connect(url).await);
    let guard = first.mutex("a").lock().await.unwrap();
    let waiter = polling(&mut raw, &second, Backoff::default()).await;
    drop(guard);
    let guard = its_turn(waiter).await;
    let denied = raw.cmd(&["ACL", "LOG"]).await;
    assert!(denied.array().is_empty(), "{denied:?}");
    drop(guard);
}

#[tokio::test]
async fn those_who_poll_and_those_who_hear_take_turns() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let clients = [
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
    ];
    let guard = clients[0].mutex("a").lock().await.unwrap();
    let slow = Backoff::new(ms(200), ms(800));
    let waiters = [
        polling(&mut raw, &clients[1], slow).await,
        in_line(&mut raw, &clients[2], "a").await,
        polling(&mut raw, &clients[3], Backoff::default()).await,
    ];
    let mut token = guard.token();
    drop(guard);
    for waiter in waiters {
        // In their order: nobody is passed over.
        let guard = its_turn(waiter).await;
        assert!(guard.token() > token);
        token = guard.token();
        drop(guard);
    }
}

#[tokio::test]
async fn one_that_polls_goes_on_for_one_that_hears_and_the_other_way_round() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (holder, waiting) = (locks(&server).await, locks(&server).await);
    for polls_first in [true, false] {
        let guard = holder.mutex("a").lock().await.unwrap();
        let lock = |polls| {
            let lock = waiting.mutex("a").lock();
            if polls {
                lock.polling(Backoff::default())
            } else {
                lock
            }
        };
        let first = tokio::spawn(lock(polls_first).into_future());
        until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
        let second = tokio::spawn(lock(!polls_first).into_future());
        tokio::time::sleep(ms(50)).await;
        first.abort();
        tokio::time::sleep(ms(100)).await;
        drop(guard);
        drop(its_turn(second).await);
        nobody_in_line(&mut raw, "a").await;
        until("a free lock", async || !exists(&mut raw, "a").await).await;
    }
}

#[tokio::test]
async fn attempts_with_a_bound_poll_too_and_leave_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let guard = ours.mutex("a").lock().await.unwrap();
    let lock = theirs.mutex("a");
    let poll = || Backoff::new(Duration::ZERO, ms(20));
    assert!(lock.try_lock().polling(poll()).await.unwrap().is_none());
    let late = lock.try_lock_for(ms(200)).polling(poll()).await.unwrap();
    assert!(late.is_none());
    nobody_in_line(&mut raw, "a").await;
    let waiter = tokio::spawn(lock.try_lock_for(ms(15_000)).polling(poll()).into_future());
    until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
    drop(guard);
    let granted = within("its turn", waiter).await.unwrap().unwrap();
    assert!(granted.unwrap().is_held());
}

/// A grant that nobody comes for costs the others its lease.
#[tokio::test]
async fn one_that_died_holds_up_the_next_for_its_grant_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, next) = (locks(&server).await, locks(&server).await);
    let guard = ours.mutex("a").lock().await.unwrap();
    // As a process that polled has left it.
    let dead = "00000000-0000-4000-8000-000000000000:7|01000";
    raw.cmd(&["ZADD", "leasehold_line:{a}", "1", dead]).await;
    let waiter = in_line(&mut raw, &next, "a").await;
    assert_eq!(guard.release().await.unwrap(), leasehold::Release::Released);
    let holder = raw.cmd(&["HKEYS", "a"]).await;
    assert!(holder.array()[0].str().starts_with("00000000"));
    drop(its_turn(waiter).await);
}

#[tokio::test]
async fn a_short_lease_is_looked_for_in_time() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let guard = ours.mutex("a").lock().await.unwrap();
    let lock = theirs.mutex("a").lock().lease(ms(800));
    let slow = Backoff::new(ms(5_000), ms(5_000));
    let waiter = tokio::spawn(lock.polling(slow).into_future());
    until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
    drop(guard);
    assert!(its_turn(waiter).await.valid_for() > Duration::ZERO);
}

/// Every acquisition can be polled for, and keeps its order.
#[tokio::test]
async fn every_primitive_is_polled_for() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    let poll = Backoff::default;
    for _ in 0..3 {
        let fair = ours.fair_mutex("fair").lock().await.unwrap();
        let plain = ours.plain_mutex("plain").lock().await.unwrap();
        let permit = ours.semaphore("permits", 2).acquire().await.unwrap();
        let next_fair = theirs.fair_mutex("fair").lock().polling(poll());
        let next_fair = tokio::spawn(next_fair.into_future());
        let next_plain = theirs.plain_mutex("plain").lock().polling(poll());
        let next_plain = tokio::spawn(next_plain.into_future());
        let both = theirs.semaphore("permits", 2).acquire_many(2);
        let both = tokio::spawn(both.polling(poll()).into_future());
        let writer = ours.rw_lock("rw").write().await.unwrap();
        let reader = tokio::spawn(theirs.rw_lock("rw").read().polling(poll()).into_future());
        for name in ["fair", "plain", "permits", "rw"] {
            until("a ticket", async || tickets(&mut raw, name).await == 1).await;
        }
        drop((fair, plain, permit, writer));
        let fair = its_turn(next_fair).await;
        let plain = its_turn(next_plain).await;
        let both = within("its turn", both).await.unwrap().unwrap();
        let reader = within("its turn", reader).await.unwrap().unwrap();
        assert!(fair.is_held() && plain.is_held() && both.is_held() && reader.is_held());
        let writer = tokio::spawn(ours.rw_lock("rw").write().polling(poll()).into_future());
        until("a ticket", async || tickets(&mut raw, "rw").await == 1).await;
        drop((fair, plain, both, reader));
        assert!(within("its turn", writer).await.unwrap().unwrap().is_held());
    }
    assert_eq!(calls(&mut raw, "subscribe").await, 0);
}

#[tokio::test]
async fn a_cluster_needs_no_subscription_either() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    for master in 0..3 {
        let name = cluster.key_at(master, "k").await;
        let guard = ours.mutex(&name).lock().await.unwrap();
        let lock = theirs.mutex(&name).lock().polling(Backoff::default());
        let waiter = tokio::spawn(lock.into_future());
        tokio::time::sleep(ms(200)).await;
        drop(guard);
        drop(its_turn(waiter).await);
        let mut raw = cluster.raw(master).await;
        assert_eq!(calls(&mut raw, "ssubscribe").await, 0);
        assert_eq!(calls(&mut raw, "subscribe").await, 0);
    }
}
