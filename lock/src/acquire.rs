//! Taking a lock: from getting in line to the guard.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_cluster::{Confirmed, Quorum};
use leasehold_resp::Value;

use crate::error::{Error, ErrorKind};
use crate::guard::Guard;
use crate::hold::{
    FencingToken, Granted, Hold, Nest, Replicas, Terms, finish_later, submit_release,
};
use crate::id::{Decimal, HoldId};
use crate::keeper::Unfinished;
use crate::lease::{Now, is_good_lease, millis, token_ttl};
use crate::locks::{Inner, Interop};
use crate::names::Name;
use crate::owner::OwnerInner;
use crate::place::{Place, Turn};
use crate::scripts::{ACQUIRE, ACQUIRE_ALONE};

/// Beyond the remaining lease of the holder, 1 ms and up to as many more pass before the next look: waiters of many
/// processes all know the same end.
const SPREAD_MS: u64 = 4;

/// How often to look for a lock that is where its slot is being moved to: what is published there we do not hear before the
/// slot is ours to listen to.
const WHILE_MIGRATING: Duration = Duration::from_millis(250);

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) inner: Arc<Inner>,
    pub(crate) name: Arc<Name>,
    pub(crate) owner: Option<Arc<OwnerInner>>,
    pub(crate) terms: Terms,
    pub(crate) patience: Patience,
}

/// How long to wait while somebody holds the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    For(Duration),
    Endless,
}

/// The server's word on an attempt.
enum Answer {
    Granted(Guard),
    /// Somebody has it: look again after this long, if nothing is heard before.
    Held(Duration),
}

/// Takes the lock, or returns `None` when the patience ends.
pub(crate) async fn acquire(request: &Request) -> Result<Option<Guard>, Error> {
    let Request { inner, name, .. } = request;
    take(request)
        .await
        .map_err(|error| error.about(name.key(), &inner.client.node(name.key().as_bytes())))
}

async fn take(request: &Request) -> Result<Option<Guard>, Error> {
    let Request {
        inner,
        name,
        owner,
        terms,
        patience,
    } = request;
    check(request)?;
    if let Some(guard) = owner.as_ref().map_or(Ok(None), |owner| owner.nest(name))? {
        return Ok(Some(guard));
    }
    if terms.needs_keeper() {
        // Now, while there is nothing to lose.
        inner.keeper.start()?;
    }
    let number = owner.as_ref().map(|owner| owner.number());
    let (place, until) = match patience {
        Patience::None => (Place::enter_if_free(inner, name, number)?, None),
        // A time beyond the end of the clock is no limit.
        Patience::For(time) => (
            Some(Place::enter(inner, name, number)?),
            Instant::now().checked_add(*time),
        ),
        Patience::Endless => (Some(Place::enter(inner, name, number)?), None),
    };
    let Some(mut place) = place else {
        return Ok(None);
    };
    let id = inner.next_hold();
    let mut at_once = true;
    loop {
        match place.turn(until).await? {
            Turn::Mine => {}
            Turn::TimeUp => return Ok(None),
            Turn::Nested(hold) => match nest(&hold)? {
                Some(guard) => return Ok(Some(guard)),
                None => continue,
            },
        }
        if !matches!(patience, Patience::None) {
            place.give_way().await;
        }
        let ttl = match attempt(request, &mut place, id, at_once).await? {
            Answer::Granted(guard) => return Ok(Some(guard)),
            Answer::Held(ttl) => ttl,
        };
        at_once = false;
        if matches!(patience, Patience::None) {
            return Ok(None);
        }
        // Whoever holds it for a year may release it unheard: look again every lease.
        let spread = Duration::from_millis(1 + inner.jitter.below(SPREAD_MS));
        if !place.hear(ttl.min(terms.lease) + spread, until).await? {
            return Ok(None);
        }
    }
}

