//! Several mutexes at once, all of them or none.

mod guard;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_cluster::slot::slot;

use crate::engine::handle::Handle;
use crate::engine::multi::{Group, MultiRequest, acquire};
use crate::engine::request::Wait;
use crate::engine::together::together;
use crate::error::Error;
use crate::options::{Replicas, Terms};
use crate::primitives::mutex::Mutex;
use crate::protocol::multi::PART;
use crate::state::inspection::Inspection;
use crate::state::names::Name;
pub use guard::MultiGuard;

/// Several locks that are taken together: all of them or none. Creating it does no I/O; cloning is cheap.
///
/// Each lock is the [`Mutex`](crate::Mutex) of its name, and excludes the mutexes of other users, Redisson's too. A name that is
/// given twice is one lock. Redisson's counterparts are `RedissonMultiLock`, with which two users that name the same locks in
/// another order wait for each other until one gives up, and `RedissonFasterMultiLock`, which excludes only its own kind.
///
/// # What it promises
///
/// * **All or nothing.** Where one lock is held by others, none is kept. Up to 128 locks of one server, or of one slot of a
///   cluster, are taken by one script; more, or those of several slots, by one request for each 128 or slot, sent at once.
/// * **No deadlock**, whatever order anybody names or takes the locks in: a lock is waited for with nothing else held. After
///   eight rounds in which others came first, the locks are taken in one order that all processes share, waiting for each
///   for a second at most, and then with nothing else held again.
/// * **One guard.** It is held as long as each lock is, and lost when one of them is; the others are released then.
/// * On replicas, sentinels and clusters each lock promises what a mutex does, [`replicated`](MultiAcquire::replicated) too.
///   The locks may be on different nodes.
///
/// Waiters for several locks stand in the line of the first one that is not free, like everybody else. It is not
/// promised that they get them all while others take single ones in an endless stream.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let accounts = locks.multi(["account:12", "account:7", "account:7"]);
/// assert_eq!(accounts.keys().count(), 2); // each of them once
/// let transfer = accounts.lock().await?;
/// for (account, token) in transfer.tokens() {
///     println!("{account} is mine, with token {token}");
/// }
/// transfer.release().await?;
/// # Ok(())
/// # });
/// ```
///
/// Least rights of a user, here for the namespace `shop`: `~shop:* ~redisson_lock_token:{shop:* ~leasehold_line:{shop:*
/// &leasehold:*`, and `+eval +evalsha +time +pttl +pexpire +info +get +set +hdel +hset +exists +hscan +hexists +zrevrange +zrem
/// +zcard +zrange +zadd +zpopmin +zscore +zrank +publish +subscribe +unsubscribe`.
#[derive(Clone)]
pub struct Multi {
    context: Arc<Handle>,
    /// In the order that all processes take them in, each of them once.
    names: Arc<[Arc<Name>]>,
}

/// An acquisition of several locks to be awaited. It resolves to a [`MultiGuard`], or, as [`TryMultiAcquire`], to `None` where it
/// may not wait, or not as long as others hold one of the locks.
///
/// The leases are renewed until the guard is dropped, unless [`lease`](Self::lease) fixes them.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # use std::time::Duration;
/// use leasehold::Replicas;
///
/// let both = locks
///     .multi(["account:7", "account:12"])
///     .lock()
///     .max_hold(Duration::from_secs(60))
///     .replicated(Replicas::None)
///     .await?;
/// both.release().await?;
///
/// // Not renewed:
/// let both = locks.multi(["account:7", "account:12"]).lock().lease(Duration::from_secs(5)).await?;
/// # drop(both);
/// # Ok(())
/// # });
/// ```
///
/// # Errors
///
/// That a lock is held is not an error, and an error never means that one is. The error names the lock that it is about.
///
/// * [`ErrorKind::BadName`](crate::ErrorKind::BadName): a name cannot be used, or there is none in the list.
/// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), [`ErrorKind::Unknown`](crate::ErrorKind::Unknown): a server did
///   not answer within the command timeout. What was taken is given back, and what an attempt without an answer may have
///   left is removed.
/// * [`ErrorKind::Lost`](crate::ErrorKind::Lost): a lease was over before all locks were there.
/// * and those of a mutex's [`Acquire`](crate::Acquire).
///
/// # Panics
///
/// When polled outside of a Tokio runtime with time enabled.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind, here or on the servers: what it holds is released, and so is what an attempt on
/// its way may take.
#[must_use = "locks that are not awaited are not taken"]
pub struct MultiAcquire<T = MultiGuard> {
    request: MultiRequest,
    result: PhantomData<fn() -> T>,
}

/// A [`MultiAcquire`] that resolves to `None` if others have one of the locks, at once or until the time to wait is over.
pub type TryMultiAcquire = MultiAcquire<Option<MultiGuard>>;

impl Multi {
    pub(crate) fn new<N: AsRef<str>>(
        context: &Arc<Handle>,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let namespace = context.config.namespace.as_deref();
        let mut known = HashSet::new();
        let mut names: Vec<Arc<Name>> = names
            .into_iter()
            .map(|name| Arc::new(Name::new(PART.layout, namespace, name.as_ref())))
            .filter(|name| known.insert(Arc::clone(name)))
            .collect();
        // The slot first, so that those of one slot are neighbours. It is the same for users who see no cluster.
        names.sort_by_cached_key(|name| (slot(name.key().as_bytes()), name.key().to_owned()));
        Self {
            context: Arc::clone(context),
            names: names.into(),
        }
    }

