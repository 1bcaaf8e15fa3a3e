//! A hold without a guard.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_cluster::Effect;

use crate::engine::handle::Handle;
use crate::engine::operation;
use crate::engine::release::{self, Release};
use crate::error::{Error, ErrorKind};
use crate::options::Replicas;
use crate::protocol::call::Call;
use crate::protocol::mutex::{inspect, read_inspect};
use crate::protocol::permits::Permits;
use crate::protocol::{Ended, Protocol, Renewal, Renewed};
use crate::state::deadline::is_good_lease;
use crate::state::id::HoldId;
use crate::state::names::Name;

/// A hold of a [`Mutex`](crate::Mutex) that has no guard: it was [detached](crate::Guard::detach) from its own, and is known by its
/// id alone, which another process may have been given.
///
/// It is not renewed, and ends with its lease unless it is [extended](Self::extend) or [released](Self::release). Each method asks
/// the server, and does nothing to the lock where another hold has it. Creating the handle does no I/O, and dropping it does
/// nothing.
///
/// ```
/// # leasehold_testkit::example::with_url(async |url| {
/// # let here = leasehold::Locks::connect(url.clone()).await?;
/// # let there = leasehold::Locks::connect(url).await?;
/// use std::time::Duration;
/// use leasehold::Release;
///
/// let guard = here.mutex("order:42").lock().lease(Duration::from_secs(60)).await?;
/// let id = guard.detach().expect("it is held, once");
///
/// // Anywhere, within a minute:
/// let hold = there.mutex("order:42").detached(id);
/// println!("{} of `{}` lasts for {:?}", hold.id(), hold.key(), hold.remaining().await?);
/// assert!(hold.extend(Duration::from_secs(60)).await?);
/// assert_eq!(hold.release().await?, Release::Released);
/// assert!(!hold.extend(Duration::from_secs(60)).await?); // it is gone
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct DetachedHold {
    context: Arc<Handle>,
    protocol: &'static Protocol,
    name: Arc<Name>,
    id: String,
}

impl DetachedHold {
    pub(super) fn new(
        context: &Arc<Handle>,
        protocol: &'static Protocol,
        name: &Arc<Name>,
        id: String,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            protocol,
            name: Arc::clone(name),
            id,
        }
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.name.key()
    }

    /// The id of the hold.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// For how long the hold stays there unless it is extended or released; `None` if it is gone.
    ///
    /// It was that long when the server answered: others may have the lock as soon as it has passed since the call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if the id is none; [`ErrorKind::NoExpiry`] if something took the expiry from the lock;
    /// [`ErrorKind::WrongType`] if the key is not a lock; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn remaining(&self) -> Result<Option<Duration>, Error> {
        self.check().await?;
        let call = inspect(&self.name);
        let call = call.slices();
        let reply = operation::ask(&self.context, &self.name, &call.call()).await?;
        let found = read_inspect(&reply).ok_or_else(|| self.error(Error::unexpected(&reply)))?;
        match found.filter(|found| found.holder == self.id) {
            None => Ok(None),
            Some(found) => match found.remaining {
                None => Err(self.error(Error::no_expiry())),
                remaining => Ok(remaining),
            },
        }
    }

    /// Lets the hold last for `lease` from now on, 10 ms to 365 days, unless it lasts longer already. Returns false if it is gone:
    /// that never takes the lock anew.
    ///
    /// The lease counts from a moment between the call and the answer. Replicas confirm it if these locks
    /// [ask for that](crate::LocksBuilder::replicated).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadLease`] for a duration that cannot be used, [`ErrorKind::Config`] if the id is none;
    /// [`ErrorKind::Unknown`] if no answer came: it may have been extended; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn extend(&self, lease: Duration) -> Result<bool, Error> {
        let id = self.check().await?;
        if !is_good_lease(lease) {
            return Err(self.error(Error::bad_lease("the lease")));
        }
        let replicas = self.context.config.replicas;
        let script = match replicas {
            Replicas::None => self.protocol.renew_one,
            _ => self.protocol.renew_replicated,
        };
        let mut call = Call::new(script);
        let renewal = Renewal {
            name: &self.name,
            id: &id,
            permits: Permits::NONE,
            lease,
        };
        (self.protocol.add_renewal)(&renewal, &mut call);
        let slices = call.slices();
        let reply = operation::apply(&self.context, &self.name, &slices.call(), replicas, |_| {
            Effect::Wrote
        })
        .await
        .map_err(Error::of_repeatable_change)?;
        match (self.protocol.read_renewals)(&reply, 1).as_deref() {
            Some([Renewed::Held | Renewed::Contended]) => Ok(true),
            Some([Renewed::Gone]) => Ok(false),
            _ => Err(self.error(Error::unexpected(&reply))),
        }
    }

    /// Releases the hold, and hands the lock on. Only this hold: where another one has the lock, nothing happens and the answer is
    /// [`Release::AlreadyGone`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if the id is none; [`ErrorKind::Unknown`] if the hold is gone but an attempt without an answer may have
    /// been what released it, or no answer came; and those of asking a server. It may be called again then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn release(&self) -> Result<Release, Error> {
        let id = self.check().await?;
        let Self { context, name, .. } = self;
        let lease = context.config.lease;
        let end = release::end(&context.registry, &context.client, (name, &id, lease));
        let call = (self.protocol.release)(&end);
        let slices = call.slices();
        let single_key = || (self.protocol.release_single_key)(&end).to_owned();
        let call = slices.call().with_fallback(&single_key);
        let deadline = Instant::now() + context.config.command_timeout;
        let evaluated = context.client.eval(&call, deadline).await;
        let evaluated = evaluated
            .map_err(|error| self.error(Error::from_client(error).of_repeatable_change()))?;
        match (self.protocol.read_release)(&evaluated.value) {
            Some(Ended::Released) => Ok(Release::Released),
            Some(Ended::Kept(left)) => Ok(Release::Kept { left }),
            Some(Ended::AlreadyGone) if evaluated.repeated => {
                let detail = "the hold is gone, but an attempt without an answer may have been what released it";
                let unknown = Error::new(ErrorKind::Unknown, detail);
                Err(self.error(unknown.of_repeatable_change()))
            }
            Some(Ended::AlreadyGone) => Ok(Release::AlreadyGone),
            None => Err(self.error(Error::unexpected(&evaluated.value))),
        }
    }

    /// The id, if it and the name can be used now.
    async fn check(&self) -> Result<HoldId, Error> {
        self.context.ready(&self.name).await?;
        HoldId::parse(&self.id).ok_or_else(|| {
            self.error(Error::new(
                ErrorKind::Config,
                "`detached` was given a text that is no hold's id",
            ))
        })
    }

    fn error(&self, error: Error) -> Error {
        self.context.about(&self.name, error)
    }
}

impl fmt::Debug for DetachedHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedHold")
            .field("key", &self.key())
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
