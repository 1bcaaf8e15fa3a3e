//! A master that is back without its data before anybody has replaced it. Its replicas copy that,
//! and one of them may be promoted all the same: a process that has been running for long, and has
//! forgotten every lock.

use std::time::{Duration, Instant};

use leasehold::{Guard, Locks, LocksBuilder, Replicas};
use leasehold_testkit::{Cluster, Sentinels, until};

use crate::support::ms;

/// The longest lease of all users, and the guard time that follows from it.
const LEASE: Duration = Duration::from_secs(5);

/// A sentinel takes a server for dead after this long.
const DOWN_AFTER: Duration = Duration::from_millis(600);

/// Locks that are held when it happens.
const LOCKS: usize = 4;

fn builder(url: String) -> LocksBuilder {
    Locks::builder(url)
        .lease(LEASE)
        .replicated(Replicas::All)
        .command_timeout(ms(1_000))
}

/// A lock with a fixed lease: nothing but its end tells the holder that the servers have forgotten
/// it.
async fn take(locks: &Locks, name: &str) -> Guard {
    until("the lock is granted", async || {
        match locks.mutex(name).try_lock().lease(LEASE).await {
            Ok(Some(guard)) => Ok(guard),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Has `restart` run while locks are held, and then takes all of them through a client that was
/// connected before and one that was not.
async fn nothing_is_held_twice(url: String, prefix: &str, restart: impl AsyncFnOnce()) {
    let (ours, others) = (
        builder(url.clone()).connect().await.unwrap(),
        builder(url.clone()).connect().await.unwrap(),
    );
    // Both have met the data as they were.
    drop(take(&others, &format!("{prefix}warm")).await);
    let names: Vec<_> = (0..LOCKS).map(|n| format!("{prefix}{n}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(take(&ours, name).await);
    }
    restart().await;
    let restarted = Instant::now();
    let fresh = until("a fresh client connects", async || {
        let connected = builder(url.clone()).connect().await;
        connected.map_err(|error| error.to_string())
    })
    .await;
    let mut theirs = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let second = take(if n % 2 == 0 { &others } else { &fresh }, name).await;
        println!("{name} is granted anew after {:?}", restarted.elapsed());
        assert!(
            !(held[n].is_held() && second.is_held()),
            "{name} is held twice"
        );
        theirs.push(second);
    }
}

#[tokio::test]
async fn a_master_that_is_back_empty_grants_nothing_that_is_held_behind_sentinels() {
    // At once; and so that the sentinels replace it by a replica that has copied it.
    let sentinels = Sentinels::builder().down_after(DOWN_AFTER).start().await;
    for (round, pause) in [0, 100, 300, 450].into_iter().enumerate() {
        let master = until("there is a master", async || {
            sentinels.master().await.ok_or_else(|| "none".into())
        })
        .await;
        let prefix = format!("{round}:");
        nothing_is_held_twice(sentinels.url(), &prefix, async || {
            sentinels.node(master).kill();
            tokio::time::sleep(ms(pause)).await;
            sentinels.node(master).restart().await;
        })
        .await;
        sentinels.servers().wait_until_linked(2).await;
        sentinels.wait_until_ready().await;
    }
}

#[tokio::test]
async fn a_master_that_is_back_empty_grants_nothing_that_is_held_in_a_cluster() {
    let cluster = Cluster::start().await;
    for (round, pause) in [0, 300].into_iter().enumerate() {
        let master = until("there is a master", async || {
            let master = cluster.master_of("{tag}").await;
            master.ok_or_else(|| "none".into())
        })
        .await;
        let prefix = format!("{{tag}}{round}:");
        nothing_is_held_twice(cluster.url(), &prefix, async || {
            cluster.kill(master);
            tokio::time::sleep(ms(pause)).await;
            cluster.restart(master).await;
        })
        .await;
        cluster.wait_until_ok().await;
    }
}
