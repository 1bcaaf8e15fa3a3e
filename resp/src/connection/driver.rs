//! The task behind a connection: reads, hands out replies, writes what callers left to it, watches the deadlines, and
//! opens the connection again when it ends.
//!
//! A hand-written future rather than a `select!`: reading must go on while a write is blocked, or two full sockets
//! wait for each other endlessly (redis-rs issues 1955 and 2070), and the one pause that batches writes must not be cut
//! short by another branch.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::task::coop::has_budget_remaining;
use tokio::time::Sleep;

use crate::connection::backoff::Backoff;
use crate::connection::handshake::{self, Established};
use crate::connection::pipeline::{Liveness, Shape, Surplus, Wakes, Writing};
use crate::connection::shared::{Event, Shared, State, Status};
use crate::connection::socket::Socket;
use crate::connection::stall::StallDetector;
use crate::error::Error;
use crate::protocol::command::Command;
use crate::protocol::decode::Decoder;
use crate::protocol::push::Push;
use crate::protocol::value::Value;
use crate::timer::timer_at;

/// A connection that has heard nothing for this long is asked whether it is still there. A peer that lost its power
/// sends no FIN.
const IDLE_PING: Duration = Duration::from_secs(15);

/// Bytes read in one turn of the driver before others get theirs.
const READ_BUDGET: usize = 256 << 10;

/// The read buffer of a quiet connection.
const QUIET_READ_BLOCK: usize = 2 << 10;

/// The read buffer of a busy connection. Servers write in blocks of 16 KiB.
const BUSY_READ_BLOCK: usize = 64 << 10;

/// A larger read buffer is given back when most of it is unused.
const KEPT_READ_BUFFER: usize = 2 * BUSY_READ_BLOCK;

/// The future of a driver. Boxed: for each type of future that is spawned, all of the runtime's task is compiled anew.
pub(crate) type Drive = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the connection until its last handle is gone; starts on `established` if there is such a thing.
pub(crate) fn drive(shared: Arc<Shared>, established: Option<Established>) -> Drive {
    // Not in the future itself: a runtime that is ending drops it before it was ever polled.
    let guard = DriverGuard {
        shared,
        reopens: true,
    };
    Box::pin(async move {
        let shared = &guard.shared;
        let mut next = established;
        let mut backoff = Backoff::new(&shared.node);
        loop {
            let established = match next.take() {
                Some(established) => established,
                None => match reconnect(shared, &mut backoff).await {
                    Some(established) => {
                        bring_up(shared, &established);
                        established
                    }
                    None => break,
                },
            };
            shared.observe(Event::Up);
            let mut driver = Driver::new(shared, established);
            let reason = driver.run().await;
            if driver.served {
                backoff.reset();
            }
            drop(driver);
            bring_down(shared, &reason, true, true);
            if shared.is_closing() {
                break;
            }
        }
    })
}

/// Runs a connection whose stream cannot be opened again.
pub(crate) fn drive_once(shared: Arc<Shared>, established: Established) -> Drive {
    let guard = DriverGuard {
        shared,
        reopens: false,
    };
    Box::pin(async move {
        let reason = Driver::new(&guard.shared, established).run().await;
        bring_down(&guard.shared, &reason, false, true);
    })
}

/// Lets commands in.
pub(crate) fn bring_up(shared: &Shared, established: &Established) {
    let mut state = shared.lock();
    if matches!(state.status, Status::Up | Status::Down(_)) {
        state.status = Status::Up;
        state.writer = established.socket.shared_writer();
        state.server_started = established.server_started;
        state.pipeline.connected(established.id.clone());
        state.last_connect_failed = false;
        state.refused_since = None;
        state.reset = None;
    }
    drop(state);
    shared.changed.notify_waiters();
}

/// Fails what is in flight; `driven` says whether a driver is left to reopen the connection.
fn bring_down(shared: &Shared, reason: &Error, reopens: bool, driven: bool) {
    let mut wakes = Wakes::default();
    let mut state = shared.lock();
    // In one step with the status: a caller that sees no driver may start one.
    state.is_driven = driven;
    let was_up = matches!(state.status, Status::Up | Status::Closing | Status::Aborted);
    state.bring_down(reason, reopens, &mut wakes);
    drop(state);
    wakes.fire();
    shared.changed.notify_waiters();
    // A driver that an ending runtime drops before its first poll reports nothing: its starter may hold the very lock
    // that the observer wants.
    if was_up {
        shared.observe(Event::Down);
    }
}

