//! A master that is frozen while a request waits in its socket, replaced, and wakes up. It answers
//! the request although another client got the lock from its successor: without confirmation of all
//! replicas there are two holders.
//!
//! With `LEASEHOLD_LONG=1` in the environment there are more rounds.

use std::time::Duration;

use leasehold::{ErrorKind, Guard, Locks, Replicas};
use leasehold_testkit::{Cluster, Failover, Sentinels, Server, until};

use crate::support::{ms, within};

/// Time for a request to wait in a frozen server's socket, and then for replicas that cannot
/// confirm. Longer than a promotion, without which the test shows nothing; a round takes about as
/// long.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(6);

/// A master with two replicas, and what replaces it.
enum Shard {
    Cluster(Cluster),
    Sentinels(Sentinels),
}

#[tokio::test]
async fn all_replicas_expose_a_frozen_master_in_a_cluster() {
    // The votes of the other shards make no difference to clients, so only one shard matters.
    let cluster = Cluster::builder().masters(1).replicas(2).start().await;
    all_replicas_expose_a_frozen_master(Shard::Cluster(cluster)).await;
}

#[tokio::test]
async fn all_replicas_expose_a_frozen_master_behind_sentinels() {
    // On a busy machine a server that was just promoted may be considered down, too.
    let sentinels = Sentinels::builder()
        .down_after(Duration::from_secs(1))
        .start()
        .await;
    all_replicas_expose_a_frozen_master(Shard::Sentinels(sentinels)).await;
}

async fn all_replicas_expose_a_frozen_master(shard: Shard) {
    let rounds = if std::env::var_os("LEASEHOLD_LONG").is_some() {
        50
    } else {
        5
    };
    shard
        .settle(shard.master().await.expect("there is one"))
        .await;
    let mut both = 0;
    for number in 0..rounds {
        both += usize::from(round(&shard, number).await);
    }
    println!(
        "{both} of {rounds} times the master that woke up granted what its successor had granted"
    );
    assert!(both > 0, "no master woke up in time for what this is about");
}

