//! Connections: requests and replies in their order, and what becomes of them when a connection ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::call::{Call, Reply};
use super::executor::{MS, Micros, SECOND, Slot};
use super::process::Process;
use super::world::World;
use crate::protocol::Answer;
use crate::state::deadline::Now;

/// The connections of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKind {
    /// Of all requests, and of the subscriptions.
    Shared,
    /// Of the renewals.
    Keeper,
    /// Of requests that replicas confirm.
    Exclusive,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) session: Cell<u64>,
    pub(super) up: Cell<bool>,
    last_arrival: Cell<Micros>,
    pub(super) last_reply: Cell<Micros>,
    pending: RefCell<BTreeMap<u64, Rc<Slot<Delivered>>>>,
    /// Wait until it is up.
    waiting: RefCell<Vec<Waker>>,
}

/// The connection ended before the reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed;

type Delivered = Result<Replied, Closed>;

/// A reply, and whether replicas have what was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replied {
    pub(super) reply: Reply,
    confirmed: bool,
}

/// A request under way.
pub(super) struct Sent {
    pub(super) slot: Rc<Slot<Delivered>>,
    pub(super) session: u64,
}

/// Connections over which a request may still arrive late.
pub(super) type Unanswered = Vec<u64>;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It was not sent.
    Unavailable,
    /// It may have run.
    Unknown,
    /// The server did not run it.
    Refused,
    NotReplicated,
    /// The answer took longer than the lease.
    TooLate,
    Closed,
}

/// A call that was answered.
pub(super) struct Evaluated {
    pub(super) reply: Reply,
    pub(super) sent: Now,
    pub(super) repeated: bool,
    pub(super) session: Option<u64>,
    /// Whether replicas have what it wrote.
    pub(super) confirmed: bool,
}

impl Replied {
    /// Whether replicas have what it wrote.
    pub(super) const fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Whether it did not run.
    pub(super) const fn is_refused(&self) -> bool {
        matches!(self.reply, Reply::TryAgain | Reply::NoPermission)
    }
}

impl Link {
    pub(super) fn new(session: u64) -> Self {
        Self {
            session: Cell::new(session),
            up: Cell::new(true),
            last_arrival: Cell::new(0),
            last_reply: Cell::new(0),
            pending: RefCell::default(),
            waiting: RefCell::default(),
        }
    }
}

/// Sends a request, unless the connection is down.
pub(super) fn submit(process: &Rc<Process>, kind: LinkKind, call: Call) -> Option<Sent> {
    let (world, link) = (&process.world, process.link(kind));
    if !link.up.get() || !process.alive.get() {
        return None;
    }
    let session = link.session.get();
    let slot = Rc::new(Slot::new());
    let number = world.number();
    link.pending.borrow_mut().insert(number, Rc::clone(&slot));
    let is_control = is_control(&call);
    if is_control || !world.fails(world.profile.request_lost) {
        let at = (world.now() + world.delay()).max(link.last_arrival.get());
        link.last_arrival.set(at);
        let process = Rc::clone(process);
        world.executor.at(at, move || {
            arrive(&process, kind, session, call, number, true);
        });
    }
    Some(Sent { slot, session })
}

/// The process and the connection with this session, if it is up.
pub(super) fn of_session(world: &World, session: u64) -> Option<(Rc<Process>, LinkKind)> {
    let processes = world.processes.borrow();
    for process in processes.iter().filter(|process| process.alive.get()) {
        for kind in [LinkKind::Shared, LinkKind::Keeper, LinkKind::Exclusive] {
            let link = process.link(kind);
            if link.session.get() == session && link.up.get() {
                return Some((Rc::clone(process), kind));
            }
        }
    }
    None
}

/// The server ended this connection.
pub(super) fn end_session(world: &World, session: u64) {
    if let Some((process, kind)) = of_session(world, session) {
        disconnect(&process, kind);
    }
}

