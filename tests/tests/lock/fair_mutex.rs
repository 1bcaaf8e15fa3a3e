//! The fair mutex: all who wait for it get it in the order of their calls.
//!
//! Each `Locks` is a process to the server. Leases are 30 s and waits are shorter, unless a test
//! says otherwise: so a waiter that gets its turn was granted it, and has not waited for an expiry.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::{Error, ErrorKind, Guard, Locks, LostReason, Release};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::{Accept, Proxy, Raw, Server};
use tokio::task::JoinHandle;

use crate::support::{
    assert_everything_expires, calls, exists, fields, its_turn, keys, line, locks, ms, scripts_run,
    short_locks, tickets, until, within,
};

type Waiter = JoinHandle<Result<Guard, Error>>;

/// A task that waits with a ticket of its own behind those that are in line.
async fn in_line(raw: &mut Raw, locks: &Locks) -> Waiter {
    let before = tickets(raw, "a").await;
    let waiter = tokio::spawn(locks.fair_mutex("a").lock().into_future());
    until("a ticket more", async || tickets(raw, "a").await > before).await;
    waiter
}

async fn served_in_order(waiters: Vec<Waiter>) {
    let mut token = None;
    for waiter in waiters {
        let guard = its_turn(waiter).await;
        assert!(token < Some(guard.token()), "tokens grow");
        token = Some(guard.token());
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

/// Nothing but the counter of tokens.
async fn nothing_is_left(raw: &mut Raw) {
    until("the last release", async || !exists(raw, "a").await).await;
    until("an empty line", async || tickets(raw, "a").await == 0).await;
    let kept = keys(raw).await;
    assert_eq!(kept, ["redisson_lock_token:{a}"]);
    assert_everything_expires(raw).await;
}

#[tokio::test]
async fn waiters_of_all_processes_have_their_turns_in_the_order_of_their_calls() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let holder = locks(&server).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(locks(&server).await);
    }
    let held = holder.fair_mutex("a").lock().await.unwrap();
    let mut waiters = Vec::new();
    for i in [0, 0, 1, 0, 2, 2, 1, 1, 0, 2] {
        waiters.push(in_line(&mut raw, &clients[i]).await);
    }
    assert_eq!(tickets(&mut raw, "a").await, 10, "one for each");
    let seen = holder.fair_mutex("a").inspect().await.unwrap();
    assert_eq!(seen.holders()[0].token(), Some(held.token()));
    assert_eq!((seen.waiters().len(), seen.waiting()), (10, 10));
    assert_eq!(seen.waiters()[4].client(), clients[2].client_id());
    assert_everything_expires(&mut raw).await;
    held.release().await.unwrap();
    served_in_order(waiters).await;
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn a_lock_that_others_wait_for_is_taken_by_nobody_else() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let held = ours.fair_mutex("a").lock().await.unwrap();
    let first = in_line(&mut raw, &theirs).await;
    let second = in_line(&mut raw, &ours).await;
    // A server that lost the hold: the lock is free, and its waiters do not know yet.
    raw.cmd(&["DEL", "a"]).await;
    for locks in [&ours, &theirs] {
        assert!(locks.fair_mutex("a").try_lock().await.unwrap().is_none());
    }
    // Who asks next finds it free, and serves the first.
    let third = tokio::spawn(ours.fair_mutex("a").lock().into_future());
    let guard = its_turn(first).await;
    until("the third is in line", async || {
        tickets(&mut raw, "a").await == 2
    })
    .await;
    for locks in [&ours, &theirs] {
        assert!(locks.fair_mutex("a").try_lock().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    served_in_order(vec![second, third]).await;
    drop(held);
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn who_releases_it_and_asks_again_is_behind_those_who_wait() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    let held = ours.fair_mutex("a").lock().await.unwrap();
    let first = in_line(&mut raw, &ours).await;
    let second = in_line(&mut raw, &ours).await;
    drop(held);
    let again = tokio::spawn(ours.fair_mutex("a").lock().into_future());
    served_in_order(vec![first, second, again]).await;
}

#[tokio::test]
async fn an_attempt_takes_a_free_lock_and_leaves_nothing_where_it_is_taken() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let guard = ours.fair_mutex("a").try_lock().await.unwrap().unwrap();
    let holder = theirs.fair_mutex("a").holder().await.unwrap().unwrap();
    assert_eq!(holder.client(), ours.client_id());
    let left = theirs.fair_mutex("a").remaining().await.unwrap().unwrap();
    assert!(left > Duration::from_secs(20) && left <= Duration::from_secs(30));
    for locks in [&ours, &theirs] {
        let fair = locks.fair_mutex("a");
        assert!(fair.try_lock().await.unwrap().is_none());
        assert!(fair.try_lock_for(Duration::ZERO).await.unwrap().is_none());
        // The names are the mutex's.
        assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    }
    assert_eq!(tickets(&mut raw, "a").await, 0);
    guard.release().await.unwrap();
    assert_eq!(ours.fair_mutex("a").holder().await.unwrap(), None);
    assert_eq!(ours.fair_mutex("a").remaining().await.unwrap(), None);
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn who_gives_up_leaves_the_line_and_the_others_keep_their_places() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (holder, ours) = (locks(&server).await, locks(&server).await);
    let held = holder.fair_mutex("a").lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..4 {
        waiters.push(in_line(&mut raw, &ours).await);
    }
    let fair = ours.fair_mutex("a");
    assert!(fair.try_lock_for(ms(30)).await.unwrap().is_none());
    for i in [2, 0] {
        let waiter = waiters.remove(i);
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
    }
    until("their tickets are gone", async || {
        tickets(&mut raw, "a").await == 2
    })
    .await;
    held.release().await.unwrap();
    served_in_order(waiters).await;
    nothing_is_left(&mut raw).await;
}

/// The grant and the end of the wait may cross.
#[tokio::test]
async fn a_waiter_that_is_dropped_at_any_await_leaves_the_lock_to_the_next_one() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (holder, ours, next) = (
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
    );
    for time in [Duration::ZERO, ms(1), ms(5)] {
        for n in 0..6 {
            let held = holder.fair_mutex("a").lock().await.unwrap();
            let fair = ours.fair_mutex("a");
            let waiter = tokio::spawn(async move { cancel_at(fair.lock().into_future(), n).await });
            tokio::time::sleep(time).await;
            let behind = tokio::spawn(next.fair_mutex("a").lock().into_future());
            tokio::time::sleep(time).await;
            drop(held);
            if let Some(guard) = within("the first", waiter).await.unwrap() {
                guard.unwrap().release().await.unwrap();
            }
            its_turn(behind).await.release().await.unwrap();
            nothing_is_left(&mut raw).await;
        }
    }
}

