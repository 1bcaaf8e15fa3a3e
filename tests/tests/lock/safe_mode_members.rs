//! Which replicas must confirm when masters and replicas come and go: those of the master that has
//! the lock now, without those that are down.

use std::time::{Duration, Instant};

use leasehold::{Locks, Replicas};
use leasehold_testkit::{Cluster, Sentinels, until};

use crate::support::{granted, ms, within};

/// An attempt at a frozen server lasts for as long as this, unless something else ends it.
const LONG_TIMEOUT: Duration = Duration::from_secs(8);

async fn connect(url: String, replicas: Replicas, command_timeout: Duration) -> Locks {
    Locks::builder(url)
        .replicated(replicas)
        // The servers are younger than any lease, and have forgotten nothing.
        .restart_guard(ms(10))
        .command_timeout(command_timeout)
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn a_slot_that_moves_to_a_shard_with_fewer_replicas_takes_fewer_confirmations() {
    let cluster = Cluster::builder()
        .masters(2)
        .replicas(1)
        .spares(1)
        .start()
        .await;
    let spare = cluster.len() - 1;
    until("the spare node follows", async || {
        let mut raw = cluster.raw(spare).await;
        let reply = raw.cmd(&["CLUSTER", "REPLICATE", cluster.id(0)]).await;
        if reply.is_ok() && cluster.replicas_of(0).await.len() == 2 {
            Ok(())
        } else {
            Err(format!("{reply:?}"))
        }
    })
    .await;
    cluster.wait_until_ok().await;
    let name = cluster.key_at(0, "lock").await;
    let locks = connect(cluster.url(), Replicas::All, ms(1_000)).await;
    until("both replicas confirm", async || {
        let guard = granted(&locks, &name).await;
        let acknowledged = guard.acknowledged();
        guard.release().await.unwrap();
        match acknowledged {
            2 => Ok(()),
            other => Err(format!("{other} did")),
        }
    })
    .await;
    let slot = cluster.slot_of(&name).await;
    let migration = cluster.migration(slot, 1).await;
    migration.begin().await;
    migration.move_all_keys().await;
    migration.finish().await;
    assert_eq!(granted(&locks, &name).await.acknowledged(), 1);
}

#[tokio::test]
async fn all_grant_again_after_a_failover_with_the_old_master_dead_behind_sentinels() {
    let sentinels = Sentinels::start().await;
    let locks = connect(sentinels.url(), Replicas::All, ms(1_000)).await;
    assert_eq!(granted(&locks, "before").await.acknowledged(), 2);
    let master = sentinels.master().await.expect("there is one");
    sentinels.node(master).kill();
    let killed = Instant::now();
    let after = granted(&locks, "after").await;
    println!("granted again {:?} after the crash", killed.elapsed());
    assert_eq!(after.acknowledged(), 1);
    assert!(after.is_held());
}

#[tokio::test]
async fn all_grant_again_after_a_failover_with_the_old_master_dead_in_a_cluster() {
    for replicas in [1, 2] {
        let cluster = Cluster::builder().replicas(replicas).start().await;
        let locks = connect(cluster.url(), Replicas::All, ms(1_000)).await;
        let before = granted(&locks, "before").await;
        assert_eq!(before.acknowledged(), replicas);
        let master = cluster.master_of("before").await.expect("there is one");
        cluster.kill(master);
        let killed = Instant::now();
        // Renewed all the time, and confirmed by those who are left.
        let again = granted(&locks, "{before}again").await;
        println!("granted again {:?} after the crash", killed.elapsed());
        assert_eq!(again.acknowledged(), replicas - 1);
        assert!(before.is_held() && again.is_held());
    }
}

/// How long until a client gets a lock after its master was frozen.
async fn time_to_lock(locks: &Locks, name: &str) -> Duration {
    let frozen = Instant::now();
    drop(within("the lock after the failover", granted(locks, name)).await);
    frozen.elapsed()
}

#[tokio::test]
async fn a_replicated_lock_leaves_a_frozen_master_as_quickly_as_a_plain_one() {
    let sentinels = Sentinels::start().await;
    let plain = connect(sentinels.url(), Replicas::None, LONG_TIMEOUT).await;
    let safe = connect(sentinels.url(), Replicas::AtLeast(1), LONG_TIMEOUT).await;
    drop((
        granted(&plain, "warm").await,
        granted(&safe, "warm too").await,
    ));
    let master = sentinels.master().await.expect("there is one");
    sentinels.node(master).pause();
    let (plain, safe) = tokio::join!(time_to_lock(&plain, "plain"), time_to_lock(&safe, "safe"));
    println!("plain {plain:?}, replicated {safe:?}");
    // A frozen master alone would take all of the timeout.
    assert!(safe < plain + LONG_TIMEOUT / 2, "plain {plain:?}, {safe:?}");
}
