//! The mutex.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_resp::Value;

use crate::engine::force::force;
use crate::engine::handle::Handle;
use crate::engine::hold::OwnerHolds;
use crate::engine::operation::ask;
use crate::engine::request::{Request, Wait};
use crate::error::Error;
use crate::options::{Interop, Terms};
use crate::primitives::detached::DetachedHold;
use crate::protocol::call::Call;
use crate::protocol::mutex::{
    Inspected, MUTEX, force_unlock, force_unlock_single_key, inspect, inspect_all, read_inspect,
    read_inspect_all,
};
use crate::protocol::permits::Permits;
use crate::protocol::{End, Protocol};
use crate::request::{Acquire, TryAcquire};
use crate::state::inspection::{Holder, Inspection};
use crate::state::names::Name;

/// A handle to a named lock. Creating it does no I/O; cloning is cheap.
///
/// It is held by one at a time, over all processes. Those who wait stand in a line on the server, one place for each process
/// and lock, and a release hands the lock to the first of them: in the order in which processes began to wait, and within a
/// process in the order of its calls. Newcomers pass them only where the lock is free although they wait: after the lease of
/// a holder that died, or data that the server lost. A [`try_lock`](Self::try_lock) that finds the lock taken leaves no
/// trace, so a process that only tries may never get a lock that others wait for.
///
/// It is not re-entrant: a second lock waits for the first, as with Tokio's mutex. [`Locks::owner`](crate::Locks::owner)
/// makes locks that nest.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let order = locks.mutex("order:42"); // nothing is sent
/// assert_eq!(order.key(), "order:42");
///
/// let guard = order.lock().await?;
/// assert!(order.try_lock().await?.is_none()); // it is not re-entrant
/// guard.release().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct Mutex {
    context: Arc<Handle>,
    kind: &'static Kind,
    name: Arc<Name>,
    owner: Option<Arc<OwnerHolds>>,
}

/// One of the primitives on the hash of a single holder.
pub(super) struct Kind {
    pub(super) protocol: &'static Protocol,
    /// Removes it from its holder, and hands it on.
    pub(super) force_unlock: for<'a> fn(&End<'a>) -> Call<'a>,
    /// Asks who holds it, and who waits for it.
    pub(super) inspect: for<'a> fn(&'a Name, Interop) -> Call<'a>,
    /// Reads the reply to that; `None` if the script gives no such reply.
    pub(super) read_inspect: fn(&Value) -> Option<Inspection>,
}

static KIND: Kind = Kind {
    protocol: &MUTEX,
    force_unlock,
    inspect: inspect_all,
    read_inspect: read_inspect_all,
};

impl Mutex {
    pub(crate) fn new(context: &Arc<Handle>, name: &str, owner: Option<&Arc<OwnerHolds>>) -> Self {
        Self::of(&KIND, context, name, owner)
    }

