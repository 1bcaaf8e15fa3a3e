//! What the locks of one fake share: its clock, its servers, the errors that are due, and what has happened.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use leasehold_cluster::Target;
use leasehold_resp::connection::in_process::Dialer;

use super::clock::{FakeClock, PATIENCE, pause};
use super::server::Server;
use crate::engine::context::Context;
use crate::engine::hold::Hold;
use crate::engine::redlock::QuorumHold;
use crate::engine::release;
use crate::engine::sync::lock;
use crate::error::{ErrorKind, LostReason};
use crate::observer::Primitive;
use crate::state::token::FencingToken;

/// How often other tasks have their turn, after what is due was done, before that counts.
const TURNS: usize = 16;

/// See the module.
pub(crate) struct World {
    pub(crate) clock: Arc<FakeClock>,
    pub(super) servers: Box<[Arc<Server>]>,
    since: Instant,
    state: Mutex<State>,
}

/// The fake that locks are to be connected to.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(super) world: Arc<World>,
    pub(super) dialer: Dialer,
}

#[derive(Default)]
struct State {
    /// In their order, each for the lock with this key or for any.
    failures: Vec<(Option<Box<str>>, ErrorKind)>,
    /// Those of calls at a node of a Redlock.
    failures_at: Vec<(usize, ErrorKind)>,
    history: Vec<Event>,
    contexts: Vec<Weak<Context>>,
    holds: Vec<Weak<Hold>>,
    majorities: Vec<Weak<QuorumHold>>,
    /// The ids of the locks that nothing fails for, and nothing is taken from.
    others: Vec<String>,
}

/// An entry of [`Fake::history`](super::Fake::history), or [`FakeRedlock::history`](super::FakeRedlock::history).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let fake = leasehold::testing::Fake::new();
/// # let locks = fake.locks().await?;
/// use leasehold::testing::What;
///
/// let guard = locks.mutex("order:42").lock().await?;
/// let event = &fake.history()[0];
/// assert_eq!((event.what(), event.name()), (What::Taken, "order:42"));
/// assert_eq!((event.client(), event.token()), (locks.client_id(), Some(guard.token())));
/// println!("a {}, {:?} after the fake was made", event.primitive(), event.after());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Event {
    what: What,
    name: String,
    primitive: Primitive,
    client: String,
    token: Option<FencingToken>,
    after: Duration,
}

/// An event of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum What {
    /// It was granted.
    Taken,
    /// It was released, passed on to another task of its process, or detached from its guard.
    Released,
    /// Its holder lost it.
    Lost(LostReason),
}

impl Event {
    /// The event.
    #[must_use]
    pub const fn what(&self) -> What {
        self.what
    }

    /// The name of the lock, namespace included.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind of the lock.
    #[must_use]
    pub const fn primitive(&self) -> Primitive {
        self.primitive
    }

    /// The [`client_id`](crate::Locks::client_id) of the locks it is of.
    #[must_use]
    pub fn client(&self) -> &str {
        &self.client
    }

    /// The fencing token, if the lock has one.
    #[must_use]
    pub const fn token(&self) -> Option<FencingToken> {
        self.token
    }

    /// When it was, by the clock of the fake, since the fake was made.
    #[must_use]
    pub const fn after(&self) -> Duration {
        self.after
    }
}

impl World {
    /// With this many servers.
    pub(super) fn new(servers: usize) -> Arc<Self> {
        let clock = FakeClock::new();
        let servers = (0..servers).map(|number| Server::new(number, Arc::clone(&clock)));
        Arc::new(Self {
            since: clock.now(),
            servers: servers.collect(),
            clock,
            state: Mutex::default(),
        })
    }

    /// How many nodes a Redlock of it has.
    pub(crate) fn nodes(&self) -> usize {
        self.servers.len()
    }

    /// Has each target be the server with its number.
    pub(crate) fn connect_nodes(&self, targets: &mut [Target]) {
        for (node, target) in targets.iter_mut().enumerate() {
            for endpoint in target.endpoints_mut() {
                endpoint.dialer = Some(self.dialer(node));
            }
        }
    }

    /// Connects to one of the servers.
    fn dialer(&self, server: usize) -> Dialer {
        let server = Arc::clone(&self.servers[server]);
        Dialer::new(move || server.connect())
    }

    /// What locks are connected by to one of the servers.
    pub(super) fn link(self: &Arc<Self>, server: usize) -> Link {
        Link {
            world: Arc::clone(self),
            dialer: self.dialer(server),
        }
    }

    /// Moves the clock on by `time`, from one timer to the next.
    pub(super) async fn advance(&self, time: Duration) {
        self.settle().await;
        let clock = &self.clock;
        let end = clock.now() + time;
        while let Some(at) = clock.next_until(end) {
            clock.move_to(at);
            self.settle().await;
        }
        clock.move_to(end);
        self.settle().await;
    }

    /// Lets everything be done that is due.
    pub(super) async fn settle(&self) {
        let (mut turns, mut tries) = (0, 0);
        while turns < TURNS && tries < PATIENCE {
            tokio::task::yield_now().await;
            if self.clock.is_at_rest() && self.servers.iter().all(|server| server.is_read()) {
                turns += 1;
                continue;
            }
            turns = 0;
            tries += 1;
            if tries > 64 {
                // Other threads are at it.
                pause();
            }
        }
    }

