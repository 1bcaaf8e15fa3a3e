//! A mutex at several independent deployments.

mod builder;
mod guard;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::redlock::{Core, Request, acquire, inspect, process_of};
use crate::engine::request::Wait;
use crate::error::Error;
use crate::options::{Replicas, Terms};
use crate::process::Process;
use crate::protocol::redlock::NODE;
use crate::state::inspection::Inspection;
use crate::state::names::Name;
use crate::stats::Stats;
pub use builder::RedlockBuilder;
pub use guard::RedlockGuard;

/// Locks that a majority of several independent deployments grants, the algorithm known as Redlock. Each of them is a server, a
/// master behind sentinels, or a cluster. Clones share everything.
///
/// A lock outlives the loss of any minority of the deployments, and one of them that is dead costs no time. Redisson's
/// counterpart is `RedissonRedLock`, which asks one after another and knows no validity; each node has an ordinary
/// [`Mutex`](crate::Mutex), so the locks of single nodes exclude each other all the same.
///
/// # What it promises
///
/// * **Exclusion** while no majority of the nodes forgets what it confirmed or has its clock set: a guard is held as long as a
///   majority has granted or renewed it, each counted from before its own request was written, less one per cent and 2 ms.
/// * **Restarts.** A node that was started, or made a master, less than the longest lease and a second ago grants nothing:
///   it may have forgotten locks. [`connect`](Self::connect) waits for that, so it takes a while where all nodes are new. See
///   [`RedlockBuilder::durable`] for nodes that forget nothing.
/// * **Fencing** is asked for by [`fenced`](RedlockAcquire::fenced): a second round trip makes the tokens grow from holder to
///   holder, whichever majorities they had.
/// * It does not promise an order among those who wait, and replicas of a node add nothing to it.
///
/// Renewals, and releases of what was granted too late, are made by a thread of its own, whatever the runtime of the caller does.
///
/// ```
/// # leasehold_testkit::example::with_three_urls(async |urls| {
/// use leasehold::Redlock;
///
/// // ["redis://a", "redis://b", "redis://c"], which forget nothing.
/// let red = Redlock::builder(urls).durable().connect().await?;
/// let guard = red.mutex("order:42").lock().fenced().await?;
/// println!("mine, with token {:?}", guard.token());
/// guard.release().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct Redlock {
    core: Arc<Core>,
}

/// A handle to a named lock at several deployments. Creating it does no I/O; cloning is cheap.
///
/// ```
/// # leasehold_testkit::example::with_three_urls(async |urls| {
/// # use leasehold::Redlock;
/// # use std::time::Duration;
/// # let red = Redlock::builder(urls).durable().connect().await?;
/// let order = red.mutex("order:42");
/// assert_eq!(order.key(), "order:42");
/// let guard = order.lock().await?;
/// assert!(order.try_lock().await?.is_none());
/// for node in order.inspect().await {
///     println!("{:?}", node?.holders());
/// }
/// # drop(guard);
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct RedlockMutex {
    core: Arc<Core>,
    name: Arc<Name>,
}

/// An acquisition to be awaited. It resolves to a [`RedlockGuard`], or, as [`TryRedlockAcquire`], to `None` where it may not wait,
/// or not as long as others hold the lock.
///
/// The lease is renewed until the guard is dropped, unless [`lease`](Self::lease) fixes it.
///
/// ```
/// # leasehold_testkit::example::with_three_urls(async |urls| {
/// # use leasehold::Redlock;
/// # use std::time::Duration;
/// # let red = Redlock::builder(urls).durable().connect().await?;
/// let guard = red.mutex("order:42").lock().fenced().max_hold(Duration::from_secs(60)).await?;
/// assert!(guard.token().is_some());
/// guard.release().await?;
///
/// let guard = red.mutex("order:42").lock().lease(Duration::from_secs(5)).await?; // not renewed
/// assert!(guard.token().is_none()); // nor fenced
/// # Ok(())
/// # });
/// ```
///
/// # Errors
///
/// That the lock is held is not an error, and an error never means that it is held. While too many nodes are too young to grant
/// anything it counts as held.
///
/// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), [`ErrorKind::Unknown`](crate::ErrorKind::Unknown): no majority
///   answered in time; with a wait, not for one command timeout. What was granted all the same is released.
/// * [`ErrorKind::BadName`](crate::ErrorKind::BadName), [`ErrorKind::BadLease`](crate::ErrorKind::BadLease),
///   [`ErrorKind::WrongType`](crate::ErrorKind::WrongType), [`ErrorKind::Denied`](crate::ErrorKind::Denied) and others, where
///   they leave no majority.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind, here or at the nodes: what they granted, or still will, is released.
#[must_use = "a lock that is not awaited is not taken"]
pub struct RedlockAcquire<T = RedlockGuard> {
    request: Request,
    result: PhantomData<fn() -> T>,
}

