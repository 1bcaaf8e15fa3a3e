//! Everything of one run: the server, the processes, the network between them, and the time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::call::{Call, JAVA, Line, Message, Reply};
use super::checks::Checks;
use super::executor::{Executor, Gate, MS, Micros, SECOND};
use super::process::{KEEPER, Process};
use super::profile::{Broken, Profile};
use super::random::Random;
use super::server::Server;
use super::{connection, faults, java, release, user};
use crate::state::deadline::Now;
use crate::state::names::{Derived, Layout, Name};

/// The server's time at the beginning.
const EPOCH: i64 = 1_763_000_000_000_000;

/// After the faults, all is done within this time: the line of processes that are gone ends after a minute.
const QUIET: Micros = 75 * SECOND;

static LAYOUT: Layout = Layout {
    channel: Derived::Prefixed("redisson_lock__channel"),
    keys: &[
        Derived::Prefixed("redisson_lock_token"),
        Derived::Prefixed("leasehold_line"),
    ],
};

#[derive(Debug)]
pub(super) struct World {
    pub(super) profile: Profile,
    pub(super) broken: Option<Broken>,
    pub(super) executor: Executor,
    pub(super) random: Random,
    pub(super) server: RefCell<Server>,
    pub(super) checks: RefCell<Checks>,
    pub(super) processes: RefCell<Vec<Rc<Process>>>,
    pub(super) name: Arc<Name>,
    /// The instant of the beginning by all clocks.
    pub(super) base: Now,
    /// Nothing goes wrong any more, and nothing new is wanted.
    pub(super) quiet: Cell<bool>,
    /// Whether to print what happens.
    traced: bool,
    next: Cell<u64>,
}

/// The figures of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) violations: Vec<String>,
    pub(super) served: u64,
    pub(super) requests: u64,
    pub(super) longest_free: Micros,
    pub(super) bypass: u64,
    /// How often Redisson's client was served, and how long it waited.
    pub(super) java_served: u64,
    pub(super) java_longest_wait: Micros,
}

impl World {
    pub(super) fn new(seed: u64, profile: Option<Profile>, broken: Option<Broken>) -> Rc<Self> {
        let random = Random::new(seed);
        let profile = profile.unwrap_or_else(|| Profile::draw(&random));
        let base = Now::read();
        let server = Server::new(EPOCH, &profile, broken);
        Rc::new(Self {
            broken,
            executor: Executor::default(),
            server: RefCell::new(server),
            checks: RefCell::new(Checks::default()),
            processes: RefCell::default(),
            name: Arc::new(Name::new(&LAYOUT, None, "lock")),
            base: base.later_by(Duration::from_secs(1_000)),
            quiet: Cell::new(false),
            traced: std::env::var_os("LEASEHOLD_SEED").is_some(),
            next: Cell::new(1),
            random,
            profile,
        })
    }

    /// Runs a whole seed.
    pub(super) fn run(self: &Rc<Self>) -> Outcome {
        self.say(|| format!("{:?}", self.profile));
        self.begin();
        faults::plan(self);
        let faults_until = self.profile.faults_ms * MS;
        let this = Rc::clone(self);
        self.executor.at(faults_until, move || faults::heal(&this));
        self.go_on(faults_until + QUIET);
        self.finish()
    }

    /// Starts the processes with their tasks.
    pub(super) fn begin(self: &Rc<Self>) {
        for index in 0..self.profile.processes {
            let process = Process::new(self, index);
            self.processes.borrow_mut().push(Rc::clone(&process));
            process.begin();
            for _ in 0..self.profile.waiters {
                let user = user::want(Rc::clone(&process));
                self.executor.spawn(index, user);
            }
        }
        if self.profile.redisson {
            self.executor.spawn(JAVA, java::want(Rc::clone(self)));
        }
    }

    /// Goes on until this time, or until a violation.
    pub(super) fn go_on(self: &Rc<Self>, until: Micros) {
        let gate = |process: usize| self.gate(process);
        self.executor.run_ready(gate);
        while let Some(next) = self.executor.next_at().filter(|&at| at <= until) {
            let end = self.server.borrow().lease_end();
            if let Some(end) = end.filter(|&end| end > self.now() && end < next) {
                self.executor.advance(end);
                self.server.borrow_mut().begin(end);
                self.take_notes();
            }
            self.executor.step(gate);
            Checks::look(self);
            if !self.checks.borrow().violations.is_empty() {
                return;
            }
        }
        self.executor.advance(until);
    }

    /// Checks that nothing is left, and takes everything down.
    pub(super) fn finish(self: &Rc<Self>) -> Outcome {
        if self.checks.borrow().violations.is_empty() {
            self.server.borrow_mut().begin(self.now());
            Checks::look_at_end(self);
        }
        let outcome = self.checks.borrow_mut().outcome(&self.profile);
        // Nothing may be taken back while it is taken down.
        for process in self.processes.borrow().iter() {
            process.alive.set(false);
        }
        self.executor.clear();
        let processes = std::mem::take(&mut *self.processes.borrow_mut());
        for process in processes {
            process.clear();
        }
        self.checks.borrow_mut().clear();
        outcome
    }

    pub(super) fn now(&self) -> Micros {
        self.executor.now()
    }

