//! The latch.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_cluster::Channels;
use leasehold_cluster::slot::slot;
use leasehold_resp::Value;

use crate::engine::context::Context;
use crate::engine::handle::Handle;
use crate::engine::operation::{apply, ask, ask_proven, missed, pause_unproven};
use crate::engine::signal::{self, Watcher};
use crate::error::{Error, ErrorKind};
use crate::options::{Interop, Replicas};
use crate::protocol::call::Call;
use crate::protocol::latch::{
    self, Change, Counted, Hears, LAYOUT, effect, read_count_down, read_inspect, read_look,
    read_set,
};
use crate::state::deadline::is_good_lease;
use crate::state::id::HoldId;
use crate::state::latch::{LatchInspection, LatchWaiter, Verdict, View};
use crate::state::names::Name;
use crate::state::primitive::Primitive;

/// The largest count: all that a script can calculate with.
const MAX_COUNT: u64 = (1 << 53) - 1;
/// The pause before a latch of which nothing is known is looked at again, while the server may have lost it.
const DOUBTFUL_PAUSE: Duration = Duration::from_millis(250);
/// The longest name of a participant.
const MAX_PARTICIPANT: usize = 4096;

/// A handle to a named latch, which opens when it was counted down to zero. Creating it does no I/O; cloning is cheap.
///
/// A latch that was not set is open. Those who wait hear of the opening by a message; a message that is lost, a connection
/// that breaks or a failover delays them by no more than 8 seconds, because they look by themselves as well. The waiters of
/// one `Locks` share a subscription and their looks: a thousand cost the server what one does.
///
/// It is Redisson's `RCountDownLatch`, on the same key, and so it has no expiry unless [`expiry`](Self::expiry) gives it one: a
/// participant that dies before it has counted leaves it closed. What it does beyond Redisson:
///
/// - **A count is counted once**, whether its reply is lost or its request arrives twice, and a participant's
///   ([`count_down_as`](Self::count_down_as)) also if the caller repeats it.
/// - **A waiter hears of every opening**, also if the latch was set again before it looked.
/// - **A latch that vanishes is not open**: if the server lost it or it expired, waiters get [`ErrorKind::Broken`]. Not with
///   [`Interop::Redisson`], where absence is how Redisson opens a latch; there only one that has expired is known.
/// - **Names with hash tags** work in a cluster, where Redisson's own scripts fail on them.
///
/// A single server that restarts empty, and a failover to a replica that lags behind, lose counts: with
/// [`replicated`](Self::replicated) a count that was reported is on the replicas. A master that comes back empty while one of them
/// is being promoted knows nothing of it, and opens nothing then: until the data of a master are older than the longest lease,
/// waiting for a latch that nobody has set goes on, and [`count`](Self::count) and counting it down fail as
/// [`ErrorKind::Unavailable`]. While the slot of a latch migrates, counting may fail as `Unavailable` too; waiting goes on.
///
/// Least rights of a user, here for the namespace `shop`: `~shop:* ~leasehold_latch:{shop:* &leasehold_latch:{shop:*`, and
/// `+eval +evalsha +time +pttl +pexpire +get +set +decr +del +zscore +zadd +zrem +zremrangebyscore +zrangebyscore +publish
/// +subscribe +unsubscribe +info`. Without the channel those who wait look each second.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let pages = locks.latch("pages");
/// assert_eq!(pages.key(), "pages");
/// pages.try_set_count(3).await?;
/// // … in three workers, anywhere:
/// for page in ["page-1", "page-2", "page-3"] {
///     pages.count_down_as(page).await?;
/// }
/// // … and in whatever needs all of them:
/// pages.wait().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct Latch {
    context: Arc<Handle>,
    name: Arc<Name>,
    expiry: Option<Duration>,
    replicas: Replicas,
}

impl Latch {
    pub(crate) fn new(context: &Arc<Handle>, name: &str) -> Self {
        let name = Name::new(&LAYOUT, context.config.namespace.as_deref(), name);
        Self {
            context: Arc::clone(context),
            name: Arc::new(name),
            expiry: None,
            replicas: context.config.replicas,
        }
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.name.key()
    }

