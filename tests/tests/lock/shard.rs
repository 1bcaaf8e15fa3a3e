//! A master with two replicas that is replaced, by a cluster or by sentinels.

use std::time::Duration;

use leasehold_testkit::{Cluster, Sentinels, Server, until};

/// The names of locks that belong to the shard begin with this.
pub(crate) const TAG: &str = "{shard}";

/// The three servers, and what replaces the master among them.
pub(crate) enum Shard {
    Cluster(Cluster),
    Sentinels(Sentinels),
}

impl Shard {
    /// One of `masters` shards of a cluster.
    pub(crate) async fn of_cluster(masters: usize) -> Self {
        Self::Cluster(
            Cluster::builder()
                .masters(masters)
                .replicas(2)
                .start()
                .await,
        )
    }

    pub(crate) async fn behind_sentinels() -> Self {
        // On a busy machine a server that was just promoted may be considered down, too.
        let sentinels = Sentinels::builder().down_after(Duration::from_secs(1));
        Self::Sentinels(sentinels.start().await)
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Cluster(cluster) => cluster.url(),
            Self::Sentinels(sentinels) => sentinels.url(),
        }
    }

    pub(crate) fn node(&self, index: usize) -> &Server {
        match self {
            Self::Cluster(cluster) => cluster.node(index),
            Self::Sentinels(sentinels) => sentinels.node(index),
        }
    }

    /// The master, once there is one.
    pub(crate) async fn master(&self) -> usize {
        until("there is a master", async || {
            self.named_master().await.ok_or_else(|| "none".into())
        })
        .await
    }

    async fn named_master(&self) -> Option<usize> {
        match self {
            Self::Cluster(cluster) => cluster.master_of(TAG).await,
            Self::Sentinels(sentinels) => sentinels.master().await,
        }
    }

    pub(crate) async fn replicas_of(&self, master: usize) -> Vec<usize> {
        match self {
            Self::Cluster(cluster) => cluster.replicas_of(master).await,
            Self::Sentinels(_) => (0..3).filter(|node| *node != master).collect(),
        }
    }

    /// The one of these replicas that is a master by now.
    pub(crate) async fn promoted(&self, replicas: &[usize]) -> Option<usize> {
        for replica in replicas {
            if self.history(*replica).await.is_some() {
                return Some(*replica);
            }
        }
        None
    }

    /// The id of a master's data, which changes with a promotion; `None` for a replica.
    pub(crate) async fn history(&self, node: usize) -> Option<String> {
        let info = self
            .node(node)
            .raw()
            .await
            .try_cmd(&["INFO", "replication"])
            .await
            .ok()?;
        let line = |name: &str| {
            info.str()
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
        };
        line("role:")
            .filter(|role| role == "master")
            .and_then(|_| line("master_replid:"))
    }

    /// Waits until all servers follow the master.
    pub(crate) async fn settle(&self) {
        match self {
            Self::Cluster(cluster) => {
                cluster.wait_until_ok().await;
                let master = self.master().await;
                until("the master has both replicas", async || {
                    let info = cluster
                        .raw(master)
                        .await
                        .cmd(&["INFO", "replication"])
                        .await;
                    match info.str().matches("state=online").count() {
                        2 => Ok(()),
                        _ => Err(info.str().to_owned()),
                    }
                })
                .await;
            }
            Self::Sentinels(sentinels) => {
                sentinels.servers().wait_until_linked(2).await;
                sentinels.wait_until_ready().await;
                self.master().await;
            }
        }
    }

    /// Waits until all servers follow one master, and every client is told so, with both replicas.
    pub(crate) async fn settle_wholly(&self) {
        self.settle().await;
        match self {
            Self::Cluster(cluster) => {
                let master = self.master().await;
                // A node does not list a replica before it knows that it has data. A client that
                // connects until then does not know the number of replicas.
                let set = ["SET", TAG, "1", "PX", "60000"];
                assert!(cluster.raw(master).await.cmd(&set).await.is_ok());
                for node in 0..cluster.len() {
                    both_are_listed(cluster, node, master).await;
                }
            }
            // Whichever it is: a sentinel that does not know of a promotion may take it back later.
            Self::Sentinels(_) => {
                until("the sentinels name a master", async || {
                    self.history(self.master().await).await.is_some()
                })
                .await;
            }
        }
    }
}

/// Waits until `node` lists two replicas of `master`.
async fn both_are_listed(cluster: &Cluster, node: usize, master: usize) {
    let (mut raw, port) = (cluster.raw(node).await, cluster.addr(master).port());
    until("the node shows both replicas", async || {
        let slots = raw.cmd(&["CLUSTER", "SLOTS"]).await;
        let is_right = slots.array().iter().any(|range| {
            let [_first, _last, shown, replicas @ ..] = range.array() else {
                unreachable!()
            };
            shown.array()[1].int() == i64::from(port) && replicas.len() == 2
        });
        if is_right {
            Ok(())
        } else {
            Err(format!("{slots:?}"))
        }
    })
    .await;
}
