//! A hold at several nodes as its guard, its agents and the attempt share it.

use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "testing")]
use super::super::clock::Clock;
use super::super::release::Release;
use super::super::sync::lock;
use super::super::telemetry::{Caller, Life, Subject};
use super::agent;
use super::core::Core;
use super::node::Refusal;
use super::turns::Turn;
use crate::error::{Error, ErrorKind, LostReason};
use crate::observer::Way;
use crate::options::Terms;
use crate::state::id::HoldId;
use crate::state::names::Name;
use crate::state::primitive::Primitive;
use crate::state::quorum::Quorum;
use crate::state::token::FencingToken;

/// Upper bound on each sleep while waiting for a hold to end: timers follow the monotonic clock, which stands still while
/// a machine sleeps and the wall clock runs on.
const WALL_CLOCK_CHECK: Duration = Duration::from_secs(1);

/// One acquisition at all nodes, from its first request to its last release.
pub(crate) struct QuorumHold {
    pub(super) core: Arc<Core>,
    pub(crate) name: Arc<Name>,
    pub(super) id: HoldId,
    pub(super) terms: Terms,
    /// Whether it is to have a fencing token.
    pub(super) is_fenced: bool,
    life: Life,
    state: Mutex<State>,
    /// Notified when a node answered.
    answered: Notify,
    /// The token, from when it is to be written at the nodes.
    fence: watch::Sender<Option<u64>>,
    token: OnceLock<FencingToken>,
    /// Cancelled when it ends, for whatever reason: the agents release it then.
    end: CancellationToken,
}

/// The answers of the nodes.
pub(super) struct State {
    pub(super) quorum: Quorum,
    /// Why nodes did not grant it.
    pub(super) refusals: Vec<Refusal>,
    /// How the releases went.
    ends: Vec<NodeEnd>,
    /// Let go when it ends: the next task of this process may contend.
    turn: Option<Turn>,
}

/// The end of a hold at one node.
#[derive(Debug)]
pub(super) enum NodeEnd {
    /// It was there and is gone.
    Released,
    /// It was not there.
    Gone,
    Failed(Error),
}

/// The one owner of a hold. Dropping it ends the hold, and has it released at all nodes.
pub(crate) struct QuorumGuard(Arc<QuorumHold>);

impl QuorumHold {
    /// A hold that all nodes are asked for from now on.
    pub(super) fn ask(
        core: &Arc<Core>,
        name: &Arc<Name>,
        terms: Terms,
        is_fenced: bool,
    ) -> QuorumGuard {
        let hold = Arc::new(Self {
            core: Arc::clone(core),
            name: Arc::clone(name),
            id: core.next_hold(),
            terms,
            is_fenced,
            life: Life::default(),
            state: Mutex::new(State {
                quorum: Quorum::new(core.nodes.len(), terms, core.clock.read()),
                refusals: Vec::new(),
                ends: Vec::new(),
                turn: None,
            }),
            answered: Notify::new(),
            fence: watch::Sender::new(None),
            token: OnceLock::new(),
            end: CancellationToken::new(),
        });
        for node in 0..core.nodes.len() {
            core.spawn(agent::run(Arc::clone(&hold), node));
        }
        QuorumGuard(hold)
    }

    /// Makes the change that an answer means, and tells who waits for answers.
    pub(super) fn answered(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
        // Guards that this change has ended learn of it now.
        self.check();
        self.answered.notify_waiters();
    }