/// A [`RedlockAcquire`] that resolves to `None` if others have the lock, at once or until the time to wait is over.
pub type TryRedlockAcquire = RedlockAcquire<Option<RedlockGuard>>;

impl Redlock {
    /// Connects to the deployments at `urls` with default settings.
    ///
    /// ```
    /// # leasehold_testkit::example::with_three_urls(async |urls| {
    /// # use leasehold::Redlock;
    /// // Servers that have just been started: this waits until they are as old as the lease, 10 s.
    /// let red = Redlock::connect(urls).await?;
    /// let guard = red.mutex("order:42").lock().await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`RedlockBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes all connections.
    pub async fn connect<I>(urls: I) -> Result<Self, Error>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self::builder(urls).connect().await
    }

    /// Settings for the deployments at `urls`, which are those of [`Locks::builder`](crate::Locks::builder): servers, clusters
    /// and sentinels, in any mixture.
    ///
    /// ```
    /// # leasehold_testkit::example::with_three_urls(async |urls| {
    /// # use leasehold::Redlock;
    /// # use std::time::Duration;
    /// let red = Redlock::builder(urls)
    ///     .namespace("shop")
    ///     .lease(Duration::from_secs(5))
    ///     .durable()
    ///     .connect()
    ///     .await?;
    /// assert_eq!(red.mutex("order:42").key(), "shop:order:42");
    /// # Ok(())
    /// # });
    /// ```
    pub fn builder<I>(urls: I) -> RedlockBuilder
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        RedlockBuilder::new(urls.into_iter().map(Into::into).collect())
    }

    /// A handle to the lock called `name`. Does no I/O; a name that cannot be used is refused when it is locked.
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> RedlockMutex {
        let namespace = self.core.config.namespace.as_deref();
        RedlockMutex {
            core: Arc::clone(&self.core),
            name: Arc::new(Name::new(NODE.layout, namespace, name.as_ref())),
        }
    }

    /// The random UUID that the holders of these locks begin with at the nodes.
    ///
    /// ```
    /// # leasehold_testkit::example::with_three_urls(async |urls| {
    /// let red = leasehold::Redlock::builder(urls).durable().connect().await?;
    /// let _guard = red.mutex("order:42").lock().await?;
    /// let nodes = red.mutex("order:42").inspect().await;
    /// let ours = nodes.iter().flatten().filter(|node| {
    ///     node.holders().iter().any(|holder| holder.client() == red.client_id())
    /// });
    /// assert!(ours.count() >= 2);
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn client_id(&self) -> &str {
        self.core.id()
    }

    /// The process that a client id belongs to: that of a [`Holder`](crate::Holder) at a node, or of another
    /// [`Redlock`](Self::client_id). `None` if it is not known.
    ///
    /// Each node has an entry of its own, as [`Locks::process_of`](crate::Locks::process_of) describes it: written behind the
    /// first lock that a majority grants, and refreshed with renewals. Nothing removes it before it expires, 90 seconds after
    /// that or with the longest lease. The answer is that of the first node that knows it.
    ///
    /// ```
    /// # leasehold_testkit::example::with_three_urls(async |urls| {
    /// let red = leasehold::Redlock::builder(urls)
    ///     .application("billing", "1.2")
    ///     .durable()
    ///     .connect()
    ///     .await?;
    /// let order = red.mutex("order:42");
    /// let guard = order.lock().await?;
    /// # while red.process_of(red.client_id()).await?.is_none() {} // written behind the answer to the first lock
    /// for node in order.inspect().await {
    ///     for holder in node?.holders() {
    ///         if let Some(process) = red.process_of(holder.client()).await? {
    ///             println!("held there by {process}"); // billing 1.2, process 4711 on web-1
    /// #           assert_eq!((process.application(), process.version()), ("billing", Some("1.2")));
    ///         }
    ///     }
    /// }
    /// # drop(guard);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of asking a node, where no majority answers; [`ErrorKind::Denied`](crate::ErrorKind::Denied) for a user without
    /// `~lockp:*` or `+hmget`.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn process_of(&self, client_id: impl AsRef<str>) -> Result<Option<Process>, Error> {
        process_of(&self.core, client_id.as_ref()).await
    }

    /// Statistics of these locks so far: see [`Stats`]. Requests to all nodes are counted.
    ///
    /// ```
    /// # leasehold_testkit::example::with_three_urls(async |urls| {
    /// let red = leasehold::Redlock::builder(urls).durable().connect().await?;
    /// let _guard = red.mutex("order:42").lock().await?;
    /// assert_eq!(red.stats().held(), 1);
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.core.telemetry.stats()
    }
}

