//! One of the independent nodes: a server, a cluster, or the master that sentinels name.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Monitor, Target, Unanswered};
use leasehold_resp::timer::timer_at;
use leasehold_resp::{Command, Value};
use tokio::sync::{Notify, watch};

use super::super::presence::Presence;
use super::super::sync::lock;
use super::core::Core;
use super::hold::QuorumHold;
use crate::error::{Error, ErrorKind};
use crate::protocol::permits::Permits;
use crate::protocol::redlock::NODE;
use crate::protocol::{Answer, Attempt};
use crate::state::deadline::Now;

/// Pauses between attempts to connect grow up to this.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The first of them.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Masters of a cluster that are asked for their identity.
const MASTERS: usize = 64;

pub(crate) struct Node {
    /// Which of the nodes it is.
    #[cfg(feature = "testing")]
    pub(super) index: usize,
    /// Its address, in messages.
    name: Arc<str>,
    /// Whether another server may take over its data.
    is_dynamic: bool,
    client: watch::Sender<Option<Client>>,
    state: Mutex<State>,
    /// Notified when it was connected, or could not be.
    news: Arc<Notify>,
    /// A mean of the round trips of its answers, in microseconds; 0 before the first.
    round_trip: AtomicU64,
    /// The entry of this process there.
    presence: Presence,
}

#[derive(Default)]
struct State {
    /// Ids of its server processes and of the histories of their data.
    identity: Vec<Box<str>>,
    /// Why it could not be connected to the last time.
    failure: Option<Error>,
    /// Why it must not be used beside the others.
    refused: Option<Error>,
}

/// A grant of the lock at a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) sent: Now,
    pub(super) lease: Duration,
    pub(super) counter: u64,
}

/// Leftovers that requests may have at a node.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Whether it granted the hold.
    pub(super) hold: bool,
    /// Connections over which a request may still arrive.
    pub(super) unanswered: Unanswered,
}

/// Why a node does not grant the lock.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Another hold has it.
    Held,
    /// It was started too recently: its data may have lost locks, for so long yet.
    Young(Duration),
    Failed(Error),
}

impl Node {
    pub(super) fn new(
        _index: usize,
        target: &Target,
        presence: Presence,
        news: &Arc<Notify>,
    ) -> Arc<Self> {
        let first = target
            .clone()
            .endpoints_mut()
            .first()
            .map(|endpoint| endpoint.node());
        Arc::new(Self {
            #[cfg(feature = "testing")]
            index: _index,
            name: first.unwrap_or_else(|| Arc::from("")),
            is_dynamic: !matches!(target, Target::Single(_)),
            client: watch::Sender::new(None),
            state: Mutex::default(),
            news: Arc::clone(news),
            round_trip: AtomicU64::new(0),
            presence,
        })
    }