/// One attempt at the server.
async fn attempt(
    request: &Request,
    place: &mut Place,
    id: HoldId,
    at_once: bool,
) -> Result<Answer, Error> {
    let Request {
        inner,
        name,
        owner,
        terms,
        ..
    } = request;
    let lease = terms.first_lease();
    let keep = match inner.config.interop {
        Interop::Off => millis(token_ttl(lease)),
        Interop::Redisson => 0,
    };
    let (lease_ms, keep) = (Decimal::new(millis(lease)), Decimal::new(keep));
    let keys = [name.key().as_bytes(), name.token().as_bytes()];
    let args = [id.as_bytes(), lease_ms.as_bytes(), keep.as_bytes()];
    let highest = Decimal::new(inner.highest_token());
    let alone_args = [id.as_bytes(), lease_ms.as_bytes(), highest.as_bytes()];
    let alone = ACQUIRE_ALONE.call(&keys[..1], &alone_args);
    let call = ACQUIRE.call(&keys, &args).with_single_key_fallback(&alone);

    let deadline = Instant::now() + inner.config.command_timeout;
    if let Some(left) = quarantine(request, deadline).await? {
        return Ok(Answer::Held(left));
    }
    // Dropped before the place: the release leaves before the next one here is woken.
    let mut attempt = Attempt {
        inner,
        name,
        id,
        lease,
        unfinished: Some(inner.keeper.unfinished()),
    };
    let answer = match quorum(terms.replicas) {
        None => inner
            .client
            .eval(&call, deadline)
            .await
            .map(|evaluated| (evaluated, Ok(0))),
        Some(quorum) => {
            let confirmed = inner
                .client
                .eval_replicated(&call, quorum, deadline, is_granted)
                .await;
            confirmed.map(|confirmed| {
                let Confirmed {
                    evaluated,
                    acknowledged,
                    required,
                } = confirmed;
                let enough = match acknowledged {
                    Ok(count) if count >= required || !is_granted(&evaluated.value) => Ok(count),
                    Ok(count) => Err(Error::not_replicated(count, required)),
                    Err(denied) => Err(Error::unconfirmed(denied)),
                };
                (evaluated, enough)
            })
        }
    };
    let (evaluated, acknowledged) = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let may_have_executed = error.may_have_executed();
            let error = Error::from_client(error);
            // The script checks types before it writes.
            if !may_have_executed || error.kind() == ErrorKind::WrongType {
                attempt.disarm();
            }
            return Err(error);
        }
    };
    let token = match evaluated.value.as_int() {
        Some(token @ 1..) => FencingToken::new(token.cast_unsigned()),
        Some(0) => {
            attempt.disarm();
            return Err(Error::no_expiry());
        }
        Some(held) => {
            attempt.disarm();
            let ttl = Duration::from_millis((-1 - held).cast_unsigned());
            return Ok(Answer::Held(if evaluated.migrating {
                ttl.min(WHILE_MIGRATING)
            } else {
                ttl
            }));
        }
        None => return Err(Error::unexpected(&evaluated.value)),
    };
    let sent = Now {
        monotonic: evaluated.sent,
        wall: evaluated.sent_wall,
    };
    inner.saw(token);
    // The server may have been restarted between the question and the grant. The attempt is still armed.
    if let Some(left) = quarantine(request, deadline).await? {
        return Ok(Answer::Held(left));
    }
    let granted = Granted {
        token,
        since: sent,
        acknowledged: acknowledged?,
    };
    let hold = Hold::new(inner, name, id, *terms, owner.clone(), granted);
    if !hold.is_live() {
        return Err(Error::new(
            ErrorKind::Lost,
            format!("the answer took longer than the lease of {lease:?}"),
        ));
    }
    // If it was shut down meanwhile, the attempt is still armed.
    place.grant(&hold)?;
    attempt.disarm();
    inner
        .courtesy()
        .granted(name.hash(), at_once, sent.monotonic.elapsed());
    if let Some(owner) = owner {
        owner.remember(&hold);
    }
    if terms.needs_keeper() {
        inner.keeper.renew(&hold, sent.monotonic);
    }
    Ok(Answer::Granted(Guard::new(hold)))
}

fn is_granted(reply: &Value) -> bool {
    reply.as_int().is_some_and(|reply| reply > 0)
}

const fn quorum(replicas: Replicas) -> Option<Quorum> {
    match replicas {
        Replicas::None | Replicas::AtLeast(0) => None,
        Replicas::AtLeast(n) => Some(Quorum::AtLeast(n)),
        Replicas::All => Some(Quorum::All),
    }
}

/// For how long a server that was restarted grants nothing, if that is asked for.
async fn quarantine(request: &Request, deadline: Instant) -> Result<Option<Duration>, Error> {
    let Request { inner, name, .. } = request;
    let Some(longest) = inner.config.restart_guard else {
        return Ok(None);
    };
    let started = inner
        .client
        .server_started(name.key().as_bytes(), deadline)
        .await
        .map_err(Error::from_read)?;
    Ok(started.and_then(|started| (started + longest).checked_duration_since(Instant::now())))
}

/// One guard more of `hold`; `None` if it was released meanwhile.
pub(crate) fn nest(hold: &Arc<Hold>) -> Result<Option<Guard>, Error> {
    match hold.nest() {
        Nest::Nested => Ok(Some(Guard::new(Arc::clone(hold)))),
        Nest::Over => Ok(None),
        Nest::Lost(reason) => Err(hold.lost_error(reason)),
    }
}

/// What can be refused without asking anybody.
fn check(request: &Request) -> Result<(), Error> {
    if request.inner.is_closed() {
        return Err(Error::closed());
    }
    if let Some(bad) = request.name.bad() {
        return Err(Error::bad_name(bad));
    }
    if !is_good_lease(request.terms.lease) {
        return Err(Error::bad_lease("the lease"));
    }
    if request
        .terms
        .max_hold
        .is_some_and(|max_hold| !is_good_lease(max_hold))
    {
        return Err(Error::bad_lease("the longest hold"));
    }
    Ok(())
}

/// An acquire that may have been sent. Unless it is disarmed, a release of the same hold follows it on the same
/// connection, so it runs after it: a request that timed out, or whose future was dropped, may still run later.
struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    name: &'a Arc<Name>,
    id: HoldId,
    lease: Duration,
    unfinished: Option<Unfinished>,
}

impl Attempt<'_> {
    /// Nothing is left on the server, or what is has a guard.
    fn disarm(&mut self) {
        self.unfinished = None;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let Some(unfinished) = self.unfinished.take() else {
            return;
        };
        let (inner, name, id, lease) = (
            Arc::clone(self.inner),
            Arc::clone(self.name),
            self.id,
            self.lease,
        );
        submit_release(&inner, &name, &id).detach(move |outcome| {
            if let Err(error) = outcome {
                finish_later(&inner, &name, id, lease, &error, unfinished);
            }
        });
    }
}

impl From<crate::waiters::Closed> for Error {
    fn from(_: crate::waiters::Closed) -> Self {
        Self::closed()
    }
}
