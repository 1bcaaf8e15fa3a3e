//! The plain lock, and the builders of its operations.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_resp::{Command, Value};

use crate::acquire::{Patience, Request, acquire};
use crate::error::{Error, ErrorKind};
use crate::guard::Guard;
use crate::hold::{Replicas, Terms};
use crate::locks::Inner;
use crate::names::Name;
use crate::owner::OwnerInner;
use crate::scripts::FORCE_UNLOCK;

/// A lock by name. Naming it asks nobody; clones are cheap.
///
/// One at a time holds it, over all processes. Those of one process are served in the order they asked. Between processes
/// whoever is first gets it, but a process that passed it on inside 32 times in a row leaves it to others for a moment.
///
/// It is not re-entrant: a second lock waits for the first, as with Tokio's mutex. [`Locks::owner`](crate::Locks::owner)
/// makes locks that nest.
#[derive(Clone)]
pub struct Mutex {
    inner: Arc<Inner>,
    name: Arc<Name>,
    owner: Option<Arc<OwnerInner>>,
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    id: String,
    count: u64,
}

impl Mutex {
    pub(crate) fn new(inner: &Arc<Inner>, name: &str, owner: Option<&Arc<OwnerInner>>) -> Self {
        let name = Name::new(inner.config.namespace.as_deref(), name);
        Self {
            inner: Arc::clone(inner),
            name: Arc::new(name),
            owner: owner.cloned(),
        }
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.name.key()
    }

    /// Takes the lock, waiting for as long as somebody else holds it.
    ///
    /// # Errors
    ///
    /// Of the returned [`Lock`], when it is awaited.
    pub fn lock(&self) -> Lock {
        Lock {
            request: self.request(Patience::Endless),
        }
    }

    /// Takes the lock if it is free, in one round trip.
    ///
    /// `None` if somebody else holds it. Asks nobody and answers `None` at once while this process holds it or is already
    /// waiting for it.
    ///
    /// # Errors
    ///
    /// Of the returned [`TryLock`], when it is awaited.
    pub fn try_lock(&self) -> TryLock {
        TryLock {
            request: self.request(Patience::None),
        }
    }

    /// Takes the lock, waiting for at most `time`; `None` when that is over.
    ///
    /// With no time to wait there is still one attempt, unless others here are ahead. When the server does not answer, it
    /// takes up to one command timeout longer.
    ///
    /// # Errors
    ///
    /// Of the returned [`TryLock`], when it is awaited.
    pub fn try_lock_for(&self, time: Duration) -> TryLock {
        TryLock {
            request: self.request(Patience::For(time)),
        }
    }

    /// Who holds the lock now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`] if the key is not a lock; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        let fields = self.read(&Command::new("HGETALL").arg(self.key())).await?;
        let pairs = match &fields {
            Value::Map(pairs) => pairs.as_slice(),
            _ => return Err(self.error(Error::unexpected(&fields))),
        };
        // `mode` is what Redisson's read-write locks add to their holders.
        let holder = pairs.iter().find_map(|(id, count)| {
            let id = String::from_utf8_lossy(id.as_bytes()?).into_owned();
            let count = count.as_str()?.parse().ok()?;
            Some(Holder { id, count })
        });
        if holder.is_none() && !pairs.is_empty() {
            return Err(self.error(Error::new(
                ErrorKind::WrongType,
                "a hash without a holder and a count",
            )));
        }
        Ok(holder)
    }

    /// For how long the lock stays taken unless it is renewed or released; `None` if it is free.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoExpiry`] if it has no expiry; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn remaining(&self) -> Result<Option<Duration>, Error> {
        let ttl = self.read(&Command::new("PTTL").arg(self.key())).await?;
        match ttl.as_int() {
            Some(ms @ 0..) => Ok(Some(Duration::from_millis(ms.cast_unsigned()))),
            Some(-1) => Err(self.error(Error::no_expiry())),
            Some(_) => Ok(None),
            None => Err(self.error(Error::unexpected(&ttl))),
        }
    }

    /// Frees the lock, whoever holds it. The holder loses it and is told at its next renewal. Returns whether it was held.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`] if the key is not a lock, nothing is deleted then; [`ErrorKind::Unknown`] if the lock is
    /// free but an attempt without an answer may have been what freed it; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.check_name()?;
        let keys = [self.key().as_bytes()];
        let args = [
            self.name.channel().as_bytes(),
            self.inner.client.publish_command().as_bytes(),
        ];
        let deadline = Instant::now() + self.inner.config.command_timeout;
        let evaluated = self
            .inner
            .client
            .eval(&FORCE_UNLOCK.call(&keys, &args), deadline)
            .await;
        let evaluated = evaluated.map_err(|error| self.error(Error::from_client(error)))?;
        match evaluated.value.as_int() {
            Some(1) => Ok(true),
            Some(_) if evaluated.repeated => Err(self.error(Error::new(
                ErrorKind::Unknown,
                "the lock is free, but an attempt without an answer may have been what freed it",
            ))),
            Some(_) => Ok(false),
            None => Err(self.error(Error::unexpected(&evaluated.value))),
        }
    }

    fn request(&self, patience: Patience) -> Request {
        Request {
            inner: Arc::clone(&self.inner),
            name: Arc::clone(&self.name),
            owner: self.owner.clone(),
            terms: Terms {
                lease: self.inner.config.lease,
                renew: true,
                max_hold: None,
                replicas: self.inner.config.replicas,
            },
            patience,
        }
    }

    async fn read(&self, command: &Command) -> Result<Value, Error> {
        self.check_name()?;
        let reply = self.inner.client.call(self.key().as_bytes(), command).await;
        reply.map_err(|error| self.error(Error::from_read(error)))
    }

    fn check_name(&self) -> Result<(), Error> {
        if self.inner.is_closed() {
            return Err(self.error(Error::closed()));
        }
        self.name
            .bad()
            .map_or(Ok(()), |bad| Err(self.error(Error::bad_name(bad))))
    }

    fn error(&self, error: Error) -> Error {
        error.about(self.key(), &self.inner.client.node(self.key().as_bytes()))
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}

