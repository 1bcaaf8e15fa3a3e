//! One shard in trouble: the others are not affected, and no node gets many connections.

use std::time::{Duration, Instant};

use leasehold_cluster::Client;
use leasehold_testkit::{Accept, Cluster, until};

use crate::support::{client, soon, take};

/// Number of scripts that each of the keys completes in a while, one after another.
async fn progress(client: &Client, keys: &[String], time: Duration) -> Vec<usize> {
    let mut tasks = Vec::new();
    for key in keys {
        let (client, key) = (client.clone(), key.clone());
        tasks.push(tokio::spawn(async move {
            let (until, mut done) = (Instant::now() + time, 0);
            while Instant::now() < until {
                let taken = take(&client, &key, "me", soon()).await;
                assert_eq!(taken.unwrap_or_else(|error| panic!("{key}: {error}")), 1);
                done += 1;
            }
            done
        }));
    }
    let mut counts = Vec::new();
    for task in tasks {
        counts.push(task.await.unwrap());
    }
    counts
}

/// Clients that cannot reach one shard, while the cluster considers it healthy: no failover will
/// help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_cannot_be_reached_does_not_hinder_the_others() {
    // Replicas go through the proxies too, so there are none here.
    let cluster = Cluster::builder().replicas(0).proxied().start().await;
    let client = client(&cluster.url()).await;
    let mut keys = Vec::new();
    for shard in 0..3 {
        keys.push(cluster.key_at(shard, "k").await);
        assert_eq!(take(&client, &keys[shard], "me", soon()).await.unwrap(), 1);
    }
    let healthy = &keys[1..];
    let while_for = Duration::from_secs(2);
    let before = progress(&client, healthy, while_for).await;

    let accepts = |node| cluster.proxy(node).accepts();
    let accepted: Vec<_> = (0..3).map(accepts).collect();
    cluster.proxy(0).blackhole();
    // Several callers that wait for the shard all the while.
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let (client, key) = (client.clone(), keys[0].clone());
            tokio::spawn(async move { take(&client, &key, "me", soon()).await })
        })
        .collect();
    let during = progress(&client, healthy, while_for).await;
    let opened: Vec<_> = (0..3).map(|node| accepts(node) - accepted[node]).collect();
    let ratios: Vec<_> = before
        .iter()
        .zip(&during)
        .map(|(before, during)| *during as f64 / *before as f64)
        .collect();
    println!(
        "scripts in {while_for:?}: {before:?} before, {during:?} while shard 0 is silent: {ratios:.2?}"
    );
    println!("connections opened meanwhile: {opened:?}");
    // Stalling behind a timeout of the silent shard would leave a dozen.
    assert!(during.iter().all(|done| *done > 100), "{during:?}");

    // TCP loses no bytes in the middle of a connection: what was swallowed must not be followed by
    // more.
    cluster.proxy(0).accept(Accept::Refuse);
    cluster.proxy(0).reset_all();
    cluster.proxy(0).heal();
    for waiter in waiting {
        assert_eq!(
            waiter.await.unwrap().unwrap(),
            1,
            "when it can be reached again"
        );
    }
}

/// Waits until every node lists the replica of the master of `key`, which it does once that has
/// data: only then do clients know of it.
async fn replicas_are_listed(cluster: &Cluster, key: &str) {
    let master = cluster.master_of(key).await.expect("there is one");
    let set = ["SET", key, "me", "PX", "60000"];
    assert!(cluster.raw(master).await.cmd(&set).await.is_ok());
    for node in 0..cluster.len() {
        let mut raw = cluster.raw(node).await;
        until("the node lists every replica", async || {
            let slots = raw.cmd(&["CLUSTER", "SLOTS"]).await;
            let port = i64::from(cluster.proxy(master).addr().port());
            let is_listed = slots.array().iter().any(|range| {
                let [_first, _last, shown, replicas @ ..] = range.array() else {
                    unreachable!()
                };
                shown.array()[1].int() == port && !replicas.is_empty()
            });
            is_listed.then_some(()).ok_or_else(|| format!("{slots:?}"))
        })
        .await;
    }
}

/// A node that comes and goes costs connections to that node alone, and one for each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_flaps_costs_the_others_no_connections() {
    let cluster = Cluster::builder()
        .proxied()
        .node_timeout(Duration::from_secs(15))
        .start()
        .await;
    let mut keys = Vec::new();
    for shard in 0..3 {
        keys.push(cluster.key_at(shard, "k").await);
        replicas_are_listed(&cluster, &keys[shard]).await;
    }
    let client = client(&cluster.url_of(&[1])).await;
    for key in &keys {
        assert_eq!(take(&client, key, "me", soon()).await.unwrap(), 1);
    }
    let accepts = || {
        (0..6)
            .map(|node| cluster.proxy(node).accepts())
            .collect::<Vec<_>>()
    };
    let before = accepts();
    const FLAPS: u64 = 10;
    for _ in 0..FLAPS {
        cluster.proxy(0).reset_all();
        for key in &keys {
            assert_eq!(take(&client, key, "me", soon()).await.unwrap(), 1);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let opened: Vec<_> = before
        .iter()
        .zip(accepts())
        .map(|(before, after)| after - before)
        .collect();
    println!("connections opened while node 0 was reset {FLAPS} times: {opened:?}");
    // At node 0: the client's and its replica's own.
    assert!(opened[0] >= FLAPS && opened[0] <= 5 * FLAPS, "{opened:?}");
    assert_eq!(
        [opened[2], opened[4], opened[5]],
        [0, 0, 0],
        "nodes that have nothing to do with it"
    );
}

/// A node that refuses connections, with many callers: attempts are made by the connection, not by
/// each caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_is_not_stormed_by_those_who_wait_for_it() {
    let cluster = Cluster::builder()
        .replicas(0)
        .proxied()
        .node_timeout(Duration::from_secs(15))
        .start()
        .await;
    let client = client(&cluster.url_of(&[1])).await;
    let key = cluster.key_at(0, "k").await;
    assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
    // Accepting and resetting at once can be counted, refusing cannot.
    cluster.node(0).pause();
    cluster.proxy(0).accept(Accept::Silence);
    cluster.proxy(0).reset_all();
    let before: Vec<_> = (0..3).map(|node| cluster.proxy(node).accepts()).collect();
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let (client, key) = (client.clone(), key.clone());
            tokio::spawn(async move { take(&client, &key, "me", soon()).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let opened: Vec<_> = (0..3)
        .map(|node| cluster.proxy(node).accepts() - before[node])
        .collect();
    println!("connections opened by 50 callers in 2 s: {opened:?}");
    assert!(opened[0] <= 10, "{opened:?}");
    cluster.node(0).resume();
    cluster.proxy(0).heal();
    cluster.proxy(0).reset_all();
    for waiter in waiting {
        assert_eq!(waiter.await.unwrap().unwrap(), 1);
    }
}
