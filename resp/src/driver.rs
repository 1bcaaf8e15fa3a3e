//! The task behind a connection: reads, hands out replies, writes what callers left to it, watches the deadlines, and
//! opens the connection again when it ends.
//!
//! A hand-written future rather than a `select!`: reading must go on while a write is blocked, or two full sockets
//! wait for each other for ever (redis-rs issues 1955 and 2070), and the one pause that batches writes must not be cut
//! short by another branch.

use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Sleep;

use crate::command::Command;
use crate::connection::{Event, Link, Shared};
use crate::decode::Decoder;
use crate::error::{Error, ErrorKind};
use crate::handshake::{self, Established};
use crate::pipeline::{Liveness, Shape, Wakes, Writing};
use crate::push::Push;
use crate::socket::Writer;

/// The first pause before reconnecting, and the longest one. Each is drawn from its upper half, so that the clients of
/// a restarted server do not come back in the same instant.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A connection that has heard nothing for this long is asked whether it is still there. A peer that lost its power
/// sends no FIN.
const IDLE_PING: Duration = Duration::from_secs(15);

/// Bytes read in one turn of the driver before others get theirs.
const READ_BUDGET: usize = 256 << 10;

/// The read buffer of a quiet connection, and of a busy one. Servers write in blocks of 16 KiB.
const READ_BLOCK: (usize, usize) = (2 << 10, 64 << 10);

/// Runs the connection until its last handle is gone; starts on `established` if there is such a thing.
pub(crate) async fn drive(shared: Arc<Shared>, established: Option<Established>) {
    let orphans = Orphans(&shared);
    let mut next = established;
    let mut random = RandomState::new().hash_one(&shared.node) | 1;
    loop {
        let established = match next.take() {
            Some(established) => established,
            None => match reconnect(&shared, &mut random).await {
                Some(established) => {
                    bring_up(&shared, &established);
                    established
                }
                None => break,
            },
        };
        shared.observe(Event::Up);
        let reason = Driver::new(&shared, established).run().await;
        bring_down(&shared, &reason);
        if shared.is_closing() {
            break;
        }
    }
    drop(orphans);
}

/// Runs a connection whose stream cannot be opened again.
pub(crate) async fn drive_once(shared: Arc<Shared>, established: Established) {
    let _orphans = Orphans(&shared);
    bring_up(&shared, &established);
    let reason = Driver::new(&shared, established).run().await;
    shared.lock().link = Link::Closing;
    bring_down(&shared, &reason);
}

/// Lets commands in.
pub(crate) fn bring_up(shared: &Shared, established: &Established) {
    let mut state = shared.lock();
    if matches!(state.link, Link::Up(_) | Link::Down(_)) {
        state.link = Link::Up(established.socket.writer.shared());
    }
    drop(state);
    shared.changed.notify_waiters();
}

fn bring_down(shared: &Shared, reason: &Error) {
    let mut wakes = Wakes::default();
    shared.lock().bring_down(reason, &mut wakes);
    wakes.fire();
    shared.changed.notify_waiters();
    shared.observe(Event::Down);
}

/// Tries until it succeeds or nobody wants the connection any more.
async fn reconnect(shared: &Shared, random: &mut u64) -> Option<Established> {
    let mut pause = BACKOFF.0;
    loop {
        if shared.is_closing() {
            return None;
        }
        match handshake::establish(&shared.endpoint, &shared.node).await {
            Ok(established) => return Some(established),
            Err(error) => shared.still_down(error),
        }
        // Woken early by `close`, which notifies; by nobody else while the link is down.
        let _ = tokio::time::timeout(jittered(pause, random), shared.changed.notified()).await;
        pause = (pause * 2).min(BACKOFF.1);
    }
}

/// Between half of `pause` and all of it.
fn jittered(pause: Duration, random: &mut u64) -> Duration {
    // xorshift64: quality does not matter here, only that processes differ.
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    let half = pause / 2;
    half + half.mul_f64((*random >> 11) as f64 / (1_u64 << 53) as f64)
}

/// When the driver's task is dropped with its runtime, nobody else would answer those who wait.
struct Orphans<'a>(&'a Arc<Shared>);

impl Drop for Orphans<'_> {
    fn drop(&mut self) {
        self.0.lock().driven = false;
        bring_down(self.0, &Error::not_sent(&self.0.node, "the runtime that drove the connection ended"));
    }
}

/// One established connection.
struct Driver<'a> {
    shared: &'a Arc<Shared>,
    reader: Box<dyn AsyncRead + Send + Unpin>,
    writer: Writer,
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
    last_read: Instant,
}