/// A connection breaks. It comes back by itself.
pub(super) fn disconnect(process: &Rc<Process>, kind: LinkKind) {
    let (world, link) = (&process.world, process.link(kind));
    if !link.up.replace(false) {
        return;
    }
    let session = link.session.get();
    world.say(|| format!("P{} {kind:?} is down", process.index));
    let pending = std::mem::take(&mut *link.pending.borrow_mut());
    for slot in pending.into_values() {
        slot.fill(Err(Closed));
    }
    notice_end(world, session);
    let pause = world.random.between(MS, 600 * MS);
    let process = Rc::clone(process);
    world
        .executor
        .at(world.now() + pause, move || reconnect(&process, kind));
}

/// The server notices the end of a connection, sooner or later.
pub(super) fn notice_end(world: &Rc<World>, session: u64) {
    if world.profile.half_open && world.fails(400) {
        let at = world.now() + world.random.below(2_500 * MS);
        let later = Rc::clone(world);
        world
            .executor
            .at(at, move || later.server.borrow_mut().forget(session));
    } else {
        world.server.borrow_mut().forget(session);
    }
}

/// Makes the first of `calls`, and the others where the one before cannot be made; again after the end of a connection, until
/// `timeout` is over. Connections over which it was sent without an answer are noted, also if the future is dropped.
pub(super) async fn evaluate(
    process: &Rc<Process>,
    kind: LinkKind,
    calls: &[Call],
    timeout: Duration,
    unanswered: &mut Unanswered,
) -> Result<Evaluated, Failure> {
    let deadline = process.now().monotonic + timeout;
    let (mut at, mut repeated) = (0, false);
    loop {
        if !is_up(process, kind, deadline).await {
            return Err(gone(repeated));
        }
        let killed = kill(process, kind, unanswered);
        let sent = process.now();
        let Some(request) = submit(process, kind, calls[at].clone()) else {
            continue;
        };
        let session = request.session;
        let pending = Pending {
            unanswered: &mut *unanswered,
            session: Some(session),
        };
        let outcome = pending.outcome(process, &request, deadline).await;
        match outcome {
            Some(Ok(replied)) if replied.is_refused() && at + 1 < calls.len() => at += 1,
            Some(Ok(replied)) if matches!(replied.reply, Reply::TryAgain) => {
                process.sleep(Duration::from_millis(20)).await;
            }
            Some(Ok(replied)) if replied.is_refused() => return Err(Failure::Refused),
            Some(Ok(Replied { reply, confirmed })) => {
                if killed {
                    unanswered.clear();
                }
                let is_same = process.link(kind).session.get() == session;
                return Ok(Evaluated {
                    reply,
                    sent,
                    repeated,
                    session: is_same.then_some(session),
                    confirmed,
                });
            }
            Some(Err(Closed)) => {
                repeated = true;
                process.sleep(Duration::from_millis(5)).await;
            }
            None => return Err(Failure::Unknown),
        }
        if process.now().monotonic >= deadline {
            return Err(gone(repeated));
        }
    }
}

/// Why a call failed that was or was not sent.
const fn gone(was_sent: bool) -> Failure {
    if was_sent {
        Failure::Unknown
    } else {
        Failure::Unavailable
    }
}

/// Ends the connections over which something may still arrive, before what is sent next. Returns whether all are over then.
pub(super) fn kill(process: &Rc<Process>, kind: LinkKind, unanswered: &Unanswered) -> bool {
    let here = process.link(kind).session.get();
    let mut over = true;
    for &session in unanswered.iter().filter(|&&session| session != here) {
        if process.world.profile.kills {
            submit(process, kind, Call::Kill(session));
        } else {
            over = false;
        }
    }
    over
}

/// Waits until the connection is up; `false` if it is not by `deadline`.
pub(super) async fn is_up(process: &Rc<Process>, kind: LinkKind, deadline: Instant) -> bool {
    poll_fn(|cx| {
        let link = process.link(kind);
        if link.up.get() {
            return Poll::Ready(true);
        }
        if process.now().monotonic >= deadline {
            return Poll::Ready(false);
        }
        link.waiting.borrow_mut().push(cx.waker().clone());
        process.wake_at(deadline, cx.waker());
        Poll::Pending
    })
    .await
}

/// A request under way. Dropped without an answer, it notes its connection.
struct Pending<'a> {
    unanswered: &'a mut Unanswered,
    session: Option<u64>,
}

