//! A master and its replicas, without anybody who watches over them.

use tokio::time::timeout;

use crate::raw::RawValue;
use crate::server::{Server, ServerBuilder};
use crate::wait::{GLANCE, until};

/// Servers that follow one of them: node 0 at the start. A number stays with its process, whatever role it takes later.
#[derive(Debug)]
pub struct Replicas {
    nodes: Vec<Server>,
}

/// Options for [`Replicas::builder`].
#[derive(Debug, Clone)]
pub struct ReplicasBuilder {
    replicas: usize,
    /// What the servers call their host.
    host: &'static str,
    server: ServerBuilder,
}

impl Default for ReplicasBuilder {
    fn default() -> Self {
        // With the default of five seconds a replica is linked five seconds after it asked.
        Self { replicas: 2, host: "127.0.0.1", server: ServerBuilder::default().config("repl-diskless-sync-delay 0") }
    }
}

impl ReplicasBuilder {
    /// How many replicas there are. Two if not said.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Adds a line to every server's configuration.
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.server = self.server.config(line);
        self
    }

    /// Servers speak TLS among themselves, have a port for clients that do, and call their host `localhost`. Certificate
    /// and key are said by [`config`](Self::config) lines.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.host = "localhost";
        self.server = self.server.tls().config("tls-replication yes").config("replica-announce-ip localhost");
        self
    }

    /// The password of every server.
    #[must_use]
    pub fn requirepass(mut self, password: &str) -> Self {
        self.server = self.server.requirepass(password).config(format!("masterauth {password}"));
        self
    }

    /// Starts the servers and waits until all replicas are linked.
    ///
    /// # Panics
    ///
    /// When a server does not start or a replica does not link.
    pub async fn start(self) -> Replicas {
        let master = self.server.clone().start().await;
        let replica = self.server.config(format!("replicaof {} {}", self.host, master.peer_port()));
        let mut nodes = vec![master];
        for _ in 0..self.replicas {
            nodes.push(replica.clone().start().await);
        }
        let replicas = Replicas { nodes };
        replicas.wait_until_linked(self.replicas).await;
        replicas
    }
}

impl Replicas {
    /// A master with two replicas.
    ///
    /// # Panics
    ///
    /// As [`ReplicasBuilder::start`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Another number of them, or with options.
    #[must_use]
    pub fn builder() -> ReplicasBuilder {
        ReplicasBuilder::default()
    }

    /// How many servers there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always a master")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A server.
    #[must_use]
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// The number of the server that listens at this port.
    #[must_use]
    pub fn index_of(&self, port: u16) -> Option<usize> {
        self.nodes.iter().position(|node| node.port() == port || node.peer_port() == port)
    }

    /// The URL of the server that is master at the start; it does not follow a failover.
    #[must_use]
    pub fn url(&self) -> String {
        self.nodes[0].url()
    }

    /// What a server says to `ROLE`: `master`, `slave`; `None` if it does not answer at once.
    pub async fn role(&self, index: usize) -> Option<String> {
        let role = async {
            let mut raw = self.nodes[index].raw().await;
            raw.try_cmd(&["ROLE"]).await.ok().filter(|reply| reply.error().is_none())
        };
        if !self.nodes[index].is_awake() {
            return None;
        }
        Some(timeout(GLANCE, role).await.ok()??.array().first()?.str().into())
    }

    /// Waits until whoever is master, and answers, has so many replicas that are up to date.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub async fn wait_until_linked(&self, replicas: usize) {
        until("the replicas are linked", async || {
            for index in 0..self.len() {
                if self.role(index).await.as_deref() != Some("master") {
                    continue;
                }
                let info = self.nodes[index].raw().await.cmd(&["INFO", "replication"]).await;
                if let RawValue::Bulk(_) = info
                    && info.str().matches("state=online").count() >= replicas
                {
                    return Ok(());
                }
            }
            Err(format!("no master has {replicas} replicas online"))
        })
        .await;
    }
}
