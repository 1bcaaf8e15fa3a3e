//! Several locks at once in clusters: in many slots, with replicas, through failovers and while their slot moves.

use std::future::IntoFuture;
use std::time::Duration;

use leasehold::{Locks, LostReason, MultiGuard, Release, Replicas};
use leasehold_testkit::{Cluster, ms};

use crate::support::{connect, exists, keys, leased, take, until, within};

async fn all(locks: &Locks, names: &[String]) -> MultiGuard {
    within("all locks", locks.multi(names).lock().into_future())
        .await
        .unwrap()
}

/// Number of keys at the masters that are no counters.
async fn locks_left(cluster: &Cluster) -> usize {
    let mut left = 0;
    for master in 0..cluster.masters() {
        let keys = keys(&mut cluster.raw(master).await).await;
        let is_counter = |key: &&String| key.starts_with("redisson_lock_token:");
        left += keys.len() - keys.iter().filter(is_counter).count();
    }
    left
}

#[tokio::test]
async fn where_one_of_many_slots_is_not_free_nothing_is_kept() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let mut names = Vec::new();
    for n in 0..30 {
        names.push(cluster.key_at(n % 3, &format!("k{n}:")).await);
    }
    let guard = all(&ours, &names).await;
    assert_eq!(guard.tokens().len(), 30);
    assert!(
        theirs
            .multi(&names[..2])
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(locks_left(&cluster).await, 0);

    let held = take(&theirs, &names[17]).await;
    for _ in 0..5 {
        assert!(ours.multi(&names).try_lock().await.unwrap().is_none());
    }
    until("everything was given back", async || {
        locks_left(&cluster).await == 1
    })
    .await;
    let waiter = tokio::spawn(ours.multi(&names).lock().into_future());
    until("it waits holding nothing", async || {
        locks_left(&cluster).await == 2
    })
    .await;
    drop(held);
    let guard = within("its turn", waiter).await.unwrap().unwrap();
    let mut holders = Vec::new();
    for name in &names {
        let master = cluster.master_of(name).await.unwrap();
        let fields = cluster.raw(master).await.cmd(&["HKEYS", name]).await;
        holders.push(fields.array()[0].str().to_owned());
    }
    holders.dedup();
    assert_eq!(holders.len(), 1, "one hold at all: {holders:?}");
    drop(guard);
    until("nothing is left", async || locks_left(&cluster).await == 0).await;
}

