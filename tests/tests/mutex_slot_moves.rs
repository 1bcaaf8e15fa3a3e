//! A lock whose slot is moved to another master while it is in use.

mod lock_support;

use std::time::Duration;

use leasehold::{Locks, Release};
use leasehold_testkit::Cluster;
use lock_support::{scripts_run, until, within};

/// The pain: at the source of a migrating slot a key that is gone is "not local", also within the script that has just
/// removed it, and at the target two keys that do not exist yet cannot be used together.
#[tokio::test]
async fn a_lock_goes_from_hand_to_hand_while_its_slot_moves() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let (ours, theirs) = (Locks::connect(cluster.url()).await.unwrap(), Locks::connect(cluster.url()).await.unwrap());
    let name = cluster.key_at(0, "order:").await;
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;

    let first = within("a free lock", ours.mutex(&name).lock().into_future()).await.unwrap();
    migration.begin().await;
    let waiter = tokio::spawn({
        let mutex = theirs.mutex(&name);
        async move { mutex.lock().await }
    });
    within("the waiter listens", async {
        while cluster.raw(0).await.cmd(&["INFO", "commandstats"]).await.str().matches("subscribe:calls=").count() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(within("a release at the source", first.release()).await.unwrap(), Release::Released);
    // Sooner than the lease of half a minute ends: woken by the release.
    let second = within("a hand-off while the slot moves", waiter).await.unwrap().unwrap();
    assert_eq!(within("a release at the target", second.release()).await.unwrap(), Release::Released);
    let third = within("another one", ours.mutex(&name).lock().into_future()).await.unwrap();
    migration.move_all_keys().await;
    migration.finish().await;
    assert_eq!(within("a release after the move", third.release()).await.unwrap(), Release::Released);
    let fourth = within("a lock after the move", theirs.mutex(&name).lock().into_future()).await.unwrap();
    assert!(fourth.is_held());
}

/// What is published at the target nobody hears who listens at the source, and the slot never arrives in this test.
#[tokio::test]
async fn a_release_at_the_target_reaches_a_waiter_elsewhere_long_before_the_lease_ends() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let lease = Duration::from_secs(600);
    let locks = async || Locks::builder(cluster.url()).lease(lease).connect().await.unwrap();
    let (ours, theirs) = (locks().await, locks().await);
    let name = cluster.key_at(0, "order:").await;
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    migration.begin().await;
    let guard = within("a lock at the target", ours.mutex(&name).lock().into_future()).await.unwrap();
    assert!(theirs.mutex(&name).try_lock().await.unwrap().is_none());
    let mutex = theirs.mutex(&name);
    let waiter = tokio::spawn(async move { mutex.lock().await });
    let mut target = cluster.raw(1).await;
    let asked = scripts_run(&mut target).await;
    // It asks, listens at the source, and asks once more, because a release in between would not have been heard.
    until("the waiter listens", async || scripts_run(&mut target).await >= asked + 2).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let next = within("the waiter's turn", waiter).await.unwrap().unwrap();
    assert!(next.is_held());
}
