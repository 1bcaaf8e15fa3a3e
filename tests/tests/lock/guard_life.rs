//! The end of a guard, and its holder's notice of it.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks, LostReason, Release};
use leasehold_testkit::own_process::this_test_again;
use leasehold_testkit::{Cut, Fault, Proxy, Raw, Server, process};

use crate::support::{exists, locks, ms, short_locks, until, within};

/// Sets a flag when it is dropped.
struct Witness(Arc<AtomicBool>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A child that does not outlive a failed test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It has ended already if the test went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn release_says_whether_it_was_held_until_now() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert!(!exists(&mut raw, "a").await);

    let guard = locks.mutex("a").lock().await.unwrap();
    raw.cmd(&["FLUSHALL"]).await;
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);

    let guard = locks.mutex("a").lock().lease(ms(500)).await.unwrap();
    guard.lost().await;
    until("the server's own expiry", async || {
        !exists(&mut raw, "a").await
    })
    .await;
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
}

#[tokio::test]
async fn a_server_that_forgot_its_scripts_still_gets_the_release() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    for _ in 0..3 {
        let guard = locks.mutex("a").lock().await.unwrap();
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        let guard = locks.mutex("a").lock().await.unwrap();
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        drop(guard);
        until("the release", async || !exists(&mut raw, "a").await).await;
    }
}

#[tokio::test]
async fn a_release_without_an_answer_is_unknown_and_never_called_gone() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let locks = Locks::connect(proxy.url()).await.unwrap();
    // A fixed lease, so that the lost reply is not one to the keeper.
    let guard = locks
        .mutex("a")
        .lock()
        .lease(Duration::from_secs(30))
        .await
        .unwrap();
    // Answered behind the entry of the process, which is sent with the first lock.
    locks.mutex("a").holder().await.unwrap();
    proxy.to_client(Fault::LoseReply {
        nth: 1,
        how: Cut::Rst,
    });
    let error = within("the release", guard.release()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(!exists(&mut raw, "a").await);
}

#[tokio::test]
async fn a_release_that_nobody_waits_for_is_finished_all_the_same() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let locks = Locks::builder(proxy.url())
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    proxy.to_server(Fault::Blackhole);
    {
        let mut release = pin!(guard.release());
        let pending = poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_pending())).await;
        assert!(pending);
    }
    proxy.heal();
    until("the release", async || !exists(&mut raw, "a").await).await;
}

#[tokio::test]
async fn a_panic_releases() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let guard = locks(&server).await.mutex("a").lock().await.unwrap();
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("the work failed"));
    }));
    assert!(panicked.is_err());
    until("the release", async || !exists(&mut raw, "a").await).await;
}

#[tokio::test]
async fn a_guard_can_be_dropped_outside_of_any_runtime() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    until("the release", async || !exists(&mut raw, "a").await).await;
}

#[test]
fn a_guard_can_be_dropped_after_its_runtime() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let server = Server::builder().start_blocking();
    let first = runtime();
    let (locks, guard) = first.block_on(async {
        let locks = locks(&server).await;
        let guard = locks.mutex("a").lock().await.unwrap();
        (locks, guard)
    });
    drop(first);
    drop(guard);
    drop(locks);
    runtime().block_on(async {
        let mut raw = server.raw().await;
        until("the release by the keeper", async || {
            !exists(&mut raw, "a").await
        })
        .await;
    });
}

#[tokio::test]
async fn the_last_guard_outlives_the_locks_it_came_from() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let guard = short_locks(&server, ms(2_000))
        .await
        .mutex("a")
        .lock()
        .await
        .unwrap();
    tokio::time::sleep(ms(2_500)).await;
    assert!(guard.is_held(), "renewed without its Locks");
    drop(guard);
    until("the release", async || !exists(&mut raw, "a").await).await;
}

#[tokio::test]
async fn a_fixed_lease_is_lost_on_time_with_nobody_to_renew_it() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let guard = locks.mutex("a").lock().lease(ms(200)).await.unwrap();
    let lost = tokio::spawn(guard.lost());
    assert_eq!(within("the end", lost).await.unwrap(), LostReason::Expired);
    assert!(!guard.is_held());
}