    /// The keys on the server, each of them once: the namespace and the name.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| name.key())
    }

    /// Takes all locks, waiting for as long as others hold one of them.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let both = locks.multi(["account:7", "account:12"]).lock().await?;
    /// assert!(locks.mutex("account:7").try_lock().await?.is_none());
    /// both.release().await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`MultiAcquire`], when it is awaited.
    pub fn lock(&self) -> MultiAcquire {
        self.acquire(Wait::Endless)
    }

    /// Takes all locks if they are free, in one round trip.
    ///
    /// `None` if others hold one of them; at once and without asking the server while this process holds one or is already
    /// waiting for it.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let one = locks.mutex("account:12").lock().await?;
    /// let both = locks.multi(["account:7", "account:12"]).try_lock().await?;
    /// assert!(both.is_none()); // and `account:7` is free
    /// # drop(one);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`MultiAcquire`], when it is awaited.
    pub fn try_lock(&self) -> TryMultiAcquire {
        self.acquire(Wait::None)
    }

    /// Takes all locks, waiting for at most `time`; `None` when that is over.
    ///
    /// When a server does not answer, it takes up to one command timeout longer. With no time to wait it is
    /// [`try_lock`](Self::try_lock).
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let accounts = locks.multi(["account:7", "account:12"]);
    /// assert!(accounts.try_lock_for(Duration::from_secs(1)).await?.is_some());
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`MultiAcquire`], when it is awaited.
    pub fn try_lock_for(&self, time: Duration) -> TryMultiAcquire {
        self.acquire(Wait::at_most(time))
    }

    /// The holder of each lock, and those who wait in line for it, by its name without the namespace. One round trip.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let accounts = locks.multi(["account:7", "account:12"]);
    /// assert_eq!(accounts.keys().count(), 2);
    /// let guard = accounts.lock().await?;
    /// for (name, state) in accounts.inspect().await? {
    ///     println!("{name}: held by {}", state.holders()[0].client());
    /// }
    /// # drop(guard);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// The first one of those of [`Mutex::inspect`](crate::Mutex::inspect).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self) -> Result<BTreeMap<String, Inspection>, Error> {
        let prefix = prefix(&self.context);
        let mut questions = Vec::new();
        for name in self.names.iter() {
            let name = &name.key()[prefix..];
            let mutex = Mutex::new(&self.context, name, None);
            questions.push(async move { Ok((name.to_owned(), mutex.inspect().await?)) });
        }
        together(questions, usize::MAX).await.into_iter().collect()
    }

    fn acquire<T>(&self, wait: Wait) -> MultiAcquire<T> {
        let config = &self.context.config;
        let request = MultiRequest {
            context: Arc::clone(&self.context),
            names: Arc::clone(&self.names),
            terms: Terms::renewed(config.lease, config.replicas),
            wait,
        };
        MultiAcquire {
            request,
            result: PhantomData,
        }
    }
}

impl<T> MultiAcquire<T> {
    /// A fixed lease of each lock, of 10 ms to 365 days, that is not renewed. It is not monitored either: loss on the server is
    /// detected at release or expiry only. It counts from when the first lock was taken.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.terms.lease = lease;
        self.request.terms.renew = false;
        self
    }

    /// Upper bound on the hold, 10 ms to 365 days, however often it is renewed: a body that hangs does not keep the locks for
    /// ever.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.request.terms.max_hold = Some(max_hold);
        self
    }

    /// Which replicas must confirm the locks, whatever [`LocksBuilder::replicated`](crate::LocksBuilder::replicated) says.
    pub fn replicated(mut self, replicas: Replicas) -> Self {
        self.request.terms.replicas = replicas;
        self
    }
}

impl IntoFuture for MultiAcquire<MultiGuard> {
    type Output = Result<MultiGuard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            // An endless wait never ends without a guard or an error.
            let group = acquire(&self.request).await?.ok_or_else(Error::closed)?;
            Ok(guard(&self.request, group))
        })
    }
}

impl IntoFuture for MultiAcquire<Option<MultiGuard>> {
    type Output = Result<Option<MultiGuard>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let group = acquire(&self.request).await?;
            Ok(group.map(|group| guard(&self.request, group)))
        })
    }
}

fn guard(request: &MultiRequest, group: Arc<Group>) -> MultiGuard {
    MultiGuard::new(group, prefix(&request.context))
}

/// Length of what stands before each name in its key: the namespace and a colon.
fn prefix(context: &Handle) -> usize {
    let namespace = context.config.namespace.as_deref();
    namespace.map_or(0, |namespace| namespace.len() + 1)
}

impl fmt::Debug for Multi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multi")
            .field("keys", &self.names)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for MultiAcquire<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiAcquire")
            .field("keys", &self.request.names)
            .field("terms", &self.request.terms)
            .field("wait", &self.request.wait)
            .finish_non_exhaustive()
    }
}
