//! Settings of servers that locks should not be used with.

use std::fmt;
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, FailureDetection};
use leasehold_resp::{Command, Value};

/// Upper bound on what asking for settings adds to a connect.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Masters of a cluster that are asked: they are mostly set up alike, and each takes a connection.
const MASTERS: usize = 3;

/// Time from the detection of a failure until what it kept waiting goes on.
const ELECTION: Duration = Duration::from_secs(2);

/// A setting of a server with which locks promise less than they should. See [`Locks::warnings`](crate::Locks::warnings).
///
/// Its text names the server, what is wrong there, and what to do.
///
/// ```
/// # leasehold_testkit::example::with_url(async |url| {
/// # let mut raw = leasehold_testkit::Raw::connect(&url["redis://".len()..]).await?;
/// # raw.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
/// use leasehold::{Locks, Warning};
///
/// let locks = Locks::connect(url).await?; // of a server that evicts
/// for warning in locks.warnings() {
///     eprintln!("at {}: {warning}", warning.node());
/// }
/// assert!(matches!(locks.warnings(), [Warning::Eviction { .. }]));
/// # Ok(())
/// # });
/// ```
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
    /// A replica that fails is held to be down only when most of a lease has passed: until then no lock that replicas
    /// confirm is granted or renewed, so those that are held are lost.
    #[non_exhaustive]
    SlowDetection {
        /// The server, `host:port`.
        node: String,
        /// The setting: `down-after-milliseconds` of the sentinels, or `cluster-node-timeout`.
        setting: &'static str,
        /// Its value.
        value: Duration,
        /// The lease of locks that ask for none.
        lease: Duration,
    },
}

impl Warning {
    /// The server, `host:port` or the path of a socket.
    #[must_use]
    pub fn node(&self) -> &str {
        match self {
            Self::Eviction { node, .. } | Self::SlowDetection { node, .. } => node,
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
            Self::SlowDetection {
                node,
                setting,
                value,
                lease,
            } => write!(
                f,
                "{node} is told too late that a replica failed (`{setting}` is {} ms): locks with a lease of {lease:?} that \
                 replicas confirm are lost meanwhile; use a longer lease or a smaller value",
                value.as_millis()
            ),
        }
    }
}

/// Asks the servers for settings, where that is permitted; `confirmed_lease` is the lease of locks that replicas confirm,
/// if those that ask for nothing are such locks.
pub(crate) async fn of_servers(client: &Client, confirmed_lease: Option<Duration>) -> Vec<Warning> {
    let deadline = Instant::now() + client.command_timeout().min(TIMEOUT);
    let mut warnings = of_memory(client, deadline).await;
    if let Some(lease) = confirmed_lease {
        let detection = client.failure_detection(deadline);
        let detection = tokio::time::timeout_at(deadline.into(), detection).await;
        warnings.extend(
            detection
                .ok()
                .flatten()
                .and_then(|it| slow_detection(it, lease)),
        );
    }
    warnings
}

/// The warning that is due if failures are detected like this, for locks with `lease`.
fn slow_detection(detection: FailureDetection, lease: Duration) -> Option<Warning> {
    // Renewals begin at a third of the lease, and go on once the replica is known to be down.
    let fits = detection.time + ELECTION < lease * 3 / 5;
    (!fits).then(|| Warning::SlowDetection {
        node: detection.node.to_string(),
        setting: detection.setting,
        value: detection.value,
        lease,
    })
}

async fn of_memory(client: &Client, deadline: Instant) -> Vec<Warning> {
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
