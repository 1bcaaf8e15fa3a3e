//! A hold as guards, the table of waiters and the renewals share it; and the holds of one owner.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use leasehold_cluster::Unanswered;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;

use super::clock::Clock;
use super::multi::Group;
use super::sync::lock;
use super::telemetry::{Caller, Life, Subject};
use crate::observer::Way;
use crate::options::Terms;
use crate::protocol::Protocol;
use crate::protocol::permits::Permits;
use crate::state::chain::Chain;
use crate::state::deadline::Now;
use crate::state::hold::HoldState;
use crate::state::id::{HoldId, id_of_owner, number_of_hold};
use crate::state::names::Name;
use crate::state::ticket::TicketText;
use crate::state::token::FencingToken;

/// Upper bound on each sleep while waiting for a hold to end: timers follow the monotonic clock, which stands still while
/// a machine sleeps and the wall clock runs on.
const WALL_CLOCK_CHECK: Duration = Duration::from_secs(1);

/// One acquisition that was granted. It does not end by itself: see [`release`](super::release).
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) protocol: &'static Protocol,
    pub(crate) name: Arc<Name>,
    pub(crate) id: HoldId,
    /// As granted.
    permits: Permits,
    /// The fencing token, if the primitive has them.
    pub(crate) token: Option<FencingToken>,
    pub(crate) terms: Terms,
    pub(crate) owner: Option<Arc<OwnerHolds>>,
    /// How many replicas confirmed the acquire.
    pub(crate) acknowledged: usize,
    /// Connections over which an acquire of it may still arrive late.
    pub(crate) unanswered: Unanswered,
    /// The ticket, if a repeated request may have left it in line.
    pub(crate) ticket: Option<TicketText>,
    /// How it may be passed on within the process, if it may.
    pub(crate) chain: Option<Chain>,
    /// How it was granted.
    pub(crate) way: Way,
    life: Life,
    state: Mutex<HoldState>,
    /// Keeps the context, and so the connection, until it ends.
    anchor: Mutex<Option<Anchor>>,
    /// Notified when it ends.
    ended: Notify,
    /// Cancelled when it ends, once it was asked for.
    cancellation: OnceLock<CancellationToken>,
    /// Cancelled when it ends, each of them for this and other holds.
    shared: Mutex<Vec<CancellationToken>>,
    /// The locks that are lost with it, if it is one of several.
    group: OnceLock<Weak<Group>>,
    clock: Clock,
}

/// Kept alive by a hold.
type Anchor = Arc<dyn Any + Send + Sync>;

/// The parts of a new hold.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) protocol: &'static Protocol,
    pub(crate) name: Arc<Name>,
    pub(crate) id: HoldId,
    pub(crate) permits: Permits,
    pub(crate) token: Option<FencingToken>,
    pub(crate) terms: Terms,
    pub(crate) owner: Option<Arc<OwnerHolds>>,
    pub(crate) acknowledged: usize,
    pub(crate) way: Way,
    /// When it begins: `max_hold` counts from here.
    pub(crate) since: Now,
    /// The lease, and when it began at the latest.
    pub(crate) lease: Duration,
    pub(crate) lease_since: Now,
    /// How it may be passed on within the process, if it may.
    pub(crate) chain: Option<Chain>,
    /// The ticket, if it may be in line still.
    pub(crate) ticket: Option<TicketText>,
    pub(crate) unanswered: Unanswered,
    /// The clock that it lasts by.
    pub(crate) clock: Clock,
}

/// The holds of an owner that have guards, lost ones too.
#[derive(Debug)]
pub(crate) struct OwnerHolds {
    number: u64,
    id: Box<str>,
    /// The id of an owner of another process, whose holds it takes over.
    former: Option<Box<str>>,
    /// How many holds were asked for.
    asked: AtomicU64,
    holds: Mutex<HashMap<Arc<Name>, Weak<Hold>>>,
}

impl Hold {
    /// A hold with one guard.
    pub(crate) fn new(granted: Granted) -> Arc<Self> {
        let mut state = HoldState::new(
            granted.terms,
            granted.permits.count,
            granted.since,
            granted.lease_since,
            granted.lease,
        );
        if granted.terms.at_least.is_some() {
            // From now, when the server has granted it for sure.
            state.keep(granted.terms.at_least, granted.clock.read());
        }
        let hold = Arc::new(Self {
            protocol: granted.protocol,
            name: granted.name,
            id: granted.id,
            permits: granted.permits,
            token: granted.token,
            terms: granted.terms,
            owner: granted.owner,
            acknowledged: granted.acknowledged,
            unanswered: granted.unanswered,
            ticket: granted.ticket,
            chain: granted.chain,
            way: granted.way,
            life: Life::default(),
            state: Mutex::new(state),
            anchor: Mutex::new(None),
            ended: Notify::new(),
            cancellation: OnceLock::new(),
            shared: Mutex::default(),
            group: OnceLock::new(),
            clock: granted.clock,
        });
        #[cfg(feature = "testing")]
        crate::testing::hooks::taken(&hold);
        hold
    }

