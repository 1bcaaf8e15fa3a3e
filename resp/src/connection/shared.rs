//! The state that the callers of a connection and its driver share, and how a command gets from a caller to the wire.
//!
//! No lock is held across a system call, a wake-up or an await.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use tokio::runtime;
use tokio::sync::Notify;

use crate::connection::pipeline::{Phase, Pipeline, RequestId, Shape, Wakes, contain};
use crate::connection::socket::SharedWriter;
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind};
use crate::protocol::command::Encode;
use crate::protocol::push::Push;

/// Up to this many commands in flight a caller writes its own command; beyond, batches save more than the wake-up of the
/// driver costs.
const INLINE_IN_FLIGHT: usize = 2;

/// A caller that makes the outbox this long writes it, even if the driver is about to. Waiting for the whole wave makes
/// client and server take turns; writing after each 16 commands keeps the server busy (+25 % at 64 tasks).
const FLUSH_AT: usize = 16;

/// The part of a connection that callers and the driver share.
pub(crate) struct Shared {
    pub(crate) endpoint: Endpoint,
    pub(crate) node: Arc<str>,
    state: Mutex<State>,
    /// Notified when the connection comes up, ends, or has room again.
    pub(crate) changed: Notify,
    /// Notified when the system refuses to connect.
    pub(crate) refused: Notify,
    /// Notified when the next attempt to connect is to be made without a pause.
    pub(crate) hurry: Notify,
    /// Receives events; absent without an observer.
    observer: Option<EventSink>,
}

/// Passes events on to the observer of a connection.
pub(crate) type EventSink = Box<dyn Fn(Event) + Send + Sync>;

/// Events of a connection besides replies.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The connection is up, for the first time or again: the server knows nothing of earlier subscriptions.
    Up,
    /// The connection is down; everything in flight has failed.
    Down,
    /// The system has refused to connect for a whole command timeout. Repeated as long as it does.
    Gone,
    /// The server has sent nothing for [`Endpoint::stall_after`] while a command waits for it. Repeated as long as it
    /// lasts, and not a reason to give up yet: the server may be busy.
    Stalled,
    /// An out-of-band message, or a subscription that the server began or ended by itself.
    Push(Push),
}

/// The state of a connection, under one lock.
pub(crate) struct State {
    pub(crate) pipeline: Pipeline,
    pub(crate) status: Status,
    /// Writes for a caller that does so itself; absent while one does, without a connection, and where only the driver can
    /// write.
    pub(crate) writer: Option<SharedWriter>,
    /// The driver has woken several tasks and writes when they have run: callers only append.
    pub(crate) defer_writes: bool,
    /// Wakes the driver; absent until it was first polled.
    pub(crate) driver: Option<Waker>,
    /// Whether the driver was woken since it last looked.
    pub(crate) driver_woken: bool,
    /// Whether a driver task exists.
    pub(crate) is_driven: bool,
    /// The runtime that the driver lives on.
    pub(crate) driver_runtime: Option<runtime::Id>,
    /// The process that opened the connection. A child that was forked from it has the same socket, but must leave it
    /// alone: its requests would be read as the parent's, and the parent would get the replies.
    process: u32,
    /// Whether the driver looks at the clock often enough to detect a stall. On a quiet connection it does not, and is
    /// woken by the next command: an idle client has nothing to do.
    pub(crate) is_watched: bool,
    /// Whether the server is stalled at the moment.
    pub(crate) is_stalled: bool,
    /// Why the connection is to be opened anew.
    pub(crate) reset: Option<Error>,
    /// Whether the last attempt to connect failed.
    pub(crate) last_connect_failed: bool,
    /// How many attempts to connect have begun.
    pub(crate) attempts: u64,
    /// Since when the system has refused each attempt to connect.
    pub(crate) refused_since: Option<Instant>,
    /// The number of the attempt that it refused last.
    pub(crate) refused_attempt: u64,
    /// Upper bound on the instant at which the server at the other end was started; if the endpoint says to ask.
    pub(crate) server_started: Option<Instant>,
}

