//! Taking a lock: from joining the queue to the hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_cluster::{
    Demand, Evaluated, Replicated, SubscriptionEvent, Unanswered, Unconfirmed,
};
use leasehold_resp as resp;
use leasehold_resp::Value;

use super::context::Context;
use super::hold::{Granted, Hold};
use super::queue::{Place, Turn, Wake};
use super::release;
use super::request::{Request, Wait};
use super::stand_back::stand_back;
use super::work_queue::Unfinished;
use crate::error::{Error, ErrorKind};
use crate::options::Interop;
use crate::protocol::{Answer, Attempt, Heard};
use crate::state::deadline::{Now, token_ttl};
use crate::state::hold::Nest;
use crate::state::id::HoldId;
use crate::state::token::FencingToken;
use crate::state::waiters::{Claim, Closed};

/// Beyond the remaining lease of the holder, 1 ms and up to as many more pass before the next attempt: waiters of many
/// processes all know the same end.
const SPREAD_MS: u64 = 4;

/// Attempts of a waiter that would hear of a release, while one holder goes on renewing a short lease, become as rare as
/// this.
const RARE: Duration = Duration::from_secs(1);

/// Pause between attempts at a lock that is where its slot is being moved to: messages from there do not arrive before the
/// slot has moved.
const WHILE_MIGRATING: Duration = Duration::from_millis(250);

/// The result of an attempt.
enum Attempted {
    Granted(Arc<Hold>),
    /// Others have it.
    Held(HeldFor),
}

/// For how long others have the lock.
struct HeldFor {
    /// The next attempt is due then, if there is no message before.
    time: Duration,
    /// Whether there is a message at a release: not while the server grants nothing because it was restarted, nor while the
    /// slot is migrating.
    announced: bool,
}

impl HeldFor {
    /// The server was restarted and grants nothing for this long.
    const fn restarted(time: Duration) -> Self {
        Self {
            time,
            announced: false,
        }
    }
}

/// Takes the lock, or returns `None` when the time to wait is over.
pub(crate) async fn acquire(request: &Request) -> Result<Option<Arc<Hold>>, Error> {
    take(request)
        .await
        .map_err(|error| request.context.about(&request.name, error))
}

async fn take(request: &Request) -> Result<Option<Arc<Hold>>, Error> {
    let Request { context, terms, .. } = request;
    context.check_name(&request.name)?;
    if let Some(what) = terms.bad_duration() {
        return Err(Error::bad_lease(what));
    }
    let held = request
        .owner
        .as_ref()
        .and_then(|owner| owner.get(&request.name));
    if let Some(hold) = held
        && nest(request, &hold)?
    {
        return Ok(Some(hold));
    }
    if terms.needs_renewal() {
        // Now, while there is nothing to lose.
        context.registry.start_worker()?;
    }
    let Some((mut place, until)) = enter(request)? else {
        return Ok(None);
    };
    let id = context.next_hold();
    let is_time_up = || until.is_some_and(|until| until <= Instant::now());
    let mut asked = false;
    let mut shortest_pause = Duration::ZERO;
    loop {
        match place.turn(until).await? {
            // The first attempt is made in any case; another one would take another command timeout.
            Turn::Mine if asked && is_time_up() => return Ok(None),
            Turn::Mine => {}
            Turn::TimeUp => return Ok(None),
            Turn::Nested(hold) if nest(request, &hold)? => return Ok(Some(hold)),
            Turn::Nested(_) => continue,
        }
        if !stand_back(request, &place, until).await? {
            return Ok(None);
        }
        let held = match attempt(request, &mut place, id).await {
            Ok(Attempted::Granted(hold)) => return Ok(Some(hold)),
            Ok(Attempted::Held(held)) => held,
            Err(error) => {
                place.fail_others(terms.replicas, &error);
                return Err(error);
            }
        };
        asked = true;
        let is_over = matches!(request.wait, Wait::None) || is_time_up();
        if is_over {
            return Ok(None);
        }
        let pause = pause(request, &place, &held, shortest_pause);
        shortest_pause = match wait(request, &mut place, pause, until).await? {
            Waited::Heard => Duration::ZERO,
            // Renewed, most likely: a holder that died would be found at the first attempt after its lease.
            Waited::Unheard => (pause * 2).min(RARE),
            Waited::TimeUp => return Ok(None),
        };
    }
}