    pub(super) fn of(
        kind: &'static Kind,
        context: &Arc<Handle>,
        name: &str,
        owner: Option<&Arc<OwnerHolds>>,
    ) -> Self {
        let namespace = context.config.namespace.as_deref();
        let name = Name::new(kind.protocol.layout, namespace, name);
        Self {
            context: Arc::clone(context),
            kind,
            name: Arc::new(name),
            owner: owner.cloned(),
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
    /// let guard = locks.mutex("order:42").lock().await?;
    /// // … one at a time, over all processes …
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
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let report = locks.mutex("report");
    /// if let Some(guard) = report.try_lock().await? {
    ///     // … ours until `guard` is dropped …
    /// #   drop(guard);
    /// } else {
    ///     println!("it is being written elsewhere");
    /// #   unreachable!();
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_lock(&self) -> TryAcquire {
        Acquire::new(self.request(Wait::None))
    }

    /// Takes the lock, waiting for at most `time`; `None` when that is over.
    ///
    /// When the server does not answer, it takes up to one command timeout longer. With no time to wait it is
    /// [`try_lock`](Self::try_lock): one attempt and no subscription.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let order = locks.mutex("order:42");
    /// let guard = order.lock().await?;
    /// let second = order.try_lock_for(Duration::from_millis(20)).await?;
    /// assert!(second.is_none()); // others, here the first one, held it all the time
    /// # drop(guard);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Of the returned [`Acquire`], when it is awaited.
    pub fn try_lock_for(&self, time: Duration) -> TryAcquire {
        Acquire::new(self.request(Wait::at_most(time)))
    }

    /// The present holder, if there is one.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let order = locks.mutex("order:42");
    /// let guard = order.lock().await?;
    /// let holder = order.holder().await?.expect("it is held");
    /// assert_eq!(holder.client(), locks.client_id()); // by this process
    /// # drop(guard);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is not a lock; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        let found = self.inspect_holder().await?;
        Ok(found.map(Holder::from))
    }

    /// For how long the lock stays taken unless it is renewed or released; `None` if it is free.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let order = locks.mutex("order:42");
    /// assert_eq!(order.remaining().await?, None);
    ///
    /// let guard = order.lock().await?; // with the default lease of 30 s
    /// assert!(order.remaining().await? > Some(Duration::from_secs(20)));
    /// # drop(guard);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoExpiry`](crate::ErrorKind::NoExpiry) if it has no expiry,
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is not a lock; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn remaining(&self) -> Result<Option<Duration>, Error> {
        let found = self.inspect_holder().await?;
        match found.map(|found| found.remaining) {
            None => Ok(None),
            Some(Some(remaining)) => Ok(Some(remaining)),
            Some(None) => Err(self.error(Error::no_expiry())),
        }
    }

    /// The holder and its token, and those who wait in line with their places.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let order = locks.mutex("order:42");
    /// let guard = order.lock().await?;
    /// let state = order.inspect().await?;
    /// assert_eq!(state.holders()[0].token(), Some(guard.token()));
    /// assert_eq!(state.waiting(), 0);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is not a lock; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.context.ready(&self.name).await?;
        let interop = self.context.config.interop;
        let all = (self.kind.inspect)(&self.name, interop);
        let all = all.slices();
        let holder = || inspect(&self.name).to_owned();
        // While the slot of the lock is migrating, or without rights to the line, nobody can tell who is in it.
        let call = all.call().with_fallback(&holder);
        let reply = ask(&self.context, &self.name, &call).await?;
        (self.kind.read_inspect)(&reply)
            .or_else(|| {
                let holders = read_inspect(&reply)?.map(Holder::from);
                Some(Inspection {
                    holders: holders.into_iter().collect(),
                    ..Inspection::default()
                })
            })
            .ok_or_else(|| self.error(Error::unexpected(&reply)))
    }

    /// Removes the lock from its holder. A holder in this process loses it at once, others at their next renewal; in the first 10 ms
    /// after a grant they may pass it on inside their process until then. Returns whether it was held.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let order = locks.mutex("order:42");
    /// let guard = order.lock().await?;
    /// assert!(order.force_unlock().await?);
    /// assert!(!guard.is_held());
    /// assert!(!order.force_unlock().await?); // it was free
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is not a lock, nothing is deleted then;
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) if the lock is free but an attempt without an answer may have been what
    /// freed it; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let (script, single_key) = (self.kind.force_unlock, force_unlock_single_key);
        force(&self.context, &self.name, script, single_key).await
    }

    /// A handle to the hold of this lock with this id, which was [detached](crate::Guard::detach) from its guard, here or in another
    /// process. Does no I/O; a text that is no hold's id is refused when the hold is asked for.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let order = locks.mutex("order:42");
    /// let id = order.lock().lease(Duration::from_secs(60)).await?.detach().expect("it is held, once");
    /// assert!(order.detached(id).remaining().await?.is_some());
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn detached(&self, id: impl Into<String>) -> DetachedHold {
        DetachedHold::new(&self.context, self.kind.protocol, &self.name, id.into())
    }

    pub(crate) fn request(&self, wait: Wait) -> Request {
        let config = &self.context.config;
        Request {
            context: Arc::clone(&self.context),
            protocol: self.kind.protocol,
            name: Arc::clone(&self.name),
            permits: Permits::NONE,
            owner: self.owner.clone(),
            terms: Terms::renewed(config.lease, config.replicas),
            wait,
            polling: None,
        }
    }

    async fn inspect_holder(&self) -> Result<Option<Inspected>, Error> {
        self.context.ready(&self.name).await?;
        let call = inspect(&self.name);
        let call = call.slices();
        let reply = ask(&self.context, &self.name, &call.call()).await?;
        read_inspect(&reply).ok_or_else(|| self.error(Error::unexpected(&reply)))
    }

    fn error(&self, error: Error) -> Error {
        self.context.about(&self.name, error)
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}
