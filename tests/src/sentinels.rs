//! A master with replicas, and three sentinels that monitor them.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::network::{self, SENTINELS};
use crate::raw::{Raw, RawValue};
use crate::replicas::{Replicas, ReplicasBuilder};
use crate::server::{Server, ServerBuilder};
use crate::wait::{PROBE, until};

/// The name of the service.
const SERVICE: &str = "mymaster";

/// Much shorter than the default periods of one to ten seconds. Still shorter ones make the
/// sentinels compete in elections, and a lost vote costs seconds. Redis 6.2 does not know the
/// command and keeps the defaults.
const PERIODS: [&str; 12] = [
    "SENTINEL",
    "DEBUG",
    "INFO-PERIOD",
    "200",
    "PING-PERIOD",
    "100",
    "ASK-PERIOD",
    "100",
    "PUBLISH-PERIOD",
    "200",
    "ELECTION-TIMEOUT",
    "1000",
];

/// Default of `down-after-milliseconds`.
const DOWN_AFTER: Duration = Duration::from_millis(300);

/// Servers under sentinels; all of it stops when dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use leasehold_testkit::Sentinels;
///
/// let sentinels = Sentinels::start().await;
/// let first = sentinels.master().await.unwrap();
/// let second = sentinels.failover().await;
/// assert_ne!(first, second);
/// # }
/// ```
#[derive(Debug)]
pub struct Sentinels {
    sentinels: Vec<Server>,
    servers: Replicas,
    password: Option<String>,
    sentinel_password: Option<String>,
}

/// Options for [`Sentinels::builder`].
#[derive(Debug, Clone, Default)]
pub struct SentinelsBuilder {
    servers: ReplicasBuilder,
    down_after: Option<Duration>,
    password: Option<String>,
    sentinel_password: Option<String>,
    sentinel: ServerBuilder,
    tls: bool,
    isolable: bool,
}

impl SentinelsBuilder {
    /// Number of replicas; 2 by default.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.servers = self.servers.replicas(count);
        self
    }

    /// `down-after-milliseconds`: the time without a reply after which a sentinel considers a
    /// server down; 300 ms by default.
    #[must_use]
    pub fn down_after(mut self, time: Duration) -> Self {
        self.down_after = Some(time);
        self
    }

    /// Adds a line to every server's configuration, not to the sentinels'.
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.servers = self.servers.config(line);
        self
    }

    /// Adds a line to every sentinel's configuration.
    #[must_use]
    pub fn sentinel_config(mut self, line: impl Into<String>) -> Self {
        self.sentinel = self.sentinel.config(line);
        self
    }

    /// Lets a server be cut off from sentinels and the other servers, but not from clients: see
    /// [`isolate`](Replicas::isolate).
    #[must_use]
    pub fn isolable(mut self) -> Self {
        self.isolable = true;
        self.servers = self.servers.isolable();
        // Otherwise the others look for it at its source address.
        self.sentinel = self.sentinel.config("sentinel announce-ip 127.0.0.1");
        self
    }

    /// Servers and sentinels speak TLS, and name hosts rather than addresses: all are at
    /// `localhost`. Certificate and key are given by [`config`](Self::config) and
    /// [`sentinel_config`](Self::sentinel_config) lines.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self.servers = self.servers.tls();
        let names = [
            "sentinel resolve-hostnames yes",
            "sentinel announce-hostnames yes",
            "tls-replication yes",
        ];
        self.sentinel = names
            .into_iter()
            .fold(self.sentinel.tls(), ServerBuilder::config);
        self
    }

    /// The password of the servers.
    #[must_use]
    pub fn requirepass(mut self, password: &str) -> Self {
        self.servers = self.servers.requirepass(password);
        self.password = Some(password.into());
        self
    }

    /// The password of the sentinels.
    #[must_use]
    pub fn sentinel_requirepass(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.into());
        self
    }

    /// Starts everything and waits until every sentinel knows the replicas and the other sentinels:
    /// two seconds, which are the sentinels'.
    ///
    /// # Panics
    ///
    /// When something does not start or does not find the rest.
    pub async fn start(self) -> Sentinels {
        let servers = self.servers.start().await;
        let host = if self.tls { "localhost" } else { "127.0.0.1" };
        let down_after = self.down_after.unwrap_or(DOWN_AFTER);
        let mut sentinel = self
            .sentinel
            .sentinel()
            .config(format!(
                "sentinel monitor {SERVICE} {host} {} 2",
                servers.port(0)
            ))
            .config(format!(
                "sentinel down-after-milliseconds {SERVICE} {}",
                down_after.as_millis()
            ))
            .config(format!("sentinel failover-timeout {SERVICE} 1000"))
            .config(format!("sentinel parallel-syncs {SERVICE} 1"));
        if let Some(password) = &self.password {
            sentinel = sentinel.config(format!("sentinel auth-pass {SERVICE} {password}"));
        }
        if let Some(password) = &self.sentinel_password {
            sentinel = sentinel.requirepass(password);
        }
        let mut starting = JoinSet::new();
        for index in 0..SENTINELS {
            let mut sentinel = sentinel.clone();
            if self.isolable {
                sentinel = sentinel
                    .config(network::speak_from(network::sentinel(index), servers.node(0)).await);
            }
            starting.spawn(sentinel.start());
        }
        let sentinels = starting.join_all().await;
        for sentinel in &sentinels {
            let _ = sentinel.raw().await.cmd(&PERIODS).await;
        }
        let (password, sentinel_password) = (self.password, self.sentinel_password);
        let this = Sentinels {
            sentinels,
            servers,
            password,
            sentinel_password,
        };
        this.wait_until_ready().await;
        this
    }
}

