//! Read-write locks in a cluster, while their slots move, and confirmed by replicas.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks, ReadGuard, Release, Replicas};
use leasehold_testkit::{Cluster, Failover, replicas};

use crate::rw_lock::{read, turn};
use crate::support::{connect, fields, leased, ms, until, within};

/// Short enough to be renewed soon, long enough for a machine that is busy.
const SHORT: Duration = Duration::from_secs(4);

/// Waits until the server has confirmed a new renewal.
async fn renewed(guard: &ReadGuard) {
    let end = || Instant::now() + guard.valid_for();
    let before = end();
    until("a renewal", async || {
        assert!(guard.is_held());
        end() > before + ms(50)
    })
    .await;
}

#[tokio::test]
async fn every_operation_works_in_every_shard() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    for master in 0..3 {
        let name = cluster.key_at(master, "k").await;
        let (lock, other) = (ours.rw_lock(&name), theirs.rw_lock(&name));
        let (one, two, three) = (read(&lock).await, read(&lock).await, read(&lock).await);
        let beside = read(&other).await;
        let waiting = tokio::spawn(other.write().into_future());
        until("the gate is closed", async || {
            let read = lock.try_read().await.unwrap();
            read.is_none()
        })
        .await;
        assert_eq!(lock.inspect().await.unwrap().waiting(), 1);
        drop((one, two, three, beside));
        let writing = turn(waiting).await;
        let behind = tokio::spawn(lock.read().into_future());
        until("a reader waits", async || {
            lock.inspect().await.unwrap().waiting() == 1
        })
        .await;
        let reading = writing.downgrade().await.unwrap();
        let beside = turn(behind).await;
        let reading = reading.try_upgrade().await.unwrap().unwrap_err();
        assert_eq!(beside.release().await.unwrap(), Release::Released);
        let writing = reading.try_upgrade().await.unwrap().unwrap();
        assert_eq!(writing.release().await.unwrap(), Release::Released);
        assert_eq!(lock.remaining().await.unwrap(), None);
    }
}

#[tokio::test]
async fn readers_outlive_the_migration_of_their_slot_key_by_key() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let (ours, theirs) = (
        leased(cluster.url(), SHORT).await,
        leased(cluster.url(), SHORT).await,
    );
    let name = cluster.key_at(0, "order:").await;
    let reading = read(&ours.rw_lock(&name)).await;
    let beside = read(&theirs.rw_lock(&name)).await;
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    migration.begin().await;
    renewed(&reading).await;
    // The lock goes, and the timeout keys stay for longer than a lease.
    migration.move_keys(std::slice::from_ref(&name)).await;
    for _ in 0..3 {
        renewed(&reading).await;
        renewed(&beside).await;
    }
    let writer = theirs.rw_lock(&name);
    assert!(writer.try_write().await.unwrap().is_none());
    let released = within("a release between both", beside.release()).await;
    assert_eq!(released.unwrap(), Release::Released);
    migration.move_all_keys().await;
    migration.finish().await;
    renewed(&reading).await;
    assert!(writer.try_write().await.unwrap().is_none());
    assert_eq!(reading.release().await.unwrap(), Release::Released);
    let writing = within("a write", writer.write().into_future())
        .await
        .unwrap();
    assert_eq!(writing.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_read_that_is_taken_while_its_slot_migrates_excludes_everybody() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let (ours, theirs) = (
        leased(cluster.url(), SHORT).await,
        leased(cluster.url(), SHORT).await,
    );
    let name = cluster.key_at(0, "order:").await;
    let (lock, other) = (ours.rw_lock(&name), theirs.rw_lock(&name));
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    migration.begin().await;
    let reading = read(&lock).await;
    assert!(other.try_read().await.unwrap().is_none());
    assert!(other.try_write().await.unwrap().is_none());
    renewed(&reading).await;
    let waiting = tokio::spawn(other.read().into_future());
    tokio::time::sleep(ms(200)).await;
    assert!(!waiting.is_finished());
    assert_eq!(reading.release().await.unwrap(), Release::Released);
    let second = turn(waiting).await;
    migration.move_all_keys().await;
    migration.finish().await;
    renewed(&second).await;
    // It goes on to read what it was held to write.
    assert_eq!(second.release().await.unwrap(), Release::Released);
    let (one, two) = (read(&lock).await, read(&other).await);
    assert!(one.is_held() && two.is_held());
}

#[tokio::test]
async fn holders_learn_of_a_failover_that_forgot_them() {
    let cluster = Cluster::builder().masters(3).replicas(1).start().await;
    let ours = leased(cluster.url(), SHORT).await;
    let name = cluster.key_at(0, "order:").await;
    let lock = ours.rw_lock(&name);
    let reading = read(&lock).await;
    let replica = cluster.replicas_of(0).await[0];
    cluster.failover(replica, Failover::Takeover).await;
    // It had heard of them, or not: then they are lost, and said to be.
    until("the new master answers", async || {
        match lock.remaining().await {
            Ok(Some(_)) => reading.is_held(),
            Ok(None) => !reading.is_held(),
            Err(_) => false,
        }
    })
    .await;
}

#[tokio::test]
async fn holds_count_when_replicas_have_them() {
    let servers = replicas::Replicas::builder().replicas(2).start().await;
    let mut master = servers.node(0).raw().await;
    master.cmd(&["SET", "probe", "1", "PX", "60000"]).await;
    assert_eq!(master.cmd(&["WAIT", "2", "20000"]).await.int(), 2);
    let ours = Locks::builder(servers.url())
        .restart_guard(ms(10))
        .command_timeout(ms(700))
        .lease(SHORT)
        .replicated(Replicas::All)
        .connect()
        .await
        .unwrap();
    let lock = ours.rw_lock("a");
    let reading = until("a read", async || {
        lock.try_read()
            .await
            .map_err(|error| error.to_string())?
            .ok_or_else(|| "held".to_owned())
    })
    .await;
    assert_eq!(reading.acknowledged(), 2);
    renewed(&reading).await;
    let writing = reading.try_upgrade().await.unwrap().unwrap();
    assert_eq!(writing.acknowledged(), 2);
    let reading = writing.downgrade().await.unwrap();
    assert_eq!(reading.acknowledged(), 2);
    renewed(&reading).await;
    let mut replica = servers.node(1).raw().await;
    assert!(fields(&mut replica, "a").await.contains("mode=read"));

    // One that counts only without the replica that is down does not count.
    servers.node(2).pause();
    let error = within("an answer", reading.try_upgrade())
        .await
        .unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::NotReplicated | ErrorKind::Unknown | ErrorKind::Unavailable
        ),
        "{error}"
    );
    until("it is given back", async || {
        fields(&mut master, "a").await.is_empty()
    })
    .await;
    servers.node(2).resume();
}