    /// Its address, in messages.
    pub(super) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.borrow().is_some()
    }

    /// Why it could not be connected to the last time.
    pub(super) fn failure(&self) -> Option<Error> {
        lock(&self.state).failure.as_ref().map(Error::copied)
    }

    /// Why it must not be used beside the others.
    pub(super) fn refused(&self) -> Option<Error> {
        lock(&self.state).refused.as_ref().map(Error::copied)
    }

    /// A mean of its round trips.
    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed))
    }

    pub(super) fn client(&self) -> Option<Client> {
        self.client.borrow().clone()
    }

    /// The client, once it is connected.
    pub(super) async fn connected(&self, deadline: Instant) -> Result<Client, Error> {
        let mut client = self.client.subscribe();
        let connected = client.wait_for(Option::is_some);
        let connected = tokio::time::timeout_at(timer_at(deadline), connected).await;
        if let Ok(Ok(client)) = connected
            && let Some(client) = &*client
        {
            return Ok(client.clone());
        }
        let unreachable = || Error::new(ErrorKind::Unavailable, "not connected yet");
        Err(self.failure().unwrap_or_else(unreachable))
    }

    /// For how long it grants nothing yet, if it is reached; zero if it may.
    pub(super) async fn too_young_for(&self, guard: Duration) -> Option<Duration> {
        let client = self.client()?;
        let deadline = Instant::now() + client.command_timeout();
        self.untrusted_for(&client, b"", guard, deadline).await.ok()
    }

    /// For how long its data may have lost locks, as a restart or a failover loses them; zero if they have not.
    async fn untrusted_for(
        &self,
        client: &Client,
        key: &[u8],
        guard: Duration,
        deadline: Instant,
    ) -> Result<Duration, leasehold_resp::Error> {
        if self.is_dynamic {
            return client.untrusted_for(key, guard, deadline).await;
        }
        let started = client.server_started(key, deadline).await?;
        let old_at = started.map(|started| started + guard);
        Ok(old_at.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(Instant::now())
        }))
    }

    /// Asks it for the lock, and notes in `left` what that may leave there.
    pub(super) async fn acquire(
        &self,
        hold: &QuorumHold,
        deadline: Instant,
        left: &mut Left,
    ) -> Result<Grant, Refusal> {
        if let Some(refused) = self.refused() {
            return Err(Refusal::Failed(refused));
        }
        #[cfg(feature = "testing")]
        crate::testing::hooks::fail_at(&hold.core.clock, self.index).map_err(Refusal::Failed)?;
        let client = self.connected(deadline).await.map_err(Refusal::Failed)?;
        let key = hold.name.key().as_bytes();
        let guard = hold.core.guard_time(hold.terms.lease);
        let changes = client.changes();
        self.trust(&client, key, guard, deadline).await?;
        let lease = hold.terms.first_lease();
        let attempt = Attempt {
            name: &hold.name,
            id: &hold.id,
            permits: Permits::NONE,
            lease,
            counter_ttl: hold.core.config.interop.counter_ttl(lease),
            highest_token: 0,
            block: None,
            beside_redisson: false,
            redisson: false,
            with_line: false,
            channels: client.channels(),
            ticket: None,
        };
        let call = (NODE.acquire)(&attempt);
        let call = call.slices();
        let alone = || (NODE.acquire_single_key)(&attempt).to_owned();
        let call = if hold.is_fenced {
            // A hold whose counter is not read and written cannot be fenced.
            call.call()
        } else {
            call.call().while_migrating(&alone)
        };
        let evaluated = client
            .eval_tracked(&call, deadline, &mut left.unanswered)
            .await
            .map_err(|error| Refusal::Failed(Error::from_client(error)))?;
        self.note_round_trip(evaluated.sent.elapsed());
        let (token, rest) = match (NODE.read_answer)(&evaluated.value) {
            Some(Answer::Granted { token, left, .. }) => (token, left),
            Some(Answer::Held(_) | Answer::Placed(_)) => return Err(Refusal::Held),
            Some(Answer::NoExpiry) => return Err(Refusal::Failed(Error::no_expiry())),
            Some(Answer::CapacityDisagrees { .. }) | None => {
                return Err(Refusal::Failed(Error::unexpected(&evaluated.value)));
            }
        };
        left.hold = true;
        if client.changes() != changes {
            // The server may have been restarted between the question and the grant.
            self.trust(&client, key, guard, deadline).await?;
        }
        let clock = &hold.core.clock;
        Ok(Grant {
            sent: clock.at(evaluated.sent, evaluated.sent_wall),
            lease: rest.unwrap_or(lease),
            counter: token.map_or(0, |token| token.as_u64()),
        })
    }

    /// Whether it may grant anything.
    async fn trust(
        &self,
        client: &Client,
        key: &[u8],
        guard: Option<Duration>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let Some(guard) = guard else { return Ok(()) };
        match self.untrusted_for(client, key, guard, deadline).await {
            Ok(left) if left.is_zero() => Ok(()),
            Ok(left) => Err(Refusal::Young(left)),
            Err(error) => Err(Refusal::Failed(Error::from_read(error))),
        }
    }

    pub(super) fn note_round_trip(&self, time: Duration) {
        let known = self.round_trip.load(Ordering::Relaxed);
        let latest = u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 4);
        let mean = if known == 0 {
            latest
        } else {
            (3 * known + latest) / 4
        };
        self.round_trip.store(mean.max(1), Ordering::Relaxed);
    }

    /// A lock was taken: the entry of this process is written behind it, unless that was done.
    pub(super) fn register(self: &Arc<Self>, core: &Core, lease: Duration) {
        if let Some(client) = self.client() {
            self.register_by(core, &client, lease);
        }
    }

    fn register_by(self: &Arc<Self>, core: &Core, client: &Client, lease: Duration) {
        let Some(written) = self.presence.used(client, lease) else {
            return;
        };
        let (node, client, clock) = (Arc::clone(self), client.clone(), core.clock.clone());
        core.spawn(async move {
            let outcome = written.await;
            if node.presence.settle(&outcome) {
                node.refresh(&client, clock.now()).await;
            }
        });
    }

    /// A lock was renewed there: so is the entry, if that is due. `is_other` if the node may have forgotten it.
    pub(super) fn keep_registered(
        self: &Arc<Self>,
        core: &Core,
        client: &Client,
        lease: Duration,
        is_other: bool,
    ) {
        if is_other {
            self.presence.doubt();
        }
        // It may not have been there when the lock was taken.
        self.register_by(core, client, lease);
        let now = core.clock.now();
        if self.presence.is_due(now) {
            let (node, client) = (Arc::clone(self), client.clone());
            core.spawn(async move { node.refresh(&client, now).await });
        }
    }

    async fn refresh(&self, client: &Client, now: Instant) {
        if let Some(lasts) = self.presence.begin(now, || true) {
            self.presence.refresh(client, lasts).await;
        }
    }

    /// Notes who it is. Returns whether one of the `others` is the same server, or a replica of it.
    fn identify(&self, identity: Vec<Box<str>>, others: &[Arc<Self>]) -> Option<Error> {
        for other in others.iter().filter(|other| !std::ptr::eq(&***other, self)) {
            let known = lock(&other.state);
            if known.identity.iter().any(|id| identity.contains(id)) {
                let detail = format!(
                    "{} and {} are the same server, or one is a replica of the other: name independent deployments",
                    other.name, self.name
                );
                return Some(Error::new(ErrorKind::Config, detail));
            }
        }
        lock(&self.state).identity = identity;
        None
    }
}