/// Whether a connection takes commands.
pub(crate) enum Status {
    /// Commands may be queued.
    Up,
    /// Being reopened, because of this error.
    Down(Error),
    /// No more commands; those in flight may still be answered.
    Closing,
    /// No more commands, and no replies either.
    Aborted,
    /// As `Aborted`, because a stream that cannot be reopened ended for this reason.
    Ended(Error),
}

/// A command that was queued.
pub(crate) struct Queued {
    pub(crate) id: RequestId,
    pub(crate) deadline: Instant,
    pub(crate) driver_runtime: Option<runtime::Id>,
}

/// Why a command was not queued.
pub(crate) enum Refused {
    Closed,
    Ended(Error),
    Down(Error),
    Full,
    /// This process was forked from the one that opened the connection.
    Forked,
}

impl Shared {
    pub(crate) fn new(mut endpoint: Endpoint, node: Arc<str>, observer: Option<EventSink>) -> Self {
        let pipeline = Pipeline::new(Arc::clone(&node), endpoint.command_timeout);
        endpoint.command_timeout = pipeline.timeout();
        let down = Error::not_sent(&node, "not connected yet");
        let state = State {
            pipeline,
            status: Status::Down(down),
            writer: None,
            defer_writes: false,
            driver: None,
            driver_woken: false,
            is_driven: false,
            driver_runtime: None,
            process: std::process::id(),
            is_watched: endpoint.stall_after.is_none(),
            is_stalled: false,
            reset: None,
            last_connect_failed: false,
            attempts: 0,
            refused_since: None,
            refused_attempt: 0,
            server_started: None,
        };
        Self {
            endpoint,
            node,
            state: Mutex::new(state),
            changed: Notify::new(),
            refused: Notify::new(),
            hurry: Notify::new(),
            observer,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics half way through a change of the state, and if it did, the other callers must still get
        // their errors.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command for a caller that polls for its reply.
    pub(crate) fn submit<E: Encode + ?Sized>(
        &self,
        command: &E,
        shape: Shape,
        timeout: Duration,
    ) -> Result<RequestId, Refused> {
        let queued = self.submit_for(command, shape, timeout, Phase::Waiting(None))?;
        Ok(queued.id)
    }

    /// Queues a command for whoever `phase` says.
    pub(crate) fn submit_for<E: Encode + ?Sized>(
        &self,
        command: &E,
        shape: Shape,
        timeout: Duration,
        phase: Phase,
    ) -> Result<Queued, Refused> {
        let now = Instant::now();
        let mut state = self.admit()?;
        let deadline = now + state.pipeline.clamped(timeout);
        let id = state
            .pipeline
            .submit_for(command, shape, deadline, phase)
            .map_err(|_| Refused::Full)?;
        let driver_runtime = state.driver_runtime;
        self.hand_over(state);
        Ok(Queued {
            id,
            deadline,
            driver_runtime,
        })
    }

    /// Queues several commands, which are written together.
    pub(crate) fn submit_all(
        &self,
        commands: &[&(dyn Encode + Sync)],
        timeout: Duration,
    ) -> Result<Vec<RequestId>, Refused> {
        let now = Instant::now();
        let mut state = self.admit()?;
        let mut ids = Vec::with_capacity(commands.len());
        for command in commands {
            let id = state
                .pipeline
                .submit_within(*command, Shape::Reply, now, timeout)
                .map_err(|_| Refused::Full)?;
            ids.push(id);
        }
        self.hand_over(state);
        Ok(ids)
    }

    /// The state, if the connection takes commands.
    fn admit(&self) -> Result<MutexGuard<'_, State>, Refused> {
        let state = self.lock();
        state.status.accepts()?;
        if state.would_act() && state.is_forked() {
            return Err(Refused::Forked);
        }
        Ok(state)
    }

    /// Sees to it that what was queued gets written, and that the driver looks at the clock.
    fn hand_over(&self, mut state: MutexGuard<'_, State>) {
        let was_watched = std::mem::replace(&mut state.is_watched, true);
        self.flush(state);
        if !was_watched {
            wake_driver(self.lock());
        }
    }

    /// Sees to it that what was queued gets written: here, or by the driver.
    fn flush(&self, mut state: MutexGuard<'_, State>) {
        // A caller or the driver is writing, or the socket is full: only that one goes on.
        if state.pipeline.is_writing() {
            return;
        }
        let is_quiet = !state.defer_writes && state.pipeline.in_flight() <= INLINE_IN_FLIGHT;
        if (is_quiet || state.pipeline.unwritten() >= FLUSH_AT)
            && let Some(writer) = state.writer.take()
        {
            self.write_inline(state, writer);
            return;
        }
        if !state.defer_writes {
            wake_driver(state);
        }
    }

    /// Writes the outbox from the caller's thread. What the socket does not take is the driver's to finish.
    fn write_inline(&self, mut state: MutexGuard<'_, State>, writer: SharedWriter) {
        let mut writing = state.pipeline.begin_write();
        drop(state);
        // An error here is an error for the reader too, and the driver acts on that.
        if let Ok(n) = writer.try_write(writing.rest()) {
            writing.advance(n);
        }
        let mut state = self.lock();
        if state.pipeline.is_current(&writing) {
            state.writer = Some(writer);
        }
        let is_done = state.pipeline.end_write(writing);
        // Other callers may have queued meanwhile, relying on the one that was writing.
        if !is_done || (!state.pipeline.is_flushed() && !state.defer_writes) {
            wake_driver(state);
        }
    }

    /// Whether a command can be queued right now.
    pub(crate) fn check(&self) -> Result<(), Refused> {
        let state = self.lock();
        state.status.accepts()?;
        if state.is_forked() {
            return Err(Refused::Forked);
        }
        if state.pipeline.is_full() {
            return Err(Refused::Full);
        }
        Ok(())
    }

    /// The error of a command that was not queued.
    pub(crate) fn explain(&self, refused: Refused) -> Error {
        match refused {
            Refused::Closed => Error::new(ErrorKind::Closed, &self.node, "closed by this process"),
            Refused::Ended(reason) => {
                let detail = format!("this connection cannot be reopened: {}", reason.detail());
                Error::new(ErrorKind::Closed, &self.node, detail)
            }
            Refused::Down(reason) => Error::not_sent(&self.node, reason.detail()),
            Refused::Forked => {
                let detail = "it belongs to the process that opened it, from which this one was forked; nothing was \
                              sent, connect anew in this process";
                Error::new(ErrorKind::Closed, &self.node, detail)
            }
            Refused::Full => {
                Error::not_sent(&self.node, "too many commands are waiting for replies")
            }
        }
    }

    /// Takes no more commands: `status` says whether those in flight may still be answered.
    pub(crate) fn end(&self, status: Status) {
        let mut state = self.lock();
        if !matches!(state.status, Status::Aborted | Status::Ended(_)) {
            state.status = status;
        }
        wake_driver(state);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(
            self.lock().status,
            Status::Closing | Status::Aborted | Status::Ended(_)
        )
    }

    /// Why to end: closed, and no reply is outstanding; or to be opened anew.
    pub(crate) fn reason_to_end(&self, state: &mut State) -> Option<Error> {
        let is_finished = match state.status {
            Status::Closing => state.pipeline.in_flight() == 0 && state.pipeline.is_flushed(),
            Status::Aborted | Status::Ended(_) => true,
            Status::Up | Status::Down(_) => false,
        };
        if is_finished {
            return Some(self.explain(Refused::Closed));
        }
        state.reset.take()
    }

    /// Keeps the newest reason, which says more than the first one.
    pub(crate) fn still_down(&self, error: Error) {
        let mut state = self.lock();
        if !matches!(state.status, Status::Down(_)) {
            return;
        }
        let now = Instant::now();
        let since = error
            .is_refused()
            .then(|| state.refused_since.unwrap_or(now));
        state.refused_since = since;
        if since.is_some() {
            state.refused_attempt = state.attempts;
        }
        state.status = Status::Down(error);
        state.last_connect_failed = true;
        drop(state);
        if since.is_some() {
            self.refused.notify_waiters();
        }
        if since.is_some_and(|since| now - since >= self.endpoint.command_timeout) {
            self.observe(Event::Gone);
        }
    }

    /// Why it is down, if the system has refused an attempt to connect that was not among the first `seen`.
    pub(crate) fn refused_after(&self, seen: u64) -> Option<Error> {
        let state = self.lock();
        let since = state
            .refused_since
            .filter(|_| state.refused_attempt > seen)?;
        match &state.status {
            Status::Down(reason) => {
                let detail = format!("{}, for {:.0?} so far", reason.detail(), since.elapsed());
                Some(Error::not_sent(&self.node, detail))
            }
            _ => None,
        }
    }

    /// Fails what is due, in place of a driver that does not run.
    pub(crate) fn expire(&self) {
        let mut wakes = Wakes::default();
        // Whether the connection is dead is for the driver to act upon.
        let _ = self.lock().pipeline.expire(Instant::now(), &mut wakes);
        wakes.fire();
    }

    /// Passes an event on to the observer.
    pub(crate) fn observe(&self, event: Event) {
        if let Some(observer) = &self.observer {
            contain(|| observer(event));
        }
    }
}

/// Wakes the driver, once for everything that happens until it looks.
pub(crate) fn wake_driver(mut state: MutexGuard<'_, State>) {
    if state.driver_woken {
        return;
    }
    state.driver_woken = true;
    let driver = state.driver.clone();
    drop(state);
    if let Some(driver) = driver {
        driver.wake();
    }
}

impl State {
    /// Notes that a driver is about to be spawned on `runtime`; returns whether there was none.
    pub(crate) fn drive_on(&mut self, runtime: &runtime::Handle) -> bool {
        if self.is_driven {
            return false;
        }
        self.is_driven = true;
        self.process = std::process::id();
        self.driver_runtime = Some(runtime.id());
        true
    }

