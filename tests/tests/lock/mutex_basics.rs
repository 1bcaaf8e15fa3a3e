//! The mutex on a healthy server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{
    Acquire, ErrorKind, FencingToken, Guard, Interop, Locks, LostReason, Mutex, Owner, Release,
    TryAcquire,
};
use leasehold_testkit::{RawValue, Server};

use crate::support::{
    assert_everything_expires, exists, fields, keys, locks, ms, nobody_in_line, pttl, scripts_run,
    short_locks, until, within,
};

#[test]
fn handles_and_futures_can_go_anywhere() {
    const fn everywhere<T: Send + Sync + 'static>() {}
    const fn to_a_task<T: Send + 'static>(_: &T) {}
    everywhere::<Locks>();
    everywhere::<Mutex>();
    everywhere::<Owner>();
    everywhere::<Guard>();
    everywhere::<Acquire>();
    everywhere::<TryAcquire>();
    everywhere::<leasehold::Error>();
    let _ = |mutex: &Mutex, guard: &Guard| {
        to_a_task(&mutex.lock().into_future());
        to_a_task(&guard.lost());
    };
    assert!(size_of::<leasehold::Error>() <= 24);
}

#[tokio::test]
async fn a_lock_is_there_until_the_guard_is_dropped() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(guard.key(), "a");
    assert!(guard.is_held());
    assert!(
        guard.valid_for() > Duration::from_secs(20) && guard.valid_for() < Duration::from_secs(30)
    );
    assert!(fields(&mut raw, "a").await.starts_with(locks.client_id()));
    assert!((20_000..=30_000).contains(&pttl(&mut raw, "a").await));
    assert_everything_expires(&mut raw).await;
    drop(guard);
    until("the release", async || !exists(&mut raw, "a").await).await;
    assert_everything_expires(&mut raw).await;
}

/// Critical sections of two tasks of two clients never overlap, and tokens grow in grant order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_exclude_each_other_and_tokens_grow_in_the_order_of_grants() {
    let server = Server::start().await;
    let inside = Arc::new(AtomicBool::new(false));
    let highest = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let locks = locks(&server).await;
        for _ in 0..8 {
            let (mutex, inside, highest) =
                (locks.mutex("a"), Arc::clone(&inside), Arc::clone(&highest));
            tasks.push(tokio::spawn(async move {
                for _ in 0..40 {
                    let guard = mutex.lock().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
                    let last = highest.swap(guard.token().as_u64(), Ordering::SeqCst);
                    assert!(
                        guard.token().as_u64() > last,
                        "{last} before {}",
                        guard.token()
                    );
                    tokio::task::yield_now().await;
                    inside.store(false, Ordering::SeqCst);
                }
            }));
        }
    }
    for task in tasks {
        within("a task", task).await.unwrap();
    }
}

#[tokio::test]
async fn try_lock_is_one_round_trip_and_none_is_not_an_error() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    // A fixed lease, so that no renewal is counted.
    let guard = ours
        .mutex("a")
        .try_lock()
        .lease(Duration::from_secs(30))
        .await
        .unwrap()
        .expect("free");
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    assert!(theirs.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(scripts_run(&mut raw).await, 1);
    assert!(
        ours.mutex("a").try_lock().await.unwrap().is_none(),
        "not re-entrant"
    );
    assert_eq!(scripts_run(&mut raw).await, 1, "known without asking");
    guard.release().await.unwrap();
    assert!(theirs.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn try_lock_for_gives_up_in_time_and_leaves_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let guard = ours.mutex("a").lock().await.unwrap();
    for time in [Duration::ZERO, ms(1), ms(80)] {
        assert!(
            within("remote", theirs.mutex("a").try_lock_for(time).into_future())
                .await
                .unwrap()
                .is_none()
        );
        assert!(
            within("local", ours.mutex("a").try_lock_for(time).into_future())
                .await
                .unwrap()
                .is_none()
        );
    }
    nobody_in_line(&mut raw, "a").await;
    let waiter = tokio::spawn(theirs.mutex("a").try_lock_for(Duration::MAX).into_future());
    until("the waiter", async || {
        crate::support::tickets(&mut raw, "a").await == 1
    })
    .await;
    drop(guard);
    assert!(
        within("the hand-over", waiter)
            .await
            .unwrap()
            .unwrap()
            .is_some()
    );
    until("its release", async || !exists(&mut raw, "a").await).await;
    let free = theirs.mutex("a").try_lock_for(Duration::ZERO);
    assert!(free.await.unwrap().is_some(), "no time is enough");
}

#[tokio::test]
async fn a_fixed_lease_ends_by_itself_here_before_it_ends_there() {
    let server = Server::start().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let guard = ours.mutex("a").lock().lease(ms(300)).await.unwrap();
    let next = within(
        "the end of the lease",
        theirs.mutex("a").lock().into_future(),
    )
    .await
    .unwrap();
    assert!(!guard.is_held());
    assert_eq!(guard.valid_for(), Duration::ZERO);
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(next.is_held());
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
    assert!(
        theirs.mutex("a").holder().await.unwrap().is_some(),
        "a late release frees nobody else's lock"
    );
}

#[tokio::test]
async fn a_namespace_keeps_names_apart() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let plain = locks(&server).await;
    let shop = Locks::builder(server.url())
        .namespace("shop")
        .connect()
        .await
        .unwrap();
    let (a, b) = (
        plain.mutex("a").lock().await.unwrap(),
        shop.mutex("a").try_lock().await.unwrap().unwrap(),
    );
    assert_eq!((a.key(), b.key()), ("a", "shop:a"));
    assert_eq!(
        keys(&mut raw).await,
        [
            "a",
            "redisson_lock_token:{a}",
            "redisson_lock_token:{shop:a}",
            "shop:a"
        ]
    );
    assert!(
        plain.mutex("shop:a").try_lock().await.unwrap().is_none(),
        "the same key by another way"
    );
    for bad in ["", "{a}", "a}", "a{"] {
        let error = Locks::builder(server.url())
            .namespace(bad)
            .connect()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadName, "{bad}");
    }
}

