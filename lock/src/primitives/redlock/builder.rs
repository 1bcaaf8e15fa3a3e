//! Settings of locks at several deployments.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_cluster::Target;
use leasehold_resp::AskServer;
#[cfg(feature = "tls")]
use leasehold_resp::tls::TlsConfig;

use super::Redlock;
use crate::engine::clock::Clock;
use crate::engine::redlock::{Config, Core};
use crate::engine::telemetry::{Observers, Telemetry};
use crate::error::{Error, ErrorKind};
use crate::observer::Observer;
use crate::options::Interop;
use crate::process::{Process, name_connections};
use crate::state::deadline::is_good_lease;
use crate::state::names::is_good_namespace;

/// The lease of locks that ask for none: shorter than elsewhere, since a node that was restarted is out for as long.
const DEFAULT_LEASE: Duration = Duration::from_secs(10);
/// The time-outs where none are set.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of a [`Redlock`], to be connected.
///
/// ```
/// # leasehold_testkit::example::with_three_urls(async |urls| {
/// use std::time::Duration;
/// use leasehold::{Interop, Redlock};
///
/// let red = Redlock::builder(urls)
///     .namespace("shop")
///     .lease(Duration::from_secs(1))
///     .restart_guard(Duration::from_secs(2)) // the longest lease that any process uses
///     .application("billing", "1.2") // the program's name by default
///     .metadata("job", "nightly report")
///     .interop(Interop::Off)
///     .connect_timeout(Duration::from_secs(2))
///     .command_timeout(Duration::from_secs(2))
///     .connect() // waits until the servers are older than that
///     .await?;
/// assert!(red.mutex("order:42").try_lock().await?.is_some());
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
#[must_use = "nothing is connected until `connect` is awaited"]
pub struct RedlockBuilder {
    urls: Vec<String>,
    config: Config,
    /// Name and version.
    application: Option<(String, String)>,
    metadata: BTreeMap<String, String>,
    observers: Vec<Arc<dyn Observer>>,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
    #[cfg(feature = "testing")]
    fake: Option<Arc<crate::testing::World>>,
}