    /// New locks are connected.
    pub(crate) fn connected(&self, context: &Arc<Context>) {
        let mut state = lock(&self.state);
        state.contexts.retain(|known| known.strong_count() > 0);
        state.contexts.push(Arc::downgrade(context));
    }

    pub(super) fn add_others(&self, client: &str) {
        lock(&self.state).others.push(client.to_owned());
    }

    pub(super) fn fail_next(&self, key: Option<Box<str>>, kind: ErrorKind) {
        lock(&self.state).failures.push((key, kind));
    }

    /// How a call of this client for this key is to fail, if it is.
    pub(super) fn failure(&self, client: &str, key: &str) -> Option<ErrorKind> {
        if self.is_others(client) {
            return None;
        }
        let mut state = lock(&self.state);
        let is_meant = |(of, _): &(Option<Box<str>>, _)| of.as_deref().is_none_or(|of| of == key);
        let at = state.failures.iter().position(is_meant)?;
        Some(state.failures.remove(at).1)
    }

    pub(super) fn fail_next_at(&self, node: usize, kind: ErrorKind) {
        lock(&self.state).failures_at.push((node, kind));
    }

    /// How a call at this node of a Redlock is to fail, if it is.
    pub(super) fn failure_at(&self, node: usize) -> Option<ErrorKind> {
        let mut state = lock(&self.state);
        let at = state.failures_at.iter().position(|(of, _)| *of == node)?;
        Some(state.failures_at.remove(at).1)
    }

    pub(super) fn history(&self) -> Vec<Event> {
        lock(&self.state).history.clone()
    }

    pub(super) fn taken(&self, hold: &Arc<Hold>) {
        let mut state = lock(&self.state);
        state.holds.retain(|known| known.strong_count() > 0);
        state.holds.push(Arc::downgrade(hold));
        let event = self.event(What::Taken, hold);
        state.history.push(event);
    }

    pub(super) fn ended(&self, hold: &Hold, reason: LostReason) {
        let event = self.event(What::ended(reason), hold);
        lock(&self.state).history.push(event);
    }

    pub(super) fn taken_by_majority(&self, hold: &Arc<QuorumHold>) {
        let event = self.event_at_majority(What::Taken, hold);
        let mut state = lock(&self.state);
        state.majorities.retain(|known| known.strong_count() > 0);
        state.majorities.push(Arc::downgrade(hold));
        state.history.push(event);
    }

    pub(super) fn ended_at_majority(&self, hold: &QuorumHold, reason: LostReason) {
        let event = self.event_at_majority(What::ended(reason), hold);
        lock(&self.state).history.push(event);
    }

    /// The majorities that hold this key lose it for `reason`, and it is released at the nodes. Returns how many they were.
    pub(super) fn lose_majority(&self, key: &str, reason: LostReason) -> usize {
        let holds: Vec<_> = {
            let state = lock(&self.state);
            state.majorities.iter().filter_map(Weak::upgrade).collect()
        };
        let of_key = holds.iter().filter(|hold| hold.name.key() == key);
        of_key.filter(|hold| hold.end_for(reason)).count()
    }

    /// All holds of this key are lost for `reason`, and released at the server. Returns how many they were.
    pub(super) fn lose(&self, key: &str, reason: LostReason) -> usize {
        let (contexts, holds) = {
            let state = lock(&self.state);
            let contexts: Vec<_> = state.contexts.iter().filter_map(Weak::upgrade).collect();
            let holds: Vec<_> = state.holds.iter().filter_map(Weak::upgrade).collect();
            (contexts, holds)
        };
        let mut lost = 0;
        for hold in holds.iter().filter(|hold| hold.name.key() == key) {
            let client = client_of(hold);
            let context = contexts.iter().find(|context| context.id() == client);
            let Some(context) = context.filter(|_| !self.is_others(&client)) else {
                continue;
            };
            if hold.is_live() {
                hold.state().keep_no_longer();
                release::lose(&context.registry, hold, reason);
                release::end_lost(&context.registry, &context.client, hold);
                // Without a thread it ends with its lease.
                let _ = context.registry.start_worker();
                lost += 1;
            }
        }
        lost
    }

    fn is_others(&self, client: &str) -> bool {
        lock(&self.state)
            .others
            .iter()
            .any(|others| others == client)
    }

    fn event(&self, what: What, hold: &Hold) -> Event {
        Event {
            what,
            name: hold.name.key().to_owned(),
            primitive: hold.protocol.primitive,
            client: client_of(hold),
            token: hold.token,
            after: self.after(),
        }
    }

    fn event_at_majority(&self, what: What, hold: &QuorumHold) -> Event {
        Event {
            what,
            name: hold.name.key().to_owned(),
            primitive: Primitive::Redlock,
            client: hold.client().to_owned(),
            token: hold.token(),
            after: self.after(),
        }
    }

    fn after(&self) -> Duration {
        self.clock.now().saturating_duration_since(self.since)
    }
}

impl What {
    const fn ended(reason: LostReason) -> Self {
        match reason {
            LostReason::Released => Self::Released,
            reason => Self::Lost(reason),
        }
    }
}

/// The id of the locks that a hold is of: the part of its id before the first colon.
fn client_of(hold: &Hold) -> String {
    let id = hold.id.as_str();
    id.split(':').next().unwrap_or_default().to_owned()
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}