#[tokio::test]
async fn a_node_that_dies_takes_all_locks_along_and_the_others_are_released() {
    let cluster = Cluster::builder()
        .replicas(0)
        .config("cluster-require-full-coverage no")
        .start()
        .await;
    let ours = leased(cluster.url(), ms(1_500)).await;
    let names = [cluster.key_at(0, "a").await, cluster.key_at(1, "b").await];
    let guard = all(&ours, &names).await;
    cluster.kill(0);
    let reason = within("the loss", guard.lost()).await;
    assert!(
        matches!(reason, LostReason::Expired | LostReason::NodeGone),
        "{reason:?}"
    );
    let mut raw = cluster.raw(1).await;
    until("the other one is free", async || {
        !exists(&mut raw, &names[1]).await
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_dropped_while_a_node_is_silent_gives_back_what_the_others_granted() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let ours = leased(cluster.url(), ms(1_500)).await;
    let names = [cluster.key_at(0, "a").await, cluster.key_at(1, "b").await];
    // Both connections are there.
    all(&ours, &names).await.release().await.unwrap();
    let mut raw = cluster.raw(0).await;
    cluster.freeze(1);
    let mut waits = ours.multi(&names).lock().into_future();
    // The first node grants its lock, and the request does not end.
    until("one of two is taken", async || {
        let still_waits = tokio::time::timeout(ms(10), &mut waits).await.is_err();
        assert!(still_waits, "a frozen node granted a lock");
        exists(&mut raw, &names[0]).await
    })
    .await;
    tokio::time::timeout(ms(100), &mut waits).await.unwrap_err();
    drop(waits);
    // A hold that nobody has would be renewed for ever.
    until("it is given back", async || {
        !exists(&mut raw, &names[0]).await
    })
    .await;
    cluster.thaw(1);
    all(&ours, &names).await.release().await.unwrap();
    assert_eq!(locks_left(&cluster).await, 0);
}

#[tokio::test]
async fn while_their_slot_moves_they_are_taken_one_by_one() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let (ours, theirs) = (
        leased(cluster.url(), Duration::from_secs(5)).await,
        connect(cluster.url()).await,
    );
    let tag = cluster.key_at(0, "k").await;
    let slot = cluster.slot_of(&tag).await;
    let names: Vec<String> = ["a", "b", "c"].map(|n| format!("{{{tag}}}{n}")).to_vec();
    let check = async |step: &str| {
        let guard = all(&ours, &names).await;
        assert_eq!(guard.tokens().len(), 3, "{step}");
        for name in &names {
            assert!(
                theirs.mutex(name).try_lock().await.unwrap().is_none(),
                "{step}"
            );
        }
        assert!(
            theirs.multi(&names).try_lock().await.unwrap().is_none(),
            "{step}"
        );
        let tokens: Vec<_> = guard.tokens().into_values().collect();
        assert_eq!(guard.release().await.unwrap(), Release::Released, "{step}");
        let held = take(&theirs, &names[1]).await;
        assert!(
            ours.multi(&names).try_lock().await.unwrap().is_none(),
            "{step}"
        );
        let waiter = tokio::spawn(ours.multi(&names).lock().into_future());
        tokio::time::sleep(ms(50)).await;
        assert_eq!(held.release().await.unwrap(), Release::Released, "{step}");
        let guard = within(step, waiter).await.unwrap().unwrap();
        for (token, before) in guard.tokens().into_values().zip(tokens) {
            assert!(token > before, "{step}");
        }
        assert_eq!(guard.release().await.unwrap(), Release::Released, "{step}");
    };
    check("before").await;
    let held = all(
        &ours,
        &[format!("{{{tag}}}moves"), format!("{{{tag}}}stays")],
    )
    .await;
    let migration = cluster.migration(slot, 1).await;
    migration.import().await;
    check("importing").await;
    migration.migrate().await;
    check("migrating").await;
    migration.move_keys(&[format!("{{{tag}}}moves")]).await;
    check("key moved").await;
    tokio::time::sleep(ms(2_500)).await;
    assert!(held.is_held(), "renewed at both nodes");
    migration.move_all_keys().await;
    migration.finish().await;
    check("moved").await;
    assert_eq!(held.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn replicas_confirm_each_of_them() {
    let cluster = Cluster::builder().masters(2).start().await;
    let safe = Locks::builder(cluster.url())
        .replicated(Replicas::All)
        .restart_guard(ms(10))
        .lease(ms(3_000))
        .connect()
        .await
        .unwrap();
    let mut names = Vec::new();
    for n in 0..12 {
        names.push(cluster.key_at(n % 2, &format!("k{n}:")).await);
    }
    let guard = all(&safe, &names).await;
    for name in &names {
        let master = cluster.master_of(name).await.unwrap();
        let replica = cluster.replicas_of(master).await[0];
        let mut raw = cluster.raw(replica).await;
        raw.cmd(&["READONLY"]).await;
        assert!(exists(&mut raw, name).await, "its replica has {name}");
    }
    tokio::time::sleep(ms(2_000)).await;
    assert!(guard.is_held());
    // Without a replica nothing is granted, and nothing is kept.
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let replica = cluster.replicas_of(0).await[0];
    cluster.kill(replica);
    let none = safe.multi(&names).try_lock().await;
    assert!(none.is_err(), "{none:?}");
    until("everything was given back", async || {
        locks_left(&cluster).await == 0
    })
    .await;
}