impl<'a> Driver<'a> {
    fn new(shared: &'a Arc<Shared>, established: Established) -> Self {
        let Established { socket, decoder, received } = established;
        Self {
            shared,
            reader: socket.reader,
            writer: socket.writer,
            decoder,
            received,
            block: READ_BLOCK.0,
            writing: None,
            unflushed: false,
            yielded: false,
            wakes: Wakes::default(),
            timer: Box::pin(tokio::time::sleep(shared.endpoint.command_timeout)),
            last_read: Instant::now(),
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
            self.shared.lock().company = false;
            if let Err(error) = self.poll_write(cx) {
                return Poll::Ready(self.lost(error));
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
        if self.poll_timer(cx) == Liveness::Dead {
            let detail = format!("no answer within {:?}", self.shared.endpoint.command_timeout * 2);
            return Poll::Ready(Error::unknown(&self.shared.node, detail));
        }
        if self.shared.is_finished() {
            return Poll::Ready(Error::new(ErrorKind::Closed, &self.shared.node, "the connection was closed here"));
        }
        Poll::Pending
    }

    /// From here on a wake-up is needed again.
    fn register(&self, cx: &Context<'_>) {
        let mut state = self.shared.lock();
        state.woken = false;
        match &state.driver {
            Some(known) if known.will_wake(cx.waker()) => {}
            _ => state.driver = Some(cx.waker().clone()),
        }
    }

    /// Reads what there is and hands out the replies. `true`: several tasks were woken, or there is more to read; they
    /// should run before the next write or read.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut budget = READ_BUDGET;
        loop {
            self.received.reserve(self.block.max(self.decoder.wanted()));
            let n = match self.poll_read_some(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(0)) => return Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(error)) => return Err(self.lost(error)),
            };
            self.last_read = Instant::now();
            if n >= self.block {
                self.block = (self.block * 4).min(READ_BLOCK.1);
            }
            let crowd = self.dispatch()?;
            budget = budget.saturating_sub(n);
            if crowd || budget == 0 {
                return Ok(true);
            }
        }
    }

    fn poll_read_some(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // The future keeps nothing between polls, so a fresh one each time is the same as `poll_read`, into memory that
        // need not be filled with zeros first.
        std::pin::pin!(self.reader.read_buf(&mut self.received)).poll(cx)
    }

    /// Decodes what was received and gives it to whom it belongs. `true` if two tasks or more were woken.
    fn dispatch(&mut self) -> Result<bool, Error> {
        let mut pushes = Vec::new();
        let mut frames = Ok(());
        let mut state = self.shared.lock();
        let was_full = state.pipeline.is_full();
        loop {
            match self.decoder.decode(&mut self.received) {
                Ok(Some(frame)) => match state.pipeline.receive(frame, &mut self.wakes) {
                    Ok(None) => {}
                    Ok(Some(push)) => pushes.push(push),
                    Err(error) => {
                        frames = Err(error);
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
        let crowd = self.wakes.len() >= 2;
        state.company |= crowd;
        let has_room = was_full && !state.pipeline.is_full();
        drop(state);
        self.wakes.fire();
        if has_room {
            self.shared.changed.notify_waiters();
        }
        for push in pushes {
            self.shared.observe(Event::Push(Push::parse(push)));
        }
        frames.map(|()| crowd)
    }

    /// Writes until there is nothing left or the socket is full.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            let Some(mut writing) = self.writing.take().or_else(|| self.begin_write()) else {
                return self.poll_flush(cx);
            };
            match self.writer.poll_write(cx, writing.rest()) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    writing.advance(n);
                    self.unflushed = true;
                    if writing.rest().is_empty() {
                        let mut state = self.shared.lock();
                        state.pipeline.end_write(writing);
                        state.writing = false;
                    } else {
                        self.writing = Some(writing);
                    }
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
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
        if state.writing || state.pipeline.is_flushed() {
            return None;
        }
        state.writing = true;
        Some(state.pipeline.begin_write())
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.unflushed
            && let Poll::Ready(flushed) = self.writer.poll_flush(cx)
        {
            self.unflushed = false;
            return flushed;
        }
        Ok(())
    }

    /// Expires what is due. The timer is set to the front's deadline, or to one timeout from now when the queue is
    /// empty: whatever is queued meanwhile expires after that, so callers never have to move it.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Liveness {
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let mut state = self.shared.lock();
            let liveness = state.pipeline.expire(now, &mut self.wakes);
            if state.pipeline.in_flight() == 0 {
                self.block = READ_BLOCK.0;
                state.pipeline.release_memory();
                if self.received.is_empty() {
                    self.received = BytesMut::new();
                }
                if now - self.last_read >= IDLE_PING && matches!(state.link, Link::Up(_)) {
                    // Its reply is for nobody; only that there is one matters.
                    if let Ok(id) = state.pipeline.submit(&Command::new("PING"), Shape::Reply, now) {
                        state.pipeline.abandon(id);
                    }
                }
            }
            let next = state.pipeline.next_deadline().unwrap_or(now + self.shared.endpoint.command_timeout);
            drop(state);
            self.wakes.fire();
            if liveness == Liveness::Dead {
                return Liveness::Dead;
            }
            self.timer.as_mut().reset(next.into());
        }
        Liveness::Alive
    }

    fn lost(&self, error: io::Error) -> Error {
        let detail = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the peer closed the connection".to_owned(),
            _ => format!("the connection broke: {error}"),
        };
        Error::unknown(&self.shared.node, detail).with_source(error)
    }
}

impl Shared {
    fn is_closing(&self) -> bool {
        matches!(self.lock().link, Link::Closing | Link::Aborted)
    }

    /// Closed, and nothing is waited for any more.
    fn is_finished(&self) -> bool {
        let state = self.lock();
        match state.link {
            Link::Closing => state.pipeline.in_flight() == 0 && state.pipeline.is_flushed(),
            Link::Aborted => true,
            Link::Up(_) | Link::Down(_) => false,
        }
    }

    /// Keeps the newest reason, which says more than the first one.
    fn still_down(&self, error: Error) {
        let mut state = self.lock();
        if matches!(state.link, Link::Down(_)) {
            state.link = Link::Down(error);
        }
    }
}