#[tokio::test]
async fn a_process_that_died_at_the_head_is_passed_at_once() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let gone = locks_behind(&proxy).await;
    let (holder, ours) = (locks(&server).await, locks(&server).await);
    let held = holder.fair_mutex("a").lock().await.unwrap();
    // More than one script passes one by one.
    let mut lost = Vec::new();
    for _ in 0..200 {
        lost.push(tokio::spawn(gone.fair_mutex("a").lock().into_future()));
    }
    until("in line", async || tickets(&mut raw, "a").await == 200).await;
    let waiter = in_line(&mut raw, &ours).await;
    proxy.accept(Accept::Refuse);
    proxy.reset_all();
    until("the server has noticed", async || {
        let channel = format!("leasehold:{}", gone.client_id());
        leasehold_testkit::statistics::subscribers(&mut raw, &channel).await == 0
    })
    .await;
    held.release().await.unwrap();
    let holder = fields(&mut raw, "a").await;
    assert!(holder.starts_with(ours.client_id()), "{holder}");
    its_turn(waiter).await.release().await.unwrap();
    drop(lost);
}

async fn locks_behind(proxy: &Proxy) -> Locks {
    Locks::builder(proxy.url())
        .command_timeout(Duration::from_secs(18))
        .connect()
        .await
        .unwrap()
}

/// Those who stand behind a frozen process look when its grant is over, however far off their own
/// next look is: it was told them.
#[tokio::test]
async fn a_process_that_is_frozen_at_the_head_costs_one_grant_lease() {
    const FROZEN: &str = "0190c0de-0000-7000-8000-00000000000a";
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (holder, ours) = (locks(&server).await, locks(&server).await);
    let mut frozen = server.raw().await;
    frozen.hello3().await;
    let channel = format!("leasehold:{FROZEN}");
    frozen.send(&["SUBSCRIBE", &channel]).await.unwrap();
    frozen.push().await;
    let held = holder.fair_mutex("a").lock().await.unwrap();
    // Far back, so that it looks seldom by itself.
    let mut waiters = Vec::new();
    for _ in 0..8 {
        waiters.push(in_line(&mut raw, &holder).await);
    }
    let last = in_line(&mut raw, &ours).await;
    for waiter in waiters {
        waiter.abort();
    }
    until("one is left", async || tickets(&mut raw, "a").await == 1).await;
    let ticket = format!("{FROZEN}:1");
    raw.cmd(&["ZADD", "leasehold_line:{a}", "1", &ticket]).await;
    held.release().await.unwrap();
    let since = Instant::now();
    assert_eq!(fields(&mut raw, "a").await, format!("{ticket}=1"));
    let guard = its_turn(last).await;
    let waited = since.elapsed();
    assert!(waited >= ms(900), "{waited:?}");
    // The lease of the grant, and time for a busy machine. (The instant is that of the state machine's tests.)
    assert!(waited < ms(5_000), "{waited:?}");
    guard.release().await.unwrap();
}

