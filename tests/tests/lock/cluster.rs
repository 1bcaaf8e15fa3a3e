//! Locks in a cluster: every operation in every shard, and while masters are replaced. Slots that
//! move under them have `slot_moves`.

use std::time::Duration;

use leasehold::{Guard, Locks, LostReason, Release};
use leasehold_testkit::{Cluster, Failover, Raw};

use crate::support::{calls, connect, leased, ms, renewed, scripts_run, take, until, within};

/// Short enough to be renewed soon, long enough for a machine that is busy.
const SHORT: Duration = Duration::from_secs(5);

/// A task that waits for the lock, and does so at the server.
async fn waiter(locks: &Locks, name: &str) -> tokio::task::JoinHandle<Guard> {
    let lock = locks.mutex(name).lock();
    let waiter = tokio::spawn(async move { lock.await.unwrap() });
    // Longer than a try and a subscription take; a waiter that is late only tests less.
    tokio::time::sleep(ms(200)).await;
    assert!(!waiter.is_finished());
    waiter
}

#[tokio::test]
async fn every_operation_works_in_every_shard() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (ours, theirs) = (
        leased(cluster.url(), SHORT).await,
        connect(cluster.url()).await,
    );
    let mut guards = Vec::new();
    for master in 0..3 {
        let name = cluster.key_at(master, "k").await;
        let guard = ours.mutex(&name).try_lock().await.unwrap().unwrap();
        assert!(theirs.mutex(&name).try_lock().await.unwrap().is_none());
        assert!(
            theirs
                .mutex(&name)
                .try_lock_for(ms(100))
                .await
                .unwrap()
                .is_none()
        );
        assert_eq!(
            theirs
                .mutex(&name)
                .holder()
                .await
                .unwrap()
                .unwrap()
                .client(),
            ours.client_id()
        );
        guards.push((name, guard));
    }
    for (name, guard) in guards {
        renewed([&guard]).await;
        let remaining = theirs.mutex(&name).remaining().await.unwrap().unwrap();
        assert!(remaining <= SHORT);
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        assert_eq!(theirs.mutex(&name).remaining().await.unwrap(), None);

        let before = take(&theirs, &name).await;
        assert!(ours.mutex(&name).force_unlock().await.unwrap());
        assert!(!ours.mutex(&name).force_unlock().await.unwrap());
        let after = take(&ours, &name).await;
        assert!(after.token() > before.token());
        assert_eq!(before.release().await.unwrap(), Release::AlreadyGone);
        drop(after);
        until("the lock is free", async || {
            theirs.mutex(&name).holder().await.unwrap().is_none()
        })
        .await;
    }
}

