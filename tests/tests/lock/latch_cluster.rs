//! Latches, barriers and plain mutexes in a cluster: in every shard, with hash tags, while masters are replaced and slots move.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Interop, Locks};
use leasehold_testkit::{Cluster, Failover};
use tokio::task::JoinHandle;

use crate::support::{connect, ms, pttl, until, within};

async fn beside_redisson(cluster: &Cluster) -> Locks {
    Locks::builder(cluster.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap()
}

/// A task that waits for the latch, and has begun to.
async fn waiting(locks: &Locks, name: &str) -> JoinHandle<Result<(), Error>> {
    let latch = locks.latch(name);
    let waiter = tokio::spawn(async move { latch.wait().await });
    tokio::time::sleep(ms(300)).await;
    assert!(!waiter.is_finished());
    waiter
}

async fn opened(waiter: JoinHandle<Result<(), Error>>) {
    within("the opening", waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn latches_open_in_every_shard_whatever_their_names_are() {
    let cluster = Cluster::builder().replicas(0).start().await;
    for (ours, theirs) in [
        (connect(cluster.url()).await, connect(cluster.url()).await),
        (
            beside_redisson(&cluster).await,
            beside_redisson(&cluster).await,
        ),
    ] {
        for master in 0..3 {
            let plain = cluster.key_at(master, "k").await;
            // Redisson's channel for a name with a tag lies in another slot, where its own scripts fail.
            for name in [format!("{{{plain}}}:pages"), plain] {
                assert!(ours.latch(&name).try_set_count(2).await.unwrap());
                assert!(!theirs.latch(&name).try_set_count(2).await.unwrap());
                let waiters = [waiting(&ours, &name).await, waiting(&theirs, &name).await];
                assert_eq!(theirs.latch(&name).count_down_as("x").await.unwrap(), 1);
                assert_eq!(ours.latch(&name).count_down_as("x").await.unwrap(), 1);
                assert_eq!(ours.latch(&name).count_down().await.unwrap(), 0);
                for waiter in waiters {
                    opened(waiter).await;
                }
                let mut raw = cluster.raw(master).await;
                assert_eq!(pttl(&mut raw, &name).await, -2);
            }
        }
    }
}

#[tokio::test]
async fn barriers_are_passed_in_every_shard() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    for master in 0..3 {
        let plain = cluster.key_at(master, "k").await;
        for name in [format!("{{{plain}}}:step"), plain] {
            for _ in 0..5 {
                let (first, second, third) = within("a generation", async {
                    let (ours, theirs) = (ours.barrier(&name, 3), theirs.barrier(&name, 3));
                    tokio::join!(ours.wait(), theirs.wait(), theirs.wait())
                })
                .await;
                let all = [first.unwrap(), second.unwrap(), third.unwrap()];
                let leaders = all.iter().filter(|passed| passed.is_leader());
                assert_eq!(leaders.count(), 1);
                assert!(
                    all.iter()
                        .all(|one| one.generation() == all[0].generation())
                );
            }
        }
    }
}

#[tokio::test]
async fn plain_mutexes_are_handed_on_in_every_shard() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    for master in 0..3 {
        let name = cluster.key_at(master, "k").await;
        let guard = ours.plain_mutex(&name).lock().await.unwrap();
        let waiter = tokio::spawn(theirs.plain_mutex(&name).lock().into_future());
        let mut raw = cluster.raw(master).await;
        until("a ticket in line", async || {
            let line = format!("leasehold_line:{{{name}}}");
            raw.cmd(&["ZCARD", &line]).await.int() == 1
        })
        .await;
        let token = guard.token();
        drop(guard);
        let guard = within("its turn", waiter).await.unwrap().unwrap();
        assert!(guard.token() > token);
    }
}

#[tokio::test]
async fn waiters_go_on_after_a_failover_and_after_their_slot_moved() {
    let cluster = Cluster::start().await;
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let name = cluster.key_at(0, "k").await;
    ours.latch(&name).reset(2).await.unwrap();
    let waiter = waiting(&theirs, &name).await;
    let party = tokio::spawn({
        let barrier = theirs.barrier(&name, 2);
        async move { barrier.wait().await }
    });
    tokio::time::sleep(ms(300)).await;
    cluster.failover(3, Failover::Graceful).await;
    let counted = ours.latch(&name).count_down_as("x").await;
    assert_eq!(counted.unwrap(), 1);
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    migration.begin().await;
    migration.move_all_keys().await;
    migration.finish().await;
    migration.tell_everybody().await;
    assert_eq!(ours.latch(&name).count_down_as("y").await.unwrap(), 0);
    opened(waiter).await;
    let last = within("the last party", ours.barrier(&name, 2).wait()).await;
    let first = within("the first party", party).await.unwrap();
    assert_eq!(
        first.unwrap().generation(),
        last.unwrap().generation(),
        "its arrival was on the replica"
    );
}

/// Counting needs both keys, and says so where it cannot have them; waiting goes on.
#[tokio::test]
async fn a_latch_in_a_slot_that_moves_is_neither_counted_twice_nor_opened_early() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let builder = Locks::builder(cluster.url()).command_timeout(ms(1_000));
    let locks = builder.connect().await.unwrap();
    let name = cluster.key_at(0, "k").await;
    let latch = locks.latch(&name);
    latch.reset(2).await.unwrap();
    let waiter = waiting(&locks, &name).await;
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    migration.begin().await;
    // Both keys are at the source.
    assert_eq!(latch.count_down_as("x").await.unwrap(), 1);
    // The count goes first, the notes stay.
    migration.move_keys(&[&name]).await;
    until("it is refused", async || {
        let error = latch.count_down_as("y").await.unwrap_err();
        match error.kind() {
            ErrorKind::Unavailable => Ok(()),
            // The last try had no reply in time.
            ErrorKind::Unknown => Err(error.to_string()),
            other => panic!("{other:?}: {error}"),
        }
    })
    .await;
    assert_eq!(latch.count().await.unwrap(), 1, "by its own key");
    assert!(!latch.wait_for(ms(100)).await.unwrap());
    assert!(!waiter.is_finished());
    migration.move_all_keys().await;
    migration.finish().await;
    migration.tell_everybody().await;
    assert_eq!(latch.count_down_as("x").await.unwrap(), 1);
    assert_eq!(latch.count_down_as("y").await.unwrap(), 0);
    opened(waiter).await;
}

#[tokio::test]
async fn a_master_that_dies_delays_a_waiter_no_longer_than_the_failover() {
    let cluster = Cluster::start().await;
    let locks = connect(cluster.url()).await;
    let name = cluster.key_at(0, "k").await;
    let latch = locks.latch(&name);
    latch.reset(1).await.unwrap();
    let waiter = waiting(&locks, &name).await;
    let mut replica = cluster.raw(3).await;
    until("the replica has the latch", async || {
        replica.cmd(&["DBSIZE"]).await.int() >= 2
    })
    .await;
    cluster.kill(0);
    let counted = async {
        loop {
            if let Ok(left) = latch.count_down_as("x").await {
                return left;
            }
        }
    };
    let left = tokio::time::timeout(Duration::from_secs(60), counted).await;
    assert_eq!(left.expect("the replica takes over"), 0);
    opened(waiter).await;
}