/// What one waiter costs the server, each of a thousand does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_of_a_process_are_served_in_order_at_two_requests_each() {
    const WAITERS: usize = 1_000;
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    let held = ours.fair_mutex("a").lock().await.unwrap();
    // So that it listens.
    let first = in_line(&mut raw, &ours).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    for i in 0..WAITERS {
        let (acquire, order) = (ours.fair_mutex("a").lock(), Arc::clone(&order));
        waiters.push(tokio::spawn(async move {
            let guard = acquire.await.unwrap();
            order.lock().unwrap().push((i, guard.token()));
            drop(guard);
        }));
        // Tasks may be polled in any order.
        if i % 100 == 99 {
            until("they are in line", async || {
                tickets(&mut raw, "a").await == i as i64 + 2
            })
            .await;
        }
    }
    let since = Instant::now();
    drop(held);
    drop(its_turn(first).await);
    for waiter in waiters {
        within("its turn", waiter).await.unwrap();
    }
    println!("{WAITERS} turns in {:?}", since.elapsed());
    let asked = scripts_run(&mut raw).await;
    println!("{asked} requests");
    assert!(asked <= WAITERS as u64 * 21 / 10 + 50, "{asked} requests");
    let order = order.lock().unwrap().clone();
    assert_eq!(order.len(), WAITERS);
    assert!(order.windows(2).all(|two| two[0].1 < two[1].1), "tokens");
    // Each hundred was in line before the next.
    assert!(order.windows(2).all(|two| two[0].0 / 100 <= two[1].0 / 100));
    nothing_is_left(&mut raw).await;
    assert!(calls(&mut raw, "publish").await <= WAITERS as u64 + 2);
}

#[tokio::test]
async fn locks_of_one_owner_nest_and_its_waiters_have_one_place() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let held = theirs.fair_mutex("a").lock().await.unwrap();
    let me = ours.owner();
    let first = tokio::spawn(me.fair_mutex("a").lock().into_future());
    until("in line", async || tickets(&mut raw, "a").await == 1).await;
    let second = tokio::spawn(me.fair_mutex("a").lock().into_future());
    let other = in_line(&mut raw, &ours).await;
    assert_eq!(tickets(&mut raw, "a").await, 2);
    held.release().await.unwrap();
    let (first, second) = (its_turn(first).await, its_turn(second).await);
    assert_eq!(first.token(), second.token());
    let third = me.fair_mutex("a").try_lock().await.unwrap().unwrap();
    assert!(ours.fair_mutex("a").try_lock().await.unwrap().is_none());
    let you = ours.owner();
    assert!(you.fair_mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(first.release().await.unwrap(), Release::StillHeld);
    drop(second);
    assert!(!other.is_finished());
    assert_eq!(third.release().await.unwrap(), Release::Released);
    its_turn(other).await.release().await.unwrap();
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn a_lock_that_is_removed_by_force_goes_to_the_first_in_line() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    assert!(!ours.fair_mutex("a").force_unlock().await.unwrap());
    for remover in [&ours, &theirs] {
        let held = ours.fair_mutex("a").lock().await.unwrap();
        let waiter = in_line(&mut raw, &theirs).await;
        assert!(remover.fair_mutex("a").force_unlock().await.unwrap());
        let guard = its_turn(waiter).await;
        if std::ptr::eq(remover, &ours) {
            assert_eq!(held.lost().await, LostReason::Stolen);
        } else {
            assert_eq!(held.release().await.unwrap(), Release::AlreadyGone);
        }
        guard.release().await.unwrap();
    }
    nothing_is_left(&mut raw).await;
}

