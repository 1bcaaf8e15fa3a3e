//! The proof that a lock is held.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::engine::context::Context;
use crate::engine::conversion::{self, Conversion, Converted};
use crate::engine::hold::Hold;
use crate::engine::registry::Registry;
use crate::engine::release::{self, Release};
use crate::engine::run::run;
use crate::error::{Error, ErrorKind, Lost, LostReason};
use crate::state::token::FencingToken;

/// A lock that is held, for as long as the lease lasts.
///
/// Dropping it releases the lock: the release is queued at once, behind everything sent before, and nothing waits for it.
/// That works in a panic, outside of a runtime and after the runtime is gone; what cannot be sent then, the renewal thread
/// sends.
///
/// A guard is a lease, not a mutex: if this process is stopped for longer than the lease, others get the lock.
/// [`is_held`](Self::is_held) knows, [`lost`](Self::lost) and [`cancellation`](Self::cancellation) tell, and
/// [`token`](Self::token) lets the storage that is written to refuse a holder that does not know yet.
///
/// A process that is forked has no locks of its parent's: its copy of a guard is not held, and dropping it does nothing.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # use std::time::Duration;
/// let guard = locks.mutex("order:42").lock().await?;
/// assert_eq!(guard.key(), "order:42");
/// assert!(guard.is_held() && guard.valid_for() <= Duration::from_secs(30));
/// assert_eq!(guard.acknowledged(), 0); // no replica was asked
///
/// drop(guard); // free
/// assert!(locks.mutex("order:42").try_lock().await?.is_some());
/// # Ok(())
/// # });
/// ```
///
/// # Common mistakes
///
/// A guard that is not kept in a variable releases the lock at once, and what follows runs without it. Give it a name, also where it
/// is not used, such as `_guard`:
///
/// ```no_run
/// #![deny(unused_must_use, let_underscore_drop)]
/// # async fn example(order: leasehold::Mutex) -> Result<(), leasehold::Error> {
/// let _guard = order.lock().await?; // held to the end of the block
/// # Ok(())
/// # }
/// ```
///
/// The compiler warns of a guard that is not used at all:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # async fn example(order: leasehold::Mutex) -> Result<(), leasehold::Error> {
/// order.lock().await?; // warning: unused `Guard` that must be used
/// # Ok(())
/// # }
/// ```
///
/// Of `_` alone, which is no variable, it warns only where its lint `let_underscore_drop` is on:
///
/// ```compile_fail
/// #![deny(let_underscore_drop)]
/// # async fn example(order: leasehold::Mutex) -> Result<(), leasehold::Error> {
/// let _ = order.lock().await?; // released here
/// # Ok(())
/// # }
/// ```
///
/// Two it cannot see, since they look at the `Option` and drop the guard with it. Write `if let Some(_guard) = …` instead:
///
/// ```no_run
/// # async fn example(order: leasehold::Mutex) -> Result<(), leasehold::Error> {
/// if order.try_lock().await?.is_some() {
///     // not held: it was released before the first line of this block
/// }
/// order.try_lock().await?; // released here, if it was taken
///
/// if let Some(_guard) = order.try_lock().await? {
///     // held
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    /// Kept by the hold until it ends, and not by the guard: one that is leaked keeps no connection.
    context: Weak<Context>,
    registry: Arc<Registry>,
    hold: Arc<Hold>,
    /// How many of the hold's permits it has, where they are counted.
    permits: u32,
    /// Whether its end was counted, by [`release`](Self::release).
    left: bool,
}

impl Guard {
    /// A guard of `hold`, which counts it already.
    pub(crate) fn new(context: &Arc<Context>, hold: Arc<Hold>) -> Self {
        Self {
            context: Arc::downgrade(context),
            registry: Arc::clone(&context.registry),
            permits: hold.permits().count,
            hold,
            left: false,
        }
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.name.key()
    }

