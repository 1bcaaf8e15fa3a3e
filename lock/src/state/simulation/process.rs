//! A process with its clocks, its table of waiters and its connections, as the engine has them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use leasehold_cluster::Source;

use super::call::{Call, HoldKey, TicketKey};
use super::connection::{Failure, Link, LinkKind, Unanswered, submit};
use super::executor::Micros;
use super::keeper::{self, Keeper};
use super::profile::Broken;
use super::world::World;
use crate::options::{Replicas, Terms};
use crate::state::chain::Chain;
use crate::state::deadline::{Now, millis};
use crate::state::hold::HoldState;
use crate::state::id::{ClientId, HoldId};
use crate::state::jitter::Jitter;
use crate::state::redisson_turns::RedissonTurns;
use crate::state::ticket::{Grant, Ticket};
use crate::state::waiters::{After, Waiters};

/// Added to the number of the process of a task that runs beside the user's runtime.
pub(super) const KEEPER: usize = 1 << 32;

#[derive(Debug)]
pub(super) struct Process {
    pub(super) world: Rc<World>,
    pub(super) index: usize,
    pub(super) alive: Cell<bool>,
    pub(super) stopped_until: Cell<Micros>,
    /// Until then its tasks and their connections stand still, but the keeper works.
    pub(super) blocked_until: Cell<Micros>,
    /// Of its clocks, in ten thousandths of the true one.
    rate: u64,
    /// By which the wall clock was set, in microseconds.
    pub(super) wall_step: Cell<i64>,
    /// Whether its user has rights to the line.
    pub(super) may_line: bool,
    links: [Link; 3],
    pub(super) waiters: RefCell<Waiters<Rc<Hold>, Line, Failure>>,
    id: ClientId,
    pub(super) next: Cell<u64>,
    pub(super) jitter: Jitter,
    pub(super) round_trip: Cell<Duration>,
    pub(super) highest: Cell<u64>,
    /// The subscription to grants: whether there is one, and the connection it was asked over.
    pub(super) subscribed: Cell<bool>,
    pub(super) asked_over: Cell<Option<u64>>,
    /// Whether it listens to Redisson's channel.
    listening: Cell<bool>,
    pub(super) turns: RefCell<RedissonTurns>,
    pub(super) keeper: Keeper,
    /// How many times a connection came up.
    pub(super) changes: Cell<u64>,
    /// Tasks that want or have the lock.
    pub(super) busy: Cell<usize>,
}

#[derive(Debug)]
pub(super) struct Hold {
    pub(super) key: HoldKey,
    pub(super) token: u64,
    pub(super) terms: Terms,
    /// When it began.
    pub(super) since: Now,
    pub(super) unanswered: Unanswered,
    pub(super) ticket: Option<TicketKey>,
    /// How it may be passed on within the process, if it may.
    pub(super) chain: Option<Chain>,
    pub(super) state: RefCell<HoldState>,
}

/// The waiters of a process as the server has them.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) standing: Option<Standing>,
    pub(super) releases: Option<Listening>,
}

#[derive(Debug)]
pub(super) struct Standing {
    pub(super) ticket: Ticket,
    pub(super) lease: Duration,
    pub(super) unanswered: Unanswered,
    /// Of a hold that a waiter before passed on: the rest of its chain, and the replicas that had to confirm it.
    pub(super) passed: Option<(Chain, Replicas)>,
    /// The latest message and the latest answer, for what is broken on purpose.
    pub(super) message: Option<Grant>,
    pub(super) sample: Option<(Now, u64)>,
}

/// A subscription to Redisson's channel.
#[derive(Debug)]
pub(super) struct Listening(Weak<Process>);

