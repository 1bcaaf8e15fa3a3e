//! Redisson's settings that decide over which channels it hears of a release, and others that decide nothing here.

use std::time::Instant;

use leasehold::{Interop, Locks, Release};
use leasehold_testkit::history::now;
use leasehold_testkit::{Fault, Proxy, Server};

use crate::handing_over::hand_over;
use crate::jvm;
use crate::stage::{Stage, beside_redisson, cluster, server};
use crate::support::{HandOffs, ms, until, within};

#[tokio::test]
async fn sharded_channels_wake_both() {
    let Some(jvm) = jvm::shared() else { return };
    let cluster = cluster().await;
    for (mode, label) in [
        ("sharded=AUTO", "a cluster, sharded channels by default"),
        ("sharded=ON", "a cluster, sharded channels"),
    ] {
        let stage = Stage::with(&jvm, label, &cluster.url(), &[mode]).await;
        let name = stage.name("mode");
        let mutex = stage.locks.mutex(&name);
        hand_over(&stage, &name, &format!("lock({name})"), 5, || mutex.lock()).await;
        let rw = stage.locks.rw_lock(stage.name("mode"));
        hand_over(&stage, rw.key(), &format!("write({})", rw.key()), 3, || {
            rw.write()
        })
        .await;
        stage.locks.shutdown().await.unwrap();
    }
}

/// With `shardedSubscriptionMode` off in a cluster that has sharded channels, Redisson hears neither ours nor its own clients with
/// the default of either. Locks exclude each other all the same; each finds a lock free by looking: ours soon, Redisson when the
/// lease ends that it has seen.
#[tokio::test]
async fn plain_channels_in_a_cluster_are_heard_by_nobody_and_still_exclude() {
    let Some(jvm) = jvm::shared() else { return };
    let cluster = cluster().await;
    if !cluster.node(0).knows("SPUBLISH").await {
        println!("skipped: the servers have no sharded channels");
        return;
    }
    let stage = Stage::with(&jvm, "off", &cluster.url(), &["sharded=OFF"]).await;
    let name = stage.name("off");
    let (java, lock) = (stage.java[0].thread(), format!("lock({name})"));
    let mutex = stage.locks.mutex(&name);

    java.ok(format!("{lock}.lock()")).await;
    let ours = tokio::spawn(mutex.lock().into_future());
    until("a ticket", async || stage.tickets(&name).await == 1).await;
    java.ok(format!("{lock}.unlock()")).await;
    let since = Instant::now();
    let guard = within("our turn", ours).await.unwrap().unwrap();
    println!(
        "ours found what Redisson had released after {:?}",
        since.elapsed()
    );
    drop(guard);

    let guard = mutex.lock().lease(ms(4_000)).await.unwrap();
    let mut waits = java.begin(format!("{lock}.lock()"));
    java.sleeps().await;
    guard.release().await.unwrap();
    waits.is_blocked_for(ms(700)).await;
    assert!(
        mutex.try_lock().await.unwrap().is_some(),
        "it is free meanwhile"
    );
    waits.answer().await.ok();
    java.ok(format!("{lock}.unlock()")).await;
    stage.locks.shutdown().await.unwrap();
}

