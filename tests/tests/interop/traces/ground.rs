//! Where a recorded scene plays: its servers, and what happens to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use leasehold_testkit::cluster::Route;
use leasehold_testkit::{Cluster, Proxy, Raw, RawValue, Replicas, Server};

use super::golden::Scene;

/// What a key holds, as words in order.
const VALUE: &str = "
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'none' then return {} end
if kind == 'string' then return {redis.call('GET', KEYS[1])} end
if kind == 'list' then return redis.call('LRANGE', KEYS[1], 0, -1) end
if kind == 'zset' then return redis.call('ZRANGE', KEYS[1], 0, -1) end
local fields, all = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #fields, 2 do all[#all + 1] = fields[i] .. '=' .. fields[i + 1] end
table.sort(all)
return all";

pub(super) struct Ground {
    servers: Servers,
    /// In front of each server, if answers come late in the scene.
    proxies: Vec<Proxy>,
    /// In front of each node of a cluster.
    route: Option<Route>,
}

enum Servers {
    /// Each for itself.
    Single(Vec<Server>),
    /// A master and its replicas.
    Replicated(Replicas),
    Cluster(Box<Cluster>),
}

/// A server that is watched.
pub(super) struct Node {
    pub(super) addr: SocketAddr,
    pub(super) is_replica: bool,
}

impl Ground {
    pub(super) async fn new(scene: &Scene) -> Self {
        let servers = if scene.cluster {
            let cluster = Cluster::builder().masters(3).replicas(scene.replicas);
            // None is to be taken for dead.
            let cluster = cluster.node_timeout(Duration::from_secs(30)).start().await;
            Servers::Cluster(Box::new(cluster))
        } else if scene.replicas > 0 {
            let replicas = Replicas::builder().replicas(scene.replicas);
            Servers::Replicated(replicas.start().await)
        } else {
            let mut servers = Vec::new();
            for _ in 0..=scene.servers.values().copied().max().unwrap_or(0) {
                servers.push(Server::start().await);
            }
            Servers::Single(servers)
        };
        let mut this = Self {
            servers,
            proxies: Vec::new(),
            route: None,
        };
        if scene.is_delayed() {
            match &this.servers {
                Servers::Cluster(cluster) => this.route = Some(cluster.route()),
                _ => this.proxies = this.nodes().map(|node| Proxy::start(node.addr)).collect(),
            }
        }
        this
    }

    pub(super) fn url(&self, server: usize) -> String {
        let addr = |index: usize| match self.proxies.get(index) {
            Some(proxy) => proxy.addr(),
            None => self.node(index).addr(),
        };
        match &self.servers {
            Servers::Single(_) => format!("redis://{}", addr(server)),
            Servers::Replicated(replicas) => {
                let all: Vec<_> = (0..replicas.len()).map(|n| addr(n).to_string()).collect();
                format!("redis-replicated://{}", all.join(","))
            }
            Servers::Cluster(cluster) => match &self.route {
                Some(route) => route.url(),
                None => cluster.url(),
            },
        }
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = Node> {
        let (count, masters) = match &self.servers {
            Servers::Single(servers) => (servers.len(), servers.len()),
            Servers::Replicated(replicas) => (replicas.len(), 1),
            Servers::Cluster(cluster) => (cluster.len(), cluster.masters()),
        };
        (0..count).map(move |index| Node {
            addr: self.node(index).addr(),
            is_replica: index >= masters,
        })
    }

    fn node(&self, index: usize) -> &Server {
        match &self.servers {
            Servers::Single(servers) => &servers[index],
            Servers::Replicated(replicas) => replicas.node(index),
            Servers::Cluster(cluster) => cluster.node(index),
        }
    }

    /// The number of the master that has `key`.
    async fn home(&self, key: &str) -> usize {
        match &self.servers {
            Servers::Cluster(cluster) => {
                let home = cluster.master_of(key).await;
                home.expect("every slot has a master")
            }
            _ => 0,
        }
    }

    async fn raw(&self, key: &str) -> Raw {
        self.node(self.home(key).await).raw().await
    }

    /// The proxy in front of the server of `key`, for a scene in which answers are late.
    pub(super) async fn proxy(&self, key: &str) -> &Proxy {
        let home = self.home(key).await;
        match &self.route {
            Some(route) => route.proxy(home),
            None => &self.proxies[home],
        }
    }

    /// Stops a server.
    pub(super) fn freeze(&self, server: usize) {
        self.node(server).pause();
    }

    /// Moves the slot of `key` to another master.
    pub(super) async fn move_slot(&self, key: &str) {
        let Servers::Cluster(cluster) = &self.servers else {
            panic!("slots are moved in a cluster");
        };
        let target = (self.home(key).await + 1) % cluster.masters();
        let migration = cluster.migration(cluster.slot_of(key).await, target).await;
        migration.begin().await;
        migration.move_all_keys().await;
        migration.finish().await;
        migration.tell_everybody().await;
    }

    /// Runs a command that is none of Redisson's: in a script, which monitors leave out.
    pub(super) async fn by_hand(&self, command: &[String]) {
        let run = ["EVAL", "return redis.call(unpack(ARGV))", "0"].map(str::to_owned);
        let mut raw = self.raw(&command[1]).await;
        let reply = raw.cmd(&[&run[..], command].concat()).await;
        assert!(reply.error().is_none(), "{reply:?}");
    }

    /// Sends a script call of Redisson's again, and gives the reply.
    pub(super) async fn again(&self, words: &[String]) -> String {
        match self.raw(&words[3]).await.cmd(words).await {
            RawValue::Int(number) => number.to_string(),
            RawValue::Null => "null".into(),
            other => format!("{other:?}"),
        }
    }

    /// What these keys hold.
    pub(super) async fn values<'a>(
        &self,
        keys: impl Iterator<Item = &'a String>,
    ) -> BTreeMap<String, String> {
        let mut values = BTreeMap::new();
        for key in keys {
            let mut raw = self.raw(key).await;
            let value = raw.cmd(&["EVAL", VALUE, "1", key]).await;
            let words: Vec<_> = value.array().iter().map(RawValue::str).collect();
            values.insert(key.clone(), words.join(" "));
        }
        values
    }
}