#[tokio::test]
async fn what_is_not_a_lock_is_refused_and_left_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    raw.cmd(&["SET", "data", "precious"]).await;
    let data = locks.mutex("data");
    let errors = [
        data.lock().await.unwrap_err(),
        data.try_lock().await.unwrap_err(),
        data.try_lock_for(ms(50)).await.unwrap_err(),
        data.force_unlock().await.unwrap_err(),
        data.holder().await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        assert_eq!(
            (error.key(), error.node()),
            ("data", server.addr().to_string().as_str())
        );
    }
    assert_eq!(
        raw.cmd(&["GET", "data"]).await,
        crate::support::bulk("precious")
    );
    assert_eq!(raw.cmd(&["DBSIZE"]).await, RawValue::Int(1));

    raw.cmd(&["HSET", "profile", "name", "Ada"]).await;
    raw.cmd(&["EXPIRE", "profile", "100"]).await;
    assert_eq!(
        locks.mutex("profile").holder().await.unwrap_err().kind(),
        ErrorKind::WrongType
    );
}

#[tokio::test]
async fn a_lock_nobody_will_ever_free_is_an_error_and_not_an_endless_wait() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["HSET", "a", "u:1", "1"]).await;
    let mutex = locks(&server).await.mutex("a");
    for error in [
        within("lock", mutex.lock().into_future())
            .await
            .unwrap_err(),
        mutex.try_lock().await.unwrap_err(),
        mutex.remaining().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NoExpiry);
        assert!(error.to_string().contains("force_unlock"), "{error}");
    }
    assert!(mutex.force_unlock().await.unwrap());
    drop(mutex.lock().await.unwrap());
}

#[tokio::test]
async fn names_and_durations_that_cannot_be_used_are_refused_without_asking() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    for name in ["", "a{b", "{}x", "a}b", &"x".repeat(5000)] {
        let mutex = locks.mutex(name);
        assert_eq!(mutex.lock().await.unwrap_err().kind(), ErrorKind::BadName);
        assert_eq!(
            mutex.try_lock().await.unwrap_err().kind(),
            ErrorKind::BadName
        );
        assert_eq!(mutex.holder().await.unwrap_err().kind(), ErrorKind::BadName);
        assert_eq!(
            mutex.force_unlock().await.unwrap_err().kind(),
            ErrorKind::BadName
        );
    }
    for bad in [
        Duration::ZERO,
        ms(9),
        Duration::from_secs(366 * 86_400),
        Duration::MAX,
    ] {
        let lease = locks.mutex("a").lock().lease(bad).await.unwrap_err();
        assert_eq!(lease.kind(), ErrorKind::BadLease);
        let hold = locks.mutex("a").try_lock().max_hold(bad).await.unwrap_err();
        assert_eq!(hold.kind(), ErrorKind::BadLease);
        let default = Locks::builder(server.url())
            .lease(bad)
            .connect()
            .await
            .unwrap_err();
        assert_eq!(default.kind(), ErrorKind::BadLease);
    }
    for bad in [Duration::ZERO, Duration::MAX] {
        let error = Locks::builder(server.url())
            .command_timeout(bad)
            .connect()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
    }
    assert_eq!(scripts_run(&mut raw).await, 0);
}

#[tokio::test]
async fn odd_but_honest_names_work() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    for name in [
        "{user:1}:cart",
        "a b\n",
        "ключ",
        "a{b}c{",
        ":",
        &"x".repeat(4096),
    ] {
        let guard = locks.mutex(name).lock().await.unwrap();
        assert!(exists(&mut raw, name).await);
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn who_holds_it_and_for_how_long_can_be_asked() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let mutex = locks.mutex("a");
    assert_eq!(mutex.holder().await.unwrap(), None);
    assert_eq!(mutex.remaining().await.unwrap(), None);
    let guard = mutex.lock().lease(Duration::from_secs(60)).await.unwrap();
    let holder = mutex.holder().await.unwrap().unwrap();
    assert_eq!((holder.client(), holder.count()), (locks.client_id(), 1));
    assert!(holder.id().starts_with(&format!("{}:", locks.client_id())));
    let remaining = mutex.remaining().await.unwrap().unwrap();
    assert!(remaining > Duration::from_secs(40) && remaining <= Duration::from_secs(60));
    drop(guard);

    raw.cmd(&["HSET", "b", "4c0e:77", "3"]).await;
    raw.cmd(&["PEXPIRE", "b", "30000"]).await;
    let redisson = locks.mutex("b").holder().await.unwrap().unwrap();
    assert_eq!(
        (redisson.id(), redisson.client(), redisson.count()),
        ("4c0e:77", "4c0e", 3)
    );
}

