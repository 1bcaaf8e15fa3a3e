//! A server that was restarted without its data has lost its locks. With the restart guard it
//! grants none until the leases of all lost locks have ended.

use std::time::{Duration, Instant};

use leasehold::{Locks, LostReason};
use leasehold_testkit::Server;

use crate::support::{ms, until, within};

/// The longest lease. Servers report their uptime in whole seconds, so a shorter one is hard to
/// observe on a busy machine.
const LONGEST: Duration = Duration::from_secs(8);

async fn guarded(server: &Server) -> Locks {
    Locks::builder(server.url())
        .lease(LONGEST)
        .restart_guard(LONGEST)
        .connect()
        .await
        .unwrap()
}

/// A server that is old enough to be trusted.
async fn old_server(than: Duration) -> Server {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    until("the server is old enough", async || {
        let info = raw.cmd(&["INFO", "server"]).await;
        let age = info
            .str()
            .lines()
            .find_map(|line| line.strip_prefix("uptime_in_seconds:"))
            .unwrap()
            .parse()
            .unwrap();
        Duration::from_secs(age) > than
    })
    .await;
    server
}

#[tokio::test]
async fn a_restarted_server_grants_nothing_until_the_longest_lease_has_passed() {
    let server = old_server(LONGEST).await;
    let (ours, theirs, careless) = (
        guarded(&server).await,
        guarded(&server).await,
        Locks::connect(server.url()).await.unwrap(),
    );
    // Not renewed, so that only its own clock ends it.
    let held = ours
        .mutex("a")
        .try_lock()
        .lease(LONGEST)
        .await
        .unwrap()
        .expect("the server is old");
    // Granted before the restart, but not before the guard was made.
    server.kill();
    let restarted = Instant::now();
    server.restart().await;

    assert!(theirs.mutex("a").try_lock().await.unwrap().is_none());
    assert!(
        theirs.mutex("b").try_lock().await.unwrap().is_none(),
        "it may have been held, too"
    );
    assert!(
        theirs
            .mutex("a")
            .try_lock_for(ms(200))
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(
        theirs.mutex("a").holder().await.unwrap(),
        None,
        "nothing was written"
    );
    assert!(held.is_held(), "and so somebody still believes");
    // Without the guard there are two.
    let second = careless
        .mutex("a")
        .try_lock()
        .await
        .unwrap()
        .expect("the server forgot who holds it");
    assert!(held.is_held() && second.is_held());
    assert!(second.token() > held.token());
    second.release().await.unwrap();

    let lock = theirs.mutex("a").lock();
    let waiter = tokio::spawn(async move { lock.await.unwrap() });
    assert_eq!(
        within("the end of the lease", held.lost()).await,
        LostReason::Expired
    );
    let granted = within("the lock after all", waiter).await.unwrap();
    assert!(
        restarted.elapsed() >= LONGEST,
        "too early: {:?}",
        restarted.elapsed()
    );
    assert!(!held.is_held() && granted.is_held());
    assert!(granted.token() > held.token());
    assert!(
        theirs.mutex("b").try_lock().await.unwrap().is_some(),
        "from now on as always"
    );
}

#[tokio::test]
async fn who_connects_after_the_restart_waits_too() {
    let started = Instant::now();
    let server = Server::start().await;
    let locks = guarded(&server).await;
    assert!(
        locks.mutex("a").try_lock().await.unwrap().is_none(),
        "it may have been restarted just now"
    );
    let guard = within("the lock", async { locks.mutex("a").lock().await.unwrap() }).await;
    assert!(
        started.elapsed() >= LONGEST,
        "too early: {:?}",
        started.elapsed()
    );
    assert!(guard.is_held());
}

#[tokio::test]
async fn off_unless_asked_for() {
    let server = Server::start().await;
    let locks = Locks::connect(server.url()).await.unwrap();
    let before = locks
        .mutex("a")
        .try_lock()
        .await
        .unwrap()
        .expect("a server as young as can be");
    server.kill();
    server.restart().await;
    until("it is granted again", async || {
        let others = Locks::connect(server.url()).await.unwrap();
        others
            .mutex("a")
            .try_lock()
            .await
            .unwrap()
            .is_some_and(|after| after.token() > before.token())
    })
    .await;
}