    /// The hold as observers are told of it.
    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject {
            name: &self.name,
            primitive: self.protocol.primitive,
            life: &self.life,
        }
    }

    /// It is what `caller` waited for.
    pub(crate) fn granted_to(&self, caller: Caller<'_>) {
        caller.granted(self.way, self.token, self.subject(), || self.state().over());
    }

    /// From now on it is one of several that are held together.
    pub(super) fn belong_to(&self, group: &Arc<Group>) {
        let _ = self.group.set(Arc::downgrade(group));
    }

    /// The locks that are lost with it, if it is one of several.
    pub(super) fn group(&self) -> Option<Arc<Group>> {
        self.group.get()?.upgrade()
    }

    /// Its state. A leaf in the order of mutexes: nothing else is locked while this is.
    pub(crate) fn state(&self) -> MutexGuard<'_, HoldState> {
        lock(&self.state)
    }

    /// The clock that it lasts by.
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether it may be trusted. Changes nothing, so it may be asked under any mutex but its own.
    pub(crate) fn is_live(&self) -> bool {
        !self.left().is_zero()
    }

    /// How long it may be trusted; zero when it is over.
    pub(crate) fn left(&self) -> Duration {
        self.state().left(self.clock.read())
    }

    /// The permits it takes of a primitive that counts: less than was granted once some were given back.
    pub(crate) fn permits(&self) -> Permits {
        Permits {
            count: self.state().permits(),
            ..self.permits
        }
    }

    /// Whether there will be anything to renew.
    pub(crate) fn needs_renewal(&self) -> bool {
        self.state().needs_renewal()
    }

    /// How long to sleep at most before its clocks are read again.
    pub(crate) fn until_next_check(&self) -> Duration {
        self.left().min(WALL_CLOCK_CHECK)
    }

    /// Notified when it ends.
    pub(crate) fn ended(&self) -> Notified<'_> {
        self.ended.notified()
    }

    /// Keeps `anchor` until it ends.
    pub(crate) fn keep(&self, anchor: Anchor) {
        *lock(&self.anchor) = Some(anchor);
    }

    /// Tells everything that watches it of its end, which its state has by now.
    pub(crate) fn announce_end(&self) {
        let anchor = lock(&self.anchor).take();
        drop(anchor);
        self.ended.notify_waiters();
        if let Some(token) = self.cancellation.get() {
            token.cancel();
        }
        let shared = std::mem::take(&mut *lock(&self.shared));
        shared.iter().for_each(CancellationToken::cancel);
    }

    /// Cancels `token` too when it ends. An end before this does not see it.
    pub(crate) fn cancel_at_end(&self, token: &CancellationToken) {
        lock(&self.shared).push(token.clone());
    }

    /// A token that [`announce_end`](Self::announce_end) cancels.
    pub(crate) fn cancellation(&self) -> CancellationToken {
        let own = self.cancellation.get_or_init(CancellationToken::new);
        // A child, so that cancelling it reaches no other.
        let token = own.child_token();
        // An end before the token was there did not see it.
        if !self.is_live() {
            token.cancel();
        }
        token
    }

    /// When its renewals or its watch are to look at it next, if nothing else happens.
    pub(crate) fn next_watch(&self, now: Now) -> Instant {
        let end = self.state().deadline().monotonic();
        end.min(now.monotonic + WALL_CLOCK_CHECK)
    }
}

impl OwnerHolds {
    /// An owner of this `client`, with a number that none of its owners has.
    pub(crate) fn new(client: &str, number: u64, former: Option<&str>) -> Arc<Self> {
        Arc::new(Self {
            number,
            id: id_of_owner(client, number).into(),
            former: former.map(Box::from),
            asked: AtomicU64::new(0),
            holds: Mutex::default(),
        })
    }

    /// Tells owners apart, within one `Locks`.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The prefix of the ids of its holds.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The owner whose holds it takes over.
    pub(crate) fn former(&self) -> Option<&str> {
        self.former.as_deref()
    }

    /// A number for its next hold.
    pub(crate) fn next_number(&self) -> u64 {
        number_of_hold(self.number, self.asked.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn get(&self, name: &Arc<Name>) -> Option<Arc<Hold>> {
        lock(&self.holds).get(name).and_then(Weak::upgrade)
    }

    pub(crate) fn remember(&self, hold: &Arc<Hold>) {
        lock(&self.holds).insert(Arc::clone(&hold.name), Arc::downgrade(hold));
    }

    /// The last guard of `hold` is gone.
    pub(crate) fn forget(&self, hold: &Hold) {
        let mut holds = lock(&self.holds);
        if holds
            .get(&hold.name)
            .is_some_and(|known| std::ptr::eq(known.as_ptr(), hold))
        {
            holds.remove(&hold.name);
        }
    }
}
