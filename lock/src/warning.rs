//! Settings of servers that locks should not be used with.

use std::fmt;
use std::time::{Duration, Instant};

use leasehold_cluster::Client;
use leasehold_resp::{Command, Value};

/// Upper bound on what asking for settings adds to a connect.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Masters of a cluster that are asked: they are mostly set up alike, and each takes a connection.
const MASTERS: usize = 3;

/// A setting of a server with which locks promise less than they should. See [`Locks::warnings`](crate::Locks::warnings).
///
/// Its text names the server, what is wrong there, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The server evicts keys that expire when its memory is full. Locks are such keys: one that is evicted is granted to
    /// somebody else.
    #[non_exhaustive]
    Eviction {
        /// The server, `host:port` or the path of a socket.
        node: String,
        /// Its `maxmemory-policy`.
        policy: String,
    },
}

impl Warning {
    /// The server, `host:port` or the path of a socket.
    #[must_use]
    pub fn node(&self) -> &str {
        match self {
            Self::Eviction { node, .. } => node,
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eviction { node, policy } => write!(
                f,
                "{node} evicts locks when its memory is full (`maxmemory-policy {policy}`): set it to `noeviction`, or keep \
                 locks on a server without a cache"
            ),
        }
    }
}

/// Asks the servers for settings, where that is permitted.
pub(crate) async fn of_servers(client: &Client) -> Vec<Warning> {
    let deadline = Instant::now() + client.command_timeout().min(TIMEOUT);
    let info = Command::new("INFO").arg("memory");
    let answers = client.ask_masters(&info, MASTERS, deadline).await;
    let warning = |(node, answer): (_, Result<Value, _>)| eviction(node, &answer.ok()?);
    answers.into_iter().filter_map(warning).collect()
}

/// The warning of the server `node`, if one is due for what it says of its memory.
fn eviction(node: impl AsRef<str>, info: &Value) -> Option<Warning> {
    let mut lines = info.as_str()?.lines();
    let policy = lines.find_map(|line| line.strip_prefix("maxmemory_policy:"))?;
    let evicts = policy.starts_with("volatile-") || policy.starts_with("allkeys-");
    evicts.then(|| Warning::Eviction {
        node: node.as_ref().to_owned(),
        policy: policy.to_owned(),
    })
}