/// Joins the queue. Returns the place, and until when to wait there; `None` if it is not to wait and would have to.
fn enter(request: &Request) -> Result<Option<(Place, Option<Instant>)>, Closed> {
    let Request { context, name, .. } = request;
    let claim = Claim {
        access: request.protocol.access,
        owner: request.owner.as_ref().map(|owner| owner.number()),
        replicas: request.terms.replicas,
    };
    Ok(match request.wait {
        Wait::None => Place::enter_if_free(context, name, claim)?.map(|place| (place, None)),
        // A time beyond the end of the clock is no limit.
        Wait::For(time) => Some((
            Place::enter(context, name, claim)?,
            Instant::now().checked_add(time),
        )),
        Wait::Endless => Some((Place::enter(context, name, claim)?, None)),
    })
}

/// How long to wait for a message before the next attempt.
fn pause(request: &Request, place: &Place, held: &HeldFor, shortest: Duration) -> Duration {
    let jitter = request.context.jitter.below(SPREAD_MS);
    let at_end = held.time + Duration::from_millis(1 + jitter);
    // A holder with a lease of a year may release it unheard: ask again every lease of ours.
    let longest = request.terms.lease;
    if held.announced && place.is_subscribed() {
        at_end.min(longest.max(RARE)).max(shortest)
    } else {
        at_end.min(longest)
    }
}

/// Why a wait ended.
enum Waited {
    /// By a message, or by a subscription before which messages may have been missed.
    Heard,
    /// By the time for the next attempt.
    Unheard,
    TimeUp,
}

/// Waits until the lock, which others hold, may be free: for a message, at most for `pause`.
async fn wait(
    request: &Request,
    place: &mut Place,
    pause: Duration,
    until: Option<Instant>,
) -> Result<Waited, Error> {
    let free_at = Instant::now() + pause;
    loop {
        match place.wait(free_at, until).await? {
            Wake::Channel(SubscriptionEvent::Message(message))
                if (request.protocol.on_message)(&message) == Heard::Ignore => {}
            // After a fresh subscription, or without one, messages may have been missed.
            Wake::Channel(_) => return Ok(Waited::Heard),
            Wake::Due => return Ok(Waited::Unheard),
            Wake::TimeUp => return Ok(Waited::TimeUp),
        }
    }
}

