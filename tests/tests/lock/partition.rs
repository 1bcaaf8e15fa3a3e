//! A master that is cut off from its replicas and its sentinels or cluster, while clients go on
//! reaching it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::{Error, ErrorKind, Guard, Locks, LostReason, Replicas};
use leasehold_testkit::{Cluster, Raw, Sentinels, network, until};

use crate::support::{calls, exists, granted, ms, within};

/// Long enough for a renewal, which detects a loss at the latest, before it has passed.
const LEASE: Duration = Duration::from_secs(15);

/// Node 0 is the master that is cut off.
enum Shard {
    Cluster(Cluster),
    Sentinels(Sentinels),
}

impl Shard {
    async fn cluster() -> Self {
        // The master serves this long after the cut, and a lock is taken there meanwhile.
        Self::Cluster(
            Cluster::builder()
                .isolable()
                .node_timeout(ms(2000))
                .start()
                .await,
        )
    }

    async fn sentinels() -> Self {
        Self::Sentinels(Sentinels::builder().isolable().start().await)
    }

    fn url(&self) -> String {
        match self {
            Self::Cluster(cluster) => cluster.url(),
            Self::Sentinels(sentinels) => sentinels.url(),
        }
    }

    /// The name of a lock that belongs to node 0.
    async fn name(&self) -> String {
        match self {
            Self::Cluster(cluster) => cluster.key_at(0, "lock").await,
            Self::Sentinels(_) => "lock".into(),
        }
    }

    /// A connection past its proxy.
    async fn raw(&self, node: usize) -> Raw {
        match self {
            Self::Cluster(cluster) => cluster.raw(node).await,
            Self::Sentinels(sentinels) => sentinels.node(node).raw().await,
        }
    }

    fn isolate(&self) {
        match self {
            Self::Cluster(cluster) => cluster.isolate(0),
            Self::Sentinels(sentinels) => sentinels.servers().isolate(0),
        }
    }

    async fn rejoin(&self) {
        match self {
            Self::Cluster(cluster) => {
                cluster.rejoin(0);
                cluster.wait_until_ok().await;
            }
            Self::Sentinels(sentinels) => {
                sentinels.servers().rejoin(0);
                until("it is a replica again", async || {
                    match sentinels.servers().role(0).await {
                        Some(role) if role == "slave" => Ok(()),
                        role => Err(format!("{role:?}")),
                    }
                })
                .await;
                sentinels.servers().wait_until_linked(2).await;
            }
        }
    }

    /// Waits until another node is master of the lock `name`.
    async fn successor(&self, name: &str) -> usize {
        until("another one is promoted", async || {
            let master = match self {
                Self::Cluster(cluster) => cluster.master_of(name).await,
                Self::Sentinels(sentinels) => sentinels.master().await,
            };
            master
                .filter(|master| *master != 0)
                .ok_or_else(|| format!("{master:?}"))
        })
        .await
    }
}

async fn locks(shard: &Shard) -> Locks {
    Locks::builder(shard.url())
        .lease(LEASE)
        // The servers are younger than any lease, and have forgotten nothing.
        .restart_guard(ms(10))
        .command_timeout(ms(1000))
        .connect()
        .await
        .unwrap()
}