impl RedlockMutex {
    /// The key at the nodes: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.name.key()
    }

    /// Takes the lock, waiting for as long as others hold it.
    ///
    /// ```
    /// # leasehold_testkit::example::with_three_urls(async |urls| {
    /// # use leasehold::Redlock;
    /// # use std::time::Duration;
    /// # let red = Redlock::builder(urls).durable().connect().await?;
    /// let guard = red.mutex("order:42").lock().await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`RedlockAcquire`], when it is awaited.
    pub fn lock(&self) -> RedlockAcquire {
        self.acquire(Wait::Endless)
    }

    /// Takes the lock if a majority grants it, in one round trip, or two if it is [`fenced`](RedlockAcquire::fenced).
    ///
    /// `None` if others hold it; at once and without asking the nodes while this process holds it or contends for it.
    ///
    /// ```
    /// # leasehold_testkit::example::with_three_urls(async |urls| {
    /// # use leasehold::Redlock;
    /// # use std::time::Duration;
    /// # let red = Redlock::builder(urls).durable().connect().await?;
    /// if let Some(guard) = red.mutex("order:42").try_lock().await? {
    ///     guard.run(async { /* … */ }).await?;
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`RedlockAcquire`], when it is awaited.
    pub fn try_lock(&self) -> TryRedlockAcquire {
        self.acquire(Wait::None)
    }

    /// Takes the lock, waiting for at most `time`; `None` when that is over. With no time to wait it is
    /// [`try_lock`](Self::try_lock).
    ///
    /// ```
    /// # leasehold_testkit::example::with_three_urls(async |urls| {
    /// # use leasehold::Redlock;
    /// # use std::time::Duration;
    /// # let red = Redlock::builder(urls).durable().connect().await?;
    /// let guard = red.mutex("order:42").try_lock_for(Duration::from_secs(2)).await?;
    /// assert!(guard.is_some());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`RedlockAcquire`], when it is awaited.
    pub fn try_lock_for(&self, time: Duration) -> TryRedlockAcquire {
        self.acquire(Wait::at_most(time))
    }

    /// The state of the lock at each node, in the order of the URLs: the hold there, if there is one, and who waits for it there. A
    /// hold is the lock's holder where a majority has it. One round trip, all nodes at once.
    ///
    /// # Errors
    ///
    /// Of a node that could not be asked, or whose key is not a lock, in its place.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self) -> Vec<Result<Inspection, Error>> {
        inspect(&self.core, &self.name).await
    }

    fn acquire<T>(&self, wait: Wait) -> RedlockAcquire<T> {
        let request = Request {
            core: Arc::clone(&self.core),
            name: Arc::clone(&self.name),
            terms: Terms::renewed(self.core.config.lease, Replicas::None),
            is_fenced: false,
            wait,
        };
        RedlockAcquire {
            request,
            result: PhantomData,
        }
    }
}

impl<T> RedlockAcquire<T> {
    /// Asks for a fencing token, [`RedlockGuard::token`]: one round trip more.
    pub fn fenced(mut self) -> Self {
        self.request.is_fenced = true;
        self
    }

    /// A fixed lease, of 10 ms to 365 days, that is not renewed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.terms.lease = lease;
        self.request.terms.renew = false;
        self
    }

    /// Upper bound on the hold, 10 ms to 365 days, however often it is renewed: a body that hangs does not keep it for ever.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.request.terms.max_hold = Some(max_hold);
        self
    }
}

impl IntoFuture for RedlockAcquire<RedlockGuard> {
    type Output = Result<RedlockGuard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            // An endless wait never ends without a guard or an error.
            let guard = acquire(self.request).await?.ok_or_else(Error::closed)?;
            Ok(RedlockGuard::new(guard))
        })
    }
}

impl IntoFuture for RedlockAcquire<Option<RedlockGuard>> {
    type Output = Result<Option<RedlockGuard>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(acquire(self.request).await?.map(RedlockGuard::new)) })
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl fmt::Debug for RedlockMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockMutex")
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for RedlockAcquire<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockAcquire")
            .field("key", &self.request.name.key())
            .field("terms", &self.request.terms)
            .field("wait", &self.request.wait)
            .finish_non_exhaustive()
    }
}
