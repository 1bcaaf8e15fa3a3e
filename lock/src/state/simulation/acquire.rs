//! Taking the lock: as the engine's `acquire` does it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::asking::{Asked, send, source};
use super::broken;
use super::call::Reply;
use super::connection::{Evaluated, Failure};
use super::open_attempt::OpenAttempt;
use super::process::{Hold, Line, Process, Standing};
use super::profile::Broken;
use super::queue::{Place, Wake, enter};
use super::release;
use crate::options::{Replicas, Terms};
use crate::protocol::Answer;
use crate::state::chain::Chain;
use crate::state::deadline::Now;
use crate::state::hold::HoldState;
use crate::state::ticket::{Ask, Mark, Ticket, Verdict, grant_lease};
use crate::state::waiters::Closed;

/// As in the engine.
const JITTER: u64 = 100;

pub(super) struct Request {
    pub(super) process: Rc<Process>,
    pub(super) terms: Terms,
    pub(super) wait: Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    None,
    For(Duration),
    Endless,
}

enum Attempted {
    Granted(Rc<Hold>),
    Held,
    AlmostOver,
    TakenBack(Duration),
}

/// Takes the lock, or returns `None` when the time to wait is over.
pub(super) async fn acquire(request: &Request) -> Result<Option<Rc<Hold>>, Failure> {
    let Some((mut place, until)) = enter(request)? else {
        return Ok(None);
    };
    if !place.turn(until).await? {
        return Ok(None);
    }
    let taken = contend(request, &mut place, until).await;
    if let Err(failure) = &taken {
        place.fail_others(request.terms, *failure);
    }
    taken
}

async fn contend(
    request: &Request,
    place: &mut Place,
    until: Option<Instant>,
) -> Result<Option<Rc<Hold>>, Failure> {
    let process = &request.process;
    let now = || process.now().monotonic;
    let is_time_up = || until.is_some_and(|until| until <= now());
    let waits = request.wait != Wait::None;
    if !(waits && inherit(request)) {
        if !waits || is_time_up() || !is_listening(process) {
            if let Attempted::Granted(hold) = attempt(request, place, Ask::Try).await? {
                return Ok(Some(hold));
            }
            if !waits || is_time_up() {
                return Ok(None);
            }
        }
        listen(process);
        stand(request, now());
    }
    loop {
        let ask = match place.wait(until).await? {
            Wake::TimeUp => return Ok(None),
            Wake::Look => next_ask(process),
            Wake::Granted => match judge(request) {
                Verdict::Ignore => continue,
                Verdict::Look => Ask::Look,
                Verdict::Over => {
                    take_back(process);
                    stand(request, now());
                    continue;
                }
                Verdict::Confirm => Ask::Confirm,
                Verdict::Start {
                    since,
                    lease,
                    token,
                } => match begin_granted(request, place, since, lease, token)? {
                    Some(hold) => return Ok(Some(hold)),
                    None => continue,
                },
            },
        };
        let mut attempted = attempt(request, place, ask).await?;
        if matches!(attempted, Attempted::AlmostOver) {
            attempted = attempt(request, place, Ask::Confirm).await?;
        }
        match attempted {
            Attempted::Granted(hold) => return Ok(Some(hold)),
            Attempted::Held | Attempted::AlmostOver => {}
            Attempted::TakenBack(time) => stand(request, now() + time),
        }
    }
}

/// Goes on with the ticket of the head before.
fn inherit(request: &Request) -> bool {
    let Request { process, .. } = request;
    let lease = request.terms.first_lease();
    let unfit = process.with_line(|line| {
        let standing = line.standing.as_mut()?;
        let confirms_less = standing
            .passed
            .is_some_and(|(_, replicas)| replicas != request.terms.replicas);
        if standing.ticket.grant_lease() > lease || confirms_less {
            return line.standing.take();
        }
        standing.lease = standing.lease.max(lease);
        None
    });
    if let Some(standing) = unfit.flatten() {
        release::abandon(process, Line::with(standing));
        return false;
    }
    process.with_line(|line| line.standing.is_some()) == Some(true)
}

/// Takes back what the waiters have at the server.
fn take_back(process: &Rc<Process>) {
    let standing = process.with_line(|line| line.standing.take());
    if let Some(standing) = standing.flatten() {
        release::abandon(process, Line::with(standing));
    }
}

