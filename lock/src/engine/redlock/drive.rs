//! From the request to the guard: turns of this process, attempts, and the pauses between them.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold_cluster::{Subscription, SubscriptionEvent};
use tokio::sync::{Notify, oneshot};

use super::super::request::Wait;
use super::super::sync::lock;
use super::attempt::{Attempted, attempt, is_passing};
use super::core::Core;
use super::hold::QuorumGuard;
use super::turns::Turn;
use crate::error::Error;
use crate::observer::Way;
use crate::options::Terms;
use crate::state::names::Name;
use crate::state::primitive::Primitive;

/// Pauses between attempts are 1 to 8 round trips, and double up to eight times that.
const PAUSE_ROUND_TRIPS: u64 = 8;
const LONGEST_FACTOR: u32 = 8;
/// Where releases are heard they go on doubling up to this: asking is for messages that were lost, and for leases that end.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// A lock at several nodes that was asked for, and the conditions.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) core: Arc<Core>,
    pub(crate) name: Arc<Name>,
    pub(crate) terms: Terms,
    /// Whether it is to have a fencing token.
    pub(crate) is_fenced: bool,
    pub(crate) wait: Wait,
}

/// The channels on which the nodes tell of releases.
struct Ears {
    heard: Arc<Heard>,
    /// How many nodes have confirmed that they tell.
    confirmed: Arc<AtomicUsize>,
    subscriptions: Vec<Option<Subscription>>,
}

/// The nodes at which the lock is free, as far as is known since the latest attempt began.
///
/// A majority of them is worth an attempt. Fewer are not: an attempt takes what is free and gives it back, which is a message too, so
/// that those who wait would wake themselves and each other for as long as a holder lacks a node.
struct Heard {
    nodes: Mutex<BTreeSet<usize>>,
    needed: usize,
    is_free: Notify,
}

type Outcome = Result<Option<(QuorumGuard, Way)>, Error>;

/// Takes the lock, or returns `None` when the time to wait is over.
pub(crate) async fn acquire(request: Request) -> Result<Option<QuorumGuard>, Error> {
    let (core, name, wait) = (
        Arc::clone(&request.core),
        Arc::clone(&request.name),
        request.wait,
    );
    let caller = core.telemetry.caller(&name, Primitive::Redlock, || None);
    let taken = take(request).await;
    match &taken {
        Ok(Some((guard, way))) => guard.hold().granted_to(caller, *way),
        Ok(None) => caller.gave_up(wait.gave_up()),
        Err(error) => caller.failed(error),
    }
    Ok(taken?.map(|(guard, _)| guard))
}

async fn take(request: Request) -> Outcome {
    let (core, name) = (Arc::clone(&request.core), Arc::clone(&request.name));
    let about = |error: Error| error.about(name.key(), &Arc::from(""));
    core.check_name(&name).map_err(about)?;
    if let Some(what) = request.terms.bad_duration() {
        return Err(Error::bad_lease(what));
    }
    let until = match request.wait {
        Wait::For(time) => core.clock.now().checked_add(time),
        Wait::None | Wait::Endless => None,
    };
    let turn = match request.wait {
        Wait::None => core.turns.try_take(&name),
        Wait::For(_) | Wait::Endless => core.turns.take(&name, until, &core.clock).await,
    };
    let Some(turn) = turn else {
        return Ok(None);
    };
    let (send, receive) = oneshot::channel();
    core.spawn(drive(request, turn, until, send));
    // Dropped, the other end gives up what it has.
    receive
        .await
        .unwrap_or_else(|_| Err(Error::closed()))
        .map_err(about)
}

/// Contends until there is an outcome or nobody waits for it, and looks after the hold.
async fn drive(
    request: Request,
    turn: Turn,
    until: Option<Instant>,
    mut outcome: oneshot::Sender<Outcome>,
) {
    let contended = unless(outcome.closed(), contend(&request, turn, until)).await;
    let Some(contended) = contended else { return };
    let hold = match &contended {
        Ok(Some((guard, _))) => Some(Arc::clone(guard.hold())),
        _ => None,
    };
    // Where nobody takes it, it is dropped, and so released.
    drop(outcome.send(contended));
    drop(request);
    if let Some(hold) = hold {
        hold.over().await;
    }
}