#[tokio::test]
async fn a_flush_is_told_at_the_next_renewal() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(2_000)).await;
    let guards = [
        locks.mutex("a").lock().await.unwrap(),
        locks.mutex("b").lock().await.unwrap(),
    ];
    raw.cmd(&["FLUSHALL"]).await;
    for guard in &guards {
        assert_eq!(within("the news", guard.lost()).await, LostReason::Stolen);
        assert!(!guard.is_held());
    }
    assert!(!exists(&mut raw, "a").await, "a renewal creates nothing");
    drop(
        within("a new lock", locks.mutex("a").lock().into_future())
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn a_server_that_stops_answering_is_a_loss_when_the_lease_ends_and_not_later() {
    let server = Server::start().await;
    let locks = short_locks(&server, ms(2_000)).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    tokio::time::sleep(ms(2_200)).await;
    assert!(guard.is_held());
    server.pause();
    let valid = guard.valid_for();
    assert!(valid <= ms(2_000));
    assert_eq!(
        within("the end of the lease", guard.lost()).await,
        LostReason::Expired
    );
    assert!(!guard.is_held());
    server.resume();
}

#[tokio::test]
async fn who_watches_a_guard_learns_of_its_release() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let dropped = locks.mutex("a").lock().await.unwrap();
    let released = locks.mutex("b").lock().await.unwrap();
    let lost = [tokio::spawn(dropped.lost()), tokio::spawn(released.lost())];
    tokio::task::yield_now().await;
    drop(dropped);
    released.release().await.unwrap();
    for lost in lost {
        assert_eq!(within("the end", lost).await.unwrap(), LostReason::Released);
    }
}

#[tokio::test]
async fn work_is_dropped_where_it_stands_when_the_lock_is_lost() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let guard = locks.mutex("a").lock().lease(ms(150)).await.unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let witness = Witness(Arc::clone(&dropped));
    let work = guard.run(async move {
        let _witness = witness;
        std::future::pending::<()>().await;
    });
    let lost = within("the loss", work).await.unwrap_err();
    assert_eq!(lost.reason(), LostReason::Expired);
    assert!(
        dropped.load(Ordering::SeqCst),
        "before the loss is returned"
    );
    let mut ran = false;
    assert!(guard.run(async { ran = true }).await.is_err());
    assert!(!ran, "nothing starts under a lost lock");
}

#[tokio::test]
async fn work_that_ends_in_time_gives_its_result() {
    let server = Server::start().await;
    let guard = locks(&server).await.mutex("a").lock().await.unwrap();
    assert_eq!(guard.run(async { 42 }).await.unwrap(), 42);
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_grant_that_arrives_after_its_lease_is_no_grant() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let locks = Locks::connect(proxy.url()).await.unwrap();
    proxy.to_client(Fault::Delay(ms(120)));
    let error = within(
        "the late grant",
        locks.mutex("a").lock().lease(ms(50)).into_future(),
    )
    .await
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    proxy.heal();
    until("the end of the lease", async || {
        !exists(&mut raw, "a").await
    })
    .await;
    assert!(
        locks
            .mutex("a")
            .lock()
            .lease(Duration::from_secs(5))
            .await
            .unwrap()
            .is_held()
    );
}

