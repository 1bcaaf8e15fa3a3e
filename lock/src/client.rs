//! The entry: a connection to the server, and the locks on it.

mod builder;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_cluster::Client;

pub use self::builder::LocksBuilder;
use self::builder::Settings;
use crate::engine::context::Context;
use crate::engine::grants;
use crate::engine::handle::Handle;
use crate::engine::presence::Presence;
use crate::engine::registry::Registry;
use crate::engine::release;
use crate::engine::renewal::worker;
use crate::engine::telemetry::Telemetry;
use crate::error::{Error, ErrorKind};
use crate::owner::Owner;
use crate::primitives::barrier::Barrier;
use crate::primitives::election::Election;
use crate::primitives::fair_mutex::FairMutex;
use crate::primitives::latch::Latch;
use crate::primitives::multi::Multi;
use crate::primitives::mutex::Mutex;
use crate::primitives::plain_mutex::PlainMutex;
use crate::primitives::rw_lock::RwLock;
use crate::primitives::semaphore::Semaphore;
use crate::process::Process;
use crate::protocol::process;
use crate::state::id::ClientId;
use crate::stats::Stats;
use crate::warning::Warning;

/// The locks of one server. Clones share everything; the connection ends with the last of them and of their guards.
///
/// ```
/// # leasehold_testkit::example::with_url(async |url| {
/// let locks = leasehold::Locks::connect(url).await?; // once in a program
///
/// // Handles do no I/O: make them where they are used.
/// let order = locks.mutex("order:42");
/// let printer = locks.fair_mutex("printer");
/// let prices = locks.rw_lock("prices");
/// let transfer = locks.multi(["account:7", "account:12"]);
/// let connections = locks.semaphore("fragile:connections", 5);
/// let pages = locks.latch("pages");
/// let step = locks.barrier("step", 3);
/// let report = locks.plain_mutex("report"); // shared with redis-py
/// let nested = locks.owner().mutex("order:42");
///
/// let guard = order.lock().await?;
/// println!("{} has `{}`, with token {}", locks.client_id(), guard.key(), guard.token());
/// drop(guard);
/// locks.shutdown().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct Locks {
    context: Arc<Handle>,
    warnings: Arc<[Warning]>,
}