    /// Notified when a node answered.
    pub(super) fn next_answer(&self) -> Notified<'_> {
        self.answered.notified()
    }

    /// Runs `then` on the answers.
    pub(super) fn state<R>(&self, then: impl FnOnce(&mut State) -> R) -> R {
        then(&mut lock(&self.state))
    }

    /// The token, from when it is to be written at the nodes.
    pub(super) const fn fence(&self) -> &watch::Sender<Option<u64>> {
        &self.fence
    }

    /// Cancelled when it ends.
    pub(super) const fn end(&self) -> &CancellationToken {
        &self.end
    }

    /// How long it may be trusted; zero when it is over.
    pub(crate) fn left(&self) -> Duration {
        if self.core.home.is_elsewhere() {
            return Duration::ZERO;
        }
        lock(&self.state).quorum.left(self.core.clock.read())
    }

    /// Why it is over, if it is. It ends here if it has run out.
    pub(crate) fn check(&self) -> Option<LostReason> {
        if self.core.home.is_elsewhere() {
            return Some(LostReason::Forked);
        }
        let reason = lock(&self.state).quorum.check(self.core.clock.read())?;
        self.wind_up(reason);
        Some(reason)
    }

    /// Ends it for `reason`. Returns false if it was over before.
    pub(crate) fn end_for(&self, reason: LostReason) -> bool {
        let (is_first, reason) = {
            let mut state = lock(&self.state);
            let earlier = state.quorum.check(self.core.clock.read());
            (state.quorum.end(reason), earlier.unwrap_or(reason))
        };
        self.wind_up(reason);
        is_first
    }

    /// The time of its leases.
    #[cfg(feature = "testing")]
    pub(crate) fn clock(&self) -> &Clock {
        &self.core.clock
    }

    /// The id of the locks it is of.
    #[cfg(feature = "testing")]
    pub(crate) fn client(&self) -> &str {
        self.core.id()
    }

    /// The token, if one was asked for.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.token.get().copied()
    }

    /// A token that is cancelled when it ends.
    pub(crate) fn cancellation(&self) -> CancellationToken {
        // A child, so that cancelling it reaches no other.
        let token = self.end.child_token();
        if self.left().is_zero() {
            token.cancel();
        }
        token
    }

    /// Resolves when it is over.
    pub(crate) async fn over(&self) -> LostReason {
        loop {
            if let Some(reason) = self.check() {
                return reason;
            }
            let left = self.left().min(WALL_CLOCK_CHECK);
            let _ = self.core.clock.timeout(left, self.end.cancelled()).await;
        }
    }

    /// Lets everybody go who depends on it.
    fn wind_up(&self, reason: LostReason) {
        self.end.cancel();
        let turn = lock(&self.state).turn.take();
        #[cfg(feature = "testing")]
        if turn.is_some() {
            crate::testing::hooks::ended_at_majority(self, reason);
        }
        drop(turn);
        self.core.telemetry.ended(self.subject(), reason, false);
    }

    /// The hold as observers are told of it.
    pub(super) const fn subject(&self) -> Subject<'_> {
        Subject {
            name: &self.name,
            primitive: Primitive::Redlock,
            life: &self.life,
        }
    }

    /// It is what `caller` waited for.
    pub(super) fn granted_to(&self, caller: Caller<'_>, way: Way) {
        let over = || lock(&self.state).quorum.check(self.core.clock.read());
        caller.granted(way, self.token(), self.subject(), over);
    }

    /// The outcome of the release, when enough nodes have answered, or it is too late.
    async fn released(&self) -> Result<Release, Error> {
        let (all, needed) = (self.core.nodes.len(), self.core.needed());
        let clock = &self.core.clock;
        let until = clock.now() + self.core.config.command_timeout;
        loop {
            let mut answered = pin!(self.next_answer());
            answered.as_mut().enable();
            let (released, gone, failed, failure) = self.state(|state| {
                let count =
                    |is: fn(&NodeEnd) -> bool| state.ends.iter().filter(|end| is(end)).count();
                let failure = state.ends.iter().find_map(|end| match end {
                    NodeEnd::Failed(error) => Some(error.copied()),
                    _ => None,
                });
                (
                    count(|end| matches!(end, NodeEnd::Released)),
                    count(|end| matches!(end, NodeEnd::Gone)),
                    count(|end| matches!(end, NodeEnd::Failed(_))),
                    failure,
                )
            });
            if released >= needed {
                return Ok(Release::Released);
            }
            if gone > all - needed {
                return Ok(Release::AlreadyGone);
            }
            if released + gone + failed == all || clock.now() >= until {
                let detail = format!(
                    "{released} of {all} nodes confirmed the release in time; the others are asked until the lease is over"
                );
                return Err(match failure {
                    Some(error) => error.reason_for(&detail),
                    None => Error::new(ErrorKind::Unknown, detail),
                });
            }
            let _ = clock.timeout_at(until, answered).await;
        }
    }
}

impl State {
    /// Whether others have the lock at some node.
    pub(super) fn is_contended(&self) -> bool {
        self.refusals.iter().any(|why| matches!(why, Refusal::Held))
    }

    /// The release at one node has its outcome.
    pub(super) fn ended(&mut self, end: NodeEnd) {
        self.ends.push(end);
    }
}

impl QuorumGuard {
    pub(crate) const fn hold(&self) -> &Arc<QuorumHold> {
        &self.0
    }

    /// It was granted: `turn` is let go when it ends.
    pub(super) fn begin(&self, turn: Turn, token: Option<u64>) {
        if let Some(token) = token {
            let _ = self.0.token.set(FencingToken::new(token));
        }
        let Self(hold) = self;
        for node in &hold.core.nodes {
            node.register(&hold.core, hold.terms.lease);
        }
        #[cfg(feature = "testing")]
        crate::testing::hooks::taken_by_majority(hold);
        lock(&self.0.state).turn = Some(turn);
        // It may have ended before.
        self.0.check();
    }

    /// Ends it, and waits until a majority of the nodes has answered its release.
    pub(crate) async fn release(self) -> Result<Release, Error> {
        let hold = &self.0;
        if hold.core.home.is_elsewhere() {
            return Err(Error::new(ErrorKind::Forked, "").about(hold.name.key(), &Arc::from("")));
        }
        if !hold.end_for(LostReason::Released) {
            return Ok(Release::AlreadyGone);
        }
        let released = hold.released().await;
        released.map_err(|error| error.about(hold.name.key(), &Arc::from("")))
    }
}

impl Drop for QuorumGuard {
    fn drop(&mut self) {
        if !self.0.core.home.is_elsewhere() {
            self.0.end_for(LostReason::Released);
        }
    }
}