/// Any of the keys may vanish, at any time: evicted, flushed, or lost in a failover.
#[tokio::test]
async fn waiters_come_back_in_their_order_when_the_server_has_lost_their_line() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    for lost in [
        &["leasehold_line:{a}"][..],
        &["redisson_lock_token:{a}"],
        &["redisson_lock_token:{a}", "leasehold_line:{a}"],
    ] {
        let held = ours.fair_mutex("a").lock().await.unwrap();
        let mut waiters = Vec::new();
        for locks in [&theirs, &ours, &ours, &theirs] {
            waiters.push(in_line(&mut raw, locks).await);
        }
        let before = line(&mut raw, "a").await;
        raw.cmd(&[&["DEL"], lost].concat()).await;
        until("they are back", async || {
            line(&mut raw, "a").await == before
        })
        .await;
        held.release().await.unwrap();
        served_in_order(waiters).await;
        nothing_is_left(&mut raw).await;
    }
    // With the lock itself: its holder loses it, and one after the other takes it.
    let held = ours.fair_mutex("a").lock().await.unwrap();
    let mut waiters = Vec::new();
    for locks in [&theirs, &ours] {
        let waiter = in_line(&mut raw, locks).await;
        waiters.push(tokio::spawn(async move {
            waiter.await.unwrap().unwrap().release().await.unwrap();
        }));
    }
    raw.cmd(&["FLUSHALL"]).await;
    for waiter in waiters {
        within("its turn", waiter).await.unwrap();
    }
    assert!(matches!(held.release().await, Ok(Release::AlreadyGone)));
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn keys_of_another_type_are_errors_and_stay_as_they_are() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    raw.cmd(&["SET", "a", "somebody's"]).await;
    for acquired in [
        ours.fair_mutex("a").lock().await.map(Some),
        ours.fair_mutex("a").try_lock().await,
        ours.fair_mutex("a").try_lock_for(ms(50)).await,
    ] {
        assert_eq!(acquired.unwrap_err().kind(), ErrorKind::WrongType);
    }
    assert_eq!(raw.cmd(&["GET", "a"]).await.str(), "somebody's");
    raw.cmd(&["DEL", "a"]).await;

    // A line that is none: nobody can wait in it, and it hides no free lock and no release.
    raw.cmd(&["SET", "leasehold_line:{a}", "somebody's"]).await;
    let guard = ours.fair_mutex("a").try_lock().await.unwrap().unwrap();
    let error = ours.fair_mutex("a").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert!(!exists(&mut raw, "a").await);
}

#[tokio::test]
async fn a_lost_script_cache_is_no_loss() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let held = ours.fair_mutex("a").lock().await.unwrap();
    raw.cmd(&["SCRIPT", "FLUSH"]).await;
    let first = in_line(&mut raw, &theirs).await;
    raw.cmd(&["SCRIPT", "FLUSH"]).await;
    let second = in_line(&mut raw, &ours).await;
    raw.cmd(&["SCRIPT", "FLUSH"]).await;
    held.release().await.unwrap();
    served_in_order(vec![first, second]).await;
}

#[tokio::test]
async fn the_lease_is_renewed_and_a_dead_holder_is_followed_by_the_first_in_line() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let theirs = Locks::builder(proxy.url())
        .lease(ms(1_500))
        .connect()
        .await
        .unwrap();
    let ours = short_locks(&server, ms(1_500)).await;
    let held = theirs.fair_mutex("a").lock().await.unwrap();
    let first = in_line(&mut raw, &ours).await;
    let second = in_line(&mut raw, &ours).await;
    tokio::time::sleep(ms(2_000)).await;
    assert!(held.is_held() && !first.is_finished());
    proxy.accept(Accept::Refuse);
    proxy.reset_all();
    let guard = its_turn(first).await;
    assert!(!held.is_held());
    tokio::time::sleep(ms(2_000)).await;
    assert!(guard.is_held() && !second.is_finished());
    guard.release().await.unwrap();
    its_turn(second).await.release().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_takes_all_waiters_out_of_the_line() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let held = theirs.fair_mutex("a").lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(in_line(&mut raw, &ours).await);
    }
    let last = in_line(&mut raw, &theirs).await;
    ours.shutdown().await.unwrap();
    assert_eq!(tickets(&mut raw, "a").await, 1);
    for waiter in waiters {
        let error = within("its end", waiter).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
    held.release().await.unwrap();
    its_turn(last).await.release().await.unwrap();
    nothing_is_left(&mut raw).await;
}
