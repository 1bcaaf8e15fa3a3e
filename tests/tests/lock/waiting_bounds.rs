//! Bounds of waiting: of one call, of all calls behind a server that is down, and of the commands
//! that they cost.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks};
use leasehold_testkit::{Accept, Proxy, Server, calls};

use crate::support::{locks, ms, scripts_run, tickets, until, within};

/// Locks with a command timeout of their own.
async fn impatient(url: String, timeout: Duration) -> Locks {
    let builder = Locks::builder(url).command_timeout(timeout);
    builder.connect().await.expect("the server is up")
}

#[tokio::test]
async fn a_dead_server_fails_all_waiters_of_a_process_together() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let locks = impatient(proxy.url(), ms(1_000)).await;
    proxy.blackhole();
    let began = Instant::now();
    let waiters: Vec<_> = (0..12)
        .map(|n| {
            let mutex = locks.mutex("a");
            tokio::spawn(async move {
                if n % 3 == 1 {
                    let tried = mutex.try_lock_for(Duration::from_secs(60)).await;
                    tried.map(drop)
                } else {
                    mutex.lock().await.map(drop)
                }
            })
        })
        .collect();
    for waiter in waiters {
        let error = within("a waiter", waiter).await.unwrap().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
            "{error}"
        );
        assert_eq!(error.key(), "a");
    }
    // One after another they would take 12 s.
    assert!(
        began.elapsed() < ms(9_000),
        "the last one failed after {:?}",
        began.elapsed()
    );
    proxy.reset_all();
    proxy.heal();
    until("the lock is granted again", async || {
        let taken = locks.mutex("a").lock().await;
        taken.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_bounded_wait_takes_its_time_and_one_command_timeout_at_most() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let locks = impatient(proxy.url(), ms(4_000)).await;
    let mut raw = server.raw().await;
    // Writes wait, handshakes do not: the connection comes back, late, to a server that answers no
    // script.
    assert!(
        raw.cmd(&["CLIENT", "PAUSE", "20000", "WRITE"])
            .await
            .is_ok()
    );
    proxy.accept(Accept::Refuse);
    proxy.reset_all();
    let began = Instant::now();
    let mutex = locks.mutex("a");
    let tried = tokio::spawn(mutex.try_lock_for(ms(10)).into_future());
    tokio::time::sleep(ms(3_000)).await;
    proxy.accept(Accept::Forward);
    let error = within("the attempt", tried).await.unwrap().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
        "{error}"
    );
    // A timeout that began with the connection would end after 7 s.
    assert!(
        began.elapsed() < ms(6_500),
        "10 ms and one command timeout of 4 s took {:?}",
        began.elapsed()
    );
    assert!(raw.cmd(&["CLIENT", "UNPAUSE"]).await.is_ok());
}

#[tokio::test]
async fn no_time_to_wait_costs_one_attempt_and_no_subscription() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let lease = Duration::from_secs(60);
    let held = theirs.mutex("a").lock().lease(lease).await.unwrap();
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    for _ in 0..20 {
        let tried = ours.mutex("a").try_lock_for(Duration::ZERO).await;
        assert!(tried.unwrap().is_none());
    }
    assert_eq!(scripts_run(&mut raw).await, 20);

    let here = ours.mutex("b").lock().lease(lease).await.unwrap();
    let before = scripts_run(&mut raw).await;
    for _ in 0..20 {
        let tried = ours.mutex("b").try_lock_for(Duration::ZERO).await;
        assert!(tried.unwrap().is_none());
    }
    assert_eq!(
        scripts_run(&mut raw).await,
        before,
        "what is held here costs the server nothing"
    );
    for command in ["subscribe", "unsubscribe"] {
        assert_eq!(calls(&mut raw, command).await, 0, "{command}");
    }
    drop((held, here));
}

#[tokio::test]
async fn a_slow_answer_holds_up_no_later_call_beyond_its_time() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let mutex = ours.mutex("a");
    assert!(raw.cmd(&["CLIENT", "PAUSE", "4000", "WRITE"]).await.is_ok());
    let slow = mutex.lock().await.unwrap();
    slow.release().await.unwrap();

    let held = theirs.mutex("a").lock().await.unwrap();
    let began = Instant::now();
    let tried = mutex.try_lock_for(ms(100)).await.unwrap();
    let took = began.elapsed();
    // If it counted on another slow answer, it would wait for as long as that took.
    assert!(tried.is_none() && took < ms(3_500), "100 ms took {took:?}");
    drop(held);
    let began = Instant::now();
    drop(mutex.lock().await.unwrap());
    let took = began.elapsed();
    assert!(took < ms(3_500), "a free lock took {took:?}");
}

#[tokio::test]
async fn the_first_in_line_asks_no_more_than_about_once_a_second() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    // Its own lease is short, the holder's is long.
    let held = theirs
        .mutex("a")
        .lock()
        .lease(Duration::from_secs(60))
        .await
        .unwrap();
    let waiter = tokio::spawn(ours.mutex("a").lock().lease(ms(10)).into_future());
    until("the waiter", async || tickets(&mut raw, "a").await == 1).await;
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    let since = Instant::now();
    tokio::time::sleep(ms(3_000)).await;
    let asked = scripts_run(&mut raw).await;
    let most = 2 + since.elapsed().as_secs();
    assert!(asked <= most, "{asked} looks in {:?}", since.elapsed());
    drop(held);
    // A lease of 10 ms may be over before the answer is here.
    let _ = within("the wake-up", waiter).await.unwrap();
}

#[tokio::test]
async fn a_short_lease_that_is_renewed_is_asked_for_when_it_would_end_and_not_more() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    raw.cmd(&["HSET", "a", "other:1", "1"]).await;
    raw.cmd(&["PEXPIRE", "a", "200"]).await;
    let mut renewing = server.raw().await;
    let renewals = tokio::spawn(async move {
        loop {
            renewing.cmd(&["PEXPIRE", "a", "200"]).await;
            tokio::time::sleep(ms(20)).await;
        }
    });
    let waiter = tokio::spawn(ours.mutex("a").lock().into_future());
    until("the waiter", async || tickets(&mut raw, "a").await == 1).await;
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    tokio::time::sleep(ms(5_000)).await;
    let asked = scripts_run(&mut raw).await;
    // Once in 200 ms, of which some are over at each look, and 20 ms more.
    assert!((1..=28).contains(&asked), "{asked} looks in 5 s");
    // Without a release: the end of the lease is found all the same.
    renewals.abort();
    drop(within("the end of the lease", waiter).await.unwrap());
}
