//! The plain mutex.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::handle::Handle;
use crate::engine::operation::ask;
use crate::engine::request::{Request, Wait};
use crate::error::Error;
use crate::options::Terms;
use crate::protocol::mutex::read_inspect_all;
use crate::protocol::permits::Permits;
use crate::protocol::plain::{PLAIN, inspect, inspect_single_key};
use crate::request::{Acquire, TryAcquire};
use crate::state::inspection::Inspection;
use crate::state::names::Name;

/// A handle to a lock that is a plain string on the server, as `SET key id NX PX lease` writes it: redis-py's `Lock`, redsync's
/// `Mutex` and most small libraries use that, and exclude this one; [`beside_others`](crate::guides::beside_others) names them.
/// Creating it does no I/O; cloning is cheap.
///
/// Beside that it is as [`Mutex`](crate::Mutex): renewed, fenced by a token, and handed from one of our processes to the next
/// in the order in which they began to wait. The others stand in no line and announce nothing: they try again and again, and so
/// do those who wait here while a holder of theirs is there, up to ten times a second and at least twice. Whoever comes
/// first gets the lock then, in no order. Their holders without an expiry are waited for as well. Tokens grow over our own
/// holds; theirs have none.
///
/// Any string at the key counts as a lock that is held; a key of another type is
/// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType). It is another lock than a [`Mutex`](crate::Mutex) and cannot have its
/// key. Redisson has no counterpart.
///
/// A single server that restarts empty, and a failover to a replica that lags behind, forget holders; see
/// [`Acquire::replicated`]. With several independent servers, as redsync uses them, no other library is excluded unless it
/// uses this one.
///
/// Least rights of a user, here for the namespace `shop`: `~shop:* ~leasehold_token:{shop:* ~leasehold_line:{shop:*
/// &leasehold:*`, and `+eval +evalsha +time +pttl +pexpire +get +set +del +exists +zpopmin +zrevrange +zadd +zrank +zscore +zrem
/// +zrange +zcard +publish +subscribe +unsubscribe +info`.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// // As a Python service does: `r.lock("report", timeout=30)`.
/// # use std::time::Duration;
/// let report = locks.plain_mutex("report");
/// if let Some(guard) = report.try_lock().await? {
///     println!("`{}` is ours, with token {}", report.key(), guard.token());
/// }
/// let guard = report.lock().await?; // waits for Python as well
/// assert_eq!(report.inspect().await?.holders().len(), 1);
/// assert!(report.try_lock_for(Duration::from_millis(20)).await?.is_none());
/// guard.release().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct PlainMutex {
    context: Arc<Handle>,
    name: Arc<Name>,
}

impl PlainMutex {
    pub(crate) fn new(context: &Arc<Handle>, name: &str) -> Self {
        let name = Name::new(PLAIN.layout, context.config.namespace.as_deref(), name);
        Self {
            context: Arc::clone(context),
            name: Arc::new(name),
        }
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.name.key()
    }

    /// Takes the lock, waiting for as long as others hold it.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let guard = locks.plain_mutex("report").lock().await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn lock(&self) -> Acquire {
        Acquire::new(self.request(Wait::Endless))
    }

    /// Takes the lock if it is free, in one round trip.
    ///
    /// `None` if others hold it; at once and without asking the server while this process holds it or is already waiting
    /// for it.
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_lock(&self) -> TryAcquire {
        Acquire::new(self.request(Wait::None))
    }

    /// Takes the lock, waiting for at most `time`; `None` when that is over.
    ///
    /// When the server does not answer, it takes up to one command timeout longer.
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_lock_for(&self, time: Duration) -> TryAcquire {
        Acquire::new(self.request(Wait::at_most(time)))
    }

    /// The holder, and those of ours that wait in line with their places. Of a holder of another library the id is the text
    /// that it wrote.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let report = locks.plain_mutex("report");
    /// let guard = report.lock().await?;
    /// let state = report.inspect().await?;
    /// assert_eq!(state.holders()[0].client(), locks.client_id());
    /// # drop(guard);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is no string; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.context.ready(&self.name).await?;
        let all = inspect(&self.name);
        let all = all.slices();
        let holder = || inspect_single_key(&self.name).to_owned();
        let call = all.call().with_fallback(&holder);
        let reply = ask(&self.context, &self.name, &call).await?;
        read_inspect_all(&reply)
            .ok_or_else(|| self.context.about(&self.name, Error::unexpected(&reply)))
    }

    pub(crate) fn request(&self, wait: Wait) -> Request {
        let config = &self.context.config;
        Request {
            context: Arc::clone(&self.context),
            protocol: &PLAIN,
            name: Arc::clone(&self.name),
            permits: Permits::NONE,
            owner: None,
            terms: Terms::renewed(config.lease, config.replicas),
            wait,
            polling: None,
        }
    }
}

impl fmt::Debug for PlainMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainMutex")
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}