impl Process {
    pub(super) fn new(world: &Rc<World>, index: usize) -> Rc<Self> {
        let random = &world.random;
        let rate = if world.profile.rates {
            [9_900, 10_000, 10_100, random.between(9_900, 10_101)][random.below(4) as usize]
        } else {
            10_000
        };
        Rc::new(Self {
            world: Rc::clone(world),
            index,
            alive: Cell::new(true),
            stopped_until: Cell::new(0),
            blocked_until: Cell::new(0),
            rate,
            wall_step: Cell::new(0),
            may_line: !random.chance(world.profile.without_line),
            links: [(); 3].map(|()| Link::new(world.number())),
            waiters: RefCell::new(Waiters::new()),
            id: ClientId::random(),
            next: Cell::new(1),
            jitter: Jitter::new(random.below(u64::MAX)),
            round_trip: Cell::default(),
            highest: Cell::new(0),
            subscribed: Cell::new(false),
            asked_over: Cell::new(None),
            listening: Cell::new(false),
            turns: RefCell::new(RedissonTurns::new()),
            keeper: Keeper::default(),
            changes: Cell::new(0),
            busy: Cell::new(0),
        })
    }

    pub(super) fn begin(self: &Rc<Self>) {
        let keeper = keeper::run(Rc::clone(self));
        self.world.executor.spawn(self.index | KEEPER, keeper);
    }

    pub(super) fn link(&self, kind: LinkKind) -> &Link {
        &self.links[kind as usize]
    }

    /// Its clocks.
    pub(super) fn now(&self) -> Now {
        let local = self.world.now() * self.rate / 10_000;
        let now = self.world.base.later_by(Duration::from_micros(local));
        let step = self.wall_step.get();
        let by = Duration::from_micros(step.unsigned_abs());
        Now {
            wall: if step < 0 {
                now.wall - by
            } else {
                now.wall + by
            },
            ..now
        }
    }

    /// True time at which the clock here shows `at`.
    pub(super) fn true_time(&self, at: Instant) -> Micros {
        let local = at.saturating_duration_since(self.world.base.monotonic);
        let local = local.as_nanos().div_ceil(1000) as u64;
        (local * 10_000).div_ceil(self.rate)
    }

    pub(super) fn wake_at(&self, at: Instant, waker: &Waker) {
        self.world.executor.wake_at(self.true_time(at), waker);
    }

    pub(super) async fn sleep(&self, time: Duration) {
        self.sleep_until(self.now().monotonic + time).await;
    }

    pub(super) async fn sleep_until(&self, at: Instant) {
        poll_fn(|cx| {
            if self.now().monotonic >= at {
                return Poll::Ready(());
            }
            self.wake_at(at, cx.waker());
            Poll::Pending
        })
        .await;
    }

    pub(super) fn next_hold(&self) -> HoldId {
        self.hold_id(self.next.replace(self.next.get() + 1))
    }

    pub(super) fn hold_id(&self, number: u64) -> HoldId {
        HoldId::new(&self.id, number)
    }

    pub(super) const fn key(&self, number: u64) -> HoldKey {
        HoldKey {
            process: self.index,
            number,
        }
    }

    pub(super) fn saw(&self, token: u64) {
        self.highest.set(self.highest.get().max(token));
    }

    /// Runs `then` on the line, if the lock is held or wanted here.
    pub(super) fn with_line<R>(&self, then: impl FnOnce(&mut Line) -> R) -> Option<R> {
        self.waiters.borrow_mut().line(&self.world.name).map(then)
    }

    /// Changes the ticket, and wakes the waiter that it belongs to.
    pub(super) fn with_ticket<R>(&self, then: impl FnOnce(&mut Ticket) -> R) -> Option<R> {
        let result = self.with_line(|line| Some(then(&mut line.standing.as_mut()?.ticket)));
        let waker = self.waiters.borrow_mut().wake_head(&self.world.name);
        waker.into_iter().for_each(Waker::wake);
        result.flatten()
    }

    /// `hold` is over: the next waiter may go on.
    pub(super) fn end(&self, hold: &Hold) {
        let after = self
            .waiters
            .borrow_mut()
            .end(&self.world.name, hold.key.number);
        After::run(after);
    }

    /// The ticket that stands, and whether it may be in line.
    pub(super) fn standing(&self) -> Option<(TicketKey, bool)> {
        self.with_line(|line| {
            let ticket = &line.standing.as_ref()?.ticket;
            Some((self.ticket_key(ticket), ticket.has_joined()))
        })?
    }

