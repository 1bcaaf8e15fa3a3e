//! The entry of a process on the server, by which a holder leads to host, process and application.

use std::time::{Duration, SystemTime};

use leasehold::{ErrorKind, Locks, Process};
use leasehold_testkit::{Cluster, Failover, Raw, Server};

use crate::support::{
    commands, connect, exists, keys, leased, locks, ms, pttl, take, until, within,
};

fn key(locks: &Locks) -> String {
    format!("lockp:{}", locks.client_id())
}

async fn is_registered(raw: &mut Raw, locks: &Locks) {
    let key = key(locks);
    until("the entry", async || exists(raw, &key).await).await;
}

async fn process_of(locks: &Locks, client: &str) -> Process {
    let found = until("the entry", async || {
        let found = locks.process_of(client).await.unwrap();
        found.ok_or_else(|| "there is none".to_owned())
    });
    found.await
}

#[tokio::test]
async fn a_holder_and_a_waiter_lead_to_their_processes() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let before = SystemTime::now() - ms(1);
    let shop = Locks::builder(server.url()).namespace("shop");
    let ours = shop.application("billing", "1.2").connect().await.unwrap();
    let theirs = Locks::builder(server.url()).namespace("shop");
    let theirs = theirs.connect().await.unwrap();
    assert!(!exists(&mut raw, &key(&ours)).await, "nothing was taken");

    let guard = take(&ours, "a").await;
    let waiter = tokio::spawn(theirs.mutex("a").lock().into_future());
    let seen = until("a waiter", async || {
        let seen = theirs.mutex("a").inspect().await.unwrap();
        let waits = seen.waiting() == 1;
        waits.then_some(seen).ok_or_else(|| "none".to_owned())
    })
    .await;
    let holder = process_of(&theirs, seen.holders()[0].client()).await;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(
        (holder.host(), holder.pid()),
        (host.trim(), std::process::id())
    );
    assert_eq!(
        (holder.application(), holder.version()),
        ("billing", Some("1.2"))
    );
    assert!(holder.since() >= before && holder.since() <= SystemTime::now());
    let shown = format!("billing 1.2, process {} on {}", holder.pid(), holder.host());
    assert_eq!(holder.to_string(), shown);

    let waiting = process_of(&ours, seen.waiters()[0].client()).await;
    // The name of the test program.
    assert!(waiting.application().starts_with("lock"), "{waiting:?}");
    assert_eq!(waiting.version(), None);

    // As a program reads it that knows nothing but the key.
    let fields = raw.cmd(&["HGETALL", &key(&ours)]).await;
    let names: Vec<_> = fields.array().iter().step_by(2).map(|f| f.str()).collect();
    assert_eq!(names, ["host", "pid", "app", "version", "since"]);
    let ttl = pttl(&mut raw, &key(&ours)).await;
    assert!((80_000..=90_000).contains(&ttl), "{ttl}");

    guard.release().await.unwrap();
    drop(within("its turn", waiter).await.unwrap().unwrap());
    for (locks, other) in [(&ours, &theirs), (&theirs, &theirs)] {
        assert!(
            exists(&mut raw, &key(locks)).await,
            "kept for the next lock"
        );
        let client = locks.client_id().to_owned();
        within("shutdown", locks.shutdown()).await.unwrap();
        assert!(!exists(&mut raw, &key(locks)).await);
        if !std::ptr::eq(locks, other) {
            assert_eq!(other.process_of(client).await.unwrap(), None);
        }
    }
    let error = ours.process_of("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_holder_tells_what_it_was_given_to_tell() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let builder = Locks::builder(server.url()).metadata("run", "7");
    let builder = builder
        .metadata("job", "x")
        .metadata("job", "nightly report");
    let ours = builder.connect().await.unwrap();
    let theirs = locks(&server).await;
    let _guard = take(&ours, "a").await;
    let _other = take(&theirs, "b").await;
    let process = process_of(&theirs, ours.client_id()).await;
    let told: Vec<_> = process.metadata().into_iter().collect();
    assert_eq!(told, [("job", "nightly report"), ("run", "7")]);
    let written = raw.cmd(&["HGET", &key(&ours), "meta"]).await;
    assert_eq!(written.str(), "job=nightly report\nrun=7");
    let nothing = process_of(&ours, theirs.client_id()).await;
    assert!(nothing.metadata().is_empty());

    let bad = Locks::builder(server.url()).metadata("a=b", "c");
    let error = bad.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn whatever_is_held_or_waited_for_registers_and_nothing_else_does() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let held = locks(&server).await;
    let _guard = take(&held, "a").await;
    held.latch("shut").try_set_count(1).await.unwrap();

    let idle = locks(&server).await;
    assert!(idle.mutex("a").try_lock().await.unwrap().is_none());
    assert!(idle.mutex("a").holder().await.unwrap().is_some());
    idle.latch("shut").inspect().await.unwrap();
    idle.semaphore("permits", 3).available().await.unwrap();

    let fixed = locks(&server).await;
    let _fixed = fixed.mutex("fixed").lock().lease(ms(500)).await.unwrap();
    is_registered(&mut raw, &fixed).await;
    let several = locks(&server).await;
    let _several = several.multi(["x", "y"]).lock().await.unwrap();
    is_registered(&mut raw, &several).await;
    let permits = locks(&server).await;
    let _permit = permits.semaphore("permits", 3).acquire().await.unwrap();
    is_registered(&mut raw, &permits).await;
    let (latch, barrier, polls) = (
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
    );
    let (waits, parties) = (latch.latch("shut"), barrier.barrier("parties", 2));
    let polling = polls
        .mutex("a")
        .lock()
        .polling(leasehold::Backoff::default());
    let waiters = [
        tokio::spawn(async move { drop(waits.wait().await) }),
        tokio::spawn(async move { drop(parties.wait().await) }),
        tokio::spawn(async move { drop(polling.await) }),
    ];
    for locks in [&latch, &barrier, &polls] {
        is_registered(&mut raw, locks).await;
    }
    assert!(!exists(&mut raw, &key(&idle)).await);
    for waiter in waiters {
        waiter.abort();
    }
}

