//! A private cluster of real servers.
//!
//! Nodes have numbers. Of `m` masters with `r` replicas each, 0 to `m - 1` are the masters at the
//! start, `m` to `m (1 + r) - 1` the replicas (node `m + i` follows master `i % m`), and the nodes
//! behind them are masters without slots. A number stays with its process, whatever role it takes
//! later.
//!
//! Three ways to lose a node: [`freeze`](Cluster::freeze), with
//! [`proxied`](ClusterBuilder::proxied) clients that cannot reach a node which the cluster
//! considers healthy, and with [`isolable`](ClusterBuilder::isolable) a node that clients reach and
//! the cluster does not. A client that has a [`route`](Cluster::route) of its own can be cut off
//! together with such a node.

mod atomic;
mod form;
mod member;
mod migration;
mod route;

pub use atomic::{AtomicMigration, Step};
pub use form::ClusterBuilder;
pub use member::Member;
pub use migration::Migration;
pub use route::Route;

use std::net::{IpAddr, SocketAddr};
use tokio::time::timeout;

use crate::network;
use crate::proxy::Proxy;
use crate::raw::{Raw, RawValue};
use crate::server::Server;
use crate::wait::{PROBE, until};

/// A running cluster; all of it stops when dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use leasehold_testkit::{Cluster, Failover};
///
/// let cluster = Cluster::start().await;
/// let master = cluster.master_of("key").await.unwrap();
/// let replica = cluster.replicas_of(master).await[0];
/// cluster.failover(replica, Failover::Force).await;
/// assert!(cluster.is_master(replica).await);
/// # }
/// ```
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    masters: usize,
}

#[derive(Debug)]
struct Node {
    /// In front, so that it goes first: a proxy without its server would only reset clients.
    proxy: Option<Proxy>,
    /// In front of its bus port.
    bus: Option<Proxy>,
    server: Server,
    id: String,
}

/// The kind of a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failover {
    /// In agreement with its master, which stops taking writes until the replica has all of them.
    Graceful,
    /// `FORCE`: without asking the master, but with the votes of the others.
    Force,
    /// `TAKEOVER`: without asking any other node.
    Takeover,
}

