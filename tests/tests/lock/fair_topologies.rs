//! The fair mutex in clusters, with slots that move, masters that are replaced, and replicas.

use std::future::IntoFuture;

use leasehold::{Error, Guard, Interop, Locks, Release, Replicas};
use leasehold_testkit::{Cluster, Failover, Raw, RawValue, replicas};
use tokio::task::JoinHandle;

use crate::support::{connect, its_turn, ms, until, within};

type Waiter = JoinHandle<Result<Guard, Error>>;

/// The tickets in line for a name with braces, without fences.
async fn line(raw: &mut Raw, name: &str) -> Vec<String> {
    let key = if name.contains('{') {
        format!("leasehold_line:{name}")
    } else {
        format!("leasehold_line:{{{name}}}")
    };
    let tickets = raw.cmd(&["ZRANGE", &key, "0", "-1"]).await;
    let tickets = tickets.array().iter().map(RawValue::str);
    let tickets = tickets.filter(|ticket| !ticket.starts_with('#'));
    tickets.map(String::from).collect()
}

/// A task that waits with a ticket of its own behind those that are in line.
async fn in_line(raw: &mut Raw, locks: &Locks, name: &str) -> Waiter {
    let before = line(raw, name).await.len();
    let waiter = tokio::spawn(locks.fair_mutex(name).lock().into_future());
    until("a ticket more", async || {
        line(raw, name).await.len() > before
    })
    .await;
    waiter
}

async fn served_in_order(waiters: Vec<Waiter>) {
    let mut token = None;
    for waiter in waiters {
        let guard = its_turn(waiter).await;
        assert!(token < Some(guard.token()), "tokens grow");
        token = Some(guard.token());
        assert_eq!(
            within("a release", guard.release()).await.unwrap(),
            Release::Released
        );
    }
}

async fn client(url: String, interop: Interop) -> Locks {
    Locks::builder(url)
        .interop(interop)
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn waiters_in_every_shard_have_their_turns_in_the_order_of_their_calls() {
    let cluster = Cluster::builder().replicas(0).start().await;
    for interop in [Interop::Off, Interop::Redisson] {
        let ours = client(cluster.url(), interop).await;
        let theirs = client(cluster.url(), interop).await;
        for master in 0..3 {
            let name = cluster.key_at(master, "k").await;
            let mut raw = cluster.raw(master).await;
            for _ in 0..2 {
                let held = ours.fair_mutex(&name).lock().await.unwrap();
                assert!(theirs.fair_mutex(&name).try_lock().await.unwrap().is_none());
                let mut waiters = Vec::new();
                for locks in [&theirs, &ours, &theirs, &theirs, &ours] {
                    waiters.push(in_line(&mut raw, locks, &name).await);
                }
                let short = theirs.fair_mutex(&name).try_lock_for(ms(20));
                assert!(short.await.unwrap().is_none());
                waiters.remove(1).abort();
                held.release().await.unwrap();
                served_in_order(waiters).await;
                let left = [
                    name.clone(),
                    format!("leasehold_line:{{{name}}}"),
                    format!("redisson_lock_queue:{{{name}}}"),
                    format!("redisson_lock_timeout:{{{name}}}"),
                ];
                for key in left {
                    until(&format!("{key} is gone"), async || {
                        raw.cmd(&["EXISTS", &key]).await.int() == 0
                    })
                    .await;
                }
            }
        }
    }
}

/// At the source of a migrating slot a lock that has just been released cannot be granted by the same
/// script: nobody may be told so.
#[tokio::test]
async fn a_lock_goes_from_hand_to_hand_while_its_slot_moves() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    for interop in [Interop::Off, Interop::Redisson] {
        let (ours, theirs) = (
            client(cluster.url(), interop).await,
            client(cluster.url(), interop).await,
        );
        let name = cluster.key_at(0, "order:").await;
        let slot = cluster.slot_of(&name).await;
        let mut raw = cluster.raw(0).await;
        let first = ours.fair_mutex(&name).lock().await.unwrap();
        let second = in_line(&mut raw, &theirs, &name).await;
        let third = in_line(&mut raw, &ours, &name).await;
        let migration = cluster.migration(slot, 1).await;
        migration.begin().await;
        assert_eq!(
            within("a release at the source", first.release())
                .await
                .unwrap(),
            Release::Released
        );
        // By their looks, and in any order: one after the other.
        let turn = |waiter: Waiter| async move {
            let guard = its_turn(waiter).await;
            let token = guard.token();
            tokio::time::sleep(ms(50)).await;
            assert!(guard.is_held());
            let released = within("a release", guard.release()).await.unwrap();
            assert_eq!(released, Release::Released, "it was held");
            token
        };
        let (second, third) = tokio::join!(turn(second), turn(third));
        assert_ne!(second, third);
        migration.move_all_keys().await;
        migration.finish().await;
        let last = within(
            "after the move",
            ours.fair_mutex(&name).lock().into_future(),
        );
        let last = last.await.unwrap();
        let mut raw = cluster.raw(1).await;
        let behind = in_line(&mut raw, &theirs, &name).await;
        assert_eq!(last.release().await.unwrap(), Release::Released);
        served_in_order(vec![behind]).await;
        // Back again, for the next round.
        let migration = cluster.migration(slot, 0).await;
        migration.begin().await;
        migration.move_all_keys().await;
        migration.finish().await;
    }
}

