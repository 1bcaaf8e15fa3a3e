//! What the locks of one fake share: its clock, the errors that are due, and what has happened.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::clock::FakeClock;
use crate::engine::context::Context;
use crate::engine::hold::Hold;
use crate::engine::release;
use crate::engine::sync::lock;
use crate::error::{ErrorKind, LostReason};
use crate::observer::Primitive;
use crate::state::token::FencingToken;

/// See the module.
pub(crate) struct World {
    pub(crate) clock: Arc<FakeClock>,
    since: Instant,
    state: Mutex<State>,
    /// The id of the locks that nothing fails for, and nothing is taken from.
    others: OnceLock<String>,
}

#[derive(Default)]
struct State {
    /// In their order, each for the lock with this key or for any.
    failures: Vec<(Option<Box<str>>, ErrorKind)>,
    history: Vec<Event>,
    contexts: Vec<Weak<Context>>,
    holds: Vec<Weak<Hold>>,
}

/// An entry of [`Fake::history`](super::Fake::history).
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

/// What happened to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum What {
    /// It was granted.
    Taken,
    /// It was released, or passed on to another task of its process.
    Released,
    /// Its holder lost it.
    Lost(LostReason),
}

impl Event {
    /// What happened.
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
    pub(super) fn new() -> Arc<Self> {
        let clock = FakeClock::new();
        Arc::new(Self {
            since: clock.now(),
            clock,
            state: Mutex::default(),
            others: OnceLock::new(),
        })
    }

    /// New locks are connected.
    pub(crate) fn connected(&self, context: &Arc<Context>) {
        let mut state = lock(&self.state);
        state.contexts.retain(|known| known.strong_count() > 0);
        state.contexts.push(Arc::downgrade(context));
    }

    pub(super) fn set_others(&self, client: &str) {
        let _ = self.others.set(client.to_owned());
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
        let what = match reason {
            LostReason::Released => What::Released,
            reason => What::Lost(reason),
        };
        let event = self.event(what, hold);
        lock(&self.state).history.push(event);
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
        self.others.get().is_some_and(|others| others == client)
    }

    fn event(&self, what: What, hold: &Hold) -> Event {
        Event {
            what,
            name: hold.name.key().to_owned(),
            primitive: hold.protocol.primitive,
            client: client_of(hold),
            token: hold.token,
            after: self.clock.now().saturating_duration_since(self.since),
        }
    }
}

/// The id of the locks that a hold is of: the part of its id before the first colon.
fn client_of(hold: &Hold) -> String {
    let id = String::from_utf8_lossy(hold.id.as_bytes());
    id.split(':').next().unwrap_or_default().to_owned()
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}