/// One attempt at the server.
async fn attempt(request: &Request, place: &mut Place, id: HoldId) -> Result<Attempted, Error> {
    let Request {
        context, protocol, ..
    } = request;
    let deadline = Instant::now() + context.config.command_timeout;
    if let Some(left) = restart_grace(request, deadline).await? {
        return Ok(Attempted::Held(HeldFor::restarted(left)));
    }
    // Dropped before the place: the release leaves before the next waiter here is woken.
    let mut open = OpenAttempt::new(request, id);
    let reply = match ask(request, &id, deadline, &mut open.unanswered).await {
        Ok(Asked::Replied(reply)) => reply,
        Ok(Asked::Untrusted { left, ran }) => {
            if !ran {
                open.settle();
            }
            return Ok(Attempted::Held(HeldFor::restarted(left)));
        }
        Err(error) => {
            let may_have_executed = error.may_have_executed();
            let error = Error::from_client(error);
            // The scripts check types before they write.
            if !may_have_executed || error.kind() == ErrorKind::WrongType {
                open.settle();
            }
            return Err(error);
        }
    };
    let Evaluated {
        value, migrating, ..
    } = reply.evaluated;
    let token = match (protocol.read_acquire)(&value) {
        Some(Answer::Granted { token }) => token,
        Some(Answer::NoExpiry) => {
            open.settle();
            return Err(Error::no_expiry());
        }
        Some(Answer::Held(ttl)) => {
            open.settle();
            let now = Instant::now();
            let messages = place.new_messages();
            context
                .fairness()
                .met(request.name.hash(), now + ttl, messages, now);
            let longest = if migrating { WHILE_MIGRATING } else { ttl };
            return Ok(Attempted::Held(HeldFor {
                time: ttl.min(longest),
                announced: !migrating,
            }));
        }
        None => return Err(Error::unexpected(&value)),
    };
    if let Some(token) = token {
        context.saw(token);
    }
    // The server may have been restarted between the question and the grant. The attempt is still open.
    if let Some(left) = restart_grace(request, deadline).await? {
        return Ok(Attempted::Held(HeldFor::restarted(left)));
    }
    let since = Now {
        monotonic: reply.evaluated.sent,
        wall: reply.evaluated.sent_wall,
    };
    let granted = Granted {
        protocol,
        name: Arc::clone(&request.name),
        id,
        token,
        terms: request.terms,
        owner: request.owner.clone(),
        acknowledged: reply.confirmed?,
        since,
        // Late requests of earlier attempts that could not be killed: they are outlived by the release.
        unanswered: open.unanswered.clone(),
    };
    let hold = hold(granted)?;
    hold.keep(Arc::<Context>::clone(context));
    // If the locks were shut down meanwhile, the attempt is still open.
    place.grant(&hold)?;
    open.settle();
    begin(request, &hold, since.monotonic);
    Ok(Attempted::Granted(hold))
}

/// The hold of a grant, if there is anything left of it.
fn hold(granted: Granted) -> Result<Arc<Hold>, Error> {
    let hold = Hold::new(granted);
    if hold.is_live() {
        return Ok(hold);
    }
    let lease = hold.terms.first_lease();
    Err(Error::new(
        ErrorKind::Lost,
        format!("the answer took longer than the lease of {lease:?}"),
    ))
}

/// `hold` begins: it counts for fairness, nests for its owner, and is renewed.
fn begin(request: &Request, hold: &Arc<Hold>, sent: Instant) {
    let Request { context, name, .. } = request;
    let token = hold.token.map_or(0, FencingToken::as_u64);
    context.fairness().granted(name.hash(), token);
    if let Some(owner) = &request.owner {
        owner.remember(hold);
    }
    if request.terms.needs_renewal() {
        context.registry.work.renew(hold, sent);
    }
}

/// The server's reply to an attempt.
struct Reply {
    evaluated: Evaluated,
    /// How many replicas confirmed it; an error if that is too few.
    confirmed: Result<usize, Error>,
}

/// The outcome of a request.
enum Asked {
    Replied(Reply),
    /// The data of the master are too young to grant anything; `ran` if the acquire ran before that was known.
    Untrusted {
        left: Duration,
        ran: bool,
    },
}

