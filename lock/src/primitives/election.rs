//! The election.

mod leaders;
mod leadership;

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::handle::Handle;
use crate::engine::request::{Request, Wait};
use crate::error::{Error, ErrorKind};
use crate::guard::Guard;
use crate::options::Terms;
use crate::protocol::election::ELECTION;
use crate::protocol::permits::Permits;
use crate::request::Acquire;
use crate::state::backoff::Backoff;
use crate::state::election::Leader;
use crate::state::names::Name;

pub use leaders::Leaders;
use leadership::check_value;
pub use leadership::{Leadership, Term};

/// The shortest and the longest pause between two campaigns of [`Election::run`].
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Pauses are shortened at random by up to half of as many per cent.
const JITTER: u64 = 100;

/// A handle to a named election: one candidate leads at a time, over all processes. Creating it does no I/O; cloning is cheap.
///
/// It is a [`Mutex`](crate::Mutex) of the same name, whose holder leads: candidates that wait follow each other in the order in which
/// they came, a leader that resigns hands over at once, and one that died is followed when its lease is over, which is the
/// [`lease`](crate::LocksBuilder::lease) of these locks. Beside the lock stands an entry by which everybody can tell who leads, with a
/// value that the leader publishes; it is written only by the holder, and counts only while that holds the lock.
///
/// Two can believe that they lead: one of them was stopped for longer than its lease, or its lock was forced or forgotten by the
/// server, and it does not know yet. A leader's [`token`](Term::token) lets the storage that it writes to refuse the former one.
///
/// Do not use the name for another primitive. Least rights of a user beyond those for a mutex, here for the namespace `shop`:
/// `~leasehold_leader:{shop:* &leasehold_leader:{shop:* +hget +hmget +del`. While the slot of an election migrates,
/// [`campaign`](Self::campaign) and [`leader`](Self::leader) may fail as [`ErrorKind::Unavailable`]; who leads goes on.
///
/// ```
/// # use std::ops::ControlFlow;
/// # async fn rebalance(_: leasehold::FencingToken) {}
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let election = locks.election("rebalancer").value("10.0.0.7:8080");
/// assert_eq!(election.key(), "rebalancer");
/// // In every instance, for as long as it runs:
/// let done = election
///     .run(|leader| async move {
///         rebalance(leader.token()).await; // dropped where it stands when the leadership is lost
///         ControlFlow::Break("done") // `Continue` resigns, and campaigns again
///     })
///     .await?;
/// assert_eq!(done, "done");
/// assert!(election.leader().await?.is_none());
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct Election {
    context: Arc<Handle>,
    name: Arc<Name>,
    value: Option<Arc<str>>,
}

impl Election {
    pub(crate) fn new(context: &Arc<Handle>, name: &str) -> Self {
        let name = Name::new(ELECTION.layout, context.config.namespace.as_deref(), name);
        Self {
            context: Arc::clone(context),
            name: Arc::new(name),
            value: None,
        }
    }

    /// A text that this candidate publishes of itself when it leads, of at most 4 KiB: an address, for instance.
    #[must_use]
    pub fn value(mut self, value: impl AsRef<str>) -> Self {
        self.value = Some(Arc::from(value.as_ref()));
        self
    }

    /// The key on the server: the namespace and the name.
    #[must_use]
    pub fn key(&self) -> &str {
        self.name.key()
    }