#[tokio::test]
async fn after_a_failover_the_line_is_served_in_its_old_order() {
    let cluster = Cluster::start().await;
    let name = cluster.key_at(0, "k").await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connect(cluster.url()).await);
    }
    let mut raw = cluster.raw(0).await;
    let held = clients[3].fair_mutex(&name).lock().await.unwrap();
    let mut waiters = Vec::new();
    for i in [0, 1, 0, 2] {
        waiters.push(in_line(&mut raw, &clients[i], &name).await);
    }
    let before = line(&mut raw, &name).await;
    let replica = cluster.replicas_of(0).await[0];
    cluster.failover(replica, Failover::Graceful).await;
    let mut raw = cluster.raw(replica).await;
    until("all of them are in line, and listen", async || {
        let channels = raw.cmd(&["PUBSUB", "SHARDCHANNELS"]).await;
        let listening = channels.error().is_some() || channels.array().len() == 3;
        listening && line(&mut raw, &name).await == before
    })
    .await;
    within("the release", held.release()).await.unwrap();
    served_in_order(waiters).await;
}

#[tokio::test]
async fn a_turn_counts_when_replicas_have_confirmed_it() {
    let servers = replicas::Replicas::builder().replicas(2).start().await;
    let mut raw = servers.node(0).raw().await;
    raw.cmd(&["SET", "probe", "1", "PX", "60000"]).await;
    assert_eq!(raw.cmd(&["WAIT", "2", "20000"]).await.int(), 2);
    let locks = || {
        Locks::builder(servers.url())
            .restart_guard(ms(10))
            .connect()
    };
    let (ours, theirs) = (locks().await.unwrap(), locks().await.unwrap());
    let fair = |locks: &Locks| locks.fair_mutex("a").lock().replicated(Replicas::All);
    let held = within("a free lock", fair(&ours).into_future())
        .await
        .unwrap();
    assert_eq!(held.acknowledged(), 2);
    let mut waiters = Vec::new();
    for locks in [&theirs, &ours, &theirs] {
        let before = line(&mut raw, "a").await.len();
        waiters.push(tokio::spawn(fair(locks).into_future()));
        until("a ticket more", async || {
            line(&mut raw, "a").await.len() > before
        })
        .await;
    }
    held.release().await.unwrap();
    for waiter in waiters {
        let guard = its_turn(waiter).await;
        assert_eq!(guard.acknowledged(), 2);
        guard.release().await.unwrap();
    }
}
