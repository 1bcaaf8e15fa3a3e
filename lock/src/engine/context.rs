//! The state that all handles, guards and waiters of one `Locks` share.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use leasehold_cluster::{Client, Subscription};

use super::clock::Clock;
use super::hold::OwnerHolds;
use super::registry::Registry;
use super::signal::Signals;
use super::sync::lock;
use super::telemetry::Caller;
use crate::error::{Error, ErrorKind};
use crate::options::{Interop, Replicas};
use crate::state::deadline::millis;
use crate::state::id::{ClientId, HoldId};
use crate::state::jitter::Jitter;
use crate::state::names::Name;
use crate::state::primitive::Primitive;
use crate::state::redisson_turns::RedissonTurns;
use crate::state::token::FencingToken;
use crate::state::{barrier, election, latch};

pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) registry: Arc<Registry>,
    pub(crate) config: Config,
    pub(crate) jitter: Jitter,
    /// Watchers of latches and barriers.
    pub(crate) latches: Signals<latch::View>,
    pub(crate) barriers: Signals<barrier::View>,
    /// Observers of the leaders of elections.
    pub(crate) elections: Signals<election::View>,
    /// To the grants of all tickets, where channels belong to no slot. Made at the first wait, and kept.
    grants: Mutex<Option<Subscription>>,
    /// Of Redisson's waiters.
    redisson_turns: Mutex<RedissonTurns>,
    /// The latest round trip of an acquire, in microseconds.
    round_trip: AtomicU64,
    /// The highest fencing token seen here.
    highest_token: AtomicU64,
    /// The longest lease that was asked for here, in milliseconds.
    longest_lease: AtomicU64,
    id: ClientId,
    /// The next number of a hold.
    next: AtomicU64,
    next_owner: AtomicU64,
    /// By their ids.
    owners: Mutex<HashMap<Box<str>, Weak<OwnerHolds>>>,
    closed: AtomicBool,
}

/// Settings of a `Locks`.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) namespace: Option<Arc<str>>,
    /// Of locks that ask for none.
    pub(crate) lease: Duration,
    pub(crate) interop: Interop,
    /// Of locks that ask for none.
    pub(crate) replicas: Replicas,
    /// How long a server that was restarted grants nothing, if that is asked for: the longest lease that anything uses.
    pub(crate) restart_grace: Option<Duration>,
    /// Upper bound on the wait for one answer.
    pub(crate) command_timeout: Duration,
}

