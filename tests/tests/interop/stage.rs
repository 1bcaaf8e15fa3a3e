//! Where the scenes play: a server or a cluster, with clients of both kinds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{Interop, Locks};
use leasehold_testkit::{Cluster, Raw, RawValue, Server};
use tokio::sync::OnceCell;

use crate::jvm::{self, Client, Jvm};
use crate::support::beside;

/// A server or cluster, with clients of both kinds.
pub(crate) struct Stage {
    pub(crate) label: &'static str,
    pub(crate) locks: Locks,
    /// Two clients of Redisson's.
    pub(crate) java: [Client; 2],
    pub(crate) url: String,
    tagged: bool,
}

/// One of the ways in which everything is played.
struct Setting {
    label: &'static str,
    clustered: bool,
    protocol: &'static str,
    /// Whether names have a hash tag.
    tagged: bool,
}

/// All of them. Clients of Redisson's are shared by those that differ in names alone, which follow one another.
const SETTINGS: [Setting; 8] = [
    Setting::new("a server, RESP2", false, "protocol=RESP2", false),
    Setting::new("a server, RESP2, hash tags", false, "protocol=RESP2", true),
    Setting::new("a server, RESP3", false, "protocol=RESP3", false),
    Setting::new("a server, RESP3, hash tags", false, "protocol=RESP3", true),
    Setting::new("a cluster, RESP2", true, "protocol=RESP2", false),
    Setting::new("a cluster, RESP2, hash tags", true, "protocol=RESP2", true),
    Setting::new("a cluster, RESP3", true, "protocol=RESP3", false),
    Setting::new("a cluster, RESP3, hash tags", true, "protocol=RESP3", true),
];

impl Setting {
    const fn new(
        label: &'static str,
        clustered: bool,
        protocol: &'static str,
        tagged: bool,
    ) -> Self {
        Self {
            label,
            clustered,
            protocol,
            tagged,
        }
    }
}

/// Plays a scene in every setting. Says so and returns if there is no JDK.
pub(crate) async fn everywhere(scene: impl AsyncFn(&Stage)) {
    let Some(jvm) = jvm::shared() else { return };
    for (index, setting) in SETTINGS.iter().enumerate() {
        let stage = Stage::set(&jvm, index, setting).await;
        scene(&stage).await;
        let closed = stage.locks.shutdown().await;
        closed.unwrap_or_else(|error| panic!("{}: {error}", stage.label));
    }
}

/// The server that tests share.
pub(crate) async fn server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(Server::start).await
}

/// The cluster that tests share: three masters.
pub(crate) async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    let start = || Cluster::builder().masters(3).replicas(0).start();
    CLUSTER.get_or_init(start).await
}

/// Locks beside Redisson.
pub(crate) async fn beside_redisson(url: &str) -> Locks {
    let builder = Locks::builder(url).interop(Interop::Redisson);
    builder.connect().await.expect("the server is up")
}

/// The same with this lease.
pub(crate) async fn leased(url: &str, lease: Duration) -> Locks {
    let builder = Locks::builder(url).interop(Interop::Redisson).lease(lease);
    builder.connect().await.expect("the server is up")
}

/// A name that no other test has.
pub(crate) fn unique(what: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Stage {
    async fn set(jvm: &Arc<Jvm>, index: usize, setting: &'static Setting) -> Self {
        static JAVA: [OnceCell<[Client; 2]>; SETTINGS.len() / 2] =
            [const { OnceCell::const_new() }; SETTINGS.len() / 2];
        let url = if setting.clustered {
            cluster().await.url()
        } else {
            server().await.url()
        };
        let options = [setting.protocol];
        let connect = async || {
            [
                jvm.client(&url, &options).await,
                jvm.client(&url, &options).await,
            ]
        };
        Self {
            label: setting.label,
            locks: beside_redisson(&url).await,
            java: JAVA[index / 2].get_or_init(connect).await.clone(),
            url,
            tagged: setting.tagged,
        }
    }

    /// One with clients of Redisson's of its own, with these options.
    pub(crate) async fn with(
        jvm: &Arc<Jvm>,
        label: &'static str,
        url: &str,
        options: &[&str],
    ) -> Self {
        Self {
            label,
            locks: beside_redisson(url).await,
            java: [
                jvm.client(url, options).await,
                jvm.client(url, options).await,
            ],
            url: url.into(),
            tagged: false,
        }
    }

    /// The same with these locks of ours.
    pub(crate) fn beside(self, locks: Locks) -> Self {
        Self { locks, ..self }
    }

    /// A name that no other test has.
    pub(crate) fn name(&self, what: &str) -> String {
        let name = unique(what);
        if self.tagged {
            format!("{{{name}}}:x")
        } else {
            name
        }
    }

    /// A connection to the server that has `key`.
    pub(crate) async fn raw(&self, key: &str) -> Raw {
        if self.is_cluster() {
            let cluster = cluster().await;
            let master = cluster.master_of(key).await;
            cluster.raw(master.expect("every slot has a master")).await
        } else {
            server().await.raw().await
        }
    }

    /// Number of tickets of ours in the line for `name`. A fair mutex has fences between them.
    pub(crate) async fn tickets(&self, name: &str) -> usize {
        let line = beside("leasehold_line", name);
        let mut raw = self.raw(name).await;
        let tickets = raw.cmd(&["ZRANGE", &line, "0", "-1"]).await;
        let is_ticket = |ticket: &&RawValue| !ticket.str().starts_with('#');
        tickets.array().iter().filter(is_ticket).count()
    }

    /// Whether it is a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        self.url.starts_with("redis-cluster:")
    }

    /// Whether names have a hash tag.
    pub(crate) const fn is_tagged(&self) -> bool {
        self.tagged
    }
}
