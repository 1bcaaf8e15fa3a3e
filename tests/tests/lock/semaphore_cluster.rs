//! Semaphores in a cluster, while their slots move, and confirmed by replicas.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks, Permit, Release, Replicas, Semaphore};
use leasehold_testkit::{Cluster, Failover, replicas};

use crate::support::{connect, leased, ms, until, within};

/// Short enough to be renewed soon, long enough for a machine that is busy.
const SHORT: Duration = Duration::from_secs(5);

async fn acquired(semaphore: &Semaphore, permits: u32) -> Permit {
    within("permits", semaphore.acquire_many(permits).into_future())
        .await
        .unwrap()
}

async fn renewed(permit: &Permit) {
    let end = || Instant::now() + permit.valid_for();
    let before = end();
    until("a renewal", async || end() > before + ms(50)).await;
}

#[tokio::test]
async fn permits_go_from_hand_to_hand_in_every_shard() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    for master in 0..3 {
        let name = cluster.key_at(master, "pool:").await;
        let (semaphore, other) = (ours.semaphore(&name, 3), theirs.semaphore(&name, 3));
        let mut held = acquired(&semaphore, 3).await;
        assert!(other.try_acquire().await.unwrap().is_none());
        let waiter = tokio::spawn(other.acquire_many(2).into_future());
        tokio::time::sleep(ms(150)).await;
        assert!(!waiter.is_finished());
        for _ in 0..2 {
            let part = held.split(1).unwrap();
            assert_eq!(part.release().await.unwrap(), Release::Released);
        }
        let two = within("its turn", waiter).await.unwrap().unwrap();
        assert_eq!(other.available().await.unwrap(), 0);
        drop((held, two));
        until("all are free", async || {
            other.available().await.unwrap() == 3
        })
        .await;
        other.set_permits(2).await.unwrap();
        let error = semaphore.acquire().await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::CapacityDisagrees { .. }));
    }
}

/// Permits are renewed and given back at every step; they are taken where the keys are together.
#[tokio::test]
async fn permits_outlive_the_migration_of_their_slot() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let (ours, theirs) = (
        leased(cluster.url(), SHORT).await,
        leased(cluster.url(), SHORT).await,
    );
    let tag = cluster.key_at(0, "pool").await;
    let name = format!("{{{tag}}}s");
    let (semaphore, other) = (ours.semaphore(&name, 8), theirs.semaphore(&name, 8));
    let mut held = acquired(&semaphore, 5).await;
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    migration.begin().await;

    let part = held.split(1).unwrap();
    let released = within("a release at the source", part.release()).await;
    assert_eq!(released.unwrap(), Release::Released);
    let taken = acquired(&other, 1).await;
    renewed(&held).await;

    // The permits, and then what says how many are free: in between nothing can be taken.
    migration.move_keys(&[format!("{name}:timeout")]).await;
    renewed(&held).await;
    let mut part = held.split(2).unwrap();
    let last = part.split(1).unwrap();
    let released = within("a release between both", part.release()).await;
    assert_eq!(released.unwrap(), Release::Released);
    drop(last);
    let nothing = within("an answer", other.try_acquire().into_future()).await;
    assert!(nothing.unwrap().is_none());
    let waiter = tokio::spawn(other.acquire_many(5).into_future());
    tokio::time::sleep(ms(300)).await;
    assert!(!waiter.is_finished());

    migration.move_all_keys().await;
    migration.finish().await;
    let five = within("five of eight", waiter).await.unwrap().unwrap();
    renewed(&held).await;
    assert!(taken.is_held());
    drop((held, taken, five));
    until("all are free", async || {
        other.available().await.unwrap() == 8
    })
    .await;
}

#[tokio::test]
async fn holders_learn_of_a_failover_that_forgot_them() {
    let cluster = Cluster::builder().masters(3).replicas(1).start().await;
    let ours = leased(cluster.url(), SHORT).await;
    let name = cluster.key_at(0, "pool:").await;
    let semaphore = ours.semaphore(&name, 4);
    let held = acquired(&semaphore, 3).await;
    let replica = cluster.replicas_of(0).await[0];
    cluster.failover(replica, Failover::Takeover).await;
    // It had heard of them, or not: then they are lost, and said to be.
    until("the new master counts", async || {
        match semaphore.available().await {
            Ok(1) => held.is_held(),
            Ok(4) => !held.is_held(),
            _ => false,
        }
    })
    .await;
}

#[tokio::test]
async fn permits_count_when_replicas_have_them() {
    let servers = replicas::Replicas::builder().replicas(2).start().await;
    let mut master = servers.node(0).raw().await;
    master.cmd(&["SET", "probe", "1", "PX", "60000"]).await;
    assert_eq!(master.cmd(&["WAIT", "2", "20000"]).await.int(), 2);
    let ours = Locks::builder(servers.url())
        .restart_guard(ms(10))
        .lease(SHORT)
        .replicated(Replicas::All)
        .connect()
        .await
        .unwrap();
    let semaphore = ours.semaphore("a", 4);
    let held = until("permits", async || {
        match semaphore.try_acquire_many(3).await {
            Ok(Some(permit)) => Ok(permit),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(held.acknowledged(), 2);
    for replica in 1..=2 {
        let mut raw = servers.node(replica).raw().await;
        assert_eq!(raw.cmd(&["ZCARD", "{a}:timeout"]).await.int(), 3);
        assert_eq!(raw.cmd(&["GET", "a"]).await.str(), "1");
    }
    renewed(&held).await;
    // One that waits is granted, confirmed, and then its own.
    let waiter = tokio::spawn(semaphore.acquire_many(2).into_future());
    tokio::time::sleep(ms(100)).await;
    assert_eq!(held.release().await.unwrap(), Release::Released);
    let two = within("its turn", waiter).await.unwrap().unwrap();
    assert_eq!(two.acknowledged(), 2);
    semaphore.set_permits(6).await.unwrap();
    let mut raw = servers.node(1).raw().await;
    assert_eq!(raw.cmd(&["GET", "leasehold_cap:{a}"]).await.str(), "6");
    drop(two);

    servers.node(1).kill();
    let error = until("a refusal", async || {
        let attempt = semaphore
            .try_acquire()
            .replicated(Replicas::AtLeast(2))
            .await;
        attempt
            .map_err(|error| error.kind())
            .err()
            .ok_or_else(|| "granted".into())
    })
    .await;
    assert!(
        matches!(error, ErrorKind::NotReplicated | ErrorKind::Unknown),
        "{error:?}"
    );
    let mut raw = servers.node(0).raw().await;
    until("it is given back", async || {
        raw.cmd(&["ZCARD", "{a}:timeout"]).await.int() == 0
    })
    .await;
    // A number is no hold: nothing of it is given back.
    let error = semaphore.set_permits(7).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    assert!(
        error.to_string().contains("which their master has"),
        "{error}"
    );
    assert_eq!(raw.cmd(&["GET", "leasehold_cap:{a}"]).await.str(), "7");
}
