//! The proof that a lock is held.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Lost, LostReason};
use crate::hold::{FencingToken, Hold, Leave, Releasing};
use crate::keeper::Unfinished;
use crate::scripts::{RELEASE, release_of};

/// A lock that is held, for as long as the lease lasts.
///
/// Dropping it releases the lock: the release is queued at once, behind everything sent before, and nothing waits for it.
/// That works in a panic, outside of a runtime and after the runtime is gone; what cannot be sent then, the keeper sends.
///
/// A guard is a lease, not a mutex: if this process is stopped for longer than the lease, somebody else gets the lock.
/// [`is_held`](Self::is_held) knows, [`lost`](Self::lost) tells, and [`token`](Self::token) lets the storage that is
/// written to refuse whoever does not know yet.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    hold: Arc<Hold>,
    /// Whether its end was counted, by [`release`](Self::release).
    left: bool,
}

/// What [`Guard::release`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Release {
    /// The lock was held until now, and is free.
    Released,
    /// It was gone before: expired, forced or flushed. Somebody else may have held it meanwhile.
    AlreadyGone,
    /// Other guards of the same [`Owner`](crate::Owner) still hold it. Nothing was sent.
    StillHeld,
}

impl Guard {
    /// A guard of `hold`, which counts it already.
    pub(crate) const fn new(hold: Arc<Hold>) -> Self {
        Self { hold, left: false }
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.name.key()
    }

    /// The fencing token: higher than that of every earlier acquisition of this name.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// How many replicas confirmed the lock before it was granted; 0 if none were asked. See
    /// [`Replicas`](crate::Replicas).
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.hold.acknowledged
    }

    /// Whether the lease may still be trusted. Asks the clocks of this machine, not the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.is_live()
    }

    /// For how long the lease may be trusted without another renewal; zero if it is lost.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.hold.left()
    }

    /// Resolves when the lease can no longer be trusted, with the reason; with [`LostReason::Released`] after a release.
    ///
    /// Resolves in time without an answer of the server, and for a lease that nobody renews. The future is independent
    /// of the guard: it can move to another task.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only watches.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static + use<> {
        let hold = Arc::clone(&self.hold);
        async move { hold.over().await }
    }

    /// Runs `future` while the lock is held: when the lock is lost, drops it where it stands.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the lock was lost before `future` was done. What the future did until then stays done; a future
    /// that never yields cannot be stopped.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `future`, which is dropped with it.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Lost> {
        let mut lost = pin!(self.hold.over());
        let mut future = pin!(future);
        poll_fn(|cx| {
            // First, so that nothing runs under a lost lock even once.
            if let Poll::Ready(reason) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(Lost::new(reason)));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Releases the lock and waits for the server's word on it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unknown`] if it cannot be known whether the lock was held until now, and other kinds if the server
    /// could not be asked or refused. The lock is given up all the same: the keeper goes on trying to release it, and
    /// its lease ends in any case.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the release was sent with the first poll, and is finished without the future.
    pub async fn release(mut self) -> Result<Release, Error> {
        self.left = true;
        let hold = Arc::clone(&self.hold);
        match hold.leave() {
            Leave::Nested => return Ok(Release::StillHeld),
            Leave::Gone => return Ok(Release::AlreadyGone),
            Leave::Release => {}
        }
        let Releasing {
            submitted,
            listens,
            unfinished,
        } = hold.submit_release();
        let mut pending = Pending {
            hold: &hold,
            unfinished: Some(unfinished),
        };
        let mut repeated = false;
        let outcome = match submitted.await {
            Err(error) if crate::keeper::Job::is_worth_it(&error) => {
                repeated = error.may_have_executed();
                pending.again().await.map(|(value, again)| {
                    repeated |= again;
                    value
                })
            }
            outcome => outcome,
        };
        let value = match outcome {
            Ok(value) => value,
            Err(error) => {
                if let Some(unfinished) = pending.unfinished.take() {
                    hold.finish_later(&error, unfinished);
                }
                // That the second attempt was not sent says nothing of the first.
                let may_have_run = repeated && !error.may_have_executed();
                let error = Error::from_client(error);
                return Err(hold.error(if may_have_run { error.doubted() } else { error }));
            }
        };
        pending.unfinished = None;
        match hold.released(&value, listens) {
            Some(true) => Ok(Release::Released),
            // An earlier attempt of ours may have been the one that ended it.
            Some(false) if repeated => Err(hold.error(Error::new(
                ErrorKind::Unknown,
                "the lock is free of this hold, but an attempt without an answer may have been what released it",
            ))),
            Some(false) => Ok(Release::AlreadyGone),
            None => Err(hold.error(Error::unexpected(&value))),
        }
    }
}

/// A release whose future may be dropped: then the keeper asks again. Asking twice does no harm.
struct Pending<'a> {
    hold: &'a Arc<Hold>,
    unfinished: Option<Unfinished>,
}

impl Pending<'_> {
    /// The release once more, with repetitions. Returns whether it may have run more than once.
    async fn again(&self) -> Result<(leasehold_resp::Value, bool), leasehold_resp::Error> {
        let Hold {
            inner, name, id, ..
        } = &**self.hold;
        let (keys, args) = release_of(&inner.client, name, id);
        let deadline = Instant::now() + inner.config.command_timeout;
        let evaluated = inner
            .client
            .eval(&RELEASE.call(&keys, &args), deadline)
            .await?;
        Ok((evaluated.value, evaluated.repeated))
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(unfinished) = self.unfinished.take() {
            let node = self.hold.inner.client.node(self.hold.name.key().as_bytes());
            let dropped = leasehold_resp::Error::unknown(&node, "the future was dropped");
            self.hold.finish_later(&dropped, unfinished);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        match self.hold.leave() {
            Leave::Nested | Leave::Gone => {}
            Leave::Release => self.hold.release_detached(),
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("key", &self.key())
            .field("token", &self.token())
            .field("valid_for", &self.valid_for())
            .finish()
    }
}