    /// A latch that this handle sets vanishes after `expiry`, 10 ms to 365 days; by default it has none. Those who wait then get
    /// [`ErrorKind::Broken`].
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let pages = locks.latch("pages").expiry(Duration::from_secs(600));
    /// pages.try_set_count(3).await?;
    /// assert!(pages.inspect().await?.remaining().is_some());
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub const fn expiry(mut self, expiry: Duration) -> Self {
        self.expiry = Some(expiry);
        self
    }

    /// Which replicas must confirm what this handle changes, whatever
    /// [`LocksBuilder::replicated`](crate::LocksBuilder::replicated) says.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// use leasehold::Replicas;
    ///
    /// let pages = locks.latch("pages").replicated(Replicas::None); // whatever the builder says
    /// assert!(pages.try_set_count(3).await?);
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub const fn replicated(mut self, replicas: Replicas) -> Self {
        self.replicas = replicas;
        self
    }

    /// Closes the latch with `count`, at least 1, if it is open. Returns whether it did.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let pages = locks.latch("pages");
    /// assert!(pages.try_set_count(3).await?);
    /// assert!(!pages.try_set_count(5).await?); // it is closed already
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::BadCount`] for 0, or more than 2⁵³ − 1.
    /// - [`ErrorKind::WrongType`] if the key is no latch; nothing is changed then.
    /// - [`ErrorKind::NotReplicated`]: it is set on the master, but too few replicas confirmed that.
    /// - [`ErrorKind::Unknown`], [`ErrorKind::Unavailable`] and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent: the latch may be set.
    pub async fn try_set_count(&self, count: u64) -> Result<bool, Error> {
        self.set(count, false).await
    }

    /// Closes the latch with `count`, at least 1, whatever its count is. Those who wait for a latch that is closed go on waiting.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let pages = locks.latch("pages");
    /// pages.reset(3).await?;
    /// pages.reset(5).await?;
    /// assert_eq!(pages.count().await?, 5);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`try_set_count`](Self::try_set_count).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent: the latch may be set.
    pub async fn reset(&self, count: u64) -> Result<(), Error> {
        self.set(count, true).await.map(drop)
    }

    /// Counts down by one, and opens the latch at zero. Returns what is left; nothing changes for a latch that is open.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let pages = locks.latch("pages");
    /// pages.try_set_count(2).await?;
    /// assert_eq!(pages.count_down().await?, 1);
    /// assert_eq!(pages.count_down().await?, 0); // open
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unknown`]: no answer came, and it may have been counted. Calling this again could count twice; that of a
    ///   participant can be repeated ([`count_down_as`](Self::count_down_as)).
    /// - [`ErrorKind::NotReplicated`]: it was counted on the master, but too few replicas confirmed that; likewise.
    /// - [`ErrorKind::Broken`]: the latch vanished before it was counted down.
    /// - [`ErrorKind::WrongType`] if the key is no latch; [`ErrorKind::Unavailable`] and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent: it may be counted.
    pub async fn count_down(&self) -> Result<u64, Error> {
        self.count_once(None).await
    }

    /// Counts down by one for `participant`, once for each count that the latch is set to: repeating it changes nothing.
    ///
    /// Participants are remembered until the latch opens, is set again, or nothing has been counted for a day.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let pages = locks.latch("pages");
    /// pages.try_set_count(2).await?;
    /// assert_eq!(pages.count_down_as("page-1").await?, 1);
    /// assert_eq!(pages.count_down_as("page-1").await?, 1); // counted already
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`count_down`](Self::count_down), and all of them may be answered by a repetition. [`ErrorKind::BadName`] if
    /// `participant` is empty or longer than 4 KiB.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent: it may be counted. It can be repeated.
    pub async fn count_down_as(&self, participant: impl AsRef<str> + Send) -> Result<u64, Error> {
        let participant = participant.as_ref();
        if participant.is_empty() || participant.len() > MAX_PARTICIPANT {
            let error = Error::new(
                ErrorKind::BadName,
                format!("a participant has 1 to {MAX_PARTICIPANT} bytes"),
            );
            return Err(self.error(error));
        }
        self.count_once(Some(participant)).await
    }

    /// The present count; 0 if it is open.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let pages = locks.latch("pages");
    /// assert_eq!(pages.count().await?, 0); // not set, so it is open
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`] if the key is no latch, [`ErrorKind::Broken`] if the latch vanished before it was counted down;
    /// and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn count(&self) -> Result<u64, Error> {
        self.context.ready(&self.name).await?;
        let until = Instant::now() + self.context.config.command_timeout;
        loop {
            let view = look(&self.context, &self.name, self.replicas).await?;
            if view.lost {
                return Err(self.error(lost()));
            }
            if !view.doubtful || self.replicas.quorum().is_none() {
                return Ok(view.count);
            }
            let paused = pause_unproven(DOUBTFUL_PAUSE, until).await;
            paused.map_err(|error| self.error(error))?;
        }
    }

    /// The count, and the participants that were counted.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let pages = locks.latch("pages");
    /// assert_eq!(pages.key(), "pages");
    /// pages.try_set_count(2).await?;
    /// pages.count_down_as("page-1").await?;
    /// let state = pages.inspect().await?;
    /// assert_eq!(state.count(), 1);
    /// assert_eq!(state.participants(), ["page-1"]);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`] if the key is no latch; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn inspect(&self) -> Result<LatchInspection, Error> {
        self.context.ready(&self.name).await?;
        let call = latch::inspect(&self.name);
        let call = call.slices();
        let reply = ask(&self.context, &self.name, &call.call()).await?;
        read_inspect(&reply).ok_or_else(|| self.error(Error::unexpected(&reply)))
    }

    /// Waits until the latch is open. The future is independent of the handle: it can move to another task.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let pages = locks.latch("pages");
    /// pages.try_set_count(1).await?;
    /// let all_there = tokio::spawn(pages.wait());
    /// pages.count_down().await?;
    /// all_there.await??;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Broken`]: the latch vanished before it was counted down.
    /// - [`ErrorKind::WrongType`] if the key is no latch.
    /// - [`ErrorKind::Unavailable`]: the server cannot be asked at the beginning, or later for 30 seconds; it can be waited
    ///   again.
    /// - [`ErrorKind::Closed`] and those of asking a server.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a waiter leaves nothing on the server.
    pub fn wait(&self) -> impl Future<Output = Result<(), Error>> + Send + 'static + use<> {
        let latch = self.clone();
        async move { latch.wait_until(None).await.map(drop) }
    }

    /// Waits until the latch is open, for at most `time`. Returns whether it is open. The future is independent of the handle.
    ///
    /// It looks at least once, which takes up to one command timeout when the server does not answer.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// # use std::time::Duration;
    /// let pages = locks.latch("pages");
    /// pages.try_set_count(1).await?;
    /// assert!(!pages.wait_for(Duration::from_millis(20)).await?); // still closed
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`wait`](Self::wait).
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a waiter leaves nothing on the server.
    pub fn wait_for(
        &self,
        time: Duration,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 'static + use<> {
        let latch = self.clone();
        // A time beyond the end of the clock is no limit.
        async move {
            let until = latch.context.clock().now().checked_add(time);
            latch.wait_until(until).await
        }
    }

    async fn set(&self, count: u64, reset: bool) -> Result<bool, Error> {
        self.context.ready(&self.name).await?;
        if count == 0 || count > MAX_COUNT {
            let error = Error::new(
                ErrorKind::BadCount,
                format!("a latch is set to 1 to {MAX_COUNT}"),
            );
            return Err(self.error(error));
        }
        if self.expiry.is_some_and(|expiry| !is_good_lease(expiry)) {
            return Err(self.error(Error::bad_lease("the expiry of a latch")));
        }
        let id = self.context.next_hold(None);
        let change = self.change(&id);
        let call = latch::set(&change, count, reset, self.expiry);
        let reply = self.apply(&call).await?;
        read_set(&reply).ok_or_else(|| self.error(Error::unexpected(&reply)))
    }

    async fn count_once(&self, participant: Option<&str>) -> Result<u64, Error> {
        self.context.ready(&self.name).await?;
        let id = self.context.next_hold(None);
        let change = self.change(&id);
        let call = latch::count_down(&change, participant);
        let reply = self.apply(&call).await?;
        match read_count_down(&reply) {
            Some(Counted::Left(left)) => Ok(left),
            Some(Counted::Lost) => Err(self.error(lost())),
            None => Err(self.error(Error::unexpected(&reply))),
        }
    }

    async fn apply(&self, call: &Call<'_>) -> Result<Value, Error> {
        let call = call.slices();
        let call = call.call();
        let effect = |reply: &Value| effect(reply, missed(&self.context));
        apply(&self.context, &self.name, &call, self.replicas, effect).await
    }

    async fn wait_until(&self, until: Option<Instant>) -> Result<bool, Error> {
        let caller = self.context.caller(&self.name, Primitive::Latch);
        let opened = self.opened(until).await;
        caller.waited(&opened, |is_open| *is_open);
        opened
    }

    async fn opened(&self, until: Option<Instant>) -> Result<bool, Error> {
        self.context.ready(&self.name).await?;
        let (context, name) = (&self.context, &self.name);
        let hears = hears(context, name);
        let about = |error| context.about(name, error);
        let joined = Watcher::join(context, |context| &context.latches, name);
        let mut watcher = joined.map_err(|closed| about(closed.into()))?;
        watcher.want();
        let needs_proof = self.replicas.quorum().is_some();
        let mut waiter = LatchWaiter::new(hears == Hears::Nothing, needs_proof);
        loop {
            let look = || look(context, name, self.replicas);
            let seen = watcher.next(look, until).await;
            let Some(view) = seen.map_err(about)? else {
                return Ok(false);
            };
            match waiter.judge(&view) {
                Verdict::Open => return Ok(true),
                Verdict::Lost => return Err(about(lost())),
                Verdict::Closed => {}
            }
            match hears {
                Hears::All => watcher.listen(&[latch::channel(name), name.channel()]),
                Hears::NoMessages | Hears::Nothing => watcher.listen(&[latch::channel(name)]),
            }
        }
    }

    fn change<'a>(&'a self, id: &'a HoldId) -> Change<'a> {
        Change {
            name: &self.name,
            id,
            channels: self.context.client.channels(),
            hears: hears(&self.context, &self.name),
        }
    }

    fn error(&self, error: Error) -> Error {
        self.context.about(&self.name, error)
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch")
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}

