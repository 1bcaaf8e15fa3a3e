//! The settings of [`Locks`], and connecting with them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_cluster::{Client, Target};
#[cfg(feature = "tls")]
use leasehold_resp::tls::TlsConfig;

use super::Locks;
use crate::engine::clock::Clock;
use crate::engine::context::Config;
use crate::engine::telemetry::{Observers, Telemetry};
use crate::error::{Error, ErrorKind};
use crate::observer::Observer;
use crate::options::{Interop, Replicas};
use crate::process::{Process, name_connections};
use crate::state::deadline::is_good_lease;
use crate::state::names::is_good_namespace;
use crate::warning;

/// The lease of locks that ask for none.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// Settings of a [`Locks`], to be connected.
///
/// ```
/// # leasehold_testkit::example::with_url(async |url| {
/// use std::time::Duration;
/// use leasehold::{Interop, Locks, Replicas};
///
/// let locks = Locks::builder(url)
///     .namespace("shop") // keys begin with `shop:`
///     .lease(Duration::from_secs(10)) // 30 s by default
///     .connect_timeout(Duration::from_secs(2)) // 5 s by default
///     .command_timeout(Duration::from_secs(2)) // 5 s by default
///     .interop(Interop::Off)
///     .replicated(Replicas::None)
///     .restart_guard(Duration::from_secs(10)) // off by default
///     .connect()
///     .await?;
/// assert_eq!(locks.mutex("order:42").key(), "shop:order:42");
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
#[must_use = "nothing is connected until `connect` is awaited"]
pub struct LocksBuilder {
    url: String,
    config: Config,
    /// Name and version.
    application: Option<(String, String)>,
    metadata: BTreeMap<String, String>,
    /// Whether channels of a cluster are those of all its nodes, also where there are sharded ones.
    plain_channels: bool,
    connect_timeout: Option<Duration>,
    command_timeout: Option<Duration>,
    observers: Vec<Arc<dyn Observer>>,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
    #[cfg(feature = "testing")]
    fake: Option<crate::testing::Link>,
}

/// Settings that can be used.
pub(super) struct Settings {
    pub(super) target: Target,
    pub(super) config: Config,
    pub(super) process: Process,
    pub(super) clock: Clock,
}

