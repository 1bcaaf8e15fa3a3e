//! Redisson's settings that decide over which channels it hears of a release, and others that decide nothing here.

use std::time::Instant;

use crate::handing_over::hand_over;
use crate::jvm;
use crate::stage::{Stage, cluster, server};
use crate::support::{ms, until, within};

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

/// With `shardedSubscriptionMode` off in a cluster that has sharded channels, Redisson hears neither us nor its own clients with
/// the default. Locks exclude each other all the same; each finds a lock free by looking: ours soon, Redisson when the lease
/// ends that it has seen.
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

    let guard = mutex.lock().lease(ms(2_500)).await.unwrap();
    let mut waits = java.begin(format!("{lock}.lock()"));
    waits.is_blocked_for(ms(100)).await;
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