/// Its connection for renewals shows that it was met anew.
#[tokio::test]
async fn an_entry_that_was_lost_is_written_again_with_the_connection() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = leased(server.url(), ms(1_500)).await;
    let guard = take(&locks, "a").await;
    is_registered(&mut raw, &locks).await;
    crate::support::renewed([&guard]).await;
    raw.cmd(&["DEL", &key(&locks)]).await;
    raw.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
        .await;
    is_registered(&mut raw, &locks).await;
    assert!(guard.is_held());
}

#[tokio::test]
async fn an_entry_lasts_as_long_as_the_lock_of_a_process_that_died_may() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let _short = take(&locks, "a").await;
    is_registered(&mut raw, &locks).await;
    let long = locks.mutex("b").lock().lease(Duration::from_secs(600));
    let _long = long.await.unwrap();
    let key = key(&locks);
    until("a longer life", async || {
        pttl(&mut raw, &key).await > 500_000
    })
    .await;
}

/// It comes behind the answer to the first lock, and never again for a while.
#[tokio::test]
async fn one_request_registers_however_many_locks_are_taken() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let lease = Duration::from_secs(60);
    drop(locks.mutex("warm").lock().lease(lease).await.unwrap());
    is_registered(&mut raw, &locks).await;
    let other = connect(server.url()).await;
    for (locks, registers) in [(&locks, 0), (&other, 4)] {
        let before = commands(&mut raw).await;
        for _ in 0..50 {
            let guard = locks.mutex("a").lock().lease(lease).await.unwrap();
            guard.release().await.unwrap();
        }
        let after = commands(&mut raw).await;
        // Six to take it and three to release it.
        assert_eq!(after - before, 50 * 9 + registers);
    }
}

#[tokio::test]
async fn without_the_right_to_it_nothing_else_is_missing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let commands = "+@all";
    for (user, rights) in [
        ("blind", ["~shop:*", "~*{shop:*", "&*", commands]),
        ("poor", ["~*", "&*", commands, "-hmget"]),
        ("forgetful", ["~*", "&*", commands, "-pexpire"]),
    ] {
        let mut command = vec!["ACL", "SETUSER", user, "on", ">secret", "resetchannels"];
        command.extend(rights);
        assert!(raw.cmd(&command).await.is_ok());
        raw.cmd(&["ACL", "LOG", "RESET"]).await;
        let url = format!("redis://{user}:secret@{}", server.addr());
        let builder = Locks::builder(url).namespace("shop").lease(ms(600));
        let locks = builder.connect().await.unwrap();
        if user == "forgetful" {
            // No entry without an expiry.
            let latch = locks.latch("open");
            latch.wait().await.unwrap();
            until("the denial", async || denials(&mut raw).await == 1).await;
            assert!(!exists(&mut raw, &key(&locks)).await);
            continue;
        }
        let guard = take(&locks, "a").await;
        crate::support::renewed([&guard]).await;
        guard.release().await.unwrap();
        drop(take(&locks, "b").await);
        let denied = denials(&mut raw).await;
        assert_eq!(denied, usize::from(user == "blind"), "{user}");
        let error = locks.process_of(locks.client_id()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert_eq!(error.key(), key(&locks));
        within("shutdown", locks.shutdown()).await.unwrap();
    }
    assert_eq!(keys(&mut raw).await.len(), 2, "the counters of tokens");
}

async fn denials(raw: &mut Raw) -> usize {
    let log = raw.cmd(&["ACL", "LOG"]).await;
    let counts = log
        .array()
        .iter()
        .map(|entry| entry.get("count").unwrap().int());
    counts.sum::<i64>() as usize
}

#[tokio::test]
async fn in_a_cluster_the_entry_is_in_its_slot_and_survives_a_failover() {
    let cluster = Cluster::start().await;
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let _guard = take(&ours, &cluster.key_at(0, "k").await).await;
    let process = process_of(&theirs, ours.client_id()).await;
    assert_eq!(process.pid(), std::process::id());
    let master = cluster.master_of(key(&ours)).await.unwrap();
    assert!(exists(&mut cluster.raw(master).await, &key(&ours)).await);
    let replica = cluster.replicas_of(master).await[0];
    cluster.failover(replica, Failover::Graceful).await;
    assert_eq!(process_of(&theirs, ours.client_id()).await, process);
    within("shutdown", ours.shutdown()).await.unwrap();
    assert_eq!(theirs.process_of(ours.client_id()).await.unwrap(), None);
}
