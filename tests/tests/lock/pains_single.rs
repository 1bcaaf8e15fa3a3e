//! Known failures of other lock libraries, on one server: each comment describes the failure, each
//! name the remedy.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks, LostReason, Release};
use leasehold_testkit::{Fault, Proxy, RawValue, Server, in_own_process};

use crate::support::{
    calls, exists, fields, locks, ms, pttl, scripts_run, short_locks, tickets, until, within,
};

/// GET and DEL, or a DEL alone: the late release of a slow holder frees the lock under the next
/// one.
#[tokio::test]
async fn a_release_of_an_expired_lock_never_frees_the_next_holder() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (slow, next) = (locks(&server).await, locks(&server).await);
    for dropped in [true, false] {
        let late = slow.mutex("a").lock().lease(ms(60)).await.unwrap();
        let guard = within("the end of the lease", next.mutex("a").lock().into_future())
            .await
            .unwrap();
        assert!(guard.token() > late.token());
        let held = fields(&mut raw, "a").await;
        if dropped {
            drop(late);
            // Behind the release on the same connection.
            assert_eq!(
                slow.mutex("a").holder().await.unwrap().unwrap().client(),
                next.client_id()
            );
        } else {
            assert_eq!(
                within("an answer", late.release()).await.unwrap(),
                Release::AlreadyGone
            );
        }
        assert_eq!(fields(&mut raw, "a").await, held);
        assert!(guard.is_held());
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

/// A release of a lost lock throws, hangs or is retried for ever.
#[tokio::test]
async fn a_release_after_the_expiry_is_one_round_trip_and_no_error() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let guard = locks.mutex("a").lock().lease(ms(50)).await.unwrap();
    until("the end of the lease", async || {
        !exists(&mut raw, "a").await
    })
    .await;
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    assert_eq!(
        within("an answer", guard.release()).await.unwrap(),
        Release::AlreadyGone
    );
    tokio::time::sleep(ms(100)).await;
    assert_eq!(scripts_run(&mut raw).await, 1);
}

/// The watchdog dies of one failed renewal and never comes back. A busy server runs a long script,
/// a paused one is about to fail over.
#[tokio::test]
async fn the_renewal_survives_a_busy_a_paused_and_a_silent_server() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, Duration::from_secs(3)).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    raw.cmd(&["CONFIG", "SET", "lua-time-limit", "20"]).await;
    for trouble in ["busy", "paused", "silent"] {
        // One renewal, at least, falls into it.
        match trouble {
            "busy" => {
                let mut looping = server.raw().await;
                looping
                    .send(&["EVAL", "while true do end", "0"])
                    .await
                    .unwrap();
                let is_busy =
                    |reply: RawValue| reply.error().is_some_and(|line| line.starts_with("BUSY"));
                until("it is busy", async || is_busy(raw.cmd(&["PING"]).await)).await;
                tokio::time::sleep(ms(1_200)).await;
                assert!(raw.cmd(&["SCRIPT", "KILL"]).await.is_ok());
            }
            "paused" => {
                assert!(raw.cmd(&["CLIENT", "PAUSE", "1200", "ALL"]).await.is_ok());
                tokio::time::sleep(ms(1_200)).await;
            }
            _ => {
                server.pause();
                tokio::time::sleep(ms(1_200)).await;
                server.resume();
            }
        }
        let valid = guard.valid_for();
        until(
            &format!("a renewal after the server was {trouble}"),
            async || guard.valid_for() > valid,
        )
        .await;
        assert!(guard.is_held(), "{trouble}");
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// The watchdog survives the unlock, and a renewal that was on its way brings the key back.
#[tokio::test]
async fn no_renewal_recreates_a_key_after_release() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let locks = Locks::builder(proxy.url())
        .lease(ms(600))
        .connect()
        .await
        .unwrap();
    for n in 0..8 {
        let guard = within("the lock", locks.mutex("a").lock().into_future())
            .await
            .unwrap();
        // Nothing arrives from now on; a renewal and the release, on two connections, may overtake
        // each other.
        proxy.to_server(Fault::Stall);
        tokio::time::sleep(ms(210)).await;
        if n % 2 == 0 {
            drop(guard);
        } else {
            let release = tokio::spawn(guard.release());
            tokio::task::yield_now().await;
            drop(release);
        }
        proxy.heal();
        until("the release", async || !exists(&mut raw, "a").await).await;
        for _ in 0..20 {
            assert!(!exists(&mut raw, "a").await, "it came back");
            tokio::time::sleep(ms(5)).await;
        }
    }
}