impl RedlockBuilder {
    pub(super) const fn new(urls: Vec<String>) -> Self {
        Self {
            urls,
            config: Config {
                namespace: None,
                lease: DEFAULT_LEASE,
                longest_lease: Duration::ZERO,
                is_durable: false,
                interop: Interop::Off,
                connect_timeout: DEFAULT_TIMEOUT,
                command_timeout: DEFAULT_TIMEOUT,
            },
            application: None,
            metadata: BTreeMap::new(),
            observers: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(feature = "testing")]
            fake: None,
        }
    }

    /// Settings for locks at the nodes of a fake.
    #[cfg(feature = "testing")]
    pub(crate) fn of_fake(world: &Arc<crate::testing::World>) -> Self {
        let nodes = 0..world.nodes();
        let urls = nodes.map(|node| format!("redis://node-{node}"));
        Self {
            fake: Some(Arc::clone(world)),
            ..Self::new(urls.collect())
        }
    }

    /// A prefix of every name, followed by a colon at the nodes. It has no braces.
    pub fn namespace(mut self, namespace: impl AsRef<str>) -> Self {
        self.config.namespace = Some(Arc::from(namespace.as_ref()));
        self
    }

    /// The lease of locks that ask for none: 10 s by default, 10 ms to 365 days. It is renewed at a third of it. A node may take
    /// a twentieth of it for its answer.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// The longest lease that anybody uses at these nodes: a node that was started more recently grants nothing. By default the
    /// longest that was asked for here.
    pub fn restart_guard(mut self, longest_lease: Duration) -> Self {
        self.config.longest_lease = longest_lease;
        self
    }

    /// Trusts nodes that were restarted: each of them has every lock that it ever confirmed, as with `appendfsync always` and
    /// no failover to a replica.
    ///
    /// ```
    /// # leasehold_testkit::example::with_three_urls(async |urls| {
    /// # use leasehold::Redlock;
    /// let red = Redlock::builder(urls).durable().connect().await?; // waits for nothing
    /// assert!(red.mutex("order:42").try_lock().await?.is_some());
    /// # Ok(())
    /// # });
    /// ```
    pub fn durable(mut self) -> Self {
        self.config.is_durable = true;
        self
    }

    /// The name and version of this application, which others see who ask for the [process](Redlock::process_of) of a holder:
    /// the name 1 to 256 bytes, the version at most 256. By default the name of the program, and no version.
    pub fn application(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        self.application = Some((name.into(), version.into()));
        self
    }

    /// What others see besides who ask for the [process](Redlock::process_of) of a holder, such as a job and its run: see
    /// [`LocksBuilder::metadata`](crate::LocksBuilder::metadata).
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Other libraries that use the same locks; none by default.
    pub fn interop(mut self, interop: Interop) -> Self {
        self.config.interop = interop;
        self
    }

    /// TLS configuration for URLs with TLS: trusted roots and client certificate. By default the certificates of the system
    /// are trusted.
    ///
    /// ```
    /// # leasehold_testkit::example::with_tls(async |url, authority| {
    /// use leasehold::{Redlock, TlsConfig};
    ///
    /// let config = TlsConfig::trusting(authority.as_bytes())?; // PEM: the private authority, and no other
    /// let red = Redlock::builder([url]).tls(config).durable().connect().await?; // "rediss://a", …
    /// # assert!(red.mutex("order:42").try_lock().await?.is_some());
    /// # Ok(())
    /// # });
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: TlsConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// For how long no majority may be reached before a wait ends with an error, and how long a release is waited for: 5 s by
    /// default.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.config.command_timeout = timeout;
        self
    }

    /// How long connecting to a node may take, the handshake included: 5 s by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// Tells `observer` what happens to these locks: see [`Observer`]. Called again, it adds another one; they are told in this
    /// order.
    ///
    /// ```
    /// # leasehold_testkit::example::with_three_urls(async |urls| {
    /// use leasehold::Redlock;
    /// use leasehold::observer::{LeaseLost, Observer};
    ///
    /// struct Alarm;
    ///
    /// impl Observer for Alarm {
    ///     fn lost(&self, lost: &LeaseLost<'_>) {
    ///         eprintln!("{} was lost: {}", lost.key, lost.reason);
    ///     }
    /// }
    ///
    /// let red = Redlock::builder(urls).durable().observer(Alarm).connect().await?;
    /// # assert!(red.mutex("order:42").try_lock().await?.is_some());
    /// # Ok(())
    /// # });
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Connects: to a majority at least, and to the others when they can be reached. Where a majority of the nodes is too young
    /// to grant anything it waits until they are old enough.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for settings that cannot be used, and where two of the nodes are the same server or a master and
    /// its replica; [`ErrorKind::Unavailable`], [`ErrorKind::Denied`] or [`ErrorKind::Protocol`] if no majority can be
    /// connected to.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes all connections.
    pub async fn connect(self) -> Result<Redlock, Error> {
        let telemetry = Telemetry::new(Observers::new(&self.observers), 0, self.clock());
        let process = Process::called(self.application.clone(), &self.metadata)?;
        let (targets, config) = self.settled()?;
        let core = Core::connect(targets, config, process, telemetry).await?;
        Ok(Redlock { core })
    }

    fn clock(&self) -> Clock {
        #[cfg(feature = "testing")]
        if let Some(world) = &self.fake {
            return Clock::of_fake(Arc::clone(world));
        }
        Clock::new()
    }

    /// The targets and the settings, if all of them can be used.
    fn settled(self) -> Result<(Vec<Target>, Config), Error> {
        let config = self.config;
        let bad = |kind, detail: &str| Err(Error::new(kind, detail));
        if self.urls.is_empty() {
            return bad(
                ErrorKind::Config,
                "the list of URLs is empty: name several independent deployments",
            );
        }
        if config
            .namespace
            .as_deref()
            .is_some_and(|namespace| !is_good_namespace(namespace))
        {
            return bad(
                ErrorKind::BadName,
                "a namespace is not empty, has no braces and at most 2 KiB",
            );
        }
        if !is_good_lease(config.lease) {
            return Err(Error::bad_lease("the lease"));
        }
        if !config.longest_lease.is_zero() && !is_good_lease(config.longest_lease) {
            return Err(Error::bad_lease("the longest lease of the restart guard"));
        }
        let times = Duration::from_millis(1)..=Duration::from_secs(3600);
        if ![config.connect_timeout, config.command_timeout]
            .iter()
            .all(|time| times.contains(time))
        {
            return bad(ErrorKind::Config, "a timeout must be 1 ms to 1 hour");
        }
        let mut targets = Vec::new();
        for url in &self.urls {
            let mut target = Target::parse(url).map_err(Error::from_client)?;
            for endpoint in target.endpoints_mut() {
                endpoint.connect_timeout = config.connect_timeout;
                endpoint.command_timeout = config.command_timeout;
                #[cfg(feature = "tls")]
                endpoint.tls_config.clone_from(&self.tls);
            }
            for server in target.servers_mut() {
                server.ask_server = AskServer::Required;
            }
            name_connections(&mut target);
            targets.push(target);
        }
        #[cfg(feature = "testing")]
        if let Some(world) = &self.fake {
            world.connect_nodes(&mut targets);
        }
        Ok((targets, config))
    }
}

/// Without the URLs, which may have passwords.
impl fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockBuilder")
            .field("nodes", &self.urls.len())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
