//! The proof that several locks are held.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::engine::multi::{Group, over, release};
use crate::engine::release::Release;
use crate::engine::run::run;
use crate::error::{Error, Lost, LostReason};
use crate::state::token::FencingToken;

/// Several locks that are held together, for as long as the lease of each of them lasts.
///
/// It is held while each lock is. When one is lost, it is lost, and the other locks are released at once, also while nobody
/// looks at it. Dropping it releases all locks without waiting, as [`Guard`](crate::Guard) does.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # use std::time::Duration;
/// let guard = locks.multi(["account:7", "account:12"]).lock().await?;
/// assert_eq!(guard.keys().count(), 2);
/// assert!(guard.is_held() && guard.valid_for() <= Duration::from_secs(30));
/// let tokens = guard.tokens(); // one for each account: check each where it is written
/// println!("{} and {}", tokens["account:7"], tokens["account:12"]);
/// assert_eq!(locks.mutex("account:7").inspect().await?.holders()[0].id(), guard.id());
/// guard.run(async { /* … move the money … */ }).await?;
///
/// let (lost, cancelled) = (guard.lost(), guard.cancellation());
/// guard.release().await?;
/// lost.await;
/// assert!(cancelled.is_cancelled());
/// # Ok(())
/// # });
/// ```
#[must_use = "dropping the guard releases the locks"]
pub struct MultiGuard {
    group: Arc<Group>,
    /// Length of what stands before each name in its key.
    prefix: usize,
    /// Whether its end was counted, by [`release`](Self::release).
    left: bool,
}

impl MultiGuard {
    /// A guard of `group`, whose keys begin with a prefix of this length.
    pub(super) const fn new(group: Arc<Group>, prefix: usize) -> Self {
        Self {
            group,
            prefix,
            left: false,
        }
    }

    /// The keys on the server, each of them once: the namespace and the name.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.group.parts().iter().map(|part| part.name.key())
    }

    /// The id of the hold, which all the locks have: see [`Guard::id`](crate::Guard::id).
    #[must_use]
    pub fn id(&self) -> &str {
        let mut parts = self.group.parts().iter();
        parts.next().map_or("", |part| part.id.as_str())
    }

    /// The fencing token of each lock by its name, without the namespace: higher than that of every earlier acquisition of
    /// that name.
    #[must_use]
    pub fn tokens(&self) -> BTreeMap<&str, FencingToken> {
        let token = |part: &crate::engine::hold::Hold| part.token.unwrap_or(FencingToken::NONE);
        let parts = self.group.parts().iter();
        parts
            .map(|part| (&part.name.key()[self.prefix..], token(part)))
            .collect()
    }

    /// Whether the leases may still be trusted. Asks the clocks of this machine, not the servers.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// For how long the leases may be trusted without another renewal, by the lock with the least; zero if one is lost.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.group.left()
    }

    /// Resolves when one of the leases can no longer be trusted, with the reason; with [`LostReason::Released`] after a release.
    ///
    /// Resolves in time without an answer of the server, and for fixed leases. The future is independent of the guard: it
    /// can move to another task.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only watches.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static + use<> {
        let group = Arc::clone(&self.group);
        async move { over(&group).await }
    }

    /// A token that is cancelled when one of the leases can no longer be trusted, and by a release: for blocking work and for
    /// spawned tasks, as [`Guard::cancellation`](crate::Guard::cancellation).
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        self.group.cancellation()
    }

    /// Runs `future` while all locks are held: when one is lost, drops it where it stands.
    ///
    /// # Errors
    ///
    /// [`Lost`] if a lock was lost before `future` was done. What the future did until then stays done; a future that never
    /// yields cannot be stopped.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `future`, which is dropped with it.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Lost> {
        let ran = run(over(&self.group), pin!(future)).await;
        ran.map_err(|reason| Lost::new(reason, self.keys()))
    }

    /// Releases all locks and waits for the answers: [`Release::Released`] if every one of them was held until now.
    ///
    /// # Errors
    ///
    /// The first one of those of [`Guard::release`](crate::Guard::release). All locks are given up all the same.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the releases were sent with the first poll, and are finished without the future.
    pub async fn release(mut self) -> Result<Release, Error> {
        self.left = true;
        match self.group.context() {
            Some(context) => release(&context, &self.group).await,
            // They ran out or were lost, and nothing else of these locks is left.
            None => Ok(Release::AlreadyGone),
        }
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        if !self.left {
            self.group.leave();
        }
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("tokens", &self.tokens())
            .field("valid_for", &self.valid_for())
            .finish()
    }
}