impl Cluster {
    /// Three masters with a replica each.
    ///
    /// # Panics
    ///
    /// As [`ClusterBuilder::start`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// A cluster of another shape.
    #[must_use]
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// `redis-cluster://127.0.0.1:21000,127.0.0.1:21001,…` with all nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let seeds: Vec<_> = (0..self.len()).collect();
        self.url_of(&seeds)
    }

    /// The same with these nodes only.
    #[must_use]
    pub fn url_of(&self, seeds: &[usize]) -> String {
        let seeds: Vec<_> = seeds
            .iter()
            .map(|seed| self.addr(*seed).to_string())
            .collect();
        format!("redis-cluster://{}", seeds.join(","))
    }

    /// `rediss-cluster://host:21001,…` with the ports for TLS of these nodes, all at the same host.
    ///
    /// # Panics
    ///
    /// When the nodes do not speak TLS.
    #[must_use]
    pub fn tls_url_of(&self, host: &str, seeds: &[usize]) -> String {
        let seeds: Vec<_> = seeds
            .iter()
            .map(|seed| format!("{host}:{}", self.node(*seed).tls_port()))
            .collect();
        format!("rediss-cluster://{}", seeds.join(","))
    }

    /// Number of nodes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a cluster is never empty")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Number of masters with slots at the start: nodes 0 to this, exclusive.
    #[must_use]
    pub fn masters(&self) -> usize {
        self.masters
    }

    /// The server of a node.
    #[must_use]
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index].server
    }

    /// The proxy in front of a node.
    ///
    /// # Panics
    ///
    /// When the cluster has none.
    #[must_use]
    pub fn proxy(&self, index: usize) -> &Proxy {
        self.nodes[index]
            .proxy
            .as_ref()
            .expect("a cluster with proxies")
    }

    /// The address of a node for clients: its proxy's, if it has one.
    #[must_use]
    pub fn addr(&self, index: usize) -> SocketAddr {
        let node = &self.nodes[index];
        node.proxy
            .as_ref()
            .map_or_else(|| node.server.addr(), Proxy::addr)
    }

    /// A node's id.
    #[must_use]
    pub fn id(&self, index: usize) -> &str {
        &self.nodes[index].id
    }

    /// The raw client, at a node itself.
    ///
    /// # Panics
    ///
    /// When it cannot connect.
    pub async fn raw(&self, index: usize) -> Raw {
        self.node(index).raw().await
    }

    /// SIGSTOP; the others notice after the node timeout.
    ///
    /// # Panics
    ///
    /// When it was killed.
    pub fn freeze(&self, index: usize) {
        self.node(index).pause();
    }

    /// SIGCONT.
    ///
    /// # Panics
    ///
    /// When it was killed.
    pub fn thaw(&self, index: usize) {
        self.node(index).resume();
    }

    /// SIGKILL.
    pub fn kill(&self, index: usize) {
        self.node(index).kill();
    }

    /// Cuts a node off from all others, in both directions: bus and replication. Clients go on
    /// reaching it.
    ///
    /// # Panics
    ///
    /// When the cluster is not [`isolable`](ClusterBuilder::isolable).
    pub fn isolate(&self, index: usize) {
        self.links_of(index, Proxy::sever);
    }

    /// Takes back an [`isolate`](Self::isolate).
    ///
    /// # Panics
    ///
    /// When the cluster is not [`isolable`](ClusterBuilder::isolable).
    pub fn rejoin(&self, index: usize) {
        self.links_of(index, Proxy::mend);
    }

    fn links_of(&self, index: usize, act: impl Fn(&Proxy, IpAddr)) {
        for other in (0..self.len()).filter(|other| *other != index) {
            for (at, from) in [(index, other), (other, index)] {
                let bus = self.nodes[at]
                    .bus
                    .as_ref()
                    .expect("a cluster whose nodes can be cut off");
                for proxy in [bus, self.proxy(at)] {
                    act(proxy, network::server(from));
                }
            }
        }
    }

    /// Starts a node again: without data, but with what it knew of the cluster.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub async fn restart(&self, index: usize) {
        self.node(index).restart().await;
    }

    /// Makes a replica take over. Returns when it is a master with slots in its own view.
    ///
    /// # Panics
    ///
    /// When it is none, or never gets there.
    pub async fn failover(&self, replica: usize, how: Failover) {
        let command: &[&str] = match how {
            Failover::Graceful => &["CLUSTER", "FAILOVER"],
            Failover::Force => &["CLUSTER", "FAILOVER", "FORCE"],
            Failover::Takeover => &["CLUSTER", "FAILOVER", "TAKEOVER"],
        };
        let mut raw = self.raw(replica).await;
        until("the replica takes over", async || {
            if self.is_master(replica).await {
                return Ok(());
            }
            // Again each time: an election that fails, for want of votes, is not repeated.
            let reply = raw.cmd(command).await;
            for _ in 0..200 {
                if self.is_master(replica).await {
                    return Ok(());
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            Err(format!("{reply:?}"))
        })
        .await;
    }

    /// The slot of a key, by a server's own word.
    ///
    /// # Panics
    ///
    /// When no node answers.
    pub async fn slot_of(&self, key: impl AsRef<[u8]>) -> u16 {
        let command: [&[u8]; 3] = [b"CLUSTER", b"KEYSLOT", key.as_ref()];
        until("a node tells the slot", async || {
            let mut replies = Vec::new();
            for index in 0..self.len() {
                let Some(mut raw) = self.glance(index).await else {
                    continue;
                };
                match timeout(PROBE, raw.try_cmd(&command)).await {
                    Ok(Ok(RawValue::Int(slot))) => return Ok(u16::try_from(slot).expect("a slot")),
                    reply => replies.push(reply),
                }
            }
            Err(format!("{replies:?}"))
        })
        .await
    }

    /// A key that is at this master now: `prefix` with a number behind it.
    ///
    /// # Panics
    ///
    /// When the node comes to serve no slots.
    pub async fn key_at(&self, master: usize, prefix: &str) -> String {
        let me = until("the node serves slots", async || {
            match self.myself(master).await {
                Some(me) if me.is("master") && !me.slots.is_empty() => Ok(me),
                other => Err(format!("node {master}: {other:?}")),
            }
        })
        .await;
        let mut raw = self.raw(master).await;
        for n in 0.. {
            let key = format!("{prefix}{n}");
            let slot = raw.cmd(&["CLUSTER", "KEYSLOT", &key]).await.int();
            if me.serves(u16::try_from(slot).expect("a slot")) {
                return key;
            }
        }
        unreachable!("every master has some key")
    }

    /// The node that serves a key: of those that answer and claim its slot for themselves, the one
    /// with the newest claim. `None` while no node does.
    pub async fn master_of(&self, key: impl AsRef<[u8]>) -> Option<usize> {
        let slot = self.slot_of(key).await;
        self.master_of_slot(slot).await
    }

    /// As [`master_of`](Self::master_of), for a slot.
    pub async fn master_of_slot(&self, slot: u16) -> Option<usize> {
        let mut best = None;
        for index in 0..self.len() {
            if let Some(me) = self.myself(index).await
                && me.is("master")
                && me.serves(slot)
            {
                best = best.max(Some((me.epoch, index)));
            }
        }
        best.map(|(_, index)| index)
    }

    /// The replicas of a node, according to their own views.
    pub async fn replicas_of(&self, master: usize) -> Vec<usize> {
        let mut replicas = Vec::new();
        for index in 0..self.len() {
            if self
                .myself(index)
                .await
                .is_some_and(|me| me.master.as_deref() == Some(self.id(master)))
            {
                replicas.push(index);
            }
        }
        replicas
    }

    /// Whether a node calls itself a master.
    pub async fn is_master(&self, index: usize) -> bool {
        self.myself(index).await.is_some_and(|me| me.is("master"))
    }

    /// A node's view of the cluster; `None` if it does not answer at once.
    pub async fn view(&self, index: usize) -> Option<Vec<Member>> {
        let mut raw = self.glance(index).await?;
        let nodes = raw.try_text(&["CLUSTER", "NODES"]).await.ok()?;
        Some(Member::parse_all(&nodes))
    }

    /// Waits until every node calls the cluster ok, knows all others, and every replica follows.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub async fn wait_until_ok(&self) {
        for index in 0..self.len() {
            until("the cluster becomes ready", async || {
                self.is_ready(index).await
            })
            .await;
        }
        self.wait_for_agreement().await;
    }

    /// Waits until all nodes that answer give every slot to the same master.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub async fn wait_for_agreement(&self) {
        until("the nodes agree", async || {
            let mut first = None;
            for index in 0..self.len() {
                let Some(view) = self.view(index).await else {
                    continue;
                };
                let mut owners: Vec<_> = view
                    .into_iter()
                    .flat_map(|m| m.slots.into_iter().map(move |s| (s, m.port)))
                    .collect();
                owners.sort_unstable();
                if *first.get_or_insert_with(|| owners.clone()) != owners {
                    return Err(format!(
                        "node {index} has another view than the first that answers"
                    ));
                }
            }
            Ok(())
        })
        .await;
    }

    /// Waits until a plain client can write in the slot of `key`, which has no braces or a proper
    /// hash tag. Returns the node that took the write. The key that is written has a name of its
    /// own, and a TTL.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub async fn wait_for_writable(&self, key: &str) -> usize {
        let tag = key
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'))
            .map_or(key, |(tag, _)| tag);
        let probe = format!("{{{tag}}}:probe");
        until("the slot takes writes", async || {
            let mut replies = Vec::new();
            for index in 0..self.len() {
                let Some(mut raw) = self.glance(index).await else {
                    continue;
                };
                let command = ["SET", &probe, "1", "PX", "10000"];
                match timeout(PROBE, raw.try_cmd(&command)).await {
                    Ok(Ok(reply)) if reply.is_ok() => return Ok(index),
                    reply => replies.push(reply),
                }
            }
            Err(format!("{replies:?}"))
        })
        .await
    }

    /// A connection to a node that may be dead or frozen.
    async fn glance(&self, index: usize) -> Option<Raw> {
        if !self.node(index).is_awake() {
            return None;
        }
        timeout(PROBE, Raw::connect(self.node(index).addr()))
            .await
            .ok()?
            .ok()
    }

    /// A node's own line in its own view.
    async fn myself(&self, index: usize) -> Option<Member> {
        self.view(index)
            .await?
            .into_iter()
            .find(|member| member.is("myself"))
    }

    async fn is_ready(&self, index: usize) -> Result<(), String> {
        let view = self.view(index).await.ok_or("no answer")?;
        let strangers = view
            .iter()
            .filter(|m| !m.linked || m.is("handshake") || m.is("fail?") || m.is("fail"))
            .count();
        if view.len() != self.len() || strangers > 0 {
            return Err(format!(
                "node {index} knows {} nodes, {strangers} of them not well",
                view.len()
            ));
        }
        let mut raw = self.glance(index).await.ok_or("no connection")?;
        let info = raw.try_text(&["CLUSTER", "INFO"]).await?;
        if !info.contains("cluster_state:ok") {
            let state = info.lines().next().unwrap_or_default();
            return Err(format!("node {index} says {state}"));
        }
        let replication = raw.try_text(&["INFO", "replication"]).await?;
        if replication.contains("role:slave") && !replication.contains("master_link_status:up") {
            return Err(format!("replica {index} is not linked"));
        }
        Ok(())
    }
}