/// Sends the acquire, and has it confirmed by replicas if that was asked for. Connections over which it was sent without an
/// answer are noted in `unanswered`.
async fn ask(
    request: &Request,
    id: &HoldId,
    deadline: Instant,
    unanswered: &mut Unanswered,
) -> Result<Asked, resp::Error> {
    let Request {
        context,
        protocol,
        terms,
        ..
    } = request;
    let lease = terms.first_lease();
    let attempt = Attempt {
        name: &request.name,
        id,
        lease,
        counter_ttl: match context.config.interop {
            Interop::Off => Some(token_ttl(lease)),
            Interop::Redisson => None,
        },
        highest_token: context.highest_token(),
    };
    let (call, single_key) = (
        (protocol.acquire)(&attempt),
        (protocol.acquire_single_key)(&attempt),
    );
    let (call, single_key) = (call.slices(), single_key.slices());
    let single_key = single_key.call();
    let call = call.call().with_single_key_fallback(&single_key);
    let Some(quorum) = terms.quorum() else {
        let evaluated = context.client.eval_tracked(&call, deadline, unanswered);
        return Ok(Asked::Replied(Reply {
            evaluated: evaluated.await?,
            confirmed: Ok(0),
        }));
    };
    let is_granted = |value: &Value| {
        let answer = (protocol.read_acquire)(value);
        matches!(answer, Some(Answer::Granted { .. }))
    };
    let demand = Demand {
        quorum,
        lease,
        guard: context.guard_time(lease),
    };
    let replicated = context
        .client
        .eval_replicated(&call, &demand, deadline, is_granted, unanswered)
        .await?;
    let confirmed = match replicated {
        Replicated::Untrusted { left, ran } => return Ok(Asked::Untrusted { left, ran }),
        Replicated::Ran(confirmed) => confirmed,
    };
    Ok(Asked::Replied(Reply {
        evaluated: confirmed.evaluated,
        confirmed: confirmed.confirmation.map_err(|why| match why {
            Unconfirmed::Refused(refusal) => Error::not_replicated(&refusal),
            Unconfirmed::Failed(error) => Error::unconfirmed(error),
        }),
    }))
}

/// How long the server grants nothing because it was restarted, if that is asked for.
async fn restart_grace(request: &Request, deadline: Instant) -> Result<Option<Duration>, Error> {
    let Request { context, name, .. } = request;
    let Some(longest) = context.config.restart_grace else {
        return Ok(None);
    };
    if request.terms.quorum().is_some() {
        // Where replicas confirm, the grace follows the data, and is part of the attempt.
        return Ok(None);
    }
    let started = context
        .client
        .server_started(name.key().as_bytes(), deadline)
        .await
        .map_err(Error::from_read)?;
    Ok(started.and_then(|started| (started + longest).checked_duration_since(Instant::now())))
}

/// Adds a guard to `hold`. Returns false if it was released meanwhile.
fn nest(request: &Request, hold: &Hold) -> Result<bool, Error> {
    // If it has just run out, it ends here.
    release::check(&request.context.registry, hold);
    let nested = hold
        .state()
        .nest(&request.terms, hold.acknowledged, Now::read());
    match nested {
        Nest::Nested => Ok(true),
        Nest::Over => Ok(false),
        Nest::Lost(reason) => Err(Error::new(ErrorKind::Lost, reason.to_string())),
        Nest::Refused(missing) => Err(Error::new(ErrorKind::Nested, missing)),
    }
}

/// An attempt without an outcome. Unless it is settled, a release of the same hold follows it: a request that timed out, or
/// whose future was dropped, may still run later.
struct OpenAttempt<'a> {
    request: &'a Request,
    id: HoldId,
    /// Where it was sent without an answer.
    unanswered: Unanswered,
    unfinished: Option<Unfinished>,
}

impl<'a> OpenAttempt<'a> {
    fn new(request: &'a Request, id: HoldId) -> Self {
        Self {
            request,
            id,
            unanswered: Unanswered::default(),
            unfinished: Some(request.context.registry.work.unfinished()),
        }
    }

    /// Nothing is left on the server, or what is left has a guard.
    fn settle(&mut self) {
        self.unfinished = None;
    }
}

impl Drop for OpenAttempt<'_> {
    fn drop(&mut self) {
        if let Some(unfinished) = self.unfinished.take() {
            let Request {
                context,
                protocol,
                name,
                terms,
                ..
            } = self.request;
            let end = release::Withdrawn {
                protocol,
                name: Arc::clone(name),
                id: self.id,
                lease: terms.first_lease(),
                unanswered: std::mem::take(&mut self.unanswered),
                unfinished,
            };
            release::withdraw(context, end);
        }
    }
}

impl From<Closed> for Error {
    fn from(_: Closed) -> Self {
        Self::closed()
    }
}
