//! The proof that a majority of several deployments grants a lock.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::engine::redlock::QuorumGuard;
use crate::engine::release::Release;
use crate::engine::run::run;
use crate::error::{Error, Lost, LostReason};
use crate::state::token::FencingToken;

/// A lock that a majority of several deployments grants, for as long as the leases of that majority last.
///
/// Dropping it releases the lock at all of them, without waiting; the thread that renews it goes on until each has answered, or
/// the lease is over. It is a lease, not a mutex: see [`Guard`](crate::Guard).
///
/// ```
/// # leasehold_testkit::example::with_three_urls(async |urls| {
/// # use leasehold::Redlock;
/// # use std::time::Duration;
/// # let red = Redlock::builder(urls).durable().connect().await?;
/// let guard = red.mutex("order:42").lock().fenced().await?;
/// assert_eq!(guard.key(), "order:42");
/// assert!(guard.is_held() && guard.valid_for() <= Duration::from_secs(10));
/// println!("token {:?}", guard.token());
/// guard.run(async { /* … */ }).await?;
///
/// let (lost, cancelled) = (guard.lost(), guard.cancellation()); // for other tasks, and blocking ones
/// guard.release().await?;
/// lost.await; // at the release, or at a loss before
/// assert!(cancelled.is_cancelled());
/// # Ok(())
/// # });
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct RedlockGuard(QuorumGuard);

impl RedlockGuard {
    pub(super) const fn new(guard: QuorumGuard) -> Self {
        Self(guard)
    }

    /// The key at the nodes: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.0.hold().name.key()
    }

    /// The fencing token, if [`fenced`](crate::RedlockAcquire::fenced) asked for it: higher than that of every earlier
    /// acquisition of this name that has one.
    #[must_use]
    pub fn token(&self) -> Option<FencingToken> {
        self.0.hold().token()
    }

    /// Whether a majority may still be trusted. Asks the clocks of this machine, not the nodes.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// For how long a majority may be trusted without another renewal; zero if the lock is lost.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.0.hold().left()
    }

    /// Resolves when no majority can be trusted any longer, with the reason; with [`LostReason::Released`] after a release.
    ///
    /// Resolves in time without an answer of any node, and for a fixed lease. The future is independent of the guard: it can
    /// move to another task.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only watches.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static + use<> {
        let hold = Arc::clone(self.0.hold());
        async move { hold.over().await }
    }

    /// A token that is cancelled when no majority can be trusted any longer, and by a release: for blocking work and for spawned
    /// tasks, as [`Guard::cancellation`](crate::Guard::cancellation). The thread that renews the lock cancels it in time.
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        self.0.hold().cancellation()
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
        let ran = run(self.0.hold().over(), pin!(future)).await;
        ran.map_err(|reason| Lost::new(reason, [self.key()]))
    }

    /// Releases the lock at all nodes, and waits until a majority has answered.
    ///
    /// # Errors
    ///
    /// No majority answered within the command timeout. The lock is given up all the same, and the nodes are asked until each
    /// has answered or the lease is over.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the releases go on without the future.
    pub async fn release(self) -> Result<Release, Error> {
        self.0.release().await
    }
}

impl fmt::Debug for RedlockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockGuard")
            .field("key", &self.key())
            .field("token", &self.token())
            .field("valid_for", &self.valid_for())
            .finish()
    }
}