/// Connects to the node, however long it takes.
pub(super) async fn connect(
    node: Arc<Node>,
    all: Box<[Arc<Node>]>,
    target: Target,
    monitor: Arc<Monitor>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        match Client::connect_monitored(target.clone(), Arc::clone(&monitor)).await {
            Ok(client) => {
                let refused = match identity(&client).await {
                    Ok(identity) => node.identify(identity, &all),
                    Err(refused) => Some(refused),
                };
                match refused {
                    Some(error) => lock(&node.state).refused = Some(error),
                    None => drop(node.client.send_replace(Some(client))),
                }
                return node.news.notify_waiters();
            }
            Err(error) => {
                lock(&node.state).failure = Some(Error::from_read(error));
                node.news.notify_waiters();
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// The ids of the node's server processes, and of the histories of their data, which replicas share with their master.
async fn identity(client: &Client) -> Result<Vec<Box<str>>, Error> {
    let deadline = Instant::now() + client.command_timeout();
    let mut ids = Vec::new();
    for section in ["server", "replication"] {
        let question = Command::new("INFO").arg(section);
        for (node, answer) in client.ask_masters(&question, MASTERS, deadline).await {
            let answer = answer.map_err(Error::from_read)?;
            if field(&answer, "role:").is_some_and(|role| role != "master") {
                let detail = "it is a replica: name its master, or the sentinels that know it";
                return Err(Error::new(ErrorKind::Config, detail).about("", &node));
            }
            let ids_of = ["run_id:", "master_replid:"];
            ids.extend(
                ids_of
                    .iter()
                    .filter_map(|id| Some(field(&answer, id)?.into())),
            );
        }
    }
    Ok(ids)
}

fn field<'a>(info: &'a Value, name: &str) -> Option<&'a str> {
    let mut lines = info.as_str()?.lines();
    lines
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}
