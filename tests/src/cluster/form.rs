//! Formation of a cluster.

use std::time::Duration;

use tokio::task::JoinSet;

use super::{Cluster, Node};
use crate::network;
use crate::proxy::Proxy;
use crate::server::{Server, ServerBuilder};
use crate::wait::until;

const SLOTS: u32 = 16_384;

/// Options for [`Cluster::builder`].
#[derive(Debug, Clone)]
pub struct ClusterBuilder {
    masters: usize,
    replicas: usize,
    spares: usize,
    node_timeout: Duration,
    proxied: bool,
    isolable: bool,
    server: ServerBuilder,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        Self {
            masters: 3,
            replicas: 1,
            spares: 0,
            node_timeout: Duration::from_secs(1),
            proxied: false,
            isolable: false,
            server: ServerBuilder::default(),
        }
    }
}

impl ClusterBuilder {
    /// Number of masters with slots; 3 by default.
    #[must_use]
    pub fn masters(mut self, count: usize) -> Self {
        self.masters = count;
        self
    }

    /// Number of replicas of each of them; 1 by default.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Number of additional masters without slots, for new shards.
    #[must_use]
    pub fn spares(mut self, count: usize) -> Self {
        self.spares = count;
        self
    }

    /// `cluster-node-timeout`; one second by default.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Puts a proxy in front of every node, at the port that the cluster announces for it: clients
    /// go through it wherever they learn the address. So do replicas to their master; the cluster's
    /// bus does not.
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Lets a node be cut off from all others, but not from clients, by [`Cluster::isolate`]:
    /// proxies stand in front of its bus port as well, and it has a source address of its own,
    /// where [that is possible](crate::network::can_be_cut).
    #[must_use]
    pub fn isolable(mut self) -> Self {
        self.proxied = true;
        self.isolable = true;
        self
    }

    /// Nodes speak TLS among themselves and have a port for clients that do. Certificate and key
    /// are given by [`config`](Self::config) lines.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.server = self
            .server
            .tls()
            .config("tls-cluster yes")
            .config("tls-replication yes");
        self
    }

    /// Adds a line to every node's configuration.
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.server = self.server.config(line);
        self
    }

    /// Starts the nodes, joins them, and waits until every one of them serves and follows. Takes
    /// two seconds, which are the servers': a master that has just started does not call its
    /// cluster ok before.
    ///
    /// # Panics
    ///
    /// When a server does not start or the cluster does not form.
    pub async fn start(self) -> Cluster {
        let mut nodes = self.servers().await;
        for (index, node) in nodes.iter_mut().enumerate() {
            let mut raw = node.server.raw().await;
            node.id = raw.cmd(&["CLUSTER", "MYID"]).await.str().into();
            // Epochs that differ from the start spare the cluster the elections that would make
            // them differ.
            assert!(
                raw.cmd(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])
                    .await
                    .is_ok()
            );
        }
        for (index, node) in nodes.iter().take(self.masters).enumerate() {
            let bound = |i: usize| {
                SLOTS * u32::try_from(i).expect("few") / u32::try_from(self.masters).expect("few")
            };
            give_slots(&node.server, bound(index), bound(index + 1) - 1).await;
        }
        // All nodes meet all others: gossip alone takes seconds.
        for (index, node) in nodes.iter().enumerate() {
            let mut raw = node.server.raw().await;
            for other in &nodes[index + 1..] {
                let bus = other.bus.as_ref().map_or_else(
                    || other.server.peer_port() + 10_000,
                    |bus| bus.addr().port(),
                );
                let (port, bus) = (other.server.peer_port().to_string(), bus.to_string());
                assert!(
                    raw.cmd(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])
                        .await
                        .is_ok()
                );
            }
        }
        for index in 0..self.masters * self.replicas {
            let replica = &nodes[self.masters + index].server;
            let master = nodes[index % self.masters].id.clone();
            until("the replica knows its master", async || {
                let command = ["CLUSTER", "REPLICATE", &master];
                match replica.raw().await.try_cmd(&command).await {
                    Ok(reply) if reply.is_ok() => Ok(()),
                    outcome => Err(format!("{outcome:?}")),
                }
            })
            .await;
        }
        let cluster = Cluster {
            nodes,
            masters: self.masters,
        };
        cluster.wait_until_ok().await;
        cluster
    }

    async fn servers(&self) -> Vec<Node> {
        let timeout = self.node_timeout.as_millis();
        let server = [
            "cluster-enabled yes".into(),
            "cluster-config-file nodes.conf".into(),
            format!("cluster-node-timeout {timeout}"),
            "repl-diskless-sync-delay 0".into(),
            // Replicas stay with the master they were given to, also when another one has none.
            "cluster-migration-barrier 999".into(),
        ]
        .into_iter()
        .fold(self.server.clone(), ServerBuilder::config_first);
        let mut starting = JoinSet::new();
        for _ in 0..self.masters * (1 + self.replicas) + self.spares {
            starting.spawn(server.clone().start());
        }
        let mut nodes = Vec::new();
        for mut server in starting.join_all().await {
            let (mut proxy, mut bus) = (None, None);
            if self.proxied {
                let port = proxy.insert(Proxy::start(server.addr())).addr().port();
                let mut bus_port = server.peer_port() + 10_000;
                let mut lines = vec![format!("cluster-announce-port {port}")];
                if self.isolable {
                    bus_port = bus
                        .insert(Proxy::start((server.addr().ip(), bus_port).into()))
                        .addr()
                        .port();
                    lines.push(network::speak_from(network::server(nodes.len()), &server).await);
                    // Otherwise it is looked for at its source address.
                    lines.push("cluster-announce-ip 127.0.0.1".into());
                    lines.push("replica-announce-ip 127.0.0.1".into());
                }
                // As a replica it calls itself what the cluster calls it.
                lines.push(format!("replica-announce-port {port}"));
                // Without a bus port of its own the bus would be looked for at the announced port
                // plus 10000.
                lines.push(format!("cluster-announce-bus-port {bus_port}"));
                // Redis 6.2 accepts them at run time as well, and goes on calling itself by its own
                // port.
                server.reconfigure(lines).await;
            }
            nodes.push(Node {
                proxy,
                bus,
                server,
                id: String::new(),
            });
        }
        nodes
    }
}

async fn give_slots(server: &Server, first: u32, last: u32) {
    let mut raw = server.raw().await;
    let reply = raw
        .cmd(&[
            "CLUSTER",
            "ADDSLOTSRANGE",
            &first.to_string(),
            &last.to_string(),
        ])
        .await;
    if reply.is_ok() {
        return;
    }
    // Redis 6.2 does not know ranges.
    let mut command: Vec<String> = vec!["CLUSTER".into(), "ADDSLOTS".into()];
    command.extend((first..=last).map(|slot| slot.to_string()));
    let reply = raw.cmd(&command).await;
    assert!(reply.is_ok(), "{reply:?}");
}