/// Returns whether the master that woke up granted the fast client what its successor had granted.
async fn round(shard: &Shard, number: usize) -> bool {
    let (safe_name, fast_name) = (format!("safe{number}"), format!("fast{number}"));
    let master = shard.master().await.expect("there is one");
    let others: Vec<usize> = (0..3).filter(|node| *node != master).collect();

    // All clients are connected before the freeze. A first safe lock leaves its connection for the
    // next one.
    let safe = Locks::builder(shard.url())
        .replicated(Replicas::All)
        // The servers are younger than any lease, and have forgotten nothing.
        .restart_guard(ms(10))
        .command_timeout(COMMAND_TIMEOUT);
    let safe = safe.connect().await.unwrap();
    until("a safe lock", async || {
        match safe.mutex(format!("warm{number}")).try_lock().await {
            Ok(Some(warm)) => {
                assert_eq!(warm.acknowledged(), 2);
                warm.release()
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    // The fast client knows only this server: one that knows more would ask the successor when it
    // gets no reply.
    let fast = Locks::builder(shard.node(master).url())
        .command_timeout(COMMAND_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let mut successors = Vec::new();
    for node in &others {
        successors.push(Locks::connect(shard.node(*node).url()).await.unwrap());
    }

    shard.node(master).pause();
    let take = |locks: &Locks, name: &str| {
        let attempt = locks.mutex(name).try_lock();
        tokio::spawn(async move { attempt.await })
    };
    let (safe_try, fast_try) = (take(&safe, &safe_name), take(&fast, &fast_name));
    // Until both are in the socket of the frozen server.
    tokio::time::sleep(ms(100)).await;

    let promoted = shard.promote_one_of(&others).await;
    let history = shard.history(promoted).await;
    let successor = &successors[others.iter().position(|node| *node == promoted).unwrap()];
    let safe_holder = lock_at(successor, &safe_name).await;
    let fast_holder = lock_at(successor, &fast_name).await;
    shard.node(master).resume();

    let safe_outcome = within("the safe one's answer", safe_try).await.unwrap();
    let (is_held, holder) = (
        safe_holder.is_held(),
        successor.mutex(&safe_name).holder().await,
    );
    if history.is_none() || shard.history(promoted).await != history {
        // A sentinel that does not know of the promotion and finds the old master healthy reverts
        // to it, which loses all grants of the new one alone.
        println!("round {number}: the promotion was taken back");
        let _ = fast_try.await;
        let named = until("there is one master", async || {
            shard.master().await.ok_or_else(|| "none".into())
        })
        .await;
        shard.settle(named).await;
        return false;
    }
    match safe_outcome {
        // The old master was a replica by the time it looked at the request, and sent it to its
        // successor.
        Ok(None) => {}
        Ok(Some(guard)) => panic!("round {number}: two holders, {guard:?} and {safe_holder:?}"),
        Err(error) => assert!(
            matches!(
                error.kind(),
                ErrorKind::NotReplicated | ErrorKind::Unknown | ErrorKind::Unavailable
            ),
            "{error}"
        ),
    }
    assert!(is_held);
    assert_eq!(
        holder.unwrap().expect("it is held").client(),
        successor.client_id()
    );

    // The fast client may get a held lock. The token tells which of the two grants was the later
    // one, so that the storage can refuse the other.
    let fast_guard = within("the fast one's answer", fast_try)
        .await
        .unwrap()
        .ok()
        .flatten();
    if let Some(guard) = &fast_guard {
        assert_eq!(guard.acknowledged(), 0);
        assert!(
            guard.token() > fast_holder.token(),
            "round {number}: {guard:?} came after {fast_holder:?}"
        );
    }
    let fast_granted = fast_guard.is_some();
    drop((fast_guard, safe_holder, fast_holder));
    shard.settle(promoted).await;
    fast_granted
}

/// A lock from a server that has just been promoted, if only a moment ago.
async fn lock_at(locks: &Locks, name: &str) -> Guard {
    until("the successor grants it", async || {
        match locks.mutex(name).try_lock().await {
            Ok(Some(guard)) => Ok(guard),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

impl Shard {
    fn url(&self) -> String {
        match self {
            Self::Cluster(cluster) => cluster.url(),
            Self::Sentinels(sentinels) => sentinels.url(),
        }
    }

    fn node(&self, index: usize) -> &Server {
        match self {
            Self::Cluster(cluster) => cluster.node(index),
            Self::Sentinels(sentinels) => sentinels.node(index),
        }
    }

    async fn master(&self) -> Option<usize> {
        match self {
            Self::Cluster(cluster) => cluster.master_of("any").await,
            Self::Sentinels(sentinels) => sentinels.master().await,
        }
    }

    /// A master's replication id, which changes when it is promoted.
    async fn history(&self, node: usize) -> Option<String> {
        let info = self
            .node(node)
            .raw()
            .await
            .cmd(&["INFO", "replication"])
            .await;
        let line = |name| {
            info.str()
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
        };
        line("role:")
            .filter(|role| role == "master")
            .and_then(|_| line("master_replid:"))
    }

    /// Returns at the moment of the promotion: others may still follow the old master.
    async fn promote_one_of(&self, replicas: &[usize]) -> usize {
        match self {
            Self::Cluster(cluster) => {
                cluster.failover(replicas[0], Failover::Takeover).await;
                replicas[0]
            }
            Self::Sentinels(sentinels) => {
                until("the sentinels promote a replica", async || {
                    for replica in replicas {
                        if sentinels.servers().role(*replica).await.as_deref() == Some("master") {
                            return Ok(*replica);
                        }
                    }
                    Err("none is a master".into())
                })
                .await
            }
        }
    }

    /// Waits until all servers follow the new master.
    async fn settle(&self, master: usize) {
        match self {
            Self::Cluster(cluster) => {
                cluster.wait_until_ok().await;
                // A node does not list a replica before it knows that it has data. A client that
                // connects until then does not know the number of replicas.
                assert!(
                    cluster
                        .raw(master)
                        .await
                        .cmd(&["SET", "any", "1", "PX", "60000"])
                        .await
                        .is_ok()
                );
                for node in 0..cluster.len() {
                    let mut raw = cluster.raw(node).await;
                    until("the node shows both replicas", async || {
                        let slots = raw.cmd(&["CLUSTER", "SLOTS"]).await;
                        let [_first, _last, shown, replicas @ ..] = slots.array()[0].array() else {
                            unreachable!()
                        };
                        let right =
                            shown.array()[1].int() == i64::from(cluster.addr(master).port());
                        if right && replicas.len() == 2 {
                            Ok(())
                        } else {
                            Err(format!("{slots:?}"))
                        }
                    })
                    .await;
                }
            }
            Self::Sentinels(sentinels) => {
                sentinels.servers().wait_until_linked(2).await;
                sentinels.wait_until_ready().await;
                until("the sentinels agree", async || {
                    match sentinels.master().await {
                        Some(named) if named == master => Ok(()),
                        named => Err(format!("they name {named:?}")),
                    }
                })
                .await;
            }
        }
    }
}
