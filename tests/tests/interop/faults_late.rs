//! Faults of Redisson's in renewing and releasing too late, on demand: rows of the table in `leasehold::guides::beside_others`.

use std::time::Duration;

use leasehold::Release;
use leasehold_testkit::{Cluster, Raw};

use crate::jvm::{self, Thread};
use crate::monitor::Monitor;
use crate::stage::{Stage, beside_redisson, leased, server};
use crate::support::{exists, fields, until, within};

/// Longer than a server stands still here.
const NODE_TIMEOUT: Duration = Duration::from_secs(60);

/// The renewals of one slot wait for the answer about another, at a server that stands still. Ours wait for nobody.
#[tokio::test]
async fn a_server_that_stands_still_keeps_redisson_from_renewing_at_the_others_and_not_us() {
    let Some(jvm) = jvm::shared() else { return };
    let cluster = Cluster::builder().masters(3).replicas(0);
    let cluster = cluster.node_timeout(NODE_TIMEOUT).start().await;
    let (still, near) = (cluster.key_at(0, "s").await, cluster.key_at(1, "n").await);
    let url = cluster.url();
    let java = jvm.client(&url, &["watchdog=3000"]).await;
    let (ours, waits) = (
        leased(&url, Duration::from_secs(3)).await,
        beside_redisson(&url).await,
    );
    let [one, other] = [(); 2].map(|()| java.thread());
    one.ok(format!("lock({still}).lock()")).await;
    let token = other.ok(format!("fenced({near}).lockAndGetToken()")).await;
    let held = ours.mutex(format!("{{{near}}}ours")).lock().await.unwrap();
    cluster.freeze(0);
    let guard = within("our turn", waits.mutex(&near).lock().into_future()).await;
    let guard = guard.unwrap();
    assert!(guard.token().as_u64() > token.parse().unwrap());
    assert!(held.is_held());
    cluster.thaw(0);
    let unlocked = other.call(format!("fenced({near}).unlock()")).await;
    assert!(
        unlocked.threw("IllegalMonitorStateException"),
        "{unlocked:?}"
    );
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(held.release().await.unwrap(), Release::Released);
    java.end();
    ours.shutdown().await.unwrap();
    waits.shutdown().await.unwrap();
}

/// The renewal of many locks is one script. It fails where one of the names has another kind meanwhile, and those behind that are
/// not renewed.
#[tokio::test]
async fn a_name_of_another_kind_keeps_redisson_from_renewing_other_locks_of_the_batch() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let stage = Stage::with(&jvm, "batch", &url, &["watchdog=3000"]).await;
    let names: Vec<_> = (0..4).map(|_| stage.name("batch")).collect();
    let java = stage.java[0].thread();
    let all = names.clone();
    let monitor = Monitor::start(server().await.addr(), move |line| {
        line.is_script() && all.iter().all(|name| line.has(name))
    })
    .await;
    let mut tokens = Vec::new();
    for name in &names {
        tokens.push(java.ok(format!("fenced({name}).lockAndGetToken()")).await);
    }
    // Redisson keeps them in an order of its own.
    let batch = until("a renewal of all", async || {
        let lines = monitor.lines();
        let batch = lines.last().ok_or("none so far")?;
        Ok::<_, String>(batch.words.clone())
    })
    .await;
    let place = |name: &String| batch.iter().position(|word| word == name);
    let mut names: Vec<_> = names.into_iter().zip(tokens).collect();
    names.sort_by_key(|(name, _)| place(name));
    let mut names = names.into_iter();
    let (first, _) = names.next().expect("there are some");
    // Forced open, and taken as a plain lock: between two renewals, as one that finds nothing there leaves it out from then on.
    let mut raw = stage.raw(&first).await;
    raw.cmd(&["SET", &first, "somebody", "PX", "60000"]).await;
    for (name, token) in names {
        let mutex = stage.locks.mutex(&name);
        let guard = within("the end of its lease", mutex.lock().into_future()).await;
        let guard = guard.unwrap();
        assert!(guard.token().as_u64() > token.parse().unwrap());
        let unlocked = java.call(format!("fenced({name}).unlock()")).await;
        assert!(
            unlocked.threw("IllegalMonitorStateException"),
            "{unlocked:?}"
        );
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    stage.java[0].end();
    stage.locks.shutdown().await.unwrap();
}

/// An unlock gets stuck on its way. Redisson sends it again over another connection, and the thread locks once more; then the
/// first one arrives.
#[tokio::test]
async fn an_unlock_that_arrives_late_ends_the_next_hold_of_the_same_thread() {
    let Some(jvm) = jvm::shared() else { return };
    let cluster = Cluster::builder().masters(3).replicas(0);
    let cluster = cluster.node_timeout(NODE_TIMEOUT).start().await;
    let route = cluster.route();
    // So that it soon gives up connections over which no answer comes.
    let options = [
        "timeout=1000",
        "retryAttempts=20",
        "retryDelay=200",
        "ping=300",
    ];
    let client = jvm.client(&route.url(), &options).await;
    let (java, ours) = (client.thread(), beside_redisson(&cluster.url()).await);
    let node = cluster.master_of("k").await.unwrap();
    let (proxy, mut raw) = (route.proxy(node), cluster.raw(node).await);
    // Its scripts are known there then.
    lock_once(&java, &mut raw).await;
    java.ok("fenced(k).unlock()").await;
    lock_once(&java, &mut raw).await;
    proxy.hold_up(true, false);
    // Executed once, over a new connection; what was stuck is under way.
    java.ok("fenced(k).unlock()").await;
    assert!(!exists(&mut raw, "k").await);
    // By which it tells that an unlock was executed already: gone when it has the answer.
    until("its mark is gone", async || {
        let marks = raw.cmd(&["KEYS", "redisson_unlock_latch:*"]).await;
        marks.array().is_empty()
    })
    .await;
    let token = lock_once(&java, &mut raw).await;
    let waits = tokio::spawn(ours.mutex("k").lock().into_future());
    let line = async || ours.mutex("k").inspect().await.unwrap();
    until("our ticket", async || line().await.waiters().len() == 1).await;
    assert!(!waits.is_finished());

    proxy.hold_up(false, false);
    let guard = within("our turn", waits).await.unwrap().unwrap();
    assert!(guard.token().as_u64() > token);
    // It never gave that back.
    let unlocked = java.call("fenced(k).unlock()").await;
    assert!(
        unlocked.threw("IllegalMonitorStateException"),
        "{unlocked:?}"
    );
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    client.end();
    ours.shutdown().await.unwrap();
}

/// Takes the lock `k`, and gives back what a slow answer made it count too often. Returns the token.
async fn lock_once(java: &Thread, raw: &mut Raw) -> u64 {
    let token = java.ok("fenced(k).lockAndGetToken()").await;
    while !fields(raw, "k").await.ends_with("=1") {
        java.ok("fenced(k).unlock()").await;
    }
    token.parse().expect("a token")
}
