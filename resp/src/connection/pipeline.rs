//! The protocol of one shared connection, without a socket: requests in flight, their replies and deadlines, and unwritten
//! bytes.
//!
//! Commands are encoded into the outbox and are queued as requests in one step, so the order of the queue is the order
//! on the wire, and the oldest request without a reply owns the next one. A caller that goes away abandons its request; it
//! never takes it out of the queue, because the reply will come all the same (removing it hands every later caller
//! somebody else's reply: redis-rs issues 325 and 489, deadpool issue 97).
//!
//! All deadlines are `submitted + timeout` with one timeout for the connection, so the front of the queue is always the
//! first to expire and one timer suffices.

mod request;
mod wakes;
mod writing;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

pub(crate) use request::Phase;
pub use request::{Callback, Outcome, RequestId, Shape};
use request::{Request, reply_after_asking};
pub use wakes::Wakes;
pub(crate) use wakes::contain;
use writing::Partial;
pub use writing::Writing;

use crate::error::{Error, ErrorKind};
use crate::protocol::command::Encode;
use crate::protocol::decode::Frame;
use crate::protocol::greeting::ConnectionId;
use crate::protocol::push;
use crate::protocol::value::Value;

/// Commands without a reply at which further ones are refused.
pub const MAX_IN_FLIGHT: usize = 1 << 16;

/// Unwritten bytes at which further commands are refused.
pub const MAX_OUTBOX: usize = 16 << 20;

/// The largest write buffer that is kept for the next wave.
const KEPT_BUFFER: usize = 64 << 10;

/// (Un)subscriptions may use those limits this many times: they are not retried.
const SUBSCRIPTION_SHARE: usize = 2;

/// Upper bound of timeouts: `Duration::MAX` means no timeout, and an instant that far away cannot be represented.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A timer that fires at once would never let its task rest.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

/// The queue, the outbox and the deadlines of one connection.
pub struct Pipeline {
    /// Encoded and unwritten bytes, from `head` on.
    outbox: Vec<u8>,
    /// Length of the part of `outbox` that a partial write has written already.
    head: usize,
    /// How many commands were encoded since the outbox was last taken.
    unwritten: usize,
    /// Kept between writes, so that a busy connection allocates no buffers.
    spare: Vec<u8>,
    /// Addressed by id; vacant ones are listed in `vacant`, so a busy connection allocates nothing.
    requests: Vec<Request>,
    vacant: Vec<u32>,
    /// Ids in the order in which the commands were encoded.
    queue: VecDeque<u32>,
    /// Stream position behind the last encoded command.
    encoded: u64,
    /// Stream position behind the last byte that may have left: a buffer counts from the moment it is handed out,
    /// because the connection may end while another thread is writing it.
    exposed: u64,
    /// Counts connections, so that a writer that comes back late does not put old bytes into a new stream.
    epoch: u64,
    /// Whether a [`Writing`] of this epoch is out: bytes of a second one would go into the middle of the first.
    writing: bool,
    timeout: Duration,
    node: Arc<str>,
    /// The present connection, for the errors of commands that were sent over it.
    connection: Option<Arc<ConnectionId>>,
}

/// The queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A reply that no request is waiting for. The stream cannot be used any further.
#[derive(Clone, Debug, PartialEq)]
pub struct Surplus(pub Value);

/// Whether the peer still answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It does.
    Alive,
    /// The oldest command has had no answer for twice its timeout.
    Dead,
}