    /// The id of the hold, as the server has it: `<client>:<n>`, which no other hold has. See
    /// [`Holder::id`](crate::Holder::id). Guards that share a hold, as those of an [`Owner`](crate::Owner) do or of tasks of one
    /// process that pass it on, share it.
    ///
    /// With the token it fences also against a second master that gives the same token:
    /// [`guides::fencing`](crate::guides::fencing#two-masters-at-once).
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let order = locks.mutex("order:42");
    /// let guard = order.lock().await?;
    /// assert_eq!(order.inspect().await?.holders()[0].id(), guard.id());
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn id(&self) -> &str {
        self.hold.id.as_str()
    }

    /// The fencing token: higher than that of every earlier acquisition of this name, as far as a failover leaves one master;
    /// see [`FencingToken`].
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let order = locks.mutex("order:42");
    /// let first = order.lock().await?.token();
    /// let second = order.lock().await?.token();
    /// assert!(second > first);
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn token(&self) -> FencingToken {
        // Every primitive whose guard is this type has tokens.
        self.hold.token.unwrap_or(FencingToken::NONE)
    }

    /// How many replicas confirmed the lock before it was granted; 0 if none were asked. See
    /// [`Replicas`](crate::Replicas).
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        self.hold.acknowledged
    }

    /// Whether the lease may still be trusted. Asks the clocks of this machine, not the server.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let guard = locks.mutex("order:42").lock().lease(Duration::from_millis(50)).await?;
    /// assert!(guard.is_held());
    /// tokio::time::sleep(Duration::from_millis(60)).await;
    /// assert!(!guard.is_held());
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// For how long the lease may be trusted without another renewal; zero if it is lost.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.registry.left(&self.hold)
    }

    /// Resolves when the lease can no longer be trusted, with the reason; with [`LostReason::Released`] after a release.
    ///
    /// Resolves in time without an answer of the server, and for a fixed lease. The future is independent of the guard: it
    /// can move to another task.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// use leasehold::LostReason;
    ///
    /// let order = locks.mutex("order:42");
    /// let guard = order.lock().await?;
    /// let lost = tokio::spawn(guard.lost());
    /// order.force_unlock().await?; // by an operator
    /// assert_eq!(lost.await?, LostReason::Stolen);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only watches.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static + use<> {
        let (registry, hold) = (Arc::clone(&self.registry), Arc::clone(&self.hold));
        async move { release::over(&registry, &hold).await }
    }

    /// A token that is cancelled when the lease can no longer be trusted, and by a release: for blocking work, which asks
    /// [`is_cancelled`](CancellationToken::is_cancelled) at its steps, and for spawned tasks.
    ///
    /// The renewal thread cancels it in time, also while the runtime of this task is blocked. If that thread is to be
    /// started for a fixed lease and cannot be, the token is cancelled at once. Cancelling a clone of it by hand
    /// does nothing to the lock.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let guard = locks.mutex("order:42").lock().await?;
    /// let lost = guard.cancellation();
    /// let done = tokio::task::spawn_blocking(move || {
    ///     (0..1_000).take_while(|_| !lost.is_cancelled()).count() // steps that take a while each
    /// });
    /// assert_eq!(done.await?, 1_000);
    /// # drop(guard);
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        let registry = &self.registry;
        if registry.home.is_elsewhere() {
            let token = CancellationToken::new();
            token.cancel();
            return token;
        }
        let token = self.hold.cancellation();
        if registry.start_worker().is_ok() {
            registry.work.watch(&self.hold);
        } else {
            token.cancel();
        }
        token
    }

    /// Runs `future` while the lock is held: when the lock is lost, drops it where it stands.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// use leasehold::LostReason;
    ///
    /// let order = locks.mutex("order:42");
    /// let guard = order.lock().await?;
    /// assert_eq!(guard.run(async { 6 * 7 }).await?, 42);
    ///
    /// // A fixed lease that is too short for the work:
    /// # drop(guard);
    /// let guard = order.lock().lease(Duration::from_millis(50)).await?;
    /// let stopped = guard.run(tokio::time::sleep(Duration::from_secs(10))).await.unwrap_err();
    /// assert_eq!(stopped.reason(), LostReason::Expired);
    /// # Ok(())
    /// # });
    /// ```
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
        let ran = run(release::over(&self.registry, &self.hold), pin!(future)).await;
        ran.map_err(|reason| Lost::new(reason, [self.key()]))
    }

    /// Leaves the lock held without a guard, and returns the id by which [`Mutex::detached`](crate::Mutex::detached) finds it, in
    /// any process. It is not renewed any more: the server keeps it for what is left of its lease, which is a second at most where
    /// it was waited for and no renewal has been confirmed since; see [`DetachedHold::extend`](crate::DetachedHold::extend).
    ///
    /// For a [`Mutex`](crate::Mutex), or a [`FairMutex`](crate::FairMutex), whose hold the mutex of that name finds, too. What a
    /// [`PlainMutex`](crate::PlainMutex) has taken is found by nothing, and ends with its lease.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let order = locks.mutex("order:42");
    /// let guard = order.lock().lease(Duration::from_secs(60)).await?;
    /// let id = guard.detach().expect("it is held, once");
    /// assert!(order.try_lock().await?.is_none()); // still held
    ///
    /// order.detached(id).release().await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// The guard, as it was: the lease is over, or other guards of an [`Owner`](crate::Owner) share the hold and will release it.
    pub fn detach(mut self) -> Result<String, Self> {
        let is_alone = self.hold.state().seal();
        if !is_alone || !self.is_held() {
            self.hold.state().unseal();
            return Err(self);
        }
        self.left = true;
        release::forget_guard(&self.registry, &self.hold, self.permits);
        Ok(self.id().to_owned())
    }

    /// Tells whether it is held, without being it.
    pub(crate) fn watched(&self) -> (Weak<Context>, Arc<Registry>, Arc<Hold>) {
        let (registry, hold) = (Arc::clone(&self.registry), Arc::clone(&self.hold));
        (Weak::clone(&self.context), registry, hold)
    }

    /// How many permits it has.
    pub(crate) const fn permits(&self) -> u32 {
        self.permits
    }

    /// Whether both are of one semaphore of one `Locks`.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.registry, &other.registry) && self.hold.name == other.hold.name
    }

    /// Takes over the permits of `other` if it is a part of the same hold, else gives it back.
    pub(crate) fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.hold, &other.hold) {
            return Err(other);
        }
        self.hold.state().merge();
        self.permits += other.permits;
        other.left = true;
        Ok(())
    }

    /// Another guard of the same hold that has so many of the permits of this one, which has as many at least.
    pub(crate) fn split(&mut self, permits: u32) -> Self {
        self.hold.state().split();
        self.permits -= permits;
        Self {
            context: Weak::clone(&self.context),
            registry: Arc::clone(&self.registry),
            hold: Arc::clone(&self.hold),
            permits,
            left: false,
        }
    }

    /// Gives it up without a release: its permits stay taken until the lease ends.
    pub(crate) fn forget(mut self) {
        self.left = true;
        release::forget_guard(&self.registry, &self.hold, self.permits);
    }

    /// Cancels `token` when the hold ends.
    pub(crate) fn cancel_at_end(&self, token: &CancellationToken) {
        let end = self.cancellation();
        self.hold.cancel_at_end(token);
        // An end before that did not see it.
        if end.is_cancelled() {
            token.cancel();
        }
    }

    /// Converts the hold for this guard, if it is the only one of it; `Err` with the guard as it was if others are in the way. On an
    /// error, and if the future is dropped, it is released.
    pub(crate) async fn convert(
        mut self,
        conversion: &Conversion,
    ) -> Result<Result<Self, Self>, Error> {
        let Some(context) = self.context.upgrade() else {
            return Err(Error::new(ErrorKind::Lost, "it ended before"));
        };
        Ok(
            match conversion::convert(&context, &self.hold, conversion).await? {
                Converted::To(hold) => {
                    // Its place was taken, so there is nothing to release.
                    self.left = true;
                    Ok(Self::new(&context, hold))
                }
                Converted::Nested => Ok(self),
                Converted::Refused => Err(self),
            },
        )
    }

    /// Releases the lock and waits for the server's answer.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// use leasehold::Release;
    ///
    /// let order = locks.mutex("order:42");
    /// assert_eq!(order.lock().await?.release().await?, Release::Released);
    ///
    /// let guard = order.lock().await?;
    /// order.force_unlock().await?;
    /// assert_eq!(guard.release().await?, Release::AlreadyGone); // no error, but too late
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) if it cannot be known whether the lock was held until now, and
    /// other kinds if the server could not be asked or refused. The lock is given up all the same: the renewal thread goes on
    /// trying to release it, and its lease ends in any case.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the release was sent with the first poll, and is finished without the future.
    pub async fn release(mut self) -> Result<Release, Error> {
        self.left = true;
        match self.context.upgrade() {
            Some(context) => release::release(&context, &self.hold, self.permits).await,
            // It ran out or was lost, and nothing else of these locks is left.
            None => Ok(Release::AlreadyGone),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(context) = self.context.upgrade()
            && !self.left
        {
            release::drop_guard(&context, &self.hold, self.permits);
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

/// Gives a guard with more to it, `struct $guard { guard: Guard, … }`, what every guard has.
macro_rules! guard_methods {
    ($guard:ident) => {
        impl $guard {
            /// The key on the server: the namespace and the name.
            #[must_use]
            pub fn key(&self) -> &str {
                self.guard.key()
            }

            /// How many replicas confirmed it before it was granted; 0 if none were asked. See
            /// [`Replicas`](crate::Replicas).
            #[must_use]
            pub fn acknowledged(&self) -> usize {
                self.guard.acknowledged()
            }

            /// Whether the lease may still be trusted. Asks the clocks of this machine, not the server.
            #[must_use]
            pub fn is_held(&self) -> bool {
                self.guard.is_held()
            }

            /// For how long the lease may be trusted without another renewal; zero if it is lost.
            #[must_use]
            pub fn valid_for(&self) -> std::time::Duration {
                self.guard.valid_for()
            }

            /// Resolves when the lease can no longer be trusted, with the reason: see [`Guard::lost`](crate::Guard::lost).
            ///
            /// # Panics
            ///
            /// When polled outside of a Tokio runtime with time enabled.
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: it only watches.
            pub fn lost(&self) -> impl Future<Output = crate::LostReason> + Send + 'static + use<> {
                self.guard.lost()
            }

            /// A token that is cancelled when the lease can no longer be trusted, and by a release: see
            /// [`Guard::cancellation`](crate::Guard::cancellation).
            #[must_use]
            pub fn cancellation(&self) -> crate::CancellationToken {
                self.guard.cancellation()
            }

            /// Runs `future` while it is held: when it is lost, drops the future where it stands.
            ///
            /// # Errors
            ///
            /// [`Lost`](crate::Lost) if it was lost before `future` was done.
            ///
            /// # Panics
            ///
            /// When polled outside of a Tokio runtime with time enabled.
            ///
            /// # Cancel safety
            ///
            /// As cancel safe as `future`, which is dropped with it.
            pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, crate::Lost> {
                self.guard.run(future).await
            }

            /// Releases it and waits for the server's answer.
            ///
            /// # Errors
            ///
            /// Those of [`Guard::release`](crate::Guard::release).
            ///
            /// # Cancel safety
            ///
            /// Cancel safe: the release was sent with the first poll, and is finished without the future.
            pub async fn release(self) -> Result<crate::Release, crate::Error> {
                self.guard.release().await
            }
        }

        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("key", &self.key())
                    .field("valid_for", &self.valid_for())
                    .finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use guard_methods;