/// Has a new ticket, which joins the line at `look_at`.
fn stand(request: &Request, look_at: Instant) {
    let Request { process, .. } = request;
    let lease = request.terms.first_lease();
    let granted_for = grant_lease(lease, process.round_trip.get());
    let id = process.next_hold();
    let with_block = has_followers(process);
    let standing = Standing {
        ticket: Ticket::new(id, granted_for, with_block, Mark::default(), look_at),
        passed: None,
        lease,
        unanswered: Vec::new(),
        message: None,
        sample: None,
    };
    process.with_line(|line| line.standing = Some(standing));
    let name = &process.world.name;
    process.waiters.borrow_mut().stand(id.number(), name);
}

fn has_followers(process: &Process) -> bool {
    let waiters = process.waiters.borrow();
    waiters.has_followers(&process.world.name)
}

fn is_listening(process: &Process) -> bool {
    let hears_releases = || process.with_line(|line| line.releases.is_some()) == Some(true);
    process.asked_over().is_some() && (!process.world.profile.redisson || hears_releases())
}

fn listen(process: &Rc<Process>) {
    process.subscribe();
    if process.world.profile.redisson
        && process.with_line(|line| line.releases.is_some()) == Some(false)
    {
        let releases = process.listen();
        process.with_line(|line| line.releases = Some(releases));
    }
}

fn next_ask(process: &Process) -> Ask {
    let ask = process.with_line(|line| Some(line.standing.as_ref()?.ticket.next_ask()));
    ask.flatten().unwrap_or(Ask::Join)
}

fn judge(request: &Request) -> Verdict {
    let process = &request.process;
    let broken = process.world.broken;
    let strict = request.terms.quorum().is_some() && broken != Some(Broken::ReplicatedUnconfirmed);
    let now = process.now();
    let verdict = process.with_line(|line| {
        let standing = line.standing.as_mut()?;
        let verdict = standing.ticket.judge(now, strict);
        Some(broken::verdict(broken, verdict, standing, now))
    });
    let verdict = verdict.flatten().unwrap_or(Verdict::Ignore);
    process
        .world
        .say(|| format!("P{} judges {verdict:?}", process.index));
    verdict
}

/// The hold of a grant that needs no confirmation now.
fn begin_granted(
    request: &Request,
    place: &mut Place,
    since: Now,
    lease: Duration,
    token: u64,
) -> Result<Option<Rc<Hold>>, Failure> {
    let mut open = OpenAttempt::begin(request, Ask::Confirm);
    let process = &request.process;
    process.saw(token);
    let now = process.now();
    let (has_block, passed) = of_standing(process);
    let begun = || Chain::begin(token, now.monotonic, process.changes.get());
    let lease_since = since;
    let since = if passed.is_some() { now } else { since };
    let hold = Rc::new(Hold {
        key: open.key(),
        token,
        terms: request.terms,
        since,
        unanswered: open.unanswered().clone(),
        ticket: None,
        chain: passed.map_or_else(|| has_block.then(begun), |(chain, _)| Some(chain)),
        state: HoldState::new(request.terms, 0, since, lease_since, lease).into(),
    });
    if !hold.is_live(process.now()) {
        open.settle();
        return Ok(None);
    }
    begin(request, place, &hold, &mut open)?;
    Ok(Some(hold))
}

/// Whether the ticket was granted with a block of tokens, and what it became of a hold that was passed on.
fn of_standing(process: &Process) -> (bool, Option<(Chain, Replicas)>) {
    let known = process.with_line(|line| {
        let standing = line.standing.as_ref()?;
        Some((standing.ticket.has_block(), standing.passed))
    });
    known.flatten().unwrap_or((false, None))
}