/// Retries until it succeeds or the last user of the connection is gone.
async fn reconnect(shared: &Shared, backoff: &mut Backoff) -> Option<Established> {
    loop {
        if let Some(pause) = backoff.next() {
            // Woken early by `close`, as long as the connection is down, and by those who want to know whether it still is.
            let mut closed = pin!(shared.changed.notified());
            let mut hurried = pin!(shared.hurry.notified());
            let woken = poll_fn(|cx| match closed.as_mut().poll(cx) {
                Poll::Pending => hurried.as_mut().poll(cx),
                ready => ready,
            });
            let _ = tokio::time::timeout(pause, woken).await;
        }
        if shared.is_closing() {
            return None;
        }
        shared.lock().attempts += 1;
        match handshake::establish(&shared.endpoint, &shared.node).await {
            Ok(established) => return Some(established),
            Err(error) => shared.still_down(error),
        }
    }
}

/// Fails in-flight commands if the driver task is dropped, as it is when its runtime ends.
struct DriverGuard {
    shared: Arc<Shared>,
    reopens: bool,
}

impl Drop for DriverGuard {
    fn drop(&mut self) {
        let reason = Error::not_sent(
            &self.shared.node,
            "the runtime that drove the connection ended",
        );
        bring_down(&self.shared, &reason, self.reopens, false);
    }
}

/// One established connection.
struct Driver<'a> {
    shared: &'a Arc<Shared>,
    socket: Socket,
    decoder: Decoder,
    received: BytesMut,
    /// How much to read at once: grows with what comes, shrinks when nothing does.
    block: usize,
    /// Taken from the outbox and not accepted by the socket yet.
    writing: Option<Writing>,
    /// Written, but perhaps held back by TLS.
    unflushed: bool,
    /// Several tasks were woken: one turn for them, then write.
    yielded: bool,
    wakes: Wakes,
    timer: Pin<Box<Sleep>>,
    /// Whether the timer was polled since it was set, with the waker that is still in use.
    is_timer_armed: bool,
    /// When the timer fires.
    due: Instant,
    stall: StallDetector,
    /// When the last bytes came, if a command was waiting then.
    last_read: Instant,
    /// Whether bytes came since the clock was last looked at that left no command waiting. The clock is not read then:
    /// any command that waits later was submitted later.
    has_read_untimed: bool,
    /// Whether the peer has answered anything since the handshake.
    served: bool,
}

/// The result of handing out what was read.
struct Dispatched {
    /// Whether two tasks or more were woken.
    woke_several: bool,
    /// Whether no command is waiting any more.
    is_idle: bool,
}

impl<'a> Driver<'a> {
    fn new(shared: &'a Arc<Shared>, established: Established) -> Self {
        let Established {
            socket,
            decoder,
            received,
            ..
        } = established;
        let now = Instant::now();
        let due = now + shared.endpoint.command_timeout;
        Self {
            shared,
            socket,
            decoder,
            received,
            block: QUIET_READ_BLOCK,
            writing: None,
            unflushed: false,
            yielded: false,
            wakes: Wakes::default(),
            timer: Box::pin(tokio::time::sleep_until(timer_at(due))),
            is_timer_armed: false,
            due,
            stall: StallDetector::new(shared.endpoint.stall_after, now),
            last_read: now,
            has_read_untimed: false,
            served: false,
        }
    }