/// Each renewal touches the key and wakes waiters that use client-side caching or polling.
#[tokio::test]
async fn a_renewal_wakes_nobody() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let (holder, waiter) = (
        short_locks(&server, Duration::from_secs(3)).await,
        Locks::connect(proxy.url()).await.unwrap(),
    );
    let guard = holder.mutex("a").lock().await.unwrap();
    let waiting = tokio::spawn(waiter.mutex("a").lock().into_future());
    until("the waiter", async || tickets(&mut raw, "a").await == 1).await;
    // The waiter looks once a second, and at the end of the lease: it is observed in between. On a machine that is too busy, the next round counts.
    let watched = async {
        loop {
            // Until just before the renewal, since a look may be due at any time.
            let mut sent = proxy.from_client();
            let mut ttl = pttl(&mut raw, "a").await;
            loop {
                let before = proxy.from_client();
                let now = pttl(&mut raw, "a").await;
                if now > ttl {
                    break;
                }
                (sent, ttl) = (before, now);
                tokio::time::sleep(ms(5)).await;
            }
            tokio::time::sleep(ms(100)).await;
            if proxy.from_client() == sent {
                return;
            }
        }
    };
    within("a renewal during which the waiter sends nothing", watched).await;
    assert_eq!(calls(&mut raw, "publish").await, 0);
    drop(guard);
    drop(within("the hand-over", waiting).await.unwrap().unwrap());
}

/// After two thousand foreign scripts a server has evicted those from EVAL: newer servers keep 500.
#[tokio::test]
async fn an_eviction_of_the_script_cache_changes_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(1_500)).await;
    let held = locks.mutex("held").lock().await.unwrap();
    for round in 0..3 {
        for n in 0..700 {
            raw.cmd(&["EVAL", &format!("return {round} * 1000 + {n}"), "0"])
                .await;
        }
        let guard = within("the lock", locks.mutex("a").lock().into_future())
            .await
            .unwrap();
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    tokio::time::sleep(ms(2_000)).await;
    assert!(
        held.is_held(),
        "renewed by a script that was thrown out as well"
    );
}

/// A server that hangs while a client waits for the lock: the wait never ends.
#[tokio::test]
async fn a_hung_server_is_an_error_and_not_a_wait_for_ever() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = Locks::builder(server.url())
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let theirs = locks(&server).await;
    let guard = theirs.mutex("a").lock().lease(ms(900)).await.unwrap();
    let waiting = tokio::spawn(ours.mutex("a").lock().into_future());
    let bounded = tokio::spawn(
        ours.mutex("a")
            .try_lock_for(Duration::from_secs(5))
            .into_future(),
    );
    until("the waiter", async || tickets(&mut raw, "a").await == 1).await;
    server.pause();
    for hung in [
        within("an end", waiting).await.unwrap().map(Some),
        within("an end", bounded).await.unwrap(),
    ] {
        let error = hung.expect_err("nobody was there to grant it");
        assert!(
            matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
            "{error}"
        );
    }
    server.resume();
    drop(guard);
    until("what was sent meanwhile is taken back", async || {
        !exists(&mut raw, "a").await
    })
    .await;
    drop(
        within("the lock", ours.mutex("a").lock().into_future())
            .await
            .unwrap(),
    );
}

/// A session that expires while it waits: at the head of the queue nothing of it is left.
#[tokio::test]
async fn a_long_wait_costs_nothing_of_the_lease() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let guard = theirs.mutex("a").lock().await.unwrap();
    let waiting = tokio::spawn(ours.mutex("a").lock().lease(ms(2_000)).into_future());
    until("the waiter", async || tickets(&mut raw, "a").await == 1).await;
    tokio::time::sleep(ms(2_500)).await;
    drop(guard);
    let got = within("its turn", waiting).await.unwrap().unwrap();
    let ttl = pttl(&mut raw, "a").await;
    assert!(got.is_held() && got.valid_for() <= ms(2_000));
    assert!(ttl > 0 && ttl <= 2_000, "{ttl}");
}