#[tokio::test]
async fn waiters_hear_of_their_grants_also_after_a_failover_and_after_the_slot_moved() {
    let cluster = Cluster::start().await;
    // As two processes. With this lease a waiter without a message is too late.
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let name = cluster.key_at(0, "k").await;

    let guard = take(&ours, &name).await;
    let waiting = waiter(&theirs, &name).await;
    let sharded = cluster.node(0).knows("SPUBLISH").await;
    // A grant is published at the master, and counts who hears it there. Unsharded channels work at
    // any node.
    let listens = async |locks: &Locks, master: usize| {
        let (question, channel) = if sharded {
            (
                "SHARDNUMSUB",
                format!("leasehold_line:{{{name}}}:{}", locks.client_id()),
            )
        } else {
            ("NUMSUB", format!("leasehold:{}", locks.client_id()))
        };
        let nodes = if sharded {
            master..master + 1
        } else {
            0..cluster.len()
        };
        let mut count = 0;
        for node in nodes {
            let counts = cluster
                .raw(node)
                .await
                .cmd(&["PUBSUB", question, &channel])
                .await;
            count += counts.get(&channel).expect("the channel is named").int();
        }
        count == 1
    };
    until("the waiter listens at the master", async || {
        listens(&theirs, 0).await
    })
    .await;
    guard.release().await.unwrap();
    let guard = within("the waiter", waiting).await.unwrap();

    let waiting = waiter(&ours, &name).await;
    cluster.failover(3, Failover::Graceful).await;
    until("the waiter listens at the new master", async || {
        listens(&ours, 3).await
    })
    .await;
    guard.release().await.unwrap();
    let guard = within("the waiter after a failover", waiting)
        .await
        .unwrap();

    let waiting = waiter(&theirs, &name).await;
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    migration.begin().await;
    migration.move_all_keys().await;
    migration.finish().await;
    migration.tell_everybody().await;
    until("the waiter listens where the slot is", async || {
        listens(&theirs, 1).await
    })
    .await;
    guard.release().await.unwrap();
    drop(
        within("the waiter after a migration", waiting)
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn a_dead_shard_loses_its_own_locks_only() {
    let cluster = Cluster::builder()
        .replicas(0)
        .config("cluster-require-full-coverage no")
        .start()
        .await;
    let locks = leased(cluster.url(), SHORT).await;
    let (mut dead, mut alive) = (Vec::new(), Vec::new());
    for n in 0..20 {
        dead.push(take(&locks, &cluster.key_at(0, &format!("a{n}-")).await).await);
        alive.push(take(&locks, &cluster.key_at(1, &format!("a{n}-")).await).await);
        alive.push(take(&locks, &cluster.key_at(2, &format!("a{n}-")).await).await);
    }
    cluster.kill(0);
    for guard in &dead {
        assert_eq!(
            within("the end of a hold", guard.lost()).await,
            LostReason::Expired
        );
    }
    for _ in 0..3 {
        renewed(&alive).await;
    }
    // Nor do attempts there delay others.
    let stuck = locks.mutex(dead[0].key()).lock();
    let stuck = tokio::spawn(async move { stuck.await });
    for guard in alive {
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    stuck.abort();
}

#[tokio::test]
async fn a_failover_that_lost_a_lock_is_told_at_once_and_tokens_go_on_growing() {
    let cluster = Cluster::start().await;
    // No renewal falls into this test: only the failover can reveal the loss.
    let locks = Locks::builder(cluster.url())
        .lease(Duration::from_secs(600))
        .connect()
        .await
        .unwrap();
    let (gone, elsewhere) = (cluster.key_at(0, "k").await, cluster.key_at(1, "k").await);
    let (guard, other) = (take(&locks, &gone).await, take(&locks, &elsewhere).await);
    let mut replica = cluster.raw(3).await;
    until("the replica has the lock", async || {
        replica.cmd(&["DBSIZE"]).await.int() >= 2
    })
    .await;
    forget_everything(&mut replica).await;
    cluster.kill(0);
    cluster.failover(3, Failover::Force).await;
    assert_eq!(
        within("the end of the hold", guard.lost()).await,
        LostReason::NodeGone
    );
    assert!(other.is_held());
    let after = take(&locks, &gone).await;
    assert!(after.token() > guard.token());
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
    assert!(after.is_held());
}

/// As if its master had not sent it anything yet. `FLUSHALL` names no key, so that a replica does
/// not point to its master.
async fn forget_everything(replica: &mut Raw) {
    assert!(
        replica
            .cmd(&["CONFIG", "SET", "replica-read-only", "no"])
            .await
            .is_ok()
    );
    assert!(replica.cmd(&["FLUSHALL"]).await.is_ok());
    assert!(
        replica
            .cmd(&["CONFIG", "SET", "replica-read-only", "yes"])
            .await
            .is_ok()
    );
}

/// Grouped over everything that is due: of any 128 that come one after the other only a quarter is in
/// the same slot here.
#[tokio::test]
async fn renewals_of_one_slot_go_together_however_slots_are_mixed() {
    const LOCKS: u64 = 400;
    let cluster = Cluster::builder().replicas(0).start().await;
    let locks = leased(cluster.url(), Duration::from_secs(60)).await;
    let mut guards = Vec::new();
    for n in 0..LOCKS {
        let name = format!("{{slot{}}}{n}", n % 4);
        guards.push(locks.mutex(name).lock().await.unwrap());
    }
    let mut nodes = Vec::new();
    for node in 0..3 {
        nodes.push(cluster.raw(node).await);
    }
    for raw in &mut nodes {
        raw.cmd(&["CONFIG", "RESETSTAT"]).await;
        // After a reconnect everything is renewed at once.
        raw.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    }
    let (mut renewals, mut scripts) = (0, 0);
    until("all are renewed", async || {
        (renewals, scripts) = (0, 0);
        for raw in &mut nodes {
            scripts += scripts_run(raw).await;
            renewals += calls(raw, "hexists").await;
        }
        renewals >= LOCKS
    })
    .await;
    assert!(
        renewals / scripts >= 60,
        "{renewals} renewals took {scripts} scripts"
    );
    assert!(guards.iter().all(Guard::is_held));
}
