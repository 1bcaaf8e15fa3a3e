//! Masters that are killed, frozen or replaced on request, under load: errors are true, and service
//! resumes by itself.
//!
//! How long it takes is printed beside what a plain client sees that tries the servers one by one;
//! it is not asserted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Target};
use leasehold_resp::Command;
use leasehold_testkit::{Cluster, Failover};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::{BOUND, client, soon, take};

/// Outcomes of many `INCR`s of one counter.
#[derive(Debug, Default)]
struct Tally {
    acknowledged: i64,
    /// Errors that say the command may have run.
    uncertain: i64,
    /// Errors that say it did not, by their text.
    refused: BTreeMap<String, i64>,
}

async fn impatient(url: &str) -> Client {
    let mut target = Target::parse(url).unwrap();
    for endpoint in target.endpoints_mut() {
        endpoint.command_timeout = Duration::from_secs(1);
    }
    Client::connect(target).await.unwrap()
}

/// Increments until it is stopped: a command that must not run twice.
async fn count(client: Client, key: String, stop: watch::Receiver<bool>) -> Tally {
    let mut tally = Tally::default();
    while !*stop.borrow() {
        match client
            .call(key.as_bytes(), &Command::new("INCR").arg(&key))
            .await
        {
            Ok(_) => tally.acknowledged += 1,
            Err(error) if error.may_have_executed() => tally.uncertain += 1,
            Err(error) => {
                *tally
                    .refused
                    .entry(error.detail().chars().take(60).collect())
                    .or_default() += 1
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tally
}

/// Takes a lock again and again, each time until the bound: an idempotent script.
/// Returns how often, and the longest it took.
async fn hold(client: Client, key: String, stop: watch::Receiver<bool>) -> (usize, Duration) {
    let (mut times, mut longest) = (0, Duration::ZERO);
    while !*stop.borrow() {
        let begun = Instant::now();
        let taken = take(&client, &key, "me", soon()).await;
        assert_eq!(taken.unwrap_or_else(|error| panic!("{error}")), 1);
        longest = longest.max(begun.elapsed());
        times += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (times, longest)
}

/// Runs a load on all three shards while shard 0 changes its master, from node 0 to node 3. Returns
/// the tally of shard 0 and what its counter says in the end.
async fn under_load(cluster: &Cluster, what: &str, change: impl AsyncFnOnce()) -> (Tally, i64) {
    let client = impatient(&cluster.url()).await;
    let (stop, stopped) = watch::channel(false);
    let (mut counting, mut holding) = (JoinSet::new(), JoinSet::new());
    let mut keys = Vec::new();
    for shard in 0..3 {
        let key = cluster.key_at(shard, "counter").await;
        assert!(
            cluster
                .raw(shard)
                .await
                .cmd(&["SET", &key, "0", "PX", "600000"])
                .await
                .is_ok()
        );
        let (client, stopped) = (client.clone(), stopped.clone());
        counting.spawn(async move { (shard, count(client, key, stopped).await) });
        keys.push(cluster.key_at(shard, "lock").await);
    }
    for key in &keys {
        holding.spawn(hold(client.clone(), key.clone(), stopped.clone()));
    }
    let counter = cluster.key_at(0, "counter").await;
    let slot = cluster.slot_of(&counter).await;
    tokio::time::sleep(Duration::from_millis(300)).await;

    let begun = Instant::now();
    change().await;
    assert_eq!(cluster.wait_for_writable(&keys[0]).await, 3);
    let raw = begun.elapsed();
    assert_eq!(take(&client, &keys[0], "me", soon()).await.unwrap(), 1);
    println!(
        "{what}: a raw probe writes after {raw:?}, the client after {:?}",
        begun.elapsed()
    );
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.send(true).unwrap();

    let mut tallies = BTreeMap::new();
    while let Some(tally) = counting.join_next().await {
        let (shard, tally) = tally.unwrap();
        println!("  INCR at shard {shard}: {tally:?}");
        tallies.insert(shard, tally);
    }
    for (times, longest) in holding.join_all().await {
        println!("  {times} scripts, the slowest took {longest:?}");
        assert!(times > 0);
    }
    assert_eq!(
        client.node(keys[0].as_bytes()).to_string(),
        cluster.addr(3).to_string()
    );
    assert_eq!(cluster.master_of_slot(slot).await, Some(3));
    let value = cluster.raw(3).await.cmd(&["GET", &counter]).await;
    (
        tallies.remove(&0).unwrap(),
        if value.is_null() { 0 } else { value.int() },
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_replaced_and_no_refused_command_has_run() {
    let cluster = Cluster::start().await;
    let (tally, value) = under_load(&cluster, "kill -9", async || cluster.kill(0)).await;
    // The replica may have missed the last acknowledged ones; more than was acknowledged or
    // uncertain must not be there.
    assert!(
        value <= tally.acknowledged + tally.uncertain,
        "{value}: {tally:?}"
    );
    assert!(tally.acknowledged > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_is_replaced_and_not_gone_back_to_when_it_wakes() {
    let cluster = Cluster::start().await;
    let (tally, value) = under_load(&cluster, "SIGSTOP", async || cluster.freeze(0)).await;
    assert!(
        value <= tally.acknowledged + tally.uncertain,
        "{value}: {tally:?}"
    );
    let client = client(&cluster.url_of(&[3])).await;
    let key = cluster.key_at(3, "lock").await;
    assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
    cluster.thaw(0);
    for _ in 0..200 {
        assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
        assert_eq!(
            client.node(key.as_bytes()).to_string(),
            cluster.addr(3).to_string()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.wait_until_ok().await;
}

/// A frozen node's connections never end, and these commands may take longer than the test.
#[tokio::test]
async fn what_waits_at_a_frozen_master_goes_to_its_successor_without_waiting_for_its_timeout() {
    let cluster = Cluster::start().await;
    let mut target = Target::parse(&cluster.url()).unwrap();
    for endpoint in target.endpoints_mut() {
        endpoint.command_timeout = BOUND * 4;
    }
    let client = Client::connect(target).await.unwrap();
    let (lock, counter) = (
        cluster.key_at(0, "lock").await,
        cluster.key_at(0, "counter").await,
    );
    assert_eq!(take(&client, &lock, "me", soon()).await.unwrap(), 1);
    cluster.freeze(0);
    let command = Command::new("INCR").arg(&counter);
    let waiting = async {
        tokio::join!(
            take(&client, &lock, "me", soon() + BOUND),
            client.call(counter.as_bytes(), &command)
        )
    };
    let (taken, counted) = tokio::time::timeout(BOUND, waiting)
        .await
        .expect("both are told of the new master");
    assert_eq!(taken.unwrap(), 1, "a script that may be repeated is");
    let error = counted.expect_err("a command that may not is not");
    assert!(error.may_have_executed(), "{error}");
    assert_eq!(
        client.node(lock.as_bytes()).to_string(),
        cluster.addr(3).to_string()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_failover_loses_nothing_and_refuses_nobody() {
    let cluster = Cluster::start().await;
    let (tally, value) = under_load(&cluster, "CLUSTER FAILOVER", async || {
        cluster.failover(3, Failover::Graceful).await
    })
    .await;
    assert!(
        (tally.acknowledged..=tally.acknowledged + tally.uncertain).contains(&value),
        "{value}: {tally:?}"
    );
    assert_eq!(
        tally.refused,
        BTreeMap::new(),
        "redirects are followed, not shown"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_failover_and_a_takeover_are_followed() {
    for how in [Failover::Force, Failover::Takeover] {
        let cluster = Cluster::start().await;
        let (tally, value) = under_load(&cluster, &format!("{how:?}"), async || {
            cluster.failover(3, how).await;
            cluster.wait_until_ok().await;
        })
        .await;
        assert!(
            value <= tally.acknowledged + tally.uncertain,
            "{value}: {tally:?}"
        );
        assert_eq!(tally.refused, BTreeMap::new());
    }
}

/// The client leaves the nodes of its URL when they are gone, and returns to them when all others
/// are.
#[tokio::test]
async fn seeds_may_die_and_may_be_all_that_is_left() {
    let cluster = Cluster::start().await;
    let client = client(&cluster.url_of(&[0])).await;
    let key = cluster.key_at(0, "lock").await;
    assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
    cluster.kill(0);
    assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
    assert_eq!(cluster.wait_for_writable(&key).await, 3);

    // Everything goes; then everything is back, empty.
    for node in 1..6 {
        cluster.kill(node);
    }
    let error = take(
        &client,
        &key,
        "me",
        Instant::now() + Duration::from_millis(500),
    )
    .await
    .unwrap_err();
    println!("with nobody there: {error}");
    assert!(error.is_transient());
    for node in 0..6 {
        cluster.restart(node).await;
    }
    assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
}

/// The budget of a call is time: a node that is back before the deadline serves it, however often
/// it refused.
#[tokio::test]
async fn a_node_that_is_back_in_time_is_in_time() {
    let cluster = Cluster::builder()
        .replicas(0)
        .node_timeout(Duration::from_secs(15))
        .start()
        .await;
    let client = client(&cluster.url()).await;
    let key = cluster.key_at(0, "lock").await;
    assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
    cluster.kill(0);
    let (taken, ()) = tokio::join!(take(&client, &key, "me", Instant::now() + BOUND), async {
        tokio::time::sleep(Duration::from_millis(800)).await;
        cluster.restart(0).await;
    });
    assert_eq!(taken.unwrap(), 1);
}