impl Locks {
    /// Connects to the server at `url` with default settings.
    ///
    /// ```
    /// # leasehold_testkit::example::with_url(async |url| {
    /// let locks = leasehold::Locks::connect(url).await?; // "redis://127.0.0.1:6379"
    /// # assert!(locks.mutex("order:42").try_lock().await?.is_some());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`LocksBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes the connection.
    pub async fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Locks at `url` that connect when they are first used. Does no I/O, and needs no runtime.
    ///
    /// The first use fails like [`connect`](Self::connect) where that would: at once if nothing listens there. Later ones try
    /// again until one has connected; from then on these are the same as locks that were connected, and sit out a restart.
    /// [`warnings`](Self::warnings) has none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a URL that cannot be used.
    ///
    /// ```
    /// use leasehold::{ErrorKind, Locks};
    ///
    /// let locks = Locks::connect_lazy("redis://127.0.0.1:6379")?;
    /// let orders = locks.mutex("orders"); // nothing was sent yet
    ///
    /// let typo = Locks::connect_lazy("reids://127.0.0.1:6379").unwrap_err();
    /// assert_eq!(typo.kind(), ErrorKind::Config);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_lazy(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url).connect_lazy()
    }

    /// Settings for what `url` points at:
    ///
    /// - a server: `redis://[user:password@]host[:port][/database]`, `unix:///path`
    /// - a cluster, by some of its nodes: `redis-cluster://[user:password@]host[:port],host[:port]`
    /// - the master of a service, by its sentinels: `redis-sentinel://[user:password@]host[:port],host[:port]/service`,
    ///   with `?sentinel_user=…&sentinel_password=…` if the sentinels require them
    ///
    /// and the same with TLS, which needs the feature `tls`: `rediss://`, `rediss-cluster://`, `rediss-sentinel://`.
    ///
    /// `CLIENT LIST` shows the connections as `leasehold:<host>:<pid>`, unless the URL ends in `?client_name=…`; those for
    /// renewals have `:renewal` behind the name.
    ///
    /// ```
    /// # leasehold_testkit::example::with_url(async |url| {
    /// # use leasehold::Locks;
    /// let locks = Locks::builder(url).namespace("shop").connect().await?;
    /// # assert_eq!(locks.mutex("order:42").key(), "shop:order:42");
    /// # Ok(())
    /// # });
    /// ```
    pub fn builder(url: impl Into<String>) -> LocksBuilder {
        LocksBuilder::new(url.into())
    }

    /// The locks on `client`, which is connected to `target`.
    fn over(
        client: Client,
        settings: Settings,
        telemetry: Arc<Telemetry>,
        warnings: Vec<Warning>,
    ) -> Self {
        let Settings {
            target,
            config,
            process,
            ..
        } = settings;
        let id = ClientId::random();
        let spawn = worker::spawner(target, config.lease);
        let clock = telemetry.clock().clone();
        let presence = Presence::new(id.as_str(), process, clock.clone());
        let seed = id.seed().rotate_left(32);
        let registry = Registry::new(seed, config.interop, presence, clock, telemetry, spawn);
        let context = Context::new(client, registry, config, id);
        #[cfg(feature = "testing")]
        if let Some(world) = context.clock().fake() {
            world.connected(&context);
        }
        Self {
            context: Handle::new(context),
            warnings: warnings.into(),
        }
    }

    /// A handle to the lock called `name`. Does no I/O; a name that cannot be used is refused when it is locked.
    ///
    /// A name has 1 byte to 4 KiB, namespace included. Braces must make a Redis Cluster hash tag (`{user:1}:cart`).
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(&self.context, name.as_ref(), None)
    }

    /// A handle to the latch called `name`. Does no I/O; a name that cannot be used is refused when it is waited for or counted.
    #[must_use]
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        Latch::new(&self.context, name.as_ref())
    }

    /// A handle to the barrier called `name`, which `parties` pass together. Does no I/O; what cannot be used is refused when a
    /// party arrives.
    #[must_use]
    pub fn barrier(&self, name: impl AsRef<str>, parties: u32) -> Barrier {
        Barrier::new(&self.context, name.as_ref(), parties)
    }

    /// A handle to the semaphore called `name`, which has so many permits over all processes. Does no I/O; a name or a number
    /// that cannot be used is refused when permits are asked for.
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore::new(&self.context, name.as_ref(), permits)
    }

    /// A handle to the fair lock called `name`, which all who wait for it get in the order of their calls. Does no I/O; names as
    /// with [`mutex`](Self::mutex).
    #[must_use]
    pub fn fair_mutex(&self, name: impl AsRef<str>) -> FairMutex {
        FairMutex::new(&self.context, name.as_ref(), None)
    }

    /// A handle to several locks that are taken together, all or none. Does no I/O; names that cannot be used are refused when
    /// they are locked, and so is an empty list.
    #[must_use]
    pub fn multi<I>(&self, names: I) -> Multi
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        Multi::new(&self.context, names)
    }

    /// A handle to the election called `name`, in which one candidate leads at a time. Does no I/O; a name that cannot be used is
    /// refused at the campaign.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let leadership = locks.election("rebalancer").campaign().await?;
    /// assert!(leadership.is_leader());
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(&self.context, name.as_ref())
    }

    /// The read-write lock called `name`, which is a key as of [`mutex`](Self::mutex).
    #[must_use]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(&self.context, name.as_ref(), None)
    }

    /// A handle to the lock called `name` that is a plain string on the server, as other libraries have it. Does no I/O; a name
    /// that cannot be used is refused when it is locked.
    #[must_use]
    pub fn plain_mutex(&self, name: impl AsRef<str>) -> PlainMutex {
        PlainMutex::new(&self.context, name.as_ref())
    }

    /// A new owner, whose locks nest.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let me = locks.owner();
    /// let outer = me.mutex("order:42").lock().await?;
    /// let inner = me.mutex("order:42").lock().await?; // at once
    /// # drop((outer, inner));
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::new(&self.context)
    }

    /// An owner that takes over what the owner with this [`id`](Owner::id) holds: a process hands its locks to another one on
    /// purpose, and they are free at no moment in between.
    ///
    /// Locking a mutex that the former owner holds succeeds at once, with a token of its own. The former guards are lost then:
    /// their process learns it at its next renewal, within a third of its lease, so end the work under them first. What the
    /// former owner does not hold is locked as by any other owner. This owner has an id of its own, to be handed on.
    ///
    /// An id of an owner of these same `Locks` gives that owner. One that is no owner's makes every lock fail with
    /// [`ErrorKind::Config`].
    ///
    /// ```
    /// # leasehold_testkit::example::with_url(async |url| {
    /// # let here = leasehold::Locks::connect(url.clone()).await?;
    /// # let there = leasehold::Locks::connect(url).await?;
    /// let me = here.owner();
    /// let guard = me.mutex("order:42").lock().await?;
    /// let id = me.id().to_owned(); // sent to another process, with the rest of the job
    ///
    /// let taken_over = there.owner_from(id).mutex("order:42").lock().await?;
    /// assert!(taken_over.token() > guard.token());
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn owner_from(&self, id: impl AsRef<str>) -> Owner {
        Owner::from_id(&self.context, id.as_ref())
    }

    /// The random UUID that the holders of these locks begin with on the server.
    #[must_use]
    pub fn client_id(&self) -> &str {
        self.context.id()
    }

    /// Asks every master for a sign of life: for a health check. Returns the longest round trip; a call made at the same time
    /// takes about as long.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let round_trip = locks.ping().await?;
    /// println!("all masters answered within {round_trip:?}");
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if one of them does not answer within the command timeout, or refuses connections, which it does
    /// not wait for; it is named then;
    /// [`ErrorKind::Denied`] for a user without `+ping`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn ping(&self) -> Result<Duration, Error> {
        self.context.check()?;
        let deadline = Instant::now() + self.context.config.command_timeout;
        let answered = self.context.client.ping(deadline).await;
        answered.map_err(Error::from_read)
    }

    /// The process that a client id belongs to: that of a [`Holder`](crate::Holder), a [`Waiter`](crate::Waiter), or other
    /// [`Locks`](Self::client_id). `None` if it is not known.
    ///
    /// A process with a lock, or one that waits for it, has an entry on the server: the key `lockp:<client id>`, without the
    /// namespace, a hash with the fields `host`, `pid`, `app`, `version` and `since` (in milliseconds since 1970), and `meta`
    /// with a line `name=value` for each [metadata](LocksBuilder::metadata). It is
    /// written behind the answer to the first lock, lasts for 90 seconds, or as long as the longest lease that was taken, is
    /// refreshed every 30 while anything is held or waited for, and removed by [`shutdown`](Self::shutdown). So it outlives a
    /// crash by as much as the lock may. Redisson writes none, nor does a user without the right to `~lockp:*`, which is found
    /// out once and costs nothing else.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let state = locks.mutex("order:42").inspect().await?;
    /// for waiter in state.waiters() {
    ///     if let Some(process) = locks.process_of(waiter.client()).await? {
    ///         println!("{} waits, {}", process.host(), process.application());
    ///     }
    /// }
    /// # assert!(locks.process_of("nobody").await?.is_none());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of asking a server; [`ErrorKind::Denied`] for a user without `~lockp:*` or `+hmget`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn process_of(&self, client_id: impl AsRef<str>) -> Result<Option<Process>, Error> {
        let context = &self.context;
        context.check()?;
        let Some((key, command)) = process::ask(client_id.as_ref()) else {
            return Ok(None);
        };
        let reply = context.client.call(key.as_bytes(), &command).await;
        let node = context.client.node(key.as_bytes());
        let reply = reply.map_err(|error| Error::from_read(error).about(&key, &node))?;
        Ok(process::read(&reply))
    }

    /// Settings of the servers with which locks promise less than they should, as far as this user may ask for them. Empty
    /// if all is well.
    ///
    /// They were read when these locks connected; of a cluster, three masters were asked.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// for warning in locks.warnings() {
    ///     eprintln!("locks: {warning}");
    /// }
    /// # assert!(locks.warnings().is_empty());
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Statistics of these locks so far: gauges of what is held and waited for, and counters. Reads atomics, and does no I/O.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let _guard = locks.mutex("order:42").lock().await?;
    /// let stats = locks.stats();
    /// assert_eq!((stats.held(), stats.waiting(), stats.lost()), (1, 0, 0));
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.context.registry.telemetry.stats()
    }

    /// Ends all locking through these locks: waits until what was released is free on the server, then disconnects.
    ///
    /// Waiters get [`ErrorKind::Closed`], and so does every later call. Guards that are still alive are lost with
    /// [`LostReason::Closed`](crate::LostReason::Closed) and their locks released: end the work under them first.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// use leasehold::{ErrorKind, LostReason};
    ///
    /// let guard = locks.mutex("order:42").lock().await?;
    /// locks.shutdown().await?; // at the end of `main`, or on SIGTERM
    /// assert_eq!(guard.lost().await, LostReason::Closed);
    ///
    /// let late = locks.mutex("order:42").lock().await.unwrap_err();
    /// assert_eq!(late.kind(), ErrorKind::Closed);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if not everything was answered within two command timeouts. Those locks end with their
    /// leases, or when the renewal thread, which goes on trying, reaches the server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends only the waiting; calling it again goes on with it.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let context = &self.context;
        if context.registry.home.is_elsewhere() {
            return context.check();
        }
        context.set_closed();
        context.registry.presence.close();
        let remains = context.registry.table.close();
        for (name, line) in remains.lines {
            grants::abandon(context, &name, line);
        }
        // Watchers of latches and elections hold nothing.
        let _ = context.latches.close();
        let _ = context.elections.close();
        let parties = context.barriers.close();
        for hold in remains.holds.into_iter().chain(parties) {
            release::shut_down(context, &hold);
        }
        let time = context.config.command_timeout * 2;
        let work = &context.registry.work;
        let finished = context.clock().timeout(time, work.all_finished()).await;
        if finished.is_ok() {
            context.registry.presence.remove(&context.client).await;
        }
        context.client.close();
        work.close();
        finished.map_err(|_| Error::new(ErrorKind::Unavailable, "not every release was answered"))
    }

    /// Waits until what was released is answered, for a command timeout at most.
    pub(crate) async fn finish(&self) {
        let context = &self.context;
        let time = context.config.command_timeout;
        let work = &context.registry.work;
        let _ = context.clock().timeout(time, work.all_finished()).await;
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.fmt(f)
    }
}