impl Context {
    pub(crate) fn new(
        client: Client,
        registry: Arc<Registry>,
        config: Config,
        id: ClientId,
    ) -> Arc<Self> {
        let longest_lease = millis(config.lease);
        Arc::new(Self {
            client,
            registry,
            config,
            jitter: Jitter::new(id.seed()),
            latches: Signals::new(),
            barriers: Signals::new(),
            elections: Signals::new(),
            grants: Mutex::new(None),
            redisson_turns: Mutex::new(RedissonTurns::new()),
            round_trip: AtomicU64::new(0),
            highest_token: AtomicU64::new(0),
            longest_lease: AtomicU64::new(longest_lease),
            id,
            next: AtomicU64::new(1),
            next_owner: AtomicU64::new(1),
            owners: Mutex::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// The time of leases and waits.
    pub(crate) fn clock(&self) -> &Clock {
        &self.registry.clock
    }

    /// The identity of all its holds.
    pub(crate) fn id(&self) -> &str {
        self.id.as_str()
    }

    /// An id for one acquisition, of this owner if it has one.
    pub(crate) fn next_hold(&self, owner: Option<&OwnerHolds>) -> HoldId {
        let number = match owner {
            Some(owner) => owner.next_number(),
            None => self.next.fetch_add(1, Ordering::Relaxed),
        };
        HoldId::new(&self.id, number)
    }

    /// A new owner, which takes over the holds of `former`.
    pub(crate) fn new_owner(&self, former: Option<&str>) -> Arc<OwnerHolds> {
        let number = self.next_owner.fetch_add(1, Ordering::Relaxed);
        let owner = OwnerHolds::new(self.id(), number, former);
        let mut owners = lock(&self.owners);
        owners.retain(|_, known| known.strong_count() > 0);
        owners.insert(owner.id().into(), Arc::downgrade(&owner));
        owner
    }

    /// The owner of this client with this id, if it is in use.
    pub(crate) fn owner(&self, id: &str) -> Option<Arc<OwnerHolds>> {
        lock(&self.owners).get(id).and_then(Weak::upgrade)
    }

    /// The highest fencing token seen here, of any name: tokens begin with the time, so that is no great leap.
    pub(crate) fn highest_token(&self) -> u64 {
        self.highest_token.load(Ordering::Relaxed)
    }

    pub(crate) fn saw(&self, token: FencingToken) {
        self.highest_token
            .fetch_max(token.as_u64(), Ordering::Relaxed);
    }

    /// How old the data of a master must be before it may grant a lock that replicas confirm, for an acquire with `lease`:
    /// the longest lease that was asked for here, unless the longest of all users was set.
    pub(crate) fn guard_time(&self, lease: Duration) -> Duration {
        let longest = self
            .longest_lease
            .fetch_max(millis(lease), Ordering::Relaxed);
        let longest = Duration::from_millis(longest).max(lease);
        self.config.restart_grace.unwrap_or(longest)
    }

    /// The id of the hold with this number.
    pub(crate) fn hold(&self, number: u64) -> HoldId {
        HoldId::new(&self.id, number)
    }

    /// The subscription to grants, where channels belong to no slot. Under it the client's own mutexes may be locked, and
    /// nothing else.
    pub(crate) fn grants(&self) -> MutexGuard<'_, Option<Subscription>> {
        lock(&self.grants)
    }

    /// Whether this release of `name` may leave the lock to Redisson.
    pub(crate) fn is_open_release(&self, name: &Name) -> bool {
        lock(&self.redisson_turns).is_open(name.hash(), self.clock().now())
    }

    /// How long the latest acquire took.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed))
    }

    pub(crate) fn note_round_trip(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.round_trip.store(micros, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether anything can be locked here now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.registry.home.is_elsewhere() {
            return Err(Error::new(ErrorKind::Forked, ""));
        }
        if self.is_closed() {
            return Err(Error::closed());
        }
        Ok(())
    }

    /// Whether `name` can be used now.
    pub(crate) fn check_name(&self, name: &Name) -> Result<(), Error> {
        #[cfg(feature = "testing")]
        crate::testing::hooks::fail(self, name).map_err(|error| self.about(name, error))?;
        let bad_name = || name.bad().map_or(Ok(()), |bad| Err(Error::bad_name(bad)));
        let checked = self.check().and_then(|()| bad_name());
        checked.map_err(|error| self.about(name, error))
    }

    /// A caller begins to wait for `name`.
    pub(crate) fn caller<'a>(&'a self, name: &'a Name, primitive: Primitive) -> Caller<'a> {
        let server = || Some(self.client.node(name.key().as_bytes()));
        self.registry.telemetry.caller(name, primitive, server)
    }

    /// Whether `name` can be used now; connects if that was left to the first use.
    pub(crate) async fn ready(&self, name: &Name) -> Result<(), Error> {
        self.check_name(name)?;
        let connected = self.contact().await;
        connected.map_err(|error| self.about(name, error))
    }

    /// Connects if that was left to the first use. Fails at once where it makes no sense to wait for the server.
    pub(crate) async fn contact(&self) -> Result<(), Error> {
        self.await_server().await?;
        self.client.contact().await.map_err(Error::from_read)
    }

    /// Fails at once where it makes no sense to wait for the server.
    pub(crate) async fn await_server(&self) -> Result<(), Error> {
        if !self.client.is_gone() {
            return Ok(());
        }
        // Boxed, so that the future of a caller does not contain all of its state.
        Box::pin(self.client.still_there())
            .await
            .map_err(Error::from_read)
    }

    /// `error` with the key it is about, and its node unless the client named one.
    pub(crate) fn about(&self, name: &Name, error: Error) -> Error {
        if error.kind() == ErrorKind::Forked {
            // The client must not be asked.
            return error.about(name.key(), &Arc::from(""));
        }
        error.about(name.key(), &self.client.node(name.key().as_bytes()))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.registry.home.is_elsewhere() {
            return;
        }
        self.registry.presence.close();
        self.registry.work.close();
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("client", &self.client)
            .field("namespace", &self.config.namespace)
            .field("client_id", &self.id.as_str())
            .finish_non_exhaustive()
    }
}