impl Pipeline {
    /// An empty pipeline to `node` whose commands expire `timeout` after they were submitted.
    #[must_use]
    pub fn new(node: Arc<str>, timeout: Duration) -> Self {
        Self {
            outbox: Vec::new(),
            head: 0,
            unwritten: 0,
            spare: Vec::new(),
            requests: Vec::new(),
            vacant: Vec::new(),
            queue: VecDeque::new(),
            encoded: 0,
            exposed: 0,
            epoch: 0,
            writing: false,
            timeout: timeout.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT),
            node,
            connection: None,
        }
    }

    // ===== callers =====

    /// Encodes a command and queues it.
    ///
    /// # Errors
    ///
    /// [`Full`]: nothing was queued.
    pub fn submit<E: Encode + ?Sized>(
        &mut self,
        command: &E,
        shape: Shape,
        now: Instant,
    ) -> Result<RequestId, Full> {
        self.submit_within(command, shape, now, self.timeout)
    }

    /// [`submit`](Self::submit) with a longer timeout, for a command that blocks on a connection of its own.
    ///
    /// # Errors
    ///
    /// [`Full`]: nothing was queued.
    pub fn submit_within<E: Encode + ?Sized>(
        &mut self,
        command: &E,
        shape: Shape,
        now: Instant,
        timeout: Duration,
    ) -> Result<RequestId, Full> {
        self.submit_for(
            command,
            shape,
            now + self.clamped(timeout),
            Phase::Waiting(None),
        )
    }

    /// [`submit`](Self::submit) with a deadline, for whoever `phase` says.
    pub(super) fn submit_for<E: Encode + ?Sized>(
        &mut self,
        command: &E,
        shape: Shape,
        deadline: Instant,
        phase: Phase,
    ) -> Result<RequestId, Full> {
        let share = if shape.is_reply() {
            1
        } else {
            SUBSCRIPTION_SHARE
        };
        if self.has_reached(share) {
            return Err(Full);
        }
        let before = self.outbox.len();
        let mut request = Partial {
            outbox: &mut self.outbox,
            before,
        };
        command.encode(request.outbox);
        request.before = request.outbox.len();
        drop(request);
        let request = Request {
            phase,
            shape,
            start: self.encoded,
            deadline,
        };
        self.encoded += (self.outbox.len() - before) as u64;
        self.unwritten += 1;
        let id = self.store(request);
        self.queue.push_back(id);
        Ok(id)
    }

    /// The outcome, if it is known; the id is free then. Otherwise `waker` will be told.
    pub fn poll(&mut self, id: RequestId, waker: &Waker) -> Option<Outcome> {
        let request = &mut self.requests[id as usize];
        match &mut request.phase {
            Phase::Waiting(Some(known)) if known.will_wake(waker) => None,
            Phase::Waiting(known) => {
                *known = Some(waker.clone());
                None
            }
            _ => self.take_ready(id),
        }
    }

    /// The caller of `id` went away: its reply is dropped when it comes.
    pub fn abandon(&mut self, id: RequestId) {
        if self.take_ready(id).is_none() {
            self.requests[id as usize].phase = Phase::Abandoned;
        }
    }

    /// The caller of `id` went away but left a function; both come back if the outcome is known already.
    pub fn detach(&mut self, id: RequestId, callback: Callback) -> Option<(Callback, Outcome)> {
        match self.take_ready(id) {
            Some(outcome) => Some((callback, outcome)),
            None => {
                self.requests[id as usize].phase = Phase::Detached(callback);
                None
            }
        }
    }

    /// Commands without a reply.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Whether further commands are refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.has_reached(1)
    }

    /// The timeout of commands, as given but for extremes.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The connection that `id` was sent over, or will be; the one that it failed on, if it did.
    #[must_use]
    pub fn connection_of(&self, id: RequestId) -> Option<ConnectionId> {
        match &self.requests[id as usize].phase {
            Phase::Ready(Err(error)) => error.connection().cloned(),
            _ => self.connection().cloned(),
        }
    }

    /// When `id` fails with a timeout at the latest; `None` for a subscription.
    #[must_use]
    pub fn deadline_of(&self, id: RequestId) -> Option<Instant> {
        let request = &self.requests[id as usize];
        request.expires().then_some(request.deadline)
    }

    // ===== the wire =====

    /// The server at the other end gave the new connection this id.
    pub fn connected(&mut self, connection: Option<Arc<ConnectionId>>) {
        self.connection = connection;
    }

    /// The present connection; absent while there is none.
    #[must_use]
    pub fn connection(&self) -> Option<&ConnectionId> {
        self.connection.as_deref()
    }

    /// Commands encoded since the outbox was last taken.
    #[must_use]
    pub const fn unwritten(&self) -> usize {
        self.unwritten
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Whether a [`Writing`] is out: a second writer has to wait.
    #[must_use]
    pub const fn is_writing(&self) -> bool {
        self.writing
    }

    /// Takes everything unwritten, to be written from [`Writing::rest`] on and given back with
    /// [`end_write`](Self::end_write). One at a time: not while [`is_writing`](Self::is_writing).
    #[must_use]
    pub fn begin_write(&mut self) -> Writing {
        debug_assert!(!self.writing, "two writers at once");
        self.writing = true;
        let spare = std::mem::take(&mut self.spare);
        let bytes = std::mem::replace(&mut self.outbox, spare);
        self.exposed = self.encoded;
        self.unwritten = 0;
        Writing {
            end: self.encoded,
            bytes,
            head: std::mem::take(&mut self.head),
            epoch: self.epoch,
        }
    }

    /// Whether `writing` is of the present connection.
    #[must_use]
    pub const fn is_current(&self, writing: &Writing) -> bool {
        writing.epoch == self.epoch
    }

    /// Gives back what [`begin_write`](Self::begin_write) took; what is unwritten goes before everything queued since.
    ///
    /// Returns whether all that was taken has been written.
    pub fn end_write(&mut self, writing: Writing) -> bool {
        if writing.epoch != self.epoch {
            return true;
        }
        self.writing = false;
        self.exposed = writing.end - writing.rest().len() as u64;
        let Writing {
            mut bytes, head, ..
        } = writing;
        if head == bytes.len() {
            if bytes.capacity() <= KEPT_BUFFER {
                bytes.clear();
                self.spare = bytes;
            }
            return true;
        }
        bytes.extend_from_slice(&self.outbox);
        self.outbox.clear();
        self.spare = std::mem::replace(&mut self.outbox, bytes);
        self.head = head;
        false
    }

    /// Tells how far a write has come that goes on later: what is behind that has certainly not left.
    pub fn progress(&mut self, writing: &Writing) {
        if writing.epoch == self.epoch {
            self.exposed = writing.end - writing.rest().len() as u64;
        }
    }

    /// Takes one frame from the peer; a push that confirms nothing comes back.
    ///
    /// # Errors
    ///
    /// [`Surplus`]: no request waits for this reply.
    pub fn receive(
        &mut self,
        frame: Frame,
        wakes: &mut Wakes,
    ) -> Result<Option<Vec<Value>>, Surplus> {
        match frame {
            Frame::Reply(mut value) => {
                let Some(id) = self.front_sent() else {
                    return Err(Surplus(value));
                };
                match &mut self.requests[id as usize].shape {
                    Shape::AfterAsking(Some(asking)) => value = reply_after_asking(asking, value),
                    Shape::AfterAsking(asking) => {
                        *asking = Some(value);
                        return Ok(None);
                    }
                    Shape::Reply => {}
                    // A subscription is answered by pushes or refused; with anything else we no longer know who is where.
                    Shape::Confirmations { .. } if !matches!(value, Value::Error(_)) => {
                        return Err(Surplus(value));
                    }
                    Shape::Confirmations { .. } => {}
                }
                self.queue.pop_front();
                self.settle(id, Ok(value), wakes);
                Ok(None)
            }
            Frame::Push(push) => Ok(if self.confirms(&push, wakes) {
                None
            } else {
                Some(push)
            }),
        }
    }

    /// Ends every command: those that left are *unknown*, the others *not sent*, because of `reason`.
    pub fn fail_all(&mut self, reason: &Error, wakes: &mut Wakes) {
        while let Some(id) = self.queue.pop_front() {
            let kind = if self.requests[id as usize].start < self.exposed {
                ErrorKind::Unknown
            } else {
                ErrorKind::NotSent
            };
            let mut error = Error::new(kind, &self.node, reason.detail());
            if kind == ErrorKind::Unknown {
                error = error.over(self.connection.clone());
            }
            self.settle(id, Err(error), wakes);
        }
        self.connection = None;
        self.release_memory();
        self.outbox = Vec::new();
        self.head = 0;
        self.unwritten = 0;
        self.exposed = self.encoded;
        self.epoch += 1;
        self.writing = false;
    }

    /// Gives back what a busier time needed.
    pub fn release_memory(&mut self) {
        while let Some(last) = self.requests.last()
            && matches!(last.phase, Phase::Vacant)
        {
            self.requests.pop();
        }
        let ids = self.requests.len();
        self.vacant.retain(|id| (*id as usize) < ids);
        // Half as much again, so that steady traffic does not allocate after each look at the clock.
        self.requests.shrink_to(ids + ids / 2);
        self.vacant.shrink_to(self.vacant.len() + ids / 2);
        self.queue.shrink_to(self.queue.len() + ids / 2);
        if self.outbox.is_empty() {
            self.outbox = Vec::new();
        }
        self.spare = Vec::new();
    }

    // ===== time =====

    /// When [`expire`](Self::expire) must be called next. It changes with every reply, but never to an instant before
    /// `now + timeout` for a command submitted later.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let gives_up = self.front()?.deadline + self.timeout;
        let mut queued = self.queue.iter().map(|id| &self.requests[*id as usize]);
        let waited_for = queued
            .find(|request| request.expires())
            .map(|request| request.deadline);
        Some(waited_for.map_or(gives_up, |deadline| deadline.min(gives_up)))
    }

    /// When the oldest command without a reply was submitted.
    #[must_use]
    pub fn waiting_since(&self) -> Option<Instant> {
        self.front()
            .and_then(|front| front.deadline.checked_sub(self.timeout))
    }

    /// Fails what is due at `now`. Its request stays in the queue, abandoned, since its reply may still come.
    ///
    /// A (un)subscription is waited for until the connection ends: confirmed late it is in force all the same, and there
    /// would be no caller left to learn of it.
    pub fn expire(&mut self, now: Instant, wakes: &mut Wakes) -> Liveness {
        for index in 0..self.queue.len() {
            let id = self.queue[index];
            let request = &self.requests[id as usize];
            if request.deadline > now {
                break;
            }
            if !request.expires() {
                continue;
            }
            let ghost = Request {
                phase: Phase::Abandoned,
                shape: request.shape.clone(),
                ..*request
            };
            self.queue[index] = self.store(ghost);
            let detail = format!("no reply within {:?}", self.timeout);
            let error = Error::new(ErrorKind::Timeout, &self.node, detail);
            self.settle(id, Err(error.over(self.connection.clone())), wakes);
        }
        match self.front() {
            Some(front) if front.deadline + self.timeout <= now => Liveness::Dead,
            _ => Liveness::Alive,
        }
    }

    // ===== inside =====

    /// A timeout of one command: the connection's at least.
    pub(super) fn clamped(&self, timeout: Duration) -> Duration {
        if timeout <= self.timeout {
            self.timeout
        } else {
            timeout.min(LONGEST_TIMEOUT)
        }
    }

    fn has_reached(&self, share: usize) -> bool {
        self.queue.len() >= MAX_IN_FLIGHT * share || self.outbox.len() >= MAX_OUTBOX * share
    }

    fn front(&self) -> Option<&Request> {
        self.queue.front().map(|id| &self.requests[*id as usize])
    }

    /// The oldest request without a reply, if any of it may have left: nothing answers one that has not.
    fn front_sent(&self) -> Option<RequestId> {
        let id = *self.queue.front()?;
        (self.requests[id as usize].start < self.exposed).then_some(id)
    }

    fn store(&mut self, request: Request) -> RequestId {
        match self.vacant.pop() {
            Some(id) => {
                self.requests[id as usize] = request;
                id
            }
            None => {
                self.requests.push(request);
                // MAX_IN_FLIGHT and the futures that have not fetched their outcome keep this far below u32::MAX.
                (self.requests.len() - 1) as u32
            }
        }
    }

    /// Passes the outcome to the waiting task or callback.
    fn settle(&mut self, id: RequestId, outcome: Outcome, wakes: &mut Wakes) {
        let request = &mut self.requests[id as usize];
        if let Phase::Waiting(waker) = &mut request.phase {
            if let Some(waker) = waker.take() {
                wakes.wakers.push(waker);
            }
            request.phase = Phase::Ready(outcome);
            return;
        }
        match std::mem::replace(&mut request.phase, Phase::Vacant) {
            Phase::Detached(callback) => {
                self.vacant.push(id);
                wakes.callbacks.push((callback, outcome));
            }
            Phase::Abandoned => self.vacant.push(id),
            // The first is done, the others are not in the queue and so never settled.
            Phase::Waiting(_) | Phase::Vacant | Phase::Ready(_) => {}
        }
    }

    fn take_ready(&mut self, id: RequestId) -> Option<Outcome> {
        let request = &mut self.requests[id as usize];
        if !matches!(request.phase, Phase::Ready(_)) {
            return None;
        }
        let Phase::Ready(outcome) = std::mem::replace(&mut request.phase, Phase::Vacant) else {
            return None;
        };
        self.vacant.push(id);
        Some(outcome)
    }

    /// Whether `push` confirms a channel of the front command; completes the command with its last one.
    ///
    /// Confirmations are pushes *instead of* a reply, in the order of the commands. The same kinds of push also arrive
    /// without a request (`sunsubscribe` when a slot moves), so kind and channel are both compared.
    fn confirms(&mut self, push: &[Value], wakes: &mut Wakes) -> bool {
        let Some((confirmed, channel)) = push::confirmation(push) else {
            return false;
        };
        let Some(id) = self.front_sent() else {
            return false;
        };
        let Shape::Confirmations { kind, channels } = &mut self.requests[id as usize].shape else {
            return false;
        };
        let Some(index) = channels
            .iter()
            .position(|wanted| *kind == confirmed && **wanted == *channel)
        else {
            return false;
        };
        channels.swap_remove(index);
        if channels.is_empty() {
            self.queue.pop_front();
            self.settle(id, Ok(Value::Null), wakes);
        }
        true
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("node", &self.node)
            .field("in_flight", &self.queue.len())
            .field("unwritten", &self.unwritten)
            .finish_non_exhaustive()
    }
}