impl Holder {
    /// The whole id, `<client>:<n>`: `n` counts acquisitions here, and is a thread in Redisson.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The client: [`Locks::client_id`](crate::Locks::client_id) of ours, or a Redisson instance.
    #[must_use]
    pub fn client(&self) -> &str {
        self.id
            .split_once(':')
            .map_or(self.id.as_str(), |(client, _)| client)
    }

    /// How often it holds the lock: always 1 with us, more where Redisson nests.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }
}

/// A lock to be taken: await it.
///
/// The lease is renewed until the guard is dropped, unless [`lease`](Self::lease) fixes it. A lock that nests with one of
/// the same [`Owner`](crate::Owner) has the lease of that one, whatever is asked for here.
///
/// # Errors
///
/// * [`ErrorKind::Unavailable`] or [`ErrorKind::Unknown`]: the server did not answer within the command timeout. Nothing
///   of ours stays on it.
/// * [`ErrorKind::NotReplicated`]: too few replicas confirmed it, see [`replicated`](Self::replicated).
/// * [`ErrorKind::WrongType`], [`ErrorKind::NoExpiry`]: what the key holds will not go away by waiting.
/// * [`ErrorKind::Lost`]: the lease was over before the answer came; or, through an [`Owner`](crate::Owner), a guard of the
///   same lock is still there but lost.
/// * [`ErrorKind::BadName`], [`ErrorKind::BadLease`], [`ErrorKind::Denied`], [`ErrorKind::Closed`] and others.
///
/// # Panics
///
/// When polled outside of a Tokio runtime with time enabled.
///
/// # Cancel safety
///
/// Dropping the future leaves nothing behind, here or on the server; its place in the line is lost. If an attempt was on its
/// way, a release follows it.
#[derive(Debug)]
#[must_use = "a lock that is not awaited is not taken"]
pub struct Lock {
    request: Request,
}

/// A lock to be taken if it can be: await it. `None` says that somebody else has it.
///
/// The lease is renewed until the guard is dropped, unless [`lease`](Self::lease) fixes it.
///
/// # Errors
///
/// Those of [`Lock`]. That the lock is held is not an error, and an error never means that it is held.
///
/// # Panics
///
/// When polled outside of a Tokio runtime with time enabled.
///
/// # Cancel safety
///
/// As of [`Lock`].
#[derive(Debug)]
#[must_use = "a lock that is not awaited is not taken"]
pub struct TryLock {
    request: Request,
}

impl Lock {
    /// A fixed lease, of 10 ms to 365 days, that is not renewed. Nobody looks after it either: that a server forgot it is
    /// noticed when it is released or ends.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.fix_lease(lease);
        self
    }

    /// The longest time the lock is held, 10 ms to 365 days, however much is renewed: a body that hangs does not keep it for
    /// ever.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.request.terms.max_hold = Some(max_hold);
        self
    }

    /// Which replicas must confirm the lock, whatever [`LocksBuilder::replicated`](crate::LocksBuilder::replicated) says.
    pub fn replicated(mut self, replicas: Replicas) -> Self {
        self.request.terms.replicas = replicas;
        self
    }
}

impl TryLock {
    /// A fixed lease, of 10 ms to 365 days, that is not renewed. Nobody looks after it either: that a server forgot it is
    /// noticed when it is released or ends.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.fix_lease(lease);
        self
    }

    /// The longest time the lock is held, 10 ms to 365 days, however much is renewed: a body that hangs does not keep it for
    /// ever.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.request.terms.max_hold = Some(max_hold);
        self
    }

    /// Which replicas must confirm the lock, whatever [`LocksBuilder::replicated`](crate::LocksBuilder::replicated) says.
    pub fn replicated(mut self, replicas: Replicas) -> Self {
        self.request.terms.replicas = replicas;
        self
    }
}

impl Request {
    fn fix_lease(&mut self, lease: Duration) {
        self.terms.lease = lease;
        self.terms.renew = false;
    }
}

impl IntoFuture for Lock {
    type Output = Result<Guard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            // Endless patience never ends without a guard or an error.
            acquire(&self.request).await?.ok_or_else(Error::closed)
        })
    }
}

impl IntoFuture for TryLock {
    type Output = Result<Option<Guard>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { acquire(&self.request).await })
    }
}