/// The lease is a field of the shared lock object, and every timed lock sets it for all.
#[tokio::test]
async fn leases_do_not_leak_from_one_lock_to_the_next() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(1_500)).await;
    let mutex = locks.mutex("a");
    drop(mutex.lock().lease(Duration::from_secs(100)).await.unwrap());
    let renewed = mutex.lock().await.unwrap();
    let long = locks
        .mutex("b")
        .lock()
        .lease(Duration::from_secs(100))
        .await
        .unwrap();
    let short = locks.mutex("c").lock().lease(ms(500)).await.unwrap();
    let end = Instant::now() + ms(2_500);
    while Instant::now() < end {
        let ttl = pttl(&mut raw, "a").await;
        assert!(ttl <= 1_500, "{ttl}");
        let ttl = pttl(&mut raw, "b").await;
        assert!((90_000..=100_000).contains(&ttl), "{ttl}");
        tokio::time::sleep(ms(20)).await;
    }
    assert!(renewed.is_held() && long.is_held());
    assert_eq!(short.lost().await, LostReason::Expired);
    assert!(!exists(&mut raw, "c").await || pttl(&mut raw, "c").await <= 500);
}

/// A client that mistakes a message for the lock holds it together with another. Only a grant of
/// its own ticket counts, and only once.
#[tokio::test]
async fn a_message_from_anybody_grants_nothing() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let (ours, theirs) = (
        Locks::connect(proxy.url()).await.unwrap(),
        locks(&server).await,
    );
    proxy.to_client(Fault::RepeatMessages);
    let guard = theirs.mutex("a").lock().await.unwrap();
    let waiting = tokio::spawn(ours.mutex("a").lock().into_future());
    until("the waiter", async || tickets(&mut raw, "a").await == 1).await;
    let ears = format!("leasehold:{}", ours.client_id());
    for channel in ["redisson_lock__channel:{a}", &ears] {
        for message in ["0", "1", "", "nonsense", "G 1 2 3 4 a", "0"] {
            raw.cmd(&["PUBLISH", channel, message]).await;
            tokio::time::sleep(ms(20)).await;
            assert!(!waiting.is_finished());
            assert!(guard.is_held());
        }
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    drop(within("the hand-over", waiting).await.unwrap().unwrap());
}

/// An operator deletes the key, or sets another holder. No renewal and no release may touch the new
/// one.
#[tokio::test]
async fn a_lock_that_was_given_to_another_is_lost_and_left_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(600)).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    raw.cmd(&["DEL", "a"]).await;
    raw.cmd(&["HSET", "a", "another:1", "1"]).await;
    raw.cmd(&["PEXPIRE", "a", "60000"]).await;
    assert_eq!(within("the news", guard.lost()).await, LostReason::Stolen);
    let ttl = pttl(&mut raw, "a").await;
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
    assert_eq!(fields(&mut raw, "a").await, "another:1=1");
    assert!(
        ttl > 600 && pttl(&mut raw, "a").await > 600,
        "nobody shortened it"
    );
}

/// Waiting takes neither commands nor processor time. Runs in a process of its own: it measures the
/// time of the whole process.
#[test]
fn waiting_costs_no_processor() {
    in_own_process(async {
        let server = Server::start().await;
        let mut raw = server.raw().await;
        let (ours, theirs) = (locks(&server).await, locks(&server).await);
        let guard = theirs.mutex("a").lock().await.unwrap();
        let waiters: Vec<_> = (0..1_000)
            .map(|_| tokio::spawn(ours.mutex("a").lock().into_future()))
            .collect();
        until("the head", async || tickets(&mut raw, "a").await == 1).await;
        tokio::time::sleep(ms(200)).await;
        let before = processor_time();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let spent = processor_time() - before;
        // A busy loop takes all of it. This bound allows for a slow machine and measures nothing.
        assert!(spent < Duration::from_secs(1), "{spent:?} of two seconds");
        drop(guard);
        for waiter in waiters {
            drop(within("its turn", waiter).await.unwrap().unwrap());
        }
    });
}

/// Processor time of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
