//! The task behind a connection: reads, hands out replies, writes what callers left to it, watches the deadlines, and
//! opens the connection again when it ends.
//!
//! A hand-written future rather than a `select!`: reading must go on while a write is blocked, or two full sockets
//! wait for each other endlessly (redis-rs issues 1955 and 2070), and the one pause that batches writes must not be cut
//! short by another branch.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::time::Sleep;

use crate::connection::backoff::Backoff;
use crate::connection::handshake::{self, Established};
use crate::connection::pipeline::{Liveness, Shape, Surplus, Wakes, Writing};
use crate::connection::shared::{Event, Shared, Status};
use crate::connection::socket::Socket;
use crate::connection::stall::StallDetector;
use crate::error::Error;
use crate::protocol::command::Command;
use crate::protocol::decode::Decoder;
use crate::protocol::push::Push;
use crate::protocol::value::Value;

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
    if matches!(state.status, Status::Up(_) | Status::Down(_)) {
        state.status = Status::Up(established.socket.shared_writer());
        state.server_started = established.server_started;
        state.pipeline.connected(established.id.clone());
        state.last_connect_failed = false;
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
    let was_up = matches!(
        state.status,
        Status::Up(_) | Status::Closing | Status::Aborted
    );
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
            // Woken early by `close` only, as long as the connection is down.
            let _ = tokio::time::timeout(pause, shared.changed.notified()).await;
        }
        if shared.is_closing() {
            return None;
        }
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
    /// When the timer fires.
    due: Instant,
    stall: StallDetector,
    last_read: Instant,
    /// Whether the peer has answered anything since the handshake.
    served: bool,
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
            timer: Box::pin(tokio::time::sleep_until(due.into())),
            due,
            stall: StallDetector::new(shared.endpoint.stall_after, now),
            last_read: now,
            served: false,
        }
    }

    /// Until the connection ends; says why.
    async fn run(&mut self) -> Error {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        self.register(cx);
        if self.yielded {
            // The tasks that were woken have queued what they had to; write it before reading on.
            self.yielded = false;
            self.shared.lock().defer_writes = false;
            if let Err(error) = self.poll_write(cx) {
                return Poll::Ready(self.lost(error));
            }
            // A peer that never pauses must not keep deadlines from passing, nor us from hanging up.
            if self.last_read >= self.due
                && let Poll::Ready(end) = self.poll_end(cx)
            {
                return Poll::Ready(end);
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
        if let Err(error) = self.poll_write(cx) {
            return Poll::Ready(self.lost(error));
        }
        self.poll_end(cx)
    }

    /// Whether the connection is to end, for any reason but a broken stream.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        if self.poll_timer(cx) == Liveness::Dead {
            let detail = format!(
                "no answer within {:?}",
                self.shared.endpoint.command_timeout * 2
            );
            return Poll::Ready(Error::unknown(&self.shared.node, detail));
        }
        self.shared
            .reason_to_end()
            .map_or(Poll::Pending, Poll::Ready)
    }

    /// From here on a wake-up is needed again.
    fn register(&mut self, cx: &Context<'_>) {
        let mut state = self.shared.lock();
        state.driver_woken = false;
        match &state.driver {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => state.driver = Some(cx.waker().clone()),
        }
        let resumes = state.is_watched && !self.stall.is_watching();
        drop(state);
        if resumes
            && let Some(due) = self.stall.resume(Instant::now())
            && due < self.due
        {
            self.due = due;
            self.timer.as_mut().reset(due.into());
        }
    }

    /// Reads what there is and hands out the replies. `true`: several tasks were woken, or there is more to read; they
    /// should run before the next write or read.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut budget = READ_BUDGET;
        loop {
            self.received.reserve(self.block.max(self.decoder.wanted()));
            let n = match self.socket.poll_read(cx, &mut self.received) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(0)) => return Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(error)) => return Err(self.lost(error)),
            };
            self.last_read = Instant::now();
            if n >= self.block {
                self.block = (self.block * 4).min(BUSY_READ_BLOCK);
            }
            let woke_several = self.dispatch()?;
            budget = budget.saturating_sub(n);
            if woke_several || budget == 0 {
                return Ok(true);
            }
        }
    }

    /// Decodes the received bytes and hands out the replies. `true` if two tasks or more were woken.
    fn dispatch(&mut self) -> Result<bool, Error> {
        let mut pushes = Vec::new();
        let mut frames = Ok(());
        let mut state = self.shared.lock();
        let was_full = state.pipeline.is_full();
        loop {
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
        let woke_several = self.wakes.len() >= 2;
        state.defer_writes |= woke_several;
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
        frames.map(|()| woke_several)
    }

    /// Writes until there is nothing left or the socket is full.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            let Some(mut writing) = self.writing.take().or_else(|| self.begin_write()) else {
                return self.poll_flush(cx);
            };
            match self.socket.poll_write(cx, writing.rest()) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    writing.advance(n);
                    self.unflushed = true;
                    let pipeline = &mut self.shared.lock().pipeline;
                    if writing.rest().is_empty() {
                        pipeline.end_write(writing);
                    } else {
                        pipeline.progress(&writing);
                        self.writing = Some(writing);
                    }
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    self.shared.lock().pipeline.progress(&writing);
                    self.writing = Some(writing);
                    return Ok(());
                }
            }
        }
    }

    /// Takes the outbox, unless it is empty or a caller is writing it right now (who will wake the driver if
    /// something is left).
    fn begin_write(&self) -> Option<Writing> {
        let mut state = self.shared.lock();
        if state.pipeline.is_writing() || state.pipeline.is_flushed() {
            return None;
        }
        let was_full = state.pipeline.is_full();
        let writing = state.pipeline.begin_write();
        if was_full && !state.pipeline.is_full() {
            drop(state);
            self.shared.changed.notify_waiters();
        }
        Some(writing)
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
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Liveness {
        // The runtime looks at its timers when there is nothing else to do, which may be long after they are due.
        while self.last_read >= self.due || self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let mut state = self.shared.lock();
            let liveness = state.pipeline.expire(now, &mut self.wakes);
            let is_idle = state.pipeline.in_flight() == 0;
            state.pipeline.release_memory();
            if is_idle && now - self.last_read >= IDLE_PING && matches!(state.status, Status::Up(_))
            {
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
            self.due = verdict.next.map_or(next, |check| check.min(next));
            self.timer.as_mut().reset(self.due.into());
        }
        Liveness::Alive
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
