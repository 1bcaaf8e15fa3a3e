//! Permits of a semaphore that are held.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::engine::release::Release;
use crate::engine::run::run;
use crate::error::{Error, Lost, LostReason};
use crate::guard::Guard;
use crate::request::Outcome;

/// Permits of a [`Semaphore`](crate::Semaphore) that are held, for as long as the lease lasts.
///
/// Dropping it gives them back: that is queued at once, behind everything sent before, and nothing waits for it. What cannot
/// be sent then, the renewal thread sends.
///
/// A permit is a lease: if this process is stopped for longer than that, others get it. [`is_held`](Self::is_held) knows,
/// [`lost`](Self::lost) and [`cancellation`](Self::cancellation) tell. There is no fencing token, since several hold
/// permits at the same time. Redisson's counterpart is the id of a permit.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// # use std::time::Duration;
/// let permits = locks.semaphore("fragile", 5).acquire_many(2).await?;
/// assert_eq!((permits.key(), permits.num_permits()), ("fragile", 2));
/// assert!(permits.is_held() && permits.valid_for() <= Duration::from_secs(30));
/// assert_eq!(permits.acknowledged(), 0); // no replica was asked
/// permits.run(async { /* … */ }).await?;
///
/// let (lost, cancelled) = (permits.lost(), permits.cancellation()); // for other tasks, and blocking ones
/// permits.release().await?;
/// lost.await; // at the release, or at a loss before
/// assert!(cancelled.is_cancelled());
/// # Ok(())
/// # });
/// ```
#[must_use = "dropping the permit gives it back"]
pub struct Permit {
    /// Of one acquisition.
    guard: Guard,
    /// Of others, which were merged with it.
    merged: Vec<Guard>,
}

impl Permit {
    /// How many permits these are.
    #[must_use]
    pub fn num_permits(&self) -> usize {
        self.guards().map(|guard| guard.permits() as usize).sum()
    }

    /// Takes `n` permits out of these; `None` if there are fewer. Both are of the same lease, which is renewed until the last
    /// of them is gone. Nothing is sent.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let mut three = locks.semaphore("fragile", 5).acquire_many(3).await?;
    /// let one = three.split(1).expect("there are three");
    /// assert_eq!((one.num_permits(), three.num_permits()), (1, 2));
    /// assert!(three.split(3).is_none());
    /// # Ok(())
    /// # });
    /// ```
    pub fn split(&mut self, n: usize) -> Option<Self> {
        let mut left = u32::try_from(n).ok()?;
        if n > self.num_permits() {
            return None;
        }
        let mut parts = Vec::new();
        while left > 0 {
            // Whole ones where they fit, so that no guard stays without permits.
            if let Some(whole) = self.merged.pop_if(|last| last.permits() <= left) {
                left -= whole.permits();
                parts.push(whole);
                continue;
            }
            let last = self.merged.last_mut().unwrap_or(&mut self.guard);
            parts.push(last.split(left));
            left = 0;
        }
        let guard = parts.pop().unwrap_or_else(|| self.guard.split(0));
        Some(Self {
            guard,
            merged: parts,
        })
    }

    /// Takes over the permits of `other`. Those of several acquisitions keep their leases, and are lost when one of them is.
    /// Nothing is sent.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let connections = locks.semaphore("fragile", 5);
    /// let mut permits = connections.acquire_many(2).await?;
    /// permits.merge(connections.acquire().await?);
    /// assert_eq!(permits.num_permits(), 3);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Panics
    ///
    /// If `other` is of another semaphore, or of other [`Locks`](crate::Locks).
    pub fn merge(&mut self, other: Self) {
        assert!(
            self.guard.is_beside(&other.guard),
            "permits of `{}` and of `{}` cannot be merged: they are of different semaphores",
            self.key(),
            other.key()
        );
        if other.num_permits() == 0 {
            return;
        }
        if self.num_permits() == 0 {
            *self = other;
            return;
        }
        let Self { guard, merged } = other;
        for guard in std::iter::once(guard).chain(merged) {
            let mut own = std::iter::once(&mut self.guard).chain(&mut self.merged);
            let rest = own.try_fold(guard, |guard, own| match own.merge(guard) {
                Ok(()) => Err(()),
                Err(guard) => Ok(guard),
            });
            if let Ok(guard) = rest {
                self.merged.push(guard);
            }
        }
    }

