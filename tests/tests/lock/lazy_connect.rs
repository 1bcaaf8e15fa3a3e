//! Locks that connect when they are first used, and what tells whether anybody is there.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks};
use leasehold_testkit::ports::Port;
use leasehold_testkit::{Accept, Cluster, Proxy, Sentinels, Server};

use crate::support::{ms, take, until, within};

/// Far above what a busy machine needs for what takes no time.
const TIMEOUT: Duration = Duration::from_secs(30);

fn lazy(url: impl Into<String>) -> Locks {
    let builder = Locks::builder(url)
        .connect_timeout(TIMEOUT)
        .command_timeout(TIMEOUT);
    builder.connect_lazy().expect("settings that can be used")
}

/// Every kind of first use fails, and says so before any timeout.
async fn nobody_is_there(url: &str) {
    let began = Instant::now();
    let locks = lazy(url);
    let semaphore = locks.semaphore("s", 3);
    let errors = [
        locks.ping().await.unwrap_err(),
        locks.mutex("a").lock().await.unwrap_err(),
        locks.mutex("a").try_lock().await.unwrap_err(),
        locks.mutex("a").try_lock_for(TIMEOUT).await.unwrap_err(),
        locks.mutex("a").holder().await.unwrap_err(),
        locks.mutex("a").force_unlock().await.unwrap_err(),
        locks.rw_lock("rw").write().await.unwrap_err(),
        locks.multi(["a", "b"]).lock().await.unwrap_err(),
        semaphore.acquire().await.unwrap_err(),
        semaphore.counting().acquire(1).await.unwrap_err(),
        locks.latch("l").count_down().await.unwrap_err(),
        locks.latch("l").wait().await.unwrap_err(),
        locks.barrier("b", 2).wait().await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable());
        assert!(
            error.to_string().contains("no server listens there"),
            "{error}"
        );
    }
    let connected = Locks::builder(url).connect_timeout(TIMEOUT);
    let error = connected.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        began.elapsed() < TIMEOUT,
        "one of them waited for a timeout"
    );
    within("the end of nothing", locks.shutdown())
        .await
        .unwrap();
}

#[tokio::test]
async fn where_nobody_listens_every_first_use_fails_at_once() {
    let ports = [Port::reserve(), Port::reserve()];
    let [a, b] = [ports[0].number(), ports[1].number()];
    nobody_is_there(&format!("redis://127.0.0.1:{a}")).await;
    nobody_is_there(&format!("redis-cluster://127.0.0.1:{a},127.0.0.1:{b}")).await;
    nobody_is_there(&format!(
        "redis-sentinel://127.0.0.1:{a},127.0.0.1:{b}/service"
    ))
    .await;
}

#[tokio::test]
async fn locks_made_before_their_server_work_once_it_is_there_and_sit_out_a_restart() {
    let server = Server::start().await;
    let locks = lazy(server.url());
    server.kill();
    let error = locks.mutex("a").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart().await;
    // Many at once share the connection.
    let mut raw = server.raw().await;
    let calls = (0..50).map(|n| tokio::spawn(locks.mutex(format!("k{n}")).lock().into_future()));
    for call in calls.collect::<Vec<_>>() {
        drop(within("a lock", call).await.unwrap().unwrap());
    }
    let clients = raw.cmd(&["CLIENT", "LIST", "TYPE", "normal"]).await;
    let ours = clients
        .str()
        .lines()
        .filter(|line| line.contains("name=leasehold:"));
    assert!(ours.count() <= 2, "{clients:?}");

    // From now on a call waits for the server, as far as its time allows.
    server.kill();
    let waits = tokio::spawn(locks.mutex("b").lock().into_future());
    tokio::time::sleep(ms(300)).await;
    assert!(!waits.is_finished());
    server.restart().await;
    drop(within("the lock", waits).await.unwrap().unwrap());
    assert!(locks.ping().await.unwrap() < TIMEOUT);
}

#[tokio::test]
async fn settings_are_checked_without_a_runtime_and_nothing_is_sent() {
    let made = std::thread::spawn(|| {
        let bad = Locks::connect_lazy("reids://h").unwrap_err();
        let lease = Locks::builder("redis://h").lease(ms(1)).connect_lazy();
        let name = Locks::builder("redis://h").namespace("{}").connect_lazy();
        let kinds = (lease.unwrap_err().kind(), name.unwrap_err().kind());
        (bad.to_string(), kinds, lazy("redis://h.invalid"))
    });
    let (bad, kinds, locks) = made.join().unwrap();
    assert_eq!(
        bad,
        "the configuration cannot be used: 'reids://' is not a scheme that is understood; write redis://"
    );
    assert_eq!(kinds, (ErrorKind::BadLease, ErrorKind::BadName));
    drop(locks);
}

#[tokio::test]
async fn lazy_locks_of_clusters_and_sentinels_have_messages_from_the_first_wait_on() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let sentinels = Sentinels::start().await;
    for url in [cluster.url(), sentinels.url()] {
        let (ours, theirs) = (lazy(&url), lazy(&url));
        let guard = take(&ours, "a").await;
        let waiter = tokio::spawn(theirs.mutex("a").lock().into_future());
        until("a waiter", async || {
            ours.mutex("a").inspect().await.unwrap().waiting() == 1
        })
        .await;
        guard.release().await.unwrap();
        drop(within("its turn", waiter).await.unwrap().unwrap());
        let latch = lazy(&url).latch("l");
        latch.try_set_count(1).await.unwrap();
        latch.count_down().await.unwrap();
        assert!(ours.ping().await.unwrap() > Duration::ZERO);
    }
    // One master that is gone is named.
    let locks = lazy(cluster.url());
    locks.ping().await.unwrap();
    cluster.kill(1);
    let short = Locks::builder(cluster.url_of(&[0])).command_timeout(ms(500));
    let short = short.connect().await.unwrap();
    let error = within("an answer", short.ping()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.node(), cluster.addr(1).to_string());
}

#[tokio::test]
async fn a_first_use_that_is_given_up_is_no_obstacle_for_the_next() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    proxy.accept(Accept::Silence);
    let locks = lazy(proxy.url());
    let hangs = tokio::time::timeout(ms(100), locks.ping()).await;
    assert!(hangs.is_err());
    proxy.accept(Accept::Forward);
    drop(take(&locks, "a").await);
}
