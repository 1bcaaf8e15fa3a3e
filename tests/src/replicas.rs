//! A master and its replicas, without sentinels.

use std::net::IpAddr;

use tokio::time::timeout;

use crate::network::{self, SENTINELS};
use crate::proxy::Proxy;
use crate::raw::RawValue;
use crate::server::{Server, ServerBuilder};
use crate::wait::{PROBE, until};

/// Servers that follow one of them: node 0 at the start. A number stays with its process, whatever
/// role it takes later.
#[derive(Debug)]
pub struct Replicas {
    /// In front of the servers, one each if they can be cut off. First, so that they go first.
    proxies: Vec<Proxy>,
    nodes: Vec<Server>,
}

/// Options for [`Replicas::builder`].
#[derive(Debug, Clone)]
pub struct ReplicasBuilder {
    replicas: usize,
    /// The name under which the servers announce their host.
    host: &'static str,
    isolable: bool,
    server: ServerBuilder,
}

impl Default for ReplicasBuilder {
    fn default() -> Self {
        // With the default of five seconds a replica is linked five seconds after it asked.
        let server = ServerBuilder::default().config("repl-diskless-sync-delay 0");
        Self {
            replicas: 2,
            host: "127.0.0.1",
            isolable: false,
            server,
        }
    }
}

impl ReplicasBuilder {
    /// Number of replicas; 2 by default.
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

    /// Lets a server be cut off from the others, but not from clients, by [`Replicas::isolate`]: a
    /// proxy stands in front of it, and it has a source address of its own, where [that is
    /// possible](network::can_be_cut).
    #[must_use]
    pub fn isolable(mut self) -> Self {
        self.isolable = true;
        self
    }

    /// Servers speak TLS among themselves, have a port for clients that do, and call their host
    /// `localhost`. Certificate and key are given by [`config`](Self::config) lines.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.host = "localhost";
        self.server = self
            .server
            .tls()
            .config("tls-replication yes")
            .config("replica-announce-ip localhost");
        self
    }

    /// The password of every server.
    #[must_use]
    pub fn requirepass(mut self, password: &str) -> Self {
        self.server = self
            .server
            .requirepass(password)
            .config(format!("masterauth {password}"));
        self
    }

    /// Starts the servers and waits until all replicas are linked.
    ///
    /// # Panics
    ///
    /// When a server does not start or a replica does not link.
    pub async fn start(self) -> Replicas {
        let mut replicas = Replicas {
            proxies: Vec::new(),
            nodes: Vec::new(),
        };
        for index in 0..=self.replicas {
            let mut server = self.server.clone();
            if index > 0 {
                server = server.config(format!("replicaof {} {}", self.host, replicas.port(0)));
            }
            let mut server = server.start().await;
            if self.isolable {
                let proxy = Proxy::start(server.addr());
                let source = network::speak_from(network::server(index), &server).await;
                let port = format!("replica-announce-port {}", proxy.addr().port());
                server
                    .reconfigure([source, port, "replica-announce-ip 127.0.0.1".into()])
                    .await;
                replicas.proxies.push(proxy);
            }
            replicas.nodes.push(server);
        }
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

    /// Number of servers.
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

    /// The port at which the others find a server.
    #[must_use]
    pub fn port(&self, index: usize) -> u16 {
        self.proxies.get(index).map_or_else(
            || self.nodes[index].peer_port(),
            |proxy| proxy.addr().port(),
        )
    }

    /// The number of the server that the others find at this port.
    #[must_use]
    pub fn index_of(&self, port: u16) -> Option<usize> {
        (0..self.len()).find(|index| self.port(*index) == port)
    }

    /// Cuts a server off from all others and from sentinels, in both directions. Clients go on
    /// reaching it.
    ///
    /// # Panics
    ///
    /// When servers are not [`isolable`](ReplicasBuilder::isolable).
    pub fn isolate(&self, index: usize) {
        self.links_of(index, Proxy::sever);
    }

    /// Takes back an [`isolate`](Self::isolate).
    ///
    /// # Panics
    ///
    /// When servers are not [`isolable`](ReplicasBuilder::isolable).
    pub fn rejoin(&self, index: usize) {
        self.links_of(index, Proxy::mend);
    }

    fn links_of(&self, index: usize, act: impl Fn(&Proxy, IpAddr)) {
        let here = &self.proxies[index];
        for (other, there) in self
            .proxies
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
        {
            act(here, network::server(other));
            act(there, network::server(index));
        }
        (0..SENTINELS).for_each(|sentinel| act(here, network::sentinel(sentinel)));
    }

    /// The URL of the server that is master at the start; it does not follow a failover.
    #[must_use]
    pub fn url(&self) -> String {
        self.nodes[0].url()
    }

    /// A server's reply to `ROLE`: `master`, `slave`; `None` if it does not answer at once.
    pub async fn role(&self, index: usize) -> Option<String> {
        let role = async {
            let mut raw = self.nodes[index].try_raw().await?;
            raw.try_cmd(&["ROLE"]).await
        };
        if !self.nodes[index].is_awake() {
            return None;
        }
        match timeout(PROBE, role).await {
            Ok(Ok(RawValue::Array(role))) => Some(role.first()?.str().into()),
            _ => None,
        }
    }

    /// Waits until the master that answers has this many replicas that are up to date.
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
                let mut raw = self.nodes[index].raw().await;
                let info = raw.try_text(&["INFO", "replication"]).await?;
                if info.matches("state=online").count() >= replicas {
                    return Ok(());
                }
            }
            Err(format!("no master has {replicas} replicas online"))
        })
        .await;
    }
}
