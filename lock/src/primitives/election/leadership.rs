//! A leadership and its term.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::engine::context::Context;
use crate::engine::hold::Hold;
use crate::engine::operation::apply;
use crate::engine::registry::Registry;
use crate::engine::release::{self, Release};
use crate::error::{Error, ErrorKind, Lost, LostReason};
use crate::guard::Guard;
use crate::protocol::election::{Announcement, announce, effect, read_announce};
use crate::state::token::FencingToken;

/// The longest value that a leader publishes.
const MAX_VALUE: usize = 4096;

/// A leadership that was won, for as long as the lease lasts: the guard of the election's lock, with all that its [`Term`] has.
///
/// Dropping it resigns: the release is queued at once and hands over to the next candidate. Like every guard it is a lease: if
/// this process is stopped for longer than that, another candidate leads, and only the storage that is written to can refuse
/// the former one, by [`token`](Term::token).
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let leadership = locks.election("rebalancer").campaign().await?;
/// assert!(leadership.is_leader());
/// let done = leadership.run(async { "done" }).await; // dropped where it stands when the leadership is lost
/// assert_eq!(done?, "done");
///
/// let term = leadership.term();
/// leadership.resign().await?;
/// assert!(!term.is_leader());
/// # Ok(())
/// # });
/// ```
#[must_use = "dropping the leadership resigns"]
pub struct Leadership {
    guard: Guard,
    term: Term,
}

/// A leader's view of its leadership. It is not the leadership itself: clones can be given to everything that works for the leader,
/// and dropping them does nothing.
///
/// ```
/// # use leasehold::LostReason;
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let leadership = locks.election("rebalancer").campaign().await?;
/// let term = leadership.term();
/// assert_eq!(term.key(), "rebalancer");
/// assert!(term.is_leader() && !term.valid_for().is_zero());
///
/// term.publish("10.0.0.7:8080").await?;
/// let leader = locks.election("rebalancer").leader().await?.expect("somebody leads");
/// assert_eq!((leader.value(), leader.token()), (Some("10.0.0.7:8080"), term.token()));
/// assert_eq!(leader.id(), term.id());
///
/// drop(leadership);
/// assert_eq!(term.lost().await, LostReason::Released);
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct Term {
    /// Kept by the hold until it ends.
    context: Weak<Context>,
    registry: Arc<Registry>,
    hold: Arc<Hold>,
    /// How often it was announced.
    announcements: Arc<AtomicU64>,
}

impl Leadership {
    /// The leadership of the holder of the election's lock. It is not announced yet.
    pub(super) fn new(guard: Guard) -> Self {
        let (context, registry, hold) = guard.watched();
        Self {
            guard,
            term: Term {
                context,
                registry,
                hold,
                announcements: Arc::default(),
            },
        }
    }

    /// Its term, for everything that works for this leader.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Runs `future` while this leads: when the leadership is lost, drops the future where it stands.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the leadership was lost before `future` was done. What the future did until then stays done; a future that
    /// never yields cannot be stopped.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as `future`, which is dropped with it.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Lost> {
        self.guard.run(future).await
    }

    /// Resigns: the next candidate that waits leads at once. Waits for the server's answer.
    ///
    /// # Errors
    ///
    /// Those of [`Guard::release`]. The leadership is given up all the same.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the release was sent with the first poll, and is finished without the future.
    pub async fn resign(self) -> Result<Release, Error> {
        self.guard.release().await
    }
}

impl Deref for Leadership {
    type Target = Term;

    fn deref(&self) -> &Term {
        &self.term
    }
}

impl Term {
    /// The key of the election on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.name.key()
    }

    /// The id of the term on the server: see [`Guard::id`].
    #[must_use]
    pub fn id(&self) -> &str {
        self.hold.id.as_str()
    }

    /// The fencing token of this term: higher than that of every earlier leader. Whatever the leader writes elsewhere carries it.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.hold.token.unwrap_or(FencingToken::NONE)
    }

    /// Whether this may still be trusted to lead. Asks the clocks of this machine, not the server.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        !self.valid_for().is_zero()
    }

    /// For how long that may be trusted without another renewal; zero if the leadership is lost.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        self.registry.left(&self.hold)
    }

    /// Resolves when the leadership can no longer be trusted, with the reason; with [`LostReason::Released`] after its end. See
    /// [`Guard::lost`].
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

    /// Publishes `value` of this leader, of at most 4 KiB, in place of the one before.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Lost`] if this leads no more; nothing was published then.
    /// - [`ErrorKind::Config`] for a value that is too long.
    /// - [`ErrorKind::Unknown`]: no answer came, and it may be published. It can be repeated.
    /// - [`ErrorKind::NotReplicated`], [`ErrorKind::Unavailable`] and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent: the value may be published.
    pub async fn publish(&self, value: impl AsRef<str> + Send) -> Result<(), Error> {
        let published = self.announce(Some(value.as_ref())).await;
        published.map_err(Error::of_repeatable_change)
    }

    /// Announces this leader, with `value`.
    pub(super) async fn announce(&self, value: Option<&str>) -> Result<(), Error> {
        let hold = &self.hold;
        // Its hold is over and let go of it.
        let context = self.context.upgrade().ok_or_else(lost)?;
        let about = |error| context.about(&hold.name, error);
        check_value(value).map_err(about)?;
        if let Some(reason) = release::check(&self.registry, hold) {
            return Err(about(Error::new(ErrorKind::Lost, reason.to_string())));
        }
        let call = announce(&Announcement {
            name: &hold.name,
            id: &hold.id,
            number: self.announcements.fetch_add(1, Ordering::Relaxed),
            token: self.token(),
            channels: context.client.channels(),
            value,
        });
        let call = call.slices();
        let (call, replicas) = (call.call(), hold.terms.replicas);
        let reply = apply(&context, &hold.name, &call, replicas, effect).await?;
        match read_announce(&reply) {
            Some(true) => Ok(()),
            Some(false) => {
                // Others may lead: what watches it is told.
                release::lose(&self.registry, hold, LostReason::Stolen);
                Err(about(lost()))
            }
            None => Err(about(Error::unexpected(&reply))),
        }
    }
}

/// Refuses a value that cannot be published.
pub(super) fn check_value(value: Option<&str>) -> Result<(), Error> {
    if value.is_none_or(|value| value.len() <= MAX_VALUE) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Config,
        format!("the value of a candidate has at most {MAX_VALUE} bytes"),
    ))
}

fn lost() -> Error {
    Error::new(ErrorKind::Lost, "it leads no more")
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.term.show("Leadership", f)
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show("Term", f)
    }
}

impl Term {
    fn show(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("key", &self.key())
            .field("token", &self.token())
            .field("valid_for", &self.valid_for())
            .finish_non_exhaustive()
    }
}
