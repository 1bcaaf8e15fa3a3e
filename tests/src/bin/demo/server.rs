//! The server that the demo runs against, and what it counts itself.

use std::panic;

use leasehold_resp::{Command, Connection, Endpoint};
use leasehold_testkit::server::Server;

use crate::Failure;

/// What a client sends by itself. The counters of the server make no difference between these and what scripts call,
/// so the commands that only the scripts use are left out by name.
const SENT: [&str; 8] = ["evalsha", "eval", "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "ping", "hello"];

/// A server, private or the user's.
pub(crate) struct Target {
    pub(crate) url: String,
    connection: Connection,
    /// Stopped when dropped.
    _private: Option<Server>,
}

impl Target {
    /// The server at `LEASEHOLD_URL`, or else one of our own.
    pub(crate) async fn find() -> Result<Self, Failure> {
        let (url, private) = match std::env::var("LEASEHOLD_URL") {
            Ok(url) if !url.is_empty() => (url, None),
            _ => {
                let server = private().await?;
                (server.url(), Some(server))
            }
        };
        let connection = Connection::connect(Endpoint::parse(&url)?).await?;
        Ok(Self { url, connection, _private: private })
    }

    /// Name and version.
    pub(crate) async fn describe(&self) -> Result<String, Failure> {
        let info = self.info("server").await?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(match (field("valkey_version"), field("redis_version")) {
            (Some(version), _) => format!("valkey {version}"),
            (None, Some(version)) => format!("redis {version}"),
            (None, None) => "a server of unknown version".to_owned(),
        })
    }

    /// How many commands clients have sent so far: commands of scripts do not count.
    pub(crate) async fn commands(&self) -> Result<u64, Failure> {
        // cmdstat_evalsha:calls=7,usec=61,…
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            if SENT.contains(&name) { rest.split(',').next()?.parse::<u64>().ok() } else { None }
        };
        Ok(self.info("commandstats").await?.lines().filter_map(calls).sum())
    }

    async fn info(&self, section: &str) -> Result<String, Failure> {
        let reply = self.connection.send(&Command::new("INFO").arg(section)).await?;
        Ok(reply.as_str().unwrap_or_default().to_owned())
    }
}

/// Starts a server of our own. The test kit panics when it cannot, as a test should; here that is an ordinary failure,
/// to be told in one line.
async fn private() -> Result<Server, Failure> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let started = tokio::task::spawn_blocking(|| Server::builder().start_blocking()).await;
    panic::set_hook(hook);
    started.map_err(|error| {
        let message = error.try_into_panic().ok().and_then(|panic| panic.downcast::<String>().ok());
        message.map_or_else(|| "no server could be started".into(), |message| (*message).into())
    })
}