    /// Whether submitting a command leads to a system call at once: a write or a wake-up. Only then it is worth another
    /// one to ask which process this is (0.1 to 0.5 µs): a child's first command always does, unless it was forked while
    /// a write was under way.
    fn would_act(&self) -> bool {
        if self.pipeline.is_writing() {
            return false;
        }
        let is_quiet = !self.defer_writes
            && (self.pipeline.in_flight() < INLINE_IN_FLIGHT || !self.driver_woken);
        is_quiet || !self.is_watched || self.pipeline.unwritten() + 1 >= FLUSH_AT
    }

    /// Whether this process was forked from the one that opened the connection.
    pub(crate) fn is_forked(&self) -> bool {
        self.is_driven && self.process != std::process::id()
    }

    /// Takes the connection down for `reason`, for good or until it is reopened: everything in flight fails.
    pub(crate) fn bring_down(&mut self, reason: &Error, reopens: bool, wakes: &mut Wakes) {
        if matches!(self.status, Status::Up | Status::Down(_)) {
            self.status = if reopens {
                Status::Down(reason.clone())
            } else {
                Status::Ended(reason.clone())
            };
        }
        self.writer = None;
        self.pipeline.fail_all(reason, wakes);
        self.defer_writes = false;
    }
}

impl Status {
    fn accepts(&self) -> Result<(), Refused> {
        match self {
            Self::Up => Ok(()),
            Self::Down(reason) => Err(Refused::Down(reason.clone())),
            Self::Ended(reason) => Err(Refused::Ended(reason.clone())),
            Self::Closing | Self::Aborted => Err(Refused::Closed),
        }
    }
}