impl LocksBuilder {
    pub(crate) const fn new(url: String) -> Self {
        let config = Config {
            namespace: None,
            lease: DEFAULT_LEASE,
            interop: Interop::Off,
            replicas: Replicas::None,
            restart_grace: None,
            command_timeout: Duration::ZERO,
        };
        Self {
            url,
            config,
            application: None,
            metadata: BTreeMap::new(),
            plain_channels: false,
            connect_timeout: None,
            command_timeout: None,
            observers: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(feature = "testing")]
            fake: None,
        }
    }

    /// Settings for locks of a fake.
    #[cfg(feature = "testing")]
    pub(crate) fn of_fake(fake: crate::testing::Link) -> Self {
        Self {
            fake: Some(fake),
            ..Self::new("redis://fake".into())
        }
    }

    /// A prefix of every name, followed by a colon on the server. It keeps locks apart from other data, and one service's
    /// from another's. It has no braces.
    ///
    /// ```
    /// # leasehold_testkit::example::with_url(async |url| {
    /// let shop = leasehold::Locks::builder(url).namespace("shop").connect().await?;
    /// assert_eq!(shop.mutex("order:42").key(), "shop:order:42");
    /// # Ok(())
    /// # });
    /// ```
    pub fn namespace(mut self, namespace: impl AsRef<str>) -> Self {
        self.config.namespace = Some(Arc::from(namespace.as_ref()));
        self
    }

    /// The lease of locks that ask for none: 30 s by default, 10 ms to 365 days. It is renewed at a third of it, and is the
    /// time others wait for a lock whose holder died.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// The name and version of this application, which others see who ask for the [process](Locks::process_of) of a holder:
    /// the name 1 to 256 bytes, the version at most 256. By default the name of the program, and no version.
    ///
    /// ```
    /// # leasehold_testkit::example::with_url(async |url| {
    /// let locks = leasehold::Locks::builder(url)
    ///     .application("billing", "1.2") // or env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")
    ///     .connect()
    ///     .await?;
    /// # assert!(locks.mutex("order:42").try_lock().await?.is_some());
    /// # Ok(())
    /// # });
    /// ```
    pub fn application(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        self.application = Some((name.into(), version.into()));
        self
    }

    /// What others see besides who ask for the [process](Locks::process_of) of a holder, such as a job and its run. Called
    /// again, it adds another one, or replaces the value of the same name.
    ///
    /// At most 16, with names of 1 to 64 bytes and values of at most 256; without control characters, and names without `=`.
    /// Everybody can read it who may use the locks: nothing secret belongs here.
    ///
    /// ```
    /// # leasehold_testkit::example::with_url(async |url| {
    /// let locks = leasehold::Locks::builder(url)
    ///     .metadata("job", "nightly report")
    ///     .metadata("run", "4711")
    ///     .connect()
    ///     .await?;
    /// let _guard = locks.mutex("order:42").lock().await?;
    /// # while locks.process_of(locks.client_id()).await?.is_none() {} // written behind the answer to the first lock
    /// let holder = locks.mutex("order:42").holder().await?.expect("it is held");
    /// let process = locks.process_of(holder.client()).await?.expect("it is known");
    /// assert_eq!(process.metadata()["job"], "nightly report");
    /// # Ok(())
    /// # });
    /// ```
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Other libraries that use the same locks; none by default.
    pub fn interop(mut self, interop: Interop) -> Self {
        self.config.interop = interop;
        self
    }

    /// Publishes and subscribes in the whole cluster also where the servers have sharded channels, as Redisson does with
    /// `shardedSubscriptionMode` OFF. Off by default. Every process that uses these locks has to do the same: what one says is not
    /// heard by the others otherwise, and they find a lock free by a look.
    ///
    /// ```
    /// # leasehold_testkit::example::with_cluster(async |url| {
    /// let locks = leasehold::Locks::builder(url).plain_channels().connect().await?;
    /// # assert!(locks.mutex("order:42").try_lock().await?.is_some());
    /// # Ok(())
    /// # });
    /// ```
    pub fn plain_channels(mut self) -> Self {
        self.plain_channels = true;
        self
    }

    /// Which replicas must confirm a lock before it counts; none by default. A lock can ask for others, see
    /// [`Acquire::replicated`](crate::Acquire::replicated).
    pub fn replicated(mut self, replicas: Replicas) -> Self {
        self.config.replicas = replicas;
        self
    }

    /// Grants nothing on a server that was started less than `longest_lease` ago; off by default.
    ///
    /// A server that was restarted has forgotten its locks, while their holders go on trusting their leases. Give the
    /// longest lease that is used there. Until it has passed a lock counts as held: waiters wait, `try_lock` says
    /// `None`. The user needs the right to call `INFO`.
    ///
    /// ```
    /// # leasehold_testkit::example::with_url(async |url| {
    /// # use std::time::Duration;
    /// # use leasehold::Locks;
    /// let minute = Duration::from_secs(60);
    /// let locks = Locks::builder(url).restart_guard(minute).connect().await?;
    /// // The server has just been started:
    /// assert!(locks.mutex("order:42").try_lock().await?.is_none());
    /// # Ok(())
    /// # });
    /// ```
    pub fn restart_guard(mut self, longest_lease: Duration) -> Self {
        self.config.restart_grace = Some(longest_lease);
        self
    }

    /// TLS configuration for URLs with TLS: trusted roots and client certificate. By default the certificates of the system
    /// are trusted.
    ///
    /// ```
    /// # leasehold_testkit::example::with_tls(async |url, authority| {
    /// use leasehold::{Locks, TlsConfig};
    ///
    /// let config = TlsConfig::trusting(authority.as_bytes())?; // PEM: the private authority, and no other
    /// let locks = Locks::builder(url).tls(config).connect().await?; // "rediss://locks.internal:6379"
    /// # assert!(locks.mutex("order:42").try_lock().await?.is_some());
    /// # Ok(())
    /// # });
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: TlsConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// How long the server may take for one answer, 5 s by default, with redirects and a failover.
    ///
    /// That includes the time for which it is away, also while the system says that no server listens there: so does one that is
    /// restarted, and who calls meanwhile is not to notice. Only a single server that has refused connections for a whole
    /// command timeout is waited for no longer: calls fail at once then, until it is back. [`Locks::ping`] fails at once wherever
    /// connections are refused.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = Some(timeout);
        self
    }

    /// How long connecting may take, the handshake included.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Tells `observer` what happens to these locks: see [`Observer`]. Called again, it adds another one; they are told in this
    /// order.
    ///
    /// ```
    /// # leasehold_testkit::example::with_url(async |url| {
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use leasehold::observer::{Granted, Observer};
    ///
    /// #[derive(Clone, Default)]
    /// struct Grants(Arc<AtomicU64>);
    ///
    /// impl Observer for Grants {
    ///     fn granted(&self, _: &Granted<'_>) {
    ///         self.0.fetch_add(1, Ordering::Relaxed);
    ///     }
    /// }
    ///
    /// let grants = Grants::default();
    /// let locks = leasehold::Locks::builder(url).observer(grants.clone()).connect().await?;
    /// locks.mutex("order:42").lock().await?.release().await?;
    /// assert_eq!(grants.0.load(Ordering::Relaxed), 1);
    /// # Ok(())
    /// # });
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`], [`ErrorKind::BadName`] or [`ErrorKind::BadLease`] for settings that cannot be used;
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Denied`] or [`ErrorKind::Protocol`] if the server cannot.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes the connection.
    pub async fn connect(self) -> Result<Locks, Error> {
        let (settings, telemetry) = self.prepared()?;
        let client = Client::connect_monitored(settings.target.clone(), telemetry.monitor())
            .await
            .map_err(Error::from_read)?;
        let config = &settings.config;
        let confirmed = config.replicas.quorum().map(|_| config.lease);
        let warnings = warning::of_servers(&client, confirmed).await;
        Ok(Locks::over(client, settings, telemetry, warnings))
    }

    /// Locks that connect when they are first used; see [`Locks::connect_lazy`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`], [`ErrorKind::BadName`] or [`ErrorKind::BadLease`] for settings that cannot be used.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379")
    ///     .lease(Duration::from_secs(10))
    ///     .connect_lazy()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_lazy(self) -> Result<Locks, Error> {
        let (settings, telemetry) = self.prepared()?;
        let client = Client::lazy_monitored(settings.target.clone(), telemetry.monitor());
        Ok(Locks::over(client, settings, telemetry, Vec::new()))
    }

    fn prepared(self) -> Result<(Settings, Arc<Telemetry>), Error> {
        let observers = Observers::new(&self.observers);
        let mut settings = self.settled()?;
        let endpoints = settings.target.endpoints_mut();
        let database = endpoints.first().map_or(0, |endpoint| endpoint.database);
        let telemetry = Telemetry::new(observers, database, settings.clock.clone());
        Ok((settings, telemetry))
    }

    /// The settings, if all of them can be used.
    fn settled(self) -> Result<Settings, Error> {
        #[cfg(feature = "testing")]
        let fake = self.fake.clone();
        let Self {
            url,
            mut config,
            application,
            metadata,
            plain_channels,
            connect_timeout,
            command_timeout,
            ..
        } = self;
        if config
            .namespace
            .as_deref()
            .is_some_and(|namespace| !is_good_namespace(namespace))
        {
            return Err(Error::new(
                ErrorKind::BadName,
                "a namespace is not empty, has no braces and at most 2 KiB",
            ));
        }
        if !is_good_lease(config.lease) {
            return Err(Error::bad_lease("the lease"));
        }
        if config
            .restart_grace
            .is_some_and(|longest| !is_good_lease(longest))
        {
            return Err(Error::bad_lease("the longest lease of the restart guard"));
        }
        let mut target = Target::parse(&url).map_err(Error::from_client)?;
        if plain_channels {
            target.use_plain_channels();
        }
        for endpoint in target.endpoints_mut() {
            endpoint.connect_timeout =
                timeout("connect", connect_timeout, endpoint.connect_timeout)?;
            endpoint.command_timeout =
                timeout("command", command_timeout, endpoint.command_timeout)?;
            config.command_timeout = endpoint.command_timeout;
            #[cfg(feature = "tls")]
            endpoint.tls_config.clone_from(&self.tls);
        }
        if config.restart_grace.is_some() {
            target
                .servers_mut()
                .into_iter()
                .for_each(|server| server.ask_server = leasehold_resp::AskServer::Required);
        }
        name_connections(&mut target);
        let process = Process::called(application, &metadata)?;
        #[cfg(feature = "testing")]
        let clock = crate::testing::connect_to(fake, &mut target);
        #[cfg(not(feature = "testing"))]
        let clock = Clock::new();
        Ok(Settings {
            target,
            config,
            process,
            clock,
        })
    }
}

/// Without the URL, which may have a password.
impl fmt::Debug for LocksBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocksBuilder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The timeout that was asked for, if it can be used.
fn timeout(what: &str, asked: Option<Duration>, default: Duration) -> Result<Duration, Error> {
    let bounds = Duration::from_millis(1)..=Duration::from_secs(3600);
    let timeout = asked.unwrap_or(default);
    if bounds.contains(&timeout) {
        return Ok(timeout);
    }
    Err(Error::new(
        ErrorKind::Config,
        format!("the {what} timeout must be 1 ms to 1 hour"),
    ))
}