/// One attempt at the server.
async fn attempt(request: &Request, place: &mut Place, ask: Ask) -> Result<Attempted, Failure> {
    let Request { process, .. } = request;
    let mut open = OpenAttempt::begin(request, ask);
    let with_block = match ask {
        Ask::Try => has_followers(process),
        Ask::Join => of_standing(process).0,
        Ask::TakeOver | Ask::Look | Ask::Confirm => false,
    };
    let changes = process.changes.get();
    let evaluated = match send(request, ask, with_block, &mut open).await {
        Ok(Asked::Replied(evaluated)) => evaluated,
        Ok(Asked::Untrusted { left, ran: true }) => return Ok(Attempted::TakenBack(left)),
        Ok(Asked::Untrusted { left, ran: false }) => {
            open.settle();
            with_ticket(process, |ticket| {
                ticket.put_off(left, process.now().monotonic);
            });
            return Ok(Attempted::Held);
        }
        Err(failure) => {
            if matches!(failure, Failure::Unavailable | Failure::Refused) {
                open.settle_unless_in_line();
            }
            return Err(failure);
        }
    };
    let now = process.now();
    let round_trip = now.monotonic - evaluated.sent.monotonic;
    let micros = round_trip.as_micros() as u64;
    process.round_trip.set(Duration::from_micros(micros));
    let Some((token, left)) = granted(request, ask, &evaluated, now) else {
        open.settle();
        return Ok(Attempted::Held);
    };
    process.saw(token);
    let needed = grant_lease(request.terms.first_lease(), process.round_trip.get()) / 4;
    if ask != Ask::Confirm
        && open.ticket().is_some()
        && left.is_some_and(|left| left.saturating_sub(round_trip) < needed)
    {
        open.settle();
        return Ok(Attempted::AlmostOver);
    }
    if request.terms.quorum().is_some() && !evaluated.confirmed {
        return Err(Failure::NotReplicated);
    }
    let with_chain = with_block && left.is_none() && !evaluated.repeated;
    let chain = with_chain.then(|| Chain::begin(token, now.monotonic, changes));
    let hold = hold_of(request, ask, &mut open, &evaluated, (token, left), chain);
    if !hold.is_live(process.now()) {
        return Err(Failure::TooLate);
    }
    begin(request, place, &hold, &mut open)?;
    Ok(Attempted::Granted(hold))
}

/// The token and what is left of the lease, if the lock was granted. Otherwise the ticket takes note of the answer.
fn granted(
    request: &Request,
    ask: Ask,
    evaluated: &Evaluated,
    now: Now,
) -> Option<(u64, Option<Duration>)> {
    let process = &request.process;
    let Reply::Answer(answer) = evaluated.reply else {
        panic!("{:?}", evaluated.reply);
    };
    match answer {
        Answer::Granted { token, left, .. } => {
            let token = token.expect("a mutex has tokens").as_u64();
            let told = process.with_line(|line| {
                let standing = line.standing.as_mut()?;
                Some(standing.ticket.told(token))
            });
            return Some((told.flatten().unwrap_or(token), left));
        }
        Answer::Placed(placed) => {
            let source = source(request, evaluated);
            let jitter = process.jitter.below(JITTER);
            process.with_line(|line| {
                if let Some(standing) = &mut line.standing {
                    standing.sample = Some((evaluated.sent, placed.server_time));
                    let ticket = &mut standing.ticket;
                    ticket.placed(placed, evaluated.sent, source, now.monotonic, jitter);
                }
            });
        }
        Answer::Held(held) => with_ticket(process, |ticket| match ask {
            Ask::Confirm => ticket.look_now(now.monotonic),
            _ => ticket.not_placed(held, now.monotonic),
        }),
        Answer::NoExpiry => panic!("every key has an expiry"),
        Answer::CapacityDisagrees { .. } => panic!("a mutex has no capacity"),
    }
    None
}

fn hold_of(
    request: &Request,
    ask: Ask,
    open: &mut OpenAttempt<'_>,
    evaluated: &Evaluated,
    (token, left): (u64, Option<Duration>),
    chain: Option<Chain>,
) -> Rc<Hold> {
    let (process, terms) = (&request.process, request.terms);
    let broken = process.world.broken;
    let ticket = evaluated.repeated.then(|| open.ticket()).flatten();
    let since = broken::since(broken, ask, evaluated.sent, process.now());
    let lease = left.unwrap_or_else(|| terms.first_lease());
    Rc::new(Hold {
        key: open.key(),
        token: broken::token(process, ask, token),
        terms,
        since,
        unanswered: open.unanswered().clone(),
        chain,
        ticket: ticket.filter(|_| broken != Some(Broken::LeanRepetition)),
        state: HoldState::new(terms, 0, since, since, lease).into(),
    })
}

fn begin(
    request: &Request,
    place: &mut Place,
    hold: &Rc<Hold>,
    open: &mut OpenAttempt<'_>,
) -> Result<(), Closed> {
    let process = &request.process;
    open.grant(place, hold)?;
    if hold.state.borrow().needs_renewal() {
        process.keeper.renew(process, hold);
    }
    process.world.checks.borrow_mut().claimed(process, hold);
    Ok(())
}

fn with_ticket(process: &Process, then: impl FnOnce(&mut Ticket)) {
    process.with_line(|line| {
        let standing = line.standing.as_mut();
        standing.map(|standing| then(&mut standing.ticket))
    });
}