    /// Waits until this candidate leads, and announces it.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let leader = locks.election("rebalancer").campaign().await?;
    /// println!("leading in term {}", leader.token());
    /// leader.resign().await?; // or just drop it
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// Those of an [`Acquire`]; [`ErrorKind::Config`] for a value that is too long. Those of announcing it too, see
    /// [`Term::publish`]: then it does not lead, and has handed over.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind, here or on the server; its place among the candidates is lost.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        let value = self.value.as_deref();
        check_value(value).map_err(|error| self.context.about(&self.name, error))?;
        let guard = Acquire::<Guard>::new(self.request()).await?;
        let leadership = Leadership::new(guard);
        // Dropping it gives back what was taken.
        leadership.announce(value).await.map_err(Error::of_hold)?;
        Ok(leadership)
    }

    /// Campaigns and leads, again and again, until `lead` returns [`ControlFlow::Break`].
    ///
    /// `lead` is called with its term each time that this candidate leads. What it returns runs while it leads: when the leadership
    /// is lost, it is dropped where it stands. After that, after [`ControlFlow::Continue`], which resigns, and after an error that may
    /// pass (kinds `Unavailable`, `Unknown`, `NotReplicated` and `Lost`) it campaigns again.
    ///
    /// Between two campaigns it pauses: for 50 to 100 ms, and twice as long after each further error in a row, up to 5 s.
    ///
    /// # Errors
    ///
    /// Those of [`campaign`](Self::campaign) that do not pass, such as [`ErrorKind::Denied`] or, after a shutdown of the locks,
    /// [`ErrorKind::Closed`].
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// As cancel safe as what `lead` returns, which is dropped with it. A leadership is resigned.
    pub async fn run<T, F, L>(&self, mut lead: L) -> Result<T, Error>
    where
        L: FnMut(Term) -> F,
        F: Future<Output = ControlFlow<T>>,
    {
        let backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let mut errors = 0;
        loop {
            match self.campaign().await {
                Ok(leadership) => {
                    errors = 0;
                    let led = leadership.run(lead(leadership.term())).await;
                    if let Ok(led) = led {
                        // A resignation that fails here is finished in the background.
                        let _ = leadership.resign().await;
                        if let ControlFlow::Break(done) = led {
                            return Ok(done);
                        }
                    }
                }
                Err(error) if may_pass(&error) => errors += 1,
                Err(error) => return Err(error),
            }
            let jitter = self.context.jitter.below(JITTER);
            tokio::time::sleep(backoff.pause(errors, jitter)).await;
        }
    }

    /// Who leads; `None` if nobody does, or nobody who has announced itself yet. If the server lost the announcement and not the
    /// lock, by an eviction or a failover, that is until the leader [publishes](Term::publish) again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::WrongType`] if the key is no lock; and those of asking a server.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        self.context.check_name(&self.name)?;
        let view = leaders::look(&self.context, &self.name).await?;
        Ok(view.leader())
    }

    /// The present leader and all that follow, to be asked for with [`Leaders::next`].
    ///
    /// Changes are heard by messages, and looked for: at the end of the leader's lease, after each new connection, and 1 to 8
    /// seconds apart. So a change that lasts is told even if its message is lost. Not seen are leaders that came and went between
    /// two looks, and values that were replaced at once; and of a leader that was followed meanwhile it is not told that it
    /// ended. A leader is never told after a later one, by their tokens, also if a server falls behind.
    ///
    /// A leader is told until its lease is over, although it may have died before. Observers of one `Locks` share a subscription and
    /// their looks.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let election = locks.election("rebalancer").value("10.0.0.7:8080");
    /// let mut leaders = election.observe();
    /// assert_eq!(leaders.next().await?, None); // nobody leads
    ///
    /// let leadership = election.campaign().await?;
    /// let leader = leaders.next().await?.expect("somebody leads");
    /// assert_eq!(leader.value(), Some("10.0.0.7:8080"));
    /// # drop(leadership);
    /// # Ok(())
    /// # });
    /// ```
    pub fn observe(&self) -> Leaders {
        Leaders::new(&self.context, &self.name)
    }

    fn request(&self) -> Request {
        let config = &self.context.config;
        Request {
            context: Arc::clone(&self.context),
            protocol: &ELECTION,
            name: Arc::clone(&self.name),
            permits: Permits::NONE,
            owner: None,
            terms: Terms::renewed(config.lease, config.replicas),
            wait: Wait::Endless,
            polling: None,
        }
    }
}

/// Whether a campaign that failed like this may succeed later.
const fn may_pass(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::NotReplicated | ErrorKind::Lost
    )
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("key", &self.key())
            .field("value", &self.value)
            .finish_non_exhaustive()
    }
}