/// A fleet with `shardedSubscriptionMode` off, and ours that follow it.
#[tokio::test]
async fn plain_channels_wake_both_where_ours_use_them_too() {
    let Some(jvm) = jvm::shared() else { return };
    let url = cluster().await.url();
    let label = "a cluster, plain channels";
    let locks = Locks::builder(&url)
        .interop(Interop::Redisson)
        .plain_channels()
        .connect()
        .await
        .unwrap();
    let stage = Stage::with(&jvm, label, &url, &["sharded=OFF"]).await;
    let stage = stage.beside(locks);
    let mutex = stage.locks.mutex(stage.name("plain"));
    let key = mutex.key();
    hand_over(&stage, key, &format!("fenced({key})"), 5, || mutex.lock()).await;
    let fair = stage.locks.fair_mutex(stage.name("plain"));
    let key = fair.key();
    hand_over(&stage, key, &format!("fair({key})"), 3, || fair.lock()).await;
    let rw = stage.locks.rw_lock(stage.name("plain"));
    let key = rw.key();
    hand_over(&stage, key, &format!("write({key})"), 3, || rw.write()).await;
    crate::permits::hand_over(&stage).await;
    crate::counting::hand_over(&stage).await;
    // Ours among themselves too.
    let others = Locks::builder(&url)
        .plain_channels()
        .interop(Interop::Redisson);
    let others = others.connect().await.unwrap();
    let mut between = HandOffs::new(format!("between ours: {label}"));
    while between.are_fewer_than(3) {
        let guard = mutex.lock().await.unwrap();
        let began = now();
        let waits = tokio::spawn(others.mutex(mutex.key()).lock().into_future());
        until("a ticket", async || stage.tickets(mutex.key()).await == 1).await;
        let released = now();
        guard.release().await.unwrap();
        let guard = within("their turn", waits).await.unwrap().unwrap();
        between.add(began, released, now());
        guard.release().await.unwrap();
    }
    between.print();
    others.shutdown().await.unwrap();
    stage.locks.shutdown().await.unwrap();
}

/// Redisson's waiters for a lock sleep for the lease that they saw, those for permits for ever; ours look.
#[tokio::test]
async fn a_message_that_is_lost_leaves_redisson_asleep_and_ours_not() {
    let Some(jvm) = jvm::shared() else { return };
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    // Messages are told from replies by RESP3.
    let client = jvm.client(&proxy.url(), &["protocol=RESP3"]).await;
    let (near, far) = (
        beside_redisson(&server.url()).await,
        beside_redisson(&proxy.url()).await,
    );
    proxy.to_client(Fault::DropMessages);
    let (java, other) = (client.thread(), client.thread());
    let pool = near.semaphore("pool", 1).counting();
    assert!(pool.try_set_permits(1).await.unwrap());
    pool.acquire(1).await.unwrap();
    let guard = near.mutex("lock").lock().lease(ms(5_000)).await.unwrap();
    let ours = near.mutex("ours").lock().await.unwrap();
    let mut waits = java.begin("lock(lock).lock()");
    let mut wants = other.begin("sem(pool).acquire()");
    let our_turn = tokio::spawn(far.mutex("ours").lock().into_future());
    java.sleeps().await;
    other.sleeps().await;
    let line = async || near.mutex("ours").inspect().await.unwrap();
    until("our ticket", async || line().await.waiters().len() == 1).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    pool.release(1).await.unwrap();
    // Granted to a process that does not hear of it.
    assert_eq!(ours.release().await.unwrap(), Release::Released);
    let since = Instant::now();
    drop(within("our turn", our_turn).await.unwrap().unwrap());
    println!("ours found it after {:?}", since.elapsed());
    waits.is_blocked_for(ms(300)).await;
    waits.answer().await.ok();
    println!("Redisson's lock after {:?}", since.elapsed());
    wants.is_blocked_for(ms(500)).await;
    assert_eq!(pool.available().await.unwrap(), 1);
    // The next message wakes it.
    proxy.to_client(Fault::None);
    pool.release(1).await.unwrap();
    wants.answer().await.ok();
    near.shutdown().await.unwrap();
    far.shutdown().await.unwrap();
}

#[tokio::test]
async fn codecs_of_redisson_do_not_matter() {
    let Some(jvm) = jvm::shared() else { return };
    for codec in ["codec=string", "codec=bytes", "codec=kryo"] {
        let url = server().await.url();
        let stage = Stage::with(&jvm, codec, &url, &[codec]).await;
        let name = stage.name("codec");
        let mutex = stage.locks.mutex(&name);
        hand_over(&stage, &name, &format!("fenced({name})"), 1, || {
            mutex.lock()
        })
        .await;
        let name = stage.name("codec");
        let fair = stage.locks.fair_mutex(&name);
        hand_over(&stage, &name, &format!("fair({name})"), 1, || fair.lock()).await;
        stage.locks.shutdown().await.unwrap();
    }
}