impl Pending<'_> {
    /// `None` if there is no answer by `deadline`.
    async fn outcome(
        mut self,
        process: &Rc<Process>,
        sent: &Sent,
        deadline: Instant,
    ) -> Option<Delivered> {
        let outcome = reply(process, sent, deadline).await;
        if let Some(Ok(_)) = outcome {
            self.session = None;
        }
        outcome
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.unanswered.extend(self.session.take());
    }
}

/// The reply, if it comes by `deadline`.
pub(super) async fn reply(
    process: &Rc<Process>,
    sent: &Sent,
    deadline: Instant,
) -> Option<Delivered> {
    poll_fn(|cx| {
        if let Poll::Ready(delivered) = sent.slot.poll(cx) {
            return Poll::Ready(Some(delivered));
        }
        if process.now().monotonic >= deadline {
            return Poll::Ready(None);
        }
        process.wake_at(deadline, cx.waker());
        Poll::Pending
    })
    .await
}

fn is_control(call: &Call) -> bool {
    matches!(
        call,
        Call::Subscribe | Call::Listen | Call::Unlisten | Call::Kill(_)
    )
}

/// A request arrives. Those of a connection that is gone run now, later or never.
fn arrive(
    process: &Rc<Process>,
    kind: LinkKind,
    session: u64,
    call: Call,
    number: u64,
    may_be_late: bool,
) {
    let world = Rc::clone(&process.world);
    let link = process.link(kind);
    if world.server.borrow().is_over(session, world.now()) {
        return;
    }
    let is_current = process.alive.get() && link.up.get() && link.session.get() == session;
    if !is_current {
        if is_control(&call) || world.random.chance(500) {
            return;
        }
        if may_be_late && world.profile.late_runs {
            let at = world.now() + world.random.below(5 * SECOND / 2);
            let process = Rc::clone(process);
            world.executor.at(at, move || {
                arrive(&process, kind, session, call, number, false);
            });
            return;
        }
        world.execute(process, session, &call);
        return;
    }
    let reply = world.execute(process, session, &call);
    let asks_replicas = kind == LinkKind::Exclusive
        || matches!(call, Call::Renew { .. }) && world.profile.replicated;
    let wrote = matches!(
        reply,
        Reply::Answer(Answer::Granted { .. }) | Reply::Renewed(true)
    );
    let confirmed = asks_replicas && wrote && !world.fails(30);
    if confirmed {
        let mut server = world.server.borrow_mut();
        server.acknowledged = server.writes;
    }
    if !is_control(&call) && world.fails(world.profile.reply_lost) {
        return;
    }
    let at = (world.now() + world.delay()).max(link.last_reply.get());
    link.last_reply.set(at);
    let process = Rc::clone(process);
    world.executor.at(at, move || {
        let link = process.link(kind);
        if link.session.get() == session
            && let Some(slot) = link.pending.borrow_mut().remove(&number)
        {
            slot.fill(Ok(Replied { reply, confirmed }));
        }
    });
}

fn reconnect(process: &Rc<Process>, kind: LinkKind) {
    if !process.alive.get() {
        return;
    }
    let (world, link) = (&process.world, process.link(kind));
    let mut later = process
        .stopped_until
        .get()
        .max(world.server.borrow().down_until);
    if kind != LinkKind::Keeper {
        later = later.max(process.blocked_until.get());
    }
    if later > world.now() {
        let at = later + world.random.below(50 * MS);
        let process = Rc::clone(process);
        world.executor.at(at, move || reconnect(&process, kind));
        return;
    }
    link.session.set(world.number());
    link.up.set(true);
    link.last_arrival.set(world.now());
    link.last_reply.set(world.now());
    world.say(|| format!("P{} {kind:?} is up", process.index));
    let waiting = std::mem::take(&mut *link.waiting.borrow_mut());
    if kind == LinkKind::Shared {
        process.changes.set(process.changes.get() + 1);
    }
    match kind {
        LinkKind::Shared if world.fails(200) => {
            let (at, process) = (world.now() + world.random.below(5 * MS), Rc::clone(process));
            world.executor.at(at, move || process.subscribe_again());
        }
        LinkKind::Shared => process.subscribe_again(),
        LinkKind::Keeper => process.look_at_all_holds(),
        LinkKind::Exclusive => {}
    }
    waiting.into_iter().for_each(Waker::wake);
}