    pub(super) fn ticket_key(&self, ticket: &Ticket) -> TicketKey {
        TicketKey {
            hold: self.key(ticket.id().number()),
            lease: millis(ticket.grant_lease()),
            with_block: ticket.has_block(),
        }
    }

    /// Subscribes to the grants, unless that was done.
    pub(super) fn subscribe(self: &Rc<Self>) {
        if !self.subscribed.replace(true) {
            self.ask_for_grants();
        }
    }

    /// Listens to Redisson's channel for the waiters of a line.
    pub(super) fn listen(self: &Rc<Self>) -> Listening {
        self.listening.set(true);
        submit(self, LinkKind::Shared, Call::Listen);
        Listening(Rc::downgrade(self))
    }

    /// The connection is up again.
    pub(super) fn subscribe_again(self: &Rc<Self>) {
        if self.subscribed.get() {
            self.ask_for_grants();
        }
        if self.listening.get() {
            submit(self, LinkKind::Shared, Call::Listen);
        }
    }

    fn ask_for_grants(self: &Rc<Self>) {
        let Some(sent) = submit(self, LinkKind::Shared, Call::Subscribe) else {
            return;
        };
        self.asked_over.set(Some(sent.session));
        let process = Rc::clone(self);
        self.world.executor.spawn(self.index, async move {
            let delivered = poll_fn(|cx| sent.slot.poll(cx)).await;
            if delivered.is_ok() && process.world.broken != Some(Broken::NoLookAfterReconnect) {
                process.confirmed(sent.session);
            }
        });
    }

    /// The connection that the subscription was asked over, if that is up still.
    pub(super) fn asked_over(&self) -> Option<Source> {
        let link = self.link(LinkKind::Shared);
        let session = self.asked_over.get()?;
        (link.up.get() && link.session.get() == session).then(|| self.ear(session))
    }

    /// The source of messages over this connection. Where the count of receivers says nothing, they come over one to another
    /// node.
    pub(super) fn ear(&self, session: u64) -> Source {
        let elsewhere = u64::from(self.world.profile.uncounted) << 40;
        Source::for_tests(session | elsewhere)
    }

    /// The subscription was confirmed: grants before it were not heard.
    fn confirmed(&self, session: u64) {
        let now = self.now().monotonic;
        let mut wakers = Vec::new();
        for (line, waker) in self.waiters.borrow_mut().lines() {
            let standing = line.standing.as_mut();
            let source = self.ear(session);
            if standing.is_some_and(|standing| standing.ticket.subscribed(source, now)) {
                wakers.extend(waker.and_then(Option::take));
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn released_by_redisson(&self) {
        if self.listening.get() {
            let now = self.now().monotonic;
            self.with_ticket(|ticket| ticket.released_by_redisson(now));
        }
    }

    /// Makes all renewals due.
    pub(super) fn look_at_all_holds(&self) {
        self.keeper.look_at_all(self.now().monotonic);
    }

    /// Drops what it has.
    pub(super) fn clear(&self) {
        let waiters = std::mem::replace(&mut *self.waiters.borrow_mut(), Waiters::new());
        drop(waiters);
        self.keeper.clear();
    }
}

impl Line {
    /// Of a ticket alone.
    pub(super) const fn with(standing: Standing) -> Self {
        Self {
            standing: Some(standing),
            releases: None,
        }
    }
}

impl Hold {
    pub(super) fn is_live(&self, now: Now) -> bool {
        !self.left(now).is_zero()
    }

    /// Whether it lasts longer than it may.
    pub(super) fn is_held_too_long(&self, now: Now) -> bool {
        let most = self.terms.max_hold;
        most.is_some_and(|most| now.monotonic > self.since.monotonic + most)
    }

    pub(super) fn left(&self, now: Now) -> Duration {
        self.state.borrow().left(now)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(process) = self.0.upgrade()
            && process.alive.get()
        {
            process.listening.set(false);
            submit(&process, LinkKind::Shared, Call::Unlisten);
        }
    }
}