async fn contend(request: &Request, turn: Turn, until: Option<Instant>) -> Outcome {
    let core = &request.core;
    let clock = &core.clock;
    let is_time_up = || until.is_some_and(|until| until <= clock.now());
    let mut ears = Ears::new(core);
    let mut factor = 1;
    let mut failing_since = None;
    let mut way = Way::AtOnce;
    loop {
        // Releases from here on are heard.
        let heard = Arc::clone(&ears.heard);
        let mut heard = pin!(heard.is_free.notified());
        heard.as_mut().enable();
        ears.heard.forget();
        let asked = clock.now();
        let at_least = match attempt(core, request).await {
            Attempted::Granted(guard, token) => {
                guard.begin(turn, token);
                return Ok(Some((guard, way)));
            }
            Attempted::Held { young, free } => {
                if matches!(request.wait, Wait::None) || is_time_up() {
                    return Ok(None);
                }
                for node in free {
                    ears.heard.add(node);
                }
                failing_since = None;
                young
            }
            Attempted::Failed(error) => {
                let since = *failing_since.get_or_insert(asked);
                let is_patient = is_passing(error.kind())
                    && clock.now() - since < core.config.command_timeout
                    && !is_time_up();
                if matches!(request.wait, Wait::None) || !is_patient {
                    return Err(error);
                }
                Duration::ZERO
            }
        };
        way = Way::Look;
        let is_heard = ears.listen(core, &request.name);
        let pause = pause(core, factor).min(LONGEST_PAUSE).max(at_least);
        if is_heard || factor < LONGEST_FACTOR {
            factor = factor.saturating_mul(2);
        }
        let wake_at = clock.now() + pause;
        let wake_at = until.map_or(wake_at, |until| until.min(wake_at));
        if clock.timeout_at(wake_at, heard).await.is_ok() {
            // All who wait heard it: they begin one after another.
            factor = 1;
            clock.sleep(self::pause(core, factor) / 2).await;
        }
    }
}

/// The pause behind an attempt, by chance: those who contend must not meet again and again.
fn pause(core: &Core, factor: u32) -> Duration {
    let round_trip = core.round_trip();
    let most =
        u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX / 64) * (PAUSE_ROUND_TRIPS - 1);
    (round_trip + Duration::from_micros(core.jitter.below(most))).saturating_mul(factor)
}

/// The output of `work`, or `None` if `over` is there before.
async fn unless<T>(over: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    let mut over = pin!(over);
    let mut work = pin!(work);
    poll_fn(|cx| {
        if over.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

impl Heard {
    fn new(needed: usize) -> Self {
        Self {
            nodes: Mutex::default(),
            needed,
            is_free: Notify::new(),
        }
    }

    fn forget(&self) {
        lock(&self.nodes).clear();
    }

    fn add(&self, node: usize) {
        let mut nodes = lock(&self.nodes);
        if nodes.insert(node) && nodes.len() >= self.needed {
            drop(nodes);
            self.is_free.notify_waiters();
        }
    }
}

impl Ears {
    fn new(core: &Core) -> Self {
        Self {
            heard: Arc::new(Heard::new(core.needed())),
            confirmed: Arc::default(),
            subscriptions: core.nodes.iter().map(|_| None).collect(),
        }
    }

    /// Listens at all nodes that are connected. Returns whether a majority has confirmed that.
    fn listen(&mut self, core: &Core, name: &Name) -> bool {
        let nodes = core.nodes.iter().enumerate();
        for ((index, node), subscription) in nodes.zip(&mut self.subscriptions) {
            if subscription.is_none()
                && let Some(client) = node.client()
            {
                let (heard, confirmed) = (Arc::clone(&self.heard), Arc::clone(&self.confirmed));
                let is_first = AtomicBool::new(true);
                let listener = move |event, _| match event {
                    SubscriptionEvent::Subscribed if is_first.swap(false, Ordering::Relaxed) => {
                        confirmed.fetch_add(1, Ordering::Relaxed);
                    }
                    // Messages in between were missed.
                    SubscriptionEvent::Message(_) | SubscriptionEvent::Subscribed => {
                        heard.add(index);
                    }
                    _ => {}
                };
                *subscription = Some(client.listen(name.channel().as_bytes(), listener));
            }
        }
        self.confirmed.load(Ordering::Relaxed) >= core.needed()
    }
}
