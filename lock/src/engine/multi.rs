//! Taking several locks, all of them or none.
//!
//! All are tried at once. Where one is held by others, everything is given back, and that one is waited for with nothing else
//! in hand, so whatever order others take them in, nobody waits in a circle. Who is unlucky again and again takes them in their
//! order in the end, and waits for each but the first for a second.

mod chunk;
mod parts;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::acquire;
use super::handle::Handle;
use super::hold::Hold;
use super::queue::Place;
use super::request::{Request, Wait};
use super::telemetry::Caller;
use super::together::together;
use crate::error::{Error, ErrorKind};
use crate::options::Terms;
use crate::protocol::multi::{CHUNK, PART};
use crate::protocol::permits::Permits;
use crate::state::names::Name;
use crate::state::waiters::Claim;
use parts::Parts;
pub(crate) use parts::{Group, over, release};

/// Rounds in which one lock is waited for holding nothing.
const ROUNDS: usize = 8;
/// Upper bound on the wait for a lock while others are held.
const WAIT_IN_ORDER: Duration = Duration::from_secs(1);
/// Upper bound on the pause between two rounds in order, in milliseconds.
const PAUSE: u64 = 50;
/// Requests that replicas confirm take a connection each.
const AT_ONCE_CONFIRMED: usize = 8;

/// Several locks that were asked for, and the conditions.
#[derive(Debug)]
pub(crate) struct MultiRequest {
    pub(crate) context: Arc<Handle>,
    /// In the order that everybody takes them in, each of them once.
    pub(crate) names: Arc<[Arc<Name>]>,
    pub(crate) terms: Terms,
    pub(crate) wait: Wait,
}

/// The outcome of a round.
enum Round {
    Taken(Parts),
    /// Others have the one with this index. Nothing is held.
    Conflict(usize),
    TimeUp,
}

/// Takes all of the locks, or returns `None` when the time to wait is over.
pub(crate) async fn acquire(request: &MultiRequest) -> Result<Option<Arc<Group>>, Error> {
    let MultiRequest { context, names, .. } = request;
    let caller = |name| context.caller(name, PART.primitive);
    let callers: Vec<_> = names.iter().map(|name| caller(name)).collect();
    let taken = take_all(request).await;
    match &taken {
        Ok(Some(group)) => group.granted_to(callers),
        Ok(None) => each(callers, |caller| caller.gave_up(request.wait.gave_up())),
        Err(error) => each(callers, |caller| caller.failed(error)),
    }
    taken
}

fn each<'a>(callers: Vec<Caller<'a>>, tell: impl Fn(Caller<'a>)) {
    callers.into_iter().for_each(tell);
}

async fn take_all(request: &MultiRequest) -> Result<Option<Arc<Group>>, Error> {
    check(request)?;
    request.context.contact().await?;
    let until = match request.wait {
        Wait::For(time) => request.context.clock().now().checked_add(time),
        Wait::None | Wait::Endless => None,
    };
    let mut round = try_from(request, Parts::none(request)).await?;
    let mut rounds = 0;
    loop {
        let conflict = match round {
            Round::Taken(parts) => return parts.group().map(Some),
            Round::Conflict(at) => at,
            Round::TimeUp => return Ok(None),
        };
        let is_time_up = until.is_some_and(|until| until <= request.context.clock().now());
        if matches!(request.wait, Wait::None) || is_time_up {
            return Ok(None);
        }
        round = if rounds < ROUNDS {
            rounds += 1;
            from_conflict(request, conflict, until).await?
        } else {
            // One that others keep for longer than it waits there is waited for with nothing in hand again.
            rounds = 0;
            in_order(request, until).await?
        };
    }
}

/// Whether the locks can be asked for.
fn check(request: &MultiRequest) -> Result<(), Error> {
    let MultiRequest {
        context,
        names,
        terms,
        ..
    } = request;
    context.check()?;
    if names.is_empty() {
        let detail = "the list of names is empty: name at least one lock";
        return Err(Error::new(ErrorKind::BadName, detail));
    }
    for name in names.iter() {
        context.check_name(name)?;
    }
    if let Some(what) = terms.bad_duration() {
        return Err(Error::bad_lease(what));
    }
    if terms.needs_renewal() {
        // Now, while there is nothing to lose.
        context.registry.start_worker()?;
    }
    Ok(())
}

/// Waits for one lock holding nothing, and tries the others once it is there.
async fn from_conflict(
    request: &MultiRequest,
    at: usize,
    until: Option<Instant>,
) -> Result<Round, Error> {
    let wait = until.map_or(Wait::Endless, |until| {
        Wait::For(until.saturating_duration_since(request.context.clock().now()))
    });
    let is_wanted = || waited_for_elsewhere(request, at).is_none();
    let Some(hold) = take_one(request, at, wait, &is_wanted).await? else {
        let is_time_up = until.is_some_and(|until| until <= request.context.clock().now());
        let elsewhere = || waited_for_elsewhere(request, at).unwrap_or(at);
        return Ok(match is_time_up {
            true => Round::TimeUp,
            false => Round::Conflict(elsewhere()),
        });
    };
    let mut parts = Parts::none(request);
    parts.add(at, hold);
    try_from(request, parts).await
}