impl Sentinels {
    /// A master, two replicas, three sentinels.
    ///
    /// # Panics
    ///
    /// As [`SentinelsBuilder::start`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// With options.
    #[must_use]
    pub fn builder() -> SentinelsBuilder {
        SentinelsBuilder::default()
    }

    /// `redis-sentinel://127.0.0.1:21003,…/mymaster`, with the passwords.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at("redis-sentinel", |sentinel| sentinel.addr().to_string())
    }

    /// `rediss-sentinel://host:21004,…/mymaster`, with the passwords.
    ///
    /// # Panics
    ///
    /// When the sentinels do not speak TLS.
    #[must_use]
    pub fn tls_url(&self, host: &str) -> String {
        self.url_at("rediss-sentinel", |sentinel| {
            format!("{host}:{}", sentinel.tls_port())
        })
    }

    fn url_at(&self, scheme: &str, place: impl Fn(&Server) -> String) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(place).collect();
        let login = self
            .password
            .as_ref()
            .map_or_else(String::new, |password| format!(":{password}@"));
        let query = self
            .sentinel_password
            .as_ref()
            .map_or_else(String::new, |password| {
                format!("?sentinel_password={password}")
            });
        format!("{scheme}://{login}{}/{SERVICE}{query}", hosts.join(","))
    }

    /// The name of the service.
    #[must_use]
    pub fn service(&self) -> &'static str {
        SERVICE
    }

    /// The servers, to freeze, kill and restart them: `servers().node(0)` is the master at the
    /// start.
    #[must_use]
    pub fn servers(&self) -> &Replicas {
        &self.servers
    }

    /// A server; as `servers().node(index)`.
    #[must_use]
    pub fn node(&self, index: usize) -> &Server {
        self.servers.node(index)
    }

    /// A sentinel, 0 to 2.
    #[must_use]
    pub fn sentinel(&self, index: usize) -> &Server {
        &self.sentinels[index]
    }

    /// Starts a sentinel again, with what it had learnt.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub async fn restart_sentinel(&self, index: usize) {
        self.sentinels[index].restart().await;
        let _ = self.sentinels[index].raw().await.cmd(&PERIODS).await;
    }

    /// The server that a sentinel names; `None` if it does not answer at once.
    ///
    /// # Panics
    ///
    /// When it names a server that is none of these.
    pub async fn named_by(&self, sentinel: usize) -> Option<usize> {
        if !self.sentinels[sentinel].is_awake() {
            return None;
        }
        let ask = async {
            let mut raw = self.sentinels[sentinel].try_raw().await.ok()?;
            raw.try_cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])
                .await
                .ok()
        };
        let Some(RawValue::Array(address)) = timeout(PROBE, ask).await.ok()? else {
            return None;
        };
        let port = u16::try_from(address.get(1)?.int()).expect("a port");
        Some(
            self.servers
                .index_of(port)
                .unwrap_or_else(|| panic!("sentinel {sentinel} names a stranger: {address:?}")),
        )
    }

    /// The server that most sentinels name and that calls itself a master.
    pub async fn master(&self) -> Option<usize> {
        let index = self.named().await?;
        (self.servers.role(index).await.as_deref() == Some("master")).then_some(index)
    }

    /// The server that most sentinels name.
    async fn named(&self) -> Option<usize> {
        let mut votes = vec![0; self.servers.len()];
        for sentinel in 0..self.sentinels.len() {
            if let Some(index) = self.named_by(sentinel).await {
                votes[index] += 1;
            }
        }
        votes
            .iter()
            .position(|votes| *votes > self.sentinels.len() / 2)
    }

    /// Makes the sentinels promote another server. Returns it, when most of them name it.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub async fn failover(&self) -> usize {
        let before = until("the sentinels name a master", async || {
            self.named().await.ok_or_else(|| "no majority".to_owned())
        })
        .await;
        until("the sentinels name another master", async || {
            // It may be too soon after the last one, no replica may be good enough yet, or a
            // failover that has begun may come to nothing; that takes it a while.
            let reply = self.sentinels[0]
                .raw()
                .await
                .cmd(&["SENTINEL", "FAILOVER", SERVICE])
                .await;
            for _ in 0..100 {
                match self.master().await {
                    Some(now) if now != before => return Ok(now),
                    _ => tokio::time::sleep(Duration::from_millis(30)).await,
                }
            }
            Err(format!("{reply:?}"))
        })
        .await
    }

    /// Waits until every sentinel knows the others and the replicas, these follow, and nothing is
    /// wrong with the master.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub async fn wait_until_ready(&self) {
        for index in 0..self.sentinels.len() {
            until("the sentinels find each other", async || {
                self.is_ready(index).await
            })
            .await;
        }
    }

    /// Waits until the master that the sentinels name takes writes. Returns it. The key that is
    /// written has a TTL.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub async fn wait_for_writable(&self) -> usize {
        until("the master takes writes", async || {
            let index = self.master().await.ok_or("no master")?;
            let mut raw: Raw = self.node(index).raw().await;
            match timeout(PROBE, raw.try_cmd(&["SET", "probe", "1", "PX", "10000"])).await {
                Ok(Ok(reply)) if reply.is_ok() => Ok(index),
                reply => Err(format!("{reply:?}")),
            }
        })
        .await
    }

    async fn is_ready(&self, sentinel: usize) -> Result<(), String> {
        let mut raw = self.sentinels[sentinel].raw().await;
        let state = raw.cmd(&["SENTINEL", "MASTER", SERVICE]).await;
        let count = |name: &str| state.get(name).map_or(0, RawValue::int);
        let others = i64::try_from(self.sentinels.len() - 1).expect("few");
        let replicas = i64::try_from(self.servers.len() - 1).expect("few");
        if (count("num-other-sentinels"), count("num-slaves")) != (others, replicas) {
            return Err(format!("sentinel {sentinel} says {state:?}"));
        }
        // A failover that has begun goes on although the master is back.
        if state
            .get("flags")
            .is_none_or(|flags| flags.str() != "master")
        {
            return Err(format!("sentinel {sentinel} says {state:?}"));
        }
        // Without a working link a replica is not chosen, and a failover would have to be tried
        // twice.
        let state = raw.cmd(&["SENTINEL", "REPLICAS", SERVICE]).await;
        let linked = |replica: &RawValue| {
            replica
                .get("master-link-status")
                .is_some_and(|status| status.str() == "ok")
        };
        if state.array().iter().all(linked) {
            Ok(())
        } else {
            Err(format!("sentinel {sentinel} says {state:?}"))
        }
    }
}
