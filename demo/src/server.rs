//! The servers that the demo runs against, and their statistics.

use std::panic;
use std::rc::Rc;

use leasehold_resp::{Command, Connection, Endpoint};
use leasehold_testkit::{Cluster, Server};

use crate::{Failure, Mode};

/// Commands that clients send themselves. The server's counters do not distinguish them from
/// commands of scripts, so those that only the scripts use are left out by name.
const SENT: [&str; 8] = [
    "evalsha",
    "eval",
    "subscribe",
    "unsubscribe",
    "ssubscribe",
    "sunsubscribe",
    "ping",
    "hello",
];

/// A server, private or the user's, or a cluster.
pub(crate) struct Target {
    pub(crate) url: String,
    /// A connection to the server, or to one of the cluster's nodes.
    connection: Connection,
    pub(crate) private: Private,
}

/// Servers that were started for the demo, and stop when dropped.
pub(crate) enum Private {
    /// The user's server is used.
    None,
    #[expect(dead_code, reason = "kept for its end")]
    Server(Server),
    /// Shared with the faults that are injected while the demo runs.
    Cluster(Rc<Cluster>),
}

impl Target {
    /// The server at `LEASEHOLD_URL`, or else one of our own; a cluster is always our own, for its
    /// nodes are killed.
    pub(crate) async fn find(mode: Mode) -> Result<Self, Failure> {
        let (url, member, private) = match std::env::var("LEASEHOLD_URL") {
            _ if mode == Mode::Cluster => {
                // Only to check that servers can be started: an error is then reported once, not
                // six times.
                private().await?.stop();
                // Otherwise the slots of the other masters would not be served either until the
                // failover is over.
                let cluster = Cluster::builder()
                    .config("cluster-require-full-coverage no")
                    .start()
                    .await;
                let member = cluster.node(0).url();
                (cluster.url(), member, Private::Cluster(Rc::new(cluster)))
            }
            Ok(url) if !url.is_empty() => (url.clone(), url, Private::None),
            _ => {
                let server = private().await?;
                (server.url(), server.url(), Private::Server(server))
            }
        };
        let connection = Connection::connect(Endpoint::parse(&member)?).await?;
        Ok(Self {
            url,
            connection,
            private,
        })
    }

    /// Name and version.
    pub(crate) async fn describe(&self) -> Result<String, Failure> {
        let info = self.info("server").await?;
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        let server = match (field("valkey_version"), field("redis_version")) {
            (Some(version), _) => format!("valkey {version}"),
            (None, Some(version)) => format!("redis {version}"),
            (None, None) => "a server of unknown version".to_owned(),
        };
        Ok(match &self.private {
            Private::Cluster(cluster) => {
                format!("a cluster of {} masters, {server}", cluster.masters())
            }
            Private::None | Private::Server(_) => server,
        })
    }

    /// Number of commands that clients have sent so far, without commands of scripts.
    pub(crate) async fn commands(&self) -> Result<u64, Failure> {
        // cmdstat_evalsha:calls=7,usec=61,…
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            if SENT.contains(&name) {
                rest.split(',').next()?.parse::<u64>().ok()
            } else {
                None
            }
        };
        Ok(self
            .info("commandstats")
            .await?
            .lines()
            .filter_map(calls)
            .sum())
    }

    async fn info(&self, section: &str) -> Result<String, Failure> {
        let reply = self
            .connection
            .send(&Command::new("INFO").arg(section))
            .await?;
        Ok(reply.as_str().unwrap_or_default().to_owned())
    }
}

/// Starts a server of our own. The test kit panics when it cannot, as a test should; here that is
/// an ordinary failure, reported in one line.
async fn private() -> Result<Server, Failure> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let started = tokio::task::spawn_blocking(|| Server::builder().start_blocking()).await;
    panic::set_hook(hook);
    started.map_err(|error| {
        let message = error
            .try_into_panic()
            .ok()
            .and_then(|panic| panic.downcast::<String>().ok());
        message.map_or_else(
            || "no server could be started".into(),
            |message| (*message).into(),
        )
    })
}