/// A stopped process (a debugger, a suspended container, a very long pause) finds the loss when it
/// goes on. The holder is a process of its own: this test, started again with the address of the
/// server.
#[test]
fn a_process_that_was_stopped_for_longer_than_its_lease_knows_it_at_once() {
    const URL: &str = "LEASEHOLD_STOPPED_HOLDER";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    if let Ok(url) = std::env::var(URL) {
        runtime.block_on(async {
            let locks = Locks::builder(url)
                .lease(ms(2_500))
                .connect()
                .await
                .unwrap();
            let (renewed, fixed) = (locks.mutex("a"), locks.mutex("b"));
            let (renewed, fixed) = (
                renewed.lock().await.unwrap(),
                fixed.lock().lease(ms(2_500)).await.unwrap(),
            );
            // It is stopped somewhere from here on, and goes on at the first reading of the clock
            // that shows it.
            let mut last = Instant::now();
            let _ready = locks
                .mutex("ready")
                .lock()
                .lease(Duration::from_secs(60))
                .await
                .unwrap();
            loop {
                let now = Instant::now();
                if now - last >= ms(1_000) {
                    break;
                }
                last = now;
                std::thread::sleep(ms(1));
            }
            assert!(!renewed.is_held() && !fixed.is_held());
            assert_eq!(within("the news", fixed.lost()).await, LostReason::Expired);
            let reason = within("the news", renewed.lost()).await;
            assert!(
                matches!(reason, LostReason::Expired | LostReason::Stolen),
                "{reason:?}"
            );
        });
        return;
    }
    let server = Server::builder().start_blocking();
    let holder = this_test_again(
        "guard_life::a_process_that_was_stopped_for_longer_than_its_lease_knows_it_at_once",
    )
    .env(URL, server.url())
    // The result of its test is no result of this run.
    .stdout(std::process::Stdio::null())
    .spawn()
    .unwrap();
    let mut holder = Killed(holder);
    runtime.block_on(async {
        let mut raw = server.raw().await;
        until("it holds both", async || {
            raw.cmd(&["EXISTS", "a", "b", "ready"]).await.int() == 3
        })
        .await;
        process::freeze(holder.0.id());
        let next = locks(&server).await;
        let next = within("the end of its lease", next.mutex("a").lock().into_future())
            .await
            .unwrap();
        // The lease of the second one ends a moment later.
        until("the end of both leases", async || {
            !exists(&mut raw, "b").await
        })
        .await;
        process::thaw(holder.0.id());
        let status = tokio::task::spawn_blocking(move || holder.0.wait().unwrap())
            .await
            .unwrap();
        assert!(status.success());
        assert!(next.is_held(), "and its late release took nothing away");
    });
}

#[tokio::test]
async fn a_cancellation_token_is_cancelled_at_the_loss_and_at_the_release() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(300)).await;
    let (forced, released) = (locks.mutex("forced"), locks.mutex("released"));
    let (forced, released) = (forced.lock().await.unwrap(), released.lock().await.unwrap());
    let (of_forced, of_released) = (forced.cancellation(), released.cancellation());
    raw.cmd(&["DEL", "forced"]).await;
    within("the renewal that finds out", of_forced.cancelled()).await;
    assert!(!of_released.is_cancelled());

    of_released.cancel();
    assert!(released.is_held(), "the token of one user ends nothing");
    let again = released.cancellation();
    assert!(!again.is_cancelled());
    assert_eq!(released.release().await.unwrap(), Release::Released);
    assert!(again.is_cancelled());
    assert!(
        forced.cancellation().is_cancelled(),
        "lost before it was asked for"
    );
}

#[test]
fn blocking_work_sees_the_end_of_a_fixed_lease_while_its_runtime_is_blocked() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Server::start().await;
        let locks = locks(&server).await;
        let guard = locks.mutex("a").lock().lease(ms(300)).await.unwrap();
        let lost = guard.cancellation();
        assert!(!lost.is_cancelled());
        let give_up = Instant::now() + Duration::from_secs(20);
        // Neither the runtime nor this task does anything meanwhile.
        while !lost.is_cancelled() {
            assert!(Instant::now() < give_up, "the token was never cancelled");
            std::thread::sleep(ms(5));
        }
        assert!(!guard.is_held());
        assert_eq!(
            within("the reason", guard.lost()).await,
            LostReason::Expired
        );
    });
}

/// `mem::forget` is safe, so it must not keep anything for ever. While a lease is renewed the guard is taken for alive.
#[tokio::test]
async fn a_guard_that_is_leaked_keeps_the_connection_until_its_lease_ends() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let connections = async |raw: &mut Raw| {
        let clients = raw.cmd(&["CLIENT", "LIST"]).await;
        clients.str().lines().count() - 1
    };
    let locks = short_locks(&server, ms(300)).await;
    let bounded = locks.mutex("bounded").lock().max_hold(ms(1_000));
    for guard in [
        locks.mutex("fixed").lock().lease(ms(500)).await.unwrap(),
        locks.mutex("short").lock().max_hold(ms(200)).await.unwrap(),
        bounded.await.unwrap(),
        locks.mutex("lost").lock().await.unwrap(),
    ] {
        assert!(guard.is_held());
        std::mem::forget(guard);
    }
    drop(locks);
    assert!(connections(&mut raw).await > 0, "it is still held");
    raw.cmd(&["DEL", "lost"]).await;
    until("the connections end", async || {
        connections(&mut raw).await == 0
    })
    .await;
    assert!(!exists(&mut raw, "fixed").await);
}