/// The lock that another task of this process stands in line for, unless that is the one with this index: others have it, so
/// this one need not be asked for.
fn waited_for_elsewhere(request: &MultiRequest, at: usize) -> Option<usize> {
    let table = &request.context.registry.table;
    let stands = |name: &Arc<Name>| table.with_standing(name, |_| ()).is_some();
    if stands(&request.names[at]) {
        return None;
    }
    request.names.iter().position(stands)
}

/// Tries all locks that are not among `parts`, which are given back if one of them is held by others.
async fn try_from(request: &MultiRequest, mut parts: Parts) -> Result<Round, Error> {
    let all = 0..request.names.len();
    Ok(match try_missing(request, &mut parts, all).await? {
        None => Round::Taken(parts),
        Some(at) => Round::Conflict(at),
    })
}

/// Takes the locks in their order, waiting for each of them a while.
async fn in_order(request: &MultiRequest, until: Option<Instant>) -> Result<Round, Error> {
    let mut parts = Parts::none(request);
    let all = request.names.len();
    let (mut next, mut limit) = (0, all);
    while next < all {
        let Some(at) = try_missing(request, &mut parts, next..limit).await? else {
            next = limit;
            limit = all;
            continue;
        };
        // Behind one that is waited for, nothing is held: what comes before it is taken first.
        parts.give_back_from(next);
        if at > next {
            limit = at;
            continue;
        }
        let left =
            until.map(|until| until.saturating_duration_since(request.context.clock().now()));
        // With nothing in hand it keeps nobody waiting, and stays in line.
        let longest = (next > 0).then_some(WAIT_IN_ORDER);
        let wait = left.into_iter().chain(longest).min();
        let wait = wait.map_or(Wait::Endless, Wait::For);
        let Some(hold) = take_one(request, at, wait, &|| true).await? else {
            drop(parts);
            let pause = Duration::from_millis(request.context.jitter.below(PAUSE));
            request.context.clock().sleep(pause).await;
            return Ok(Round::Conflict(at));
        };
        parts.add(at, hold);
        next += 1;
        limit = all;
    }
    Ok(Round::Taken(parts))
}

/// Waits for the lock with this index alone, in the line with everybody else.
async fn take_one(
    request: &MultiRequest,
    at: usize,
    wait: Wait,
    is_wanted: &(dyn Fn() -> bool + Send + Sync),
) -> Result<Option<Arc<Hold>>, Error> {
    let one = Request {
        context: Arc::clone(&request.context),
        protocol: &PART,
        name: Arc::clone(&request.names[at]),
        permits: Permits::NONE,
        owner: None,
        terms: request.terms,
        wait,
        polling: None,
    };
    acquire::acquire_if(&one, is_wanted).await
}

/// Tries the locks of a range that are not among `parts`, and adds what is taken. Returns the first that others hold.
async fn try_missing(
    request: &MultiRequest,
    parts: &mut Parts,
    range: Range<usize>,
) -> Result<Option<usize>, Error> {
    let MultiRequest { context, names, .. } = request;
    let claim = Claim {
        access: PART.access,
        owner: None,
        replicas: request.terms.replicas,
    };
    let has_turn = parts.id().is_some();
    let mut places = Vec::new();
    for at in range.filter(|&at| !parts.has(at)) {
        // Of one process, one contends for a name: the others wait for it here. But one that has got its turn at a name does
        // not wait behind those that wait for this one with nothing in hand.
        let place = if has_turn {
            Place::enter_unless_held(context, &names[at], claim)?
        } else {
            Place::enter_if_free(context, &names[at], claim)?
        };
        match place {
            Some(place) => places.push((at, place)),
            None => return Ok(Some(at)),
        }
    }
    // Fresh for what is given back with it: a late release of it can end no later hold.
    let id = parts.id().unwrap_or_else(|| context.next_hold(None));
    let at_once = match request.terms.quorum() {
        Some(_) => AT_ONCE_CONFIRMED,
        None => usize::MAX,
    };
    let mut tries = Vec::new();
    for places in chunks(request, places) {
        tries.push(chunk::take(request, id, places));
    }
    let (mut conflict, mut failed) = (None::<usize>, None);
    for tried in together(tries, at_once).await {
        match tried {
            Ok(tried) => {
                conflict = conflict.into_iter().chain(tried.conflict).min();
                for (at, hold) in tried.taken.keep() {
                    parts.add(at, hold);
                }
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(conflict), Err)
}

/// The places in pieces of which each may go into one script call.
fn chunks(
    request: &MultiRequest,
    places: Vec<(usize, Place)>,
) -> impl Iterator<Item = Vec<(usize, Place)>> {
    let mut places = places.into_iter().peekable();
    let group = |at: usize| {
        let key = request.names[at].key();
        request.context.client.group(key.as_bytes())
    };
    std::iter::from_fn(move || {
        let first = places.next()?;
        let slot = group(first.0);
        let mut chunk = vec![first];
        while chunk.len() < CHUNK
            && let Some(next) = places.next_if(|(at, _)| group(*at) == slot)
        {
            chunk.push(next);
        }
        Some(chunk)
    })
}