/// Without confirmation of replicas there are two holders, as the README says. The second one's
/// token is larger, and the first one is notified.
async fn the_token_tells_who_came_later(shard: Shard) {
    let name = shard.name().await;
    let (ours, theirs) = (locks(&shard).await, locks(&shard).await);
    granted(&ours, &name).await.release().await.unwrap();

    shard.isolate();
    let cut = Instant::now();
    let first = granted(&ours, &name).await;
    assert!(
        exists(&mut shard.raw(0).await, &name).await,
        "the old master granted it"
    );
    assert!(
        theirs.mutex(&name).try_lock().await.unwrap().is_none(),
        "it still refuses others"
    );
    let lost = first.lost();
    let second = granted(&theirs, &name).await;
    println!("a second holder after {:?}", cut.elapsed());
    assert!(second.token() > first.token(), "{second:?} after {first:?}");
    let reason = within("the first one hears of it", lost).await;
    println!(
        "the first one heard of it after {:?}: {reason:?}",
        cut.elapsed()
    );
    assert!(!first.is_held());
    assert_ne!(reason, LostReason::Expired);
    // The late release of the first one does not affect the second one's lock.
    let _ = first.release().await;
    assert!(
        theirs
            .mutex(&name)
            .holder()
            .await
            .unwrap()
            .is_some_and(|holder| holder.client() == theirs.client_id())
    );

    shard.rejoin().await;
    let late = locks(&shard).await;
    assert!(late.mutex(&name).try_lock().await.unwrap().is_none());
    let token = second.token();
    assert!(second.is_held());
    second.release().await.unwrap();
    assert!(granted(&ours, &name).await.token() > token);
}

/// With confirmation of all replicas that are not held to be down there is one holder at most.
async fn all_replicas_allow_one_holder(shard: Shard) {
    let name = shard.name().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let client = locks(&shard).await;
        // All clients know the master and its replicas before the cut.
        until("a safe lock", async || match safely(&client, &name).await {
            Ok(Some(guard)) => guard
                .release()
                .await
                .map(drop)
                .map_err(|error| error.to_string()),
            other => Err(format!("{other:?}")),
        })
        .await;
        clients.push(client);
    }
    let (stop, guards) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let mut old = shard.raw(0).await;
    let waits = calls(&mut old, "wait").await;
    shard.isolate();
    let tries: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let (name, stop, guards) = (name.clone(), Arc::clone(&stop), Arc::clone(&guards));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    match safely(&client, &name).await {
                        // It is kept, so a second one is one too many, for any client.
                        Ok(guard) => guards.lock().unwrap().extend(guard),
                        Err(error) => assert!(
                            [
                                ErrorKind::NotReplicated,
                                ErrorKind::Unknown,
                                ErrorKind::Unavailable
                            ]
                            .contains(&error.kind()),
                            "{error}"
                        ),
                    }
                    tokio::time::sleep(ms(10)).await;
                }
            })
        })
        .collect();
    // The old master was asked for locks that could not be confirmed.
    until("the old master is asked", async || {
        if calls(&mut old, "wait").await > waits {
            Ok(())
        } else {
            Err("not yet".into())
        }
    })
    .await;
    shard.successor(&name).await;
    // The one that is cut off is held to be down by the others: the new master grants without it.
    until("the lock is granted", async || {
        match guards.lock().unwrap().len() {
            0 => Err("not yet".into()),
            _ => Ok(()),
        }
    })
    .await;
    shard.rejoin().await;
    stop.store(true, Ordering::SeqCst);
    for task in tries {
        within("the last attempt", task).await.unwrap();
    }
    assert_eq!(guards.lock().unwrap().len(), 1, "{guards:?}");
}

async fn safely(locks: &Locks, name: &str) -> Result<Option<Guard>, Error> {
    locks.mutex(name).try_lock().replicated(Replicas::All).await
}

#[tokio::test]
async fn of_two_holders_in_a_cluster_the_later_one_has_the_larger_token_and_the_other_is_told() {
    if network::can_be_cut() {
        the_token_tells_who_came_later(Shard::cluster().await).await;
    }
}

#[tokio::test]
async fn of_two_holders_behind_sentinels_the_later_one_has_the_larger_token_and_the_other_is_told()
{
    if network::can_be_cut() {
        the_token_tells_who_came_later(Shard::sentinels().await).await;
    }
}

#[tokio::test]
async fn all_replicas_allow_one_holder_in_a_cluster() {
    if network::can_be_cut() {
        all_replicas_allow_one_holder(Shard::cluster().await).await;
    }
}

#[tokio::test]
async fn all_replicas_allow_one_holder_behind_sentinels() {
    if network::can_be_cut() {
        all_replicas_allow_one_holder(Shard::sentinels().await).await;
    }
}