    /// Until the connection ends; says why.
    async fn run(&mut self) -> Error {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        if self.yielded {
            // The tasks that were woken have queued what they had to; write it before reading on.
            self.yielded = false;
            if let Some(end) = self.attend(cx) {
                return Poll::Ready(end);
            }
            if let Err(error) = self.poll_write(cx) {
                return Poll::Ready(self.lost(error));
            }
            // A peer that never pauses must not keep deadlines from passing.
            if self.last_read >= self.due && self.look_at_clock(cx) == Liveness::Dead {
                return Poll::Ready(self.dead());
            }
        }
        match self.poll_read(cx) {
            Ok(true) => {
                self.yielded = true;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Ok(false) => {}
            Err(error) => return Poll::Ready(error),
        }
        if let Some(end) = self.attend(cx) {
            return Poll::Ready(end);
        }
        if (self.writing.is_some() || self.unflushed)
            && let Err(error) = self.poll_write(cx)
        {
            return Poll::Ready(self.lost(error));
        }
        // The runtime looks at its timers when there is nothing else to do, which may be long after they are due.
        if (self.last_read >= self.due || self.has_timer_fired(cx))
            && self.look_at_clock(cx) == Liveness::Dead
        {
            return Poll::Ready(self.dead());
        }
        Poll::Pending
    }

    /// Looks at everything that callers have left for the driver, under one lock; from here on they have to wake it
    /// again. Returns why to end, if there is a reason.
    fn attend(&mut self, cx: &Context<'_>) -> Option<Error> {
        let mut state = self.shared.lock();
        state.driver_woken = false;
        state.defer_writes = false;
        match &state.driver {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => {
                state.driver = Some(cx.waker().clone());
                self.is_timer_armed = false;
            }
        }
        if let Some(end) = self.shared.reason_to_end(&mut state) {
            return Some(end);
        }
        let resumes = state.is_watched && !self.stall.is_watching();
        match self.writing {
            None => self.writing = take_outbox(self.shared, state),
            Some(_) => drop(state),
        }
        if resumes
            && let Some(due) = self.stall.resume(Instant::now())
            && due < self.due
        {
            self.set_timer(due);
        }
        None
    }

    /// Reads what there is and hands out the replies. `true`: several tasks were woken, or there is more to read; they
    /// should run before the next write or read.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut budget = READ_BUDGET;
        loop {
            let room = self.make_room();
            let n = match self.socket.poll_read(cx, &mut self.received) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(0)) => return Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(error)) => return Err(self.lost(error)),
            };
            if n >= room {
                self.block = (self.block * 4).min(BUSY_READ_BLOCK);
            }
            let Dispatched {
                woke_several,
                is_idle,
            } = self.dispatch()?;
            budget = budget.saturating_sub(n);
            let yields = woke_several || budget == 0;
            // Commands submitted later wait from then on, so this instant matters to none.
            self.has_read_untimed = is_idle && !yields;
            if !self.has_read_untimed {
                self.last_read = Instant::now();
            }
            if yields {
                return Ok(true);
            }
        }
    }

    /// Makes room for a read; returns how much. Half a block is room enough: making more after each small reply costs more
    /// than a read that may be one too many.
    fn make_room(&mut self) -> usize {
        let wanted = self.decoder.wanted();
        let room = self.received.capacity() - self.received.len();
        if room >= self.block / 2 && room >= wanted {
            return room;
        }
        self.received.reserve(self.block.max(wanted));
        self.received.capacity() - self.received.len()
    }

    /// Decodes the received bytes and hands out the replies.
    fn dispatch(&mut self) -> Result<Dispatched, Error> {
        let mut pushes = Vec::new();
        let mut frames = Ok(());
        let mut state = self.shared.lock();
        let was_full = state.pipeline.is_full();
        while !self.received.is_empty() {
            match self.decoder.decode(&mut self.received) {
                Ok(Some(frame)) => match state.pipeline.receive(frame, &mut self.wakes) {
                    Ok(None) => self.served = true,
                    Ok(Some(push)) => pushes.push(push),
                    Err(Surplus(value)) => {
                        frames = Err(self.surplus(&value));
                        break;
                    }
                },
                Ok(None) => break,
                Err(error) => {
                    frames = Err(Error::protocol(&self.shared.node, error));
                    break;
                }
            }
        }
        let dispatched = Dispatched {
            woke_several: self.wakes.len() >= 2,
            is_idle: state.pipeline.in_flight() == 0,
        };
        state.defer_writes |= dispatched.woke_several;
        state.is_stalled = false;
        let has_room = was_full && !state.pipeline.is_full();
        drop(state);
        self.wakes.fire();
        if has_room {
            self.shared.changed.notify_waiters();
        }
        for push in pushes {
            self.shared.observe(Event::Push(Push::parse(push)));
        }
        frames.map(|()| dispatched)
    }

    /// Writes until there is nothing left or the socket is full.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while let Some(mut writing) = self.writing.take() {
            let is_blocked = match self.socket.poll_write(cx, writing.rest()) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    writing.advance(n);
                    self.unflushed = true;
                    false
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => true,
            };
            let mut state = self.shared.lock();
            if writing.rest().is_empty() {
                state.pipeline.end_write(writing);
                self.writing = take_outbox(self.shared, state);
            } else {
                state.pipeline.progress(&writing);
                self.writing = Some(writing);
            }
            if is_blocked {
                return Ok(());
            }
        }
        self.poll_flush(cx)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.unflushed
            && let Poll::Ready(flushed) = self.socket.poll_flush(cx)
        {
            self.unflushed = false;
            return flushed;
        }
        Ok(())
    }

    /// Expires what is due. The timer is set to the front's deadline, or to one timeout from now when the queue is
    /// empty: whatever is queued meanwhile expires after that, so callers never have to move it.
    fn look_at_clock(&mut self, cx: &mut Context<'_>) -> Liveness {
        loop {
            let now = Instant::now();
            let mut state = self.shared.lock();
            let liveness = state.pipeline.expire(now, &mut self.wakes);
            let is_idle = state.pipeline.in_flight() == 0;
            if std::mem::take(&mut self.has_read_untimed) && is_idle {
                self.last_read = now;
            }
            state.pipeline.release_memory();
            if is_idle && now - self.last_read >= IDLE_PING && matches!(state.status, Status::Up) {
                // Its reply is ignored: that there is one proves that the peer lives.
                let ping = Command::new("PING");
                if let Ok(id) = state.pipeline.submit(&ping, Shape::Reply, now) {
                    state.pipeline.abandon(id);
                    // Writing had its turn before this one.
                    cx.waker().wake_by_ref();
                }
            }
            let next = state
                .pipeline
                .next_deadline()
                .unwrap_or(now + self.shared.endpoint.command_timeout);
            let verdict = self
                .stall
                .check(state.pipeline.waiting_since(), self.last_read, now);
            state.is_watched = verdict.next.is_some() || self.shared.endpoint.stall_after.is_none();
            state.is_stalled = verdict.is_stalled;
            drop(state);
            self.release_memory(is_idle);
            self.wakes.fire();
            if verdict.is_stalled {
                self.shared.observe(Event::Stalled);
            }
            if liveness == Liveness::Dead {
                return Liveness::Dead;
            }
            self.set_timer(verdict.next.map_or(next, |check| check.min(next)));
            if !self.has_timer_fired(cx) {
                return Liveness::Alive;
            }
        }
    }

    fn set_timer(&mut self, due: Instant) {
        self.due = due;
        self.timer.as_mut().reset(timer_at(due));
        self.is_timer_armed = false;
    }

    /// Whether the timer has fired. One poll after it was set tells it whom to wake; after that, looking at its state is
    /// enough and cheaper.
    fn has_timer_fired(&mut self, cx: &mut Context<'_>) -> bool {
        if self.is_timer_armed {
            return self.timer.is_elapsed();
        }
        // A task without budget is polled again soon, and the timer does nothing until then.
        self.is_timer_armed = has_budget_remaining();
        self.timer.as_mut().poll(cx).is_ready()
    }

    /// Gives back what a busy time or a large reply took; done at every look at the clock, on a busy connection too.
    fn release_memory(&mut self, is_idle: bool) {
        self.decoder.shrink();
        if is_idle {
            self.block = QUIET_READ_BLOCK;
        }
        if self.received.is_empty() && is_idle {
            self.received = BytesMut::new();
        } else if self.received.capacity() > KEPT_READ_BUFFER
            && self.received.len() < self.received.capacity() / 4
        {
            self.received = BytesMut::from(&self.received[..]);
        }
    }

    /// `-ERR max number of clients reached` and a few others come without a command, before the server hangs up.
    fn surplus(&self, value: &Value) -> Error {
        let node = &self.shared.node;
        match value {
            Value::Error(line) => self.shared.endpoint.server_error(node, line),
            other => handshake::surplus(other, node),
        }
    }

    fn dead(&self) -> Error {
        let detail = format!(
            "no answer within {:?}",
            self.shared.endpoint.command_timeout * 2
        );
        Error::unknown(&self.shared.node, detail)
    }

    fn lost(&self, error: io::Error) -> Error {
        let detail = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the peer closed the connection".to_owned(),
            _ => format!("the connection broke: {error}"),
        };
        Error::unknown(&self.shared.node, detail)
    }
}

/// Commands in flight will be reported as *unknown*: they must not arrive at the server later, sent again by the kernel.
impl Drop for Driver<'_> {
    fn drop(&mut self) {
        let state = self.shared.lock();
        // In a child, the option would be set for the parent's socket.
        if state.pipeline.in_flight() > 0 && !state.is_forked() {
            self.socket.reset_on_close();
        }
    }
}

/// Takes the outbox, unless it is empty or a caller is writing it right now (who will wake the driver if something is
/// left).
fn take_outbox(shared: &Shared, mut state: MutexGuard<'_, State>) -> Option<Writing> {
    if state.pipeline.is_writing() || state.pipeline.is_flushed() {
        return None;
    }
    let was_full = state.pipeline.is_full();
    let writing = state.pipeline.begin_write();
    let has_room = was_full && !state.pipeline.is_full();
    drop(state);
    if has_room {
        shared.changed.notify_waiters();
    }
    Some(writing)
}