    /// Gives them up without giving them back: they stay taken until their lease ends, and are not renewed.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let connections = locks.semaphore("fragile", 5);
    /// connections.acquire().await?.forget();
    /// assert_eq!(connections.available().await?, 4); // until its lease ends
    /// # Ok(())
    /// # });
    /// ```
    pub fn forget(self) {
        let Self { guard, merged } = self;
        std::iter::once(guard).chain(merged).for_each(Guard::forget);
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.guard.key()
    }

    /// How many replicas confirmed them before they were granted; 0 if none were asked. See
    /// [`Replicas`](crate::Replicas).
    #[must_use]
    pub fn acknowledged(&self) -> usize {
        let acknowledged = self.guards().map(Guard::acknowledged);
        acknowledged.min().unwrap_or_default()
    }

    /// Whether all of them may still be trusted. Asks the clocks of this machine, not the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards().all(Guard::is_held)
    }

    /// For how long all of them may be trusted without another renewal; zero if one is lost.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        let valid = self.guards().map(Guard::valid_for);
        valid.min().unwrap_or_default()
    }

    /// Resolves when one of them can no longer be trusted, with the reason: see [`Guard::lost`].
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only watches.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + 'static + use<> {
        let mut all: Vec<_> = self.guards().map(|guard| Box::pin(guard.lost())).collect();
        poll_fn(move |cx| {
            let mut ready = all.iter_mut().map(|lost| lost.as_mut().poll(cx));
            ready.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
    }

    /// A token that is cancelled when one of them can no longer be trusted, and by a release: see [`Guard::cancellation`].
    /// Permits that are merged later do not cancel it.
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        if self.merged.is_empty() {
            return self.guard.cancellation();
        }
        let token = CancellationToken::new();
        self.guards().for_each(|guard| guard.cancel_at_end(&token));
        // Cancelling it by hand reaches no other.
        token.child_token()
    }

    /// Runs `future` while they are held: when one is lost, drops it where it stands.
    ///
    /// # Errors
    ///
    /// [`Lost`] if one was lost before `future` was done.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `future`, which is dropped with it.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Lost> {
        let ran = run(self.lost(), pin!(future)).await;
        ran.map_err(|reason| Lost::new(reason, [self.key()]))
    }

    /// Gives them back and waits for the server's answer: [`Release::AlreadyGone`] if one of them was lost before.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it was sent with the first poll, and is finished without the future.
    pub async fn release(self) -> Result<Release, Error> {
        type Releasing = Pin<Box<dyn Future<Output = Result<Release, Error>> + Send>>;
        if self.num_permits() == 0 {
            // All of them were split off.
            return Ok(Release::Released);
        }
        let Self { guard, merged } = self;
        if merged.is_empty() {
            return guard.release().await;
        }
        let guards = std::iter::once(guard).chain(merged);
        let mut open: Vec<Releasing> = guards.map(|guard| Box::pin(guard.release()) as _).collect();
        let mut outcome = Ok(Release::Released);
        poll_fn(|cx| {
            open.retain_mut(|releasing| match releasing.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(released) => {
                    if !matches!(released, Ok(Release::Released)) && outcome.is_ok() {
                        outcome = released;
                    }
                    false
                }
            });
            if open.is_empty() {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
        outcome
    }

    fn guards(&self) -> impl Iterator<Item = &Guard> {
        std::iter::once(&self.guard).chain(&self.merged)
    }
}

impl From<Guard> for Permit {
    fn from(guard: Guard) -> Self {
        Self {
            guard,
            merged: Vec::new(),
        }
    }
}

impl Outcome for Permit {
    fn of(guard: Option<Guard>) -> Result<Self, Error> {
        // An endless wait never ends without a guard or an error.
        guard.map(Self::from).ok_or_else(Error::closed)
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("key", &self.key())
            .field("permits", &self.num_permits())
            .field("valid_for", &self.valid_for())
            .finish()
    }
}