impl signal::View for View {
    fn changes_within(&self, _: Option<&Self>) -> Option<Duration> {
        self.doubtful.then_some(DOUBTFUL_PAUSE)
    }

    fn is_news_after(&self, before: &Self) -> bool {
        self != before
    }
}

/// How Redisson takes part in this latch.
fn hears(context: &Context, name: &Name) -> Hears {
    let same_slot = || slot(name.key().as_bytes()) == slot(name.channel().as_bytes());
    match context.config.interop {
        Interop::Off => Hears::Nothing,
        Interop::Redisson if context.client.channels() == Channels::Server || same_slot() => {
            Hears::All
        }
        Interop::Redisson => Hears::NoMessages,
    }
}

/// Looks at the latch. If nothing is known of it, and `replicas` confirm what is done with it, only data that are old enough show
/// that there is none.
async fn look(context: &Context, name: &Name, replicas: Replicas) -> Result<View, Error> {
    let single_key = || latch::look_single_key(name).to_owned();
    let call = latch::look(name, hears(context, name));
    let call = call.slices();
    let call = call.call().with_fallback(&single_key);
    let read = |reply: &Value| {
        read_look(reply).ok_or_else(|| context.about(name, Error::unexpected(reply)))
    };
    let view = read(&ask(context, name, &call).await?)?;
    let Some(quorum) = replicas.quorum().filter(|_| view.doubtful) else {
        return Ok(view);
    };
    let misses = |reply: &Value| read_look(reply).is_none_or(|view| view.doubtful);
    match ask_proven(context, name, &call, quorum, misses).await? {
        Some(reply) => Ok(View {
            doubtful: false,
            ..read(&reply)?
        }),
        None => Ok(view),
    }
}

fn lost() -> Error {
    Error::new(
        ErrorKind::Broken,
        "the latch vanished before it was counted down: it expired, or the server lost it",
    )
}