    pub(super) fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.traced {
            println!("{:>10} {}", self.now(), what());
        }
    }

    /// Whether something with this probability goes wrong now.
    pub(super) fn fails(&self, per_mille: u64) -> bool {
        !self.quiet.get() && self.random.chance(per_mille)
    }

    /// How long a request or a reply takes.
    pub(super) fn delay(&self) -> Micros {
        if self.fails(self.profile.slow) {
            self.random.between(50 * MS, 700 * MS)
        } else {
            self.random.between(20, 3 * MS)
        }
    }

    /// Calls `then` when the process runs, unless it is dead.
    /// Not while its runtime is blocked, either.
    pub(super) fn when_running(process: &Rc<Process>, then: impl FnOnce() + 'static) {
        if !process.alive.get() {
            return;
        }
        let world = &process.world;
        let until = process.stopped_until.get().max(process.blocked_until.get());
        if until <= world.now() {
            then();
            return;
        }
        let again = Rc::clone(process);
        world
            .executor
            .at(until, move || Self::when_running(&again, then));
    }

    /// Runs a script, and sends what it publishes.
    pub(super) fn execute(
        self: &Rc<Self>,
        process: &Rc<Process>,
        session: u64,
        call: &Call,
    ) -> Reply {
        if let Some(refused) = self.refusal(process, call) {
            return refused;
        }
        let is_control = matches!(
            call,
            Call::Subscribe | Call::Listen | Call::Unlisten | Call::Kill(_)
        );
        self.checks.borrow_mut().requests += u64::from(!is_control);
        let reply = self
            .server
            .borrow_mut()
            .run(self.now(), (process.index, session), call);
        self.say(|| {
            let server = self.server.borrow();
            let line: Vec<_> = server.data.line.keys().map(|(_, one)| one.hold).collect();
            let lock = server.data.lock.map(|(hold, _)| hold);
            format!("S {call:?} -> {reply:?}; {lock:?} {line:?}")
        });
        self.publish();
        self.take_notes();
        if let Call::Kill(session) = call {
            connection::end_session(self, *session);
        }
        reply
    }

    /// Sends what was published.
    pub(super) fn publish(self: &Rc<Self>) {
        let messages = std::mem::take(&mut self.server.borrow_mut().outbox);
        for (session, message) in messages {
            if session == 0 {
                self.checks.borrow_mut().java.heard();
            } else {
                self.send(session, message);
            }
        }
    }

    pub(super) fn take_notes(self: &Rc<Self>) {
        let notes = std::mem::take(&mut self.server.borrow_mut().notes);
        if !notes.is_empty() {
            Checks::note(self, &notes);
        }
    }

    fn gate(&self, task: usize) -> Gate {
        let processes = self.processes.borrow();
        let is_keeper = task != JAVA && task & KEEPER != 0;
        let index = if is_keeper { task ^ KEEPER } else { task };
        let Some(process) = processes.get(index) else {
            return Gate::Runs;
        };
        if !process.alive.get() {
            return Gate::Dead;
        }
        let blocked_until = process.blocked_until.get();
        let until = if is_keeper { 0 } else { blocked_until };
        match process.stopped_until.get().max(until) {
            until if until > self.now() => Gate::StoppedUntil(until),
            _ => Gate::Runs,
        }
    }

    fn refusal(&self, process: &Process, call: &Call) -> Option<Reply> {
        let names_line = match call {
            Call::Acquire { line, .. } => *line != Line::Passed,
            Call::Look { .. } | Call::Release { .. } => true,
            _ => false,
        };
        if names_line && !process.may_line {
            return Some(Reply::NoPermission);
        }
        let several_keys = matches!(
            call,
            Call::Acquire { .. }
                | Call::Look { .. }
                | Call::Confirm { .. }
                | Call::Release { .. }
                | Call::ForceUnlock
        );
        // Where all of the keys are still in one place, they can be used together.
        let is_refused = several_keys && self.server.borrow().migrating && self.random.chance(700);
        is_refused.then_some(Reply::TryAgain)
    }

    fn send(self: &Rc<Self>, session: u64, message: Message) {
        let Some((process, link)) = connection::of_session(self, session) else {
            return;
        };
        let is_grant = matches!(message, Message::Grant { .. });
        let profile = &self.profile;
        if is_grant && self.fails(profile.push_doubled) {
            let at = self.now() + self.random.below(4 * SECOND);
            self.deliver(at, &process, session, message);
        }
        if is_grant && self.fails(profile.push_lost) {
            return;
        }
        if is_grant && self.fails(profile.push_late) {
            let at = self.now() + self.random.between(100 * MS, 4 * SECOND);
            self.deliver(at, &process, session, message);
            return;
        }
        let link = process.link(link);
        let at = (self.now() + self.delay()).max(link.last_reply.get());
        link.last_reply.set(at);
        self.deliver(at, &process, session, message);
    }

    fn deliver(self: &Rc<Self>, at: Micros, to: &Rc<Process>, session: u64, message: Message) {
        let to = Rc::clone(to);
        self.executor.at(at, move || {
            let process = Rc::clone(&to);
            Self::when_running(&to, move || {
                let is_current = connection::of_session(&process.world, session).is_some();
                if !is_current {
                    return;
                }
                match message {
                    Message::Grant {
                        hold,
                        token,
                        at,
                        lease,
                    } => release::granted(&process, hold, (token, at, lease), session),
                    Message::Released => process.released_by_redisson(),
                }
            });
        });
    }
}
