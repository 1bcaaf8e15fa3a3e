//! The servers of a scenario.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use leasehold_testkit::{Cluster, Raw, Server};

use super::recording::{Command, Scenario};

pub(super) enum Servers {
    Single(Vec<Server>),
    Cluster(Cluster),
}

impl Servers {
    pub(super) async fn start(scenario: &Scenario) -> Self {
        let labels = scenario.servers();
        if labels.iter().any(|label| label == "M2") {
            return Self::Cluster(Cluster::builder().replicas(0).start().await);
        }
        let mut servers = Vec::new();
        for _ in &labels {
            servers.push(Server::start().await);
        }
        Self::Single(servers)
    }

    /// Whether they know the sharded channels of the recording, if it has some.
    pub(super) async fn have_channels_of(&self, scenario: &Scenario) -> bool {
        let server = match self {
            Self::Cluster(cluster) => cluster.node(0),
            Self::Single(servers) => &servers[0],
        };
        !scenario.uses_shards() || server.knows("SPUBLISH").await
    }

    /// The slots of the cluster in the recording were elsewhere.
    pub(super) async fn find(&self, command: &mut Command) {
        let text = command.cmd.as_deref().unwrap_or_default();
        let key = command.keys.first().map(String::as_str);
        if let Self::Cluster(cluster) = self
            && let Some(key) = key.or_else(|| text.split(' ').nth(1))
        {
            let master = cluster.master_of(key).await.expect("a master");
            command.server = master.to_string();
        }
    }

    /// A connection to each server, by its name in the recording.
    pub(super) async fn raw(&self, scenario: &Scenario) -> BTreeMap<String, Raw> {
        let mut raw = BTreeMap::new();
        match self {
            Self::Cluster(cluster) => {
                for at in 0..cluster.masters() {
                    raw.insert(at.to_string(), cluster.raw(at).await);
                }
            }
            Self::Single(servers) => {
                for (server, label) in servers.iter().zip(scenario.servers()) {
                    raw.insert(label, server.raw().await);
                }
            }
        }
        raw
    }

    pub(super) async fn eyes(&self, scenario: &Scenario) -> Vec<(String, Vec<Raw>)> {
        match self {
            Self::Cluster(cluster) => {
                let mut all = Vec::new();
                for at in 0..cluster.masters() {
                    all.push(cluster.raw(at).await);
                }
                vec![("*".into(), all)]
            }
            Self::Single(_) => {
                let raw = self.raw(scenario).await.into_iter();
                raw.map(|(server, raw)| (server, vec![raw])).collect()
            }
        }
    }

    /// The address of the server with this name, or of the cluster.
    pub(super) fn addr(&self, scenario: &Scenario, server: &str) -> SocketAddr {
        match self {
            Self::Cluster(cluster) => cluster.addr(0),
            Self::Single(servers) => {
                let at = scenario.servers().iter().position(|other| other == server);
                servers[at.unwrap_or_default()].addr()
            }
        }
    }

    /// The URLs of independent servers, or of the cluster.
    pub(super) fn urls(&self) -> Vec<String> {
        match self {
            Self::Cluster(cluster) => vec![cluster.url()],
            Self::Single(servers) => servers.iter().map(Server::url).collect(),
        }
    }
}