#[tokio::test]
async fn force_unlock_frees_it_for_a_waiter_and_the_holder_is_told() {
    let server = Server::start().await;
    let (ours, theirs) = (short_locks(&server, ms(2_000)).await, locks(&server).await);
    let guard = ours.mutex("a").lock().await.unwrap();
    let lost = tokio::spawn(guard.lost());
    assert!(theirs.mutex("a").force_unlock().await.unwrap());
    assert!(!theirs.mutex("a").force_unlock().await.unwrap());
    assert_eq!(within("the news", lost).await.unwrap(), LostReason::Stolen);
    assert!(!guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
}

#[tokio::test]
async fn the_token_counter_expires_unless_redisson_needs_it() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let alone = locks(&server).await;
    let together = Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap();
    let first: FencingToken = alone.mutex("a").lock().await.unwrap().token();
    let kept = pttl(&mut raw, "redisson_lock_token:{a}").await;
    assert!((590_000..=600_000).contains(&kept), "{kept}");
    let second = together.mutex("a").lock().await.unwrap().token();
    assert_eq!(pttl(&mut raw, "redisson_lock_token:{a}").await, -1);
    assert!(second > first);
    drop(
        alone
            .mutex("b")
            .lock()
            .lease(Duration::from_secs(600))
            .await
            .unwrap(),
    );
    assert!(
        pttl(&mut raw, "redisson_lock_token:{b}").await > 5_000_000,
        "ten leases"
    );
}

#[tokio::test]
async fn a_password_is_never_shown() {
    let server = Server::builder().requirepass("s3cr3t").start().await;
    let locks = locks(&server).await;
    let wrong = Locks::connect(server.url().replace("s3cr3t", "wr0ng"))
        .await
        .unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Denied, "{wrong}");
    let builder = Locks::builder(server.url());
    for shown in [
        format!("{locks:?} {builder:?} {:?}", locks.mutex("a")),
        format!("{wrong} {wrong:?}"),
    ] {
        assert!(
            !shown.contains("s3cr3t") && !shown.contains("wr0ng"),
            "{shown}"
        );
    }
    drop(locks.mutex("a").lock().await.unwrap());
}

#[tokio::test]
async fn shutdown_frees_what_was_dropped_and_what_was_not_and_ends_every_wait() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let held = locks.mutex("held").lock().await.unwrap();
    let waiter = tokio::spawn(locks.mutex("held").lock().into_future());
    let lost = tokio::spawn(held.lost());
    for n in 0..100 {
        drop(locks.mutex(format!("dropped:{n}")).lock().await.unwrap());
    }
    tokio::task::yield_now().await;
    within("shutdown", locks.shutdown()).await.unwrap();
    for key in raw.cmd(&["KEYS", "*"]).await.array() {
        assert!(
            key.str().starts_with("redisson_lock_token"),
            "{} is left",
            key.str()
        );
    }
    assert_eq!(
        within("the waiter", waiter)
            .await
            .unwrap()
            .unwrap_err()
            .kind(),
        ErrorKind::Closed
    );
    assert_eq!(within("the news", lost).await.unwrap(), LostReason::Closed);
    assert!(!held.is_held());
    let later = locks.mutex("a");
    assert_eq!(later.lock().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(
        later.try_lock().await.unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert_eq!(later.holder().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(
        later.force_unlock().await.unwrap_err().kind(),
        ErrorKind::Closed
    );
    within("shutdown again", locks.shutdown()).await.unwrap();
    assert_eq!(held.release().await.unwrap(), Release::AlreadyGone);
}

#[tokio::test]
async fn a_lock_that_is_forced_open_here_is_lost_here_at_once() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let a = locks.mutex("a");
    for lease in [None, Some(ms(60_000))] {
        let request = a.lock();
        let guard = match lease {
            Some(lease) => request.lease(lease).await.unwrap(),
            None => request.await.unwrap(),
        };
        let lock = a.lock();
        let waiter = tokio::spawn(async move { lock.await.unwrap() });
        tokio::task::yield_now().await;
        assert!(a.force_unlock().await.unwrap());
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, LostReason::Stolen);
        let next = within("the waiter", waiter).await.unwrap();
        assert!(next.token() > guard.token());
        drop(next);
        drop(guard);
        let free = a.try_lock().await.unwrap();
        assert!(free.is_some(), "nothing keeps it from others here");
    }
    assert!(!a.force_unlock().await.unwrap(), "it is free");
}
