//! One connection that everyone shares.
//!
//! Callers encode into the shared outbox themselves, under a short lock, so there is no channel, no allocation and no
//! task between them and the wire. On a quiet connection the caller also writes; on a busy one the
//! `driver` writes what the tasks it just woke have queued, so that a wave of commands costs one
//! system call. No lock is held across a system call, a wake-up or an await.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

use crate::command::{Asking, Encode};
use crate::driver;
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind};
use crate::handshake::{self, Established};
use crate::pipeline::{Callback, Outcome, Pipeline, Shape, SlotId, Wakes};
use crate::push::{Push, Subscribe};
use crate::reply::{Reply, checked};
use crate::socket::{SharedWriter, Socket};
use crate::value::Value;

/// Up to so many commands in flight a caller writes its own command; beyond, batches pay more than the hop costs.
const INLINE_IN_FLIGHT: usize = 2;

/// A caller that makes the outbox this long writes it, whatever else is going on. Waiting for the whole wave makes
/// client and server take turns; writing after each 16 commands keeps the server busy (+25 % at 64 tasks).
const FLUSH_AT: usize = 16;

/// A pipelined connection to one server; clones share it.
///
/// It reconnects by itself, with increasing pauses. While it is down, commands fail at once as *not sent*;
/// [`ready`](Self::ready) waits. It ends when the last clone is dropped, after what was submitted has been answered.
///
/// It lives on the runtime that it was connected on. If that runtime ends, what is in flight fails, and the connection
/// moves to the runtime of the next caller that waits for it.
#[derive(Clone)]
pub struct Connection(Arc<Handle>);

/// Counts the users; the driver keeps only a weak reference.
struct Handle(Arc<Shared>);

/// What callers and the driver share.
pub(crate) struct Shared {
    pub(crate) endpoint: Endpoint,
    pub(crate) node: Arc<str>,
    state: Mutex<State>,
    /// Told when the connection comes up, ends, or has room again.
    pub(crate) changed: Notify,
    observer: Option<Observer>,
    handle: std::sync::OnceLock<std::sync::Weak<Handle>>,
}

/// Hears what is not a reply. Runs on the connection's task: it must be quick and must not wait.
pub type Observer = Arc<dyn Fn(&Connection, Event) + Send + Sync>;

/// What is not a reply.
#[derive(Debug)]
pub enum Event {
    /// The connection is up, for the first time or again: the server knows nothing of earlier subscriptions.
    Up,
    /// The connection is down; everything in flight has failed.
    Down,
    /// The server has sent nothing for [`Endpoint::silence`] while something waits for it, and still does not. Told again
    /// and again, and not a reason to give up yet: it may be busy.
    Silent,
    /// The server said something unasked.
    Push(Push),
}

/// What a driver and its callers change together.
pub(crate) struct State {
    pub(crate) pipeline: Pipeline,
    pub(crate) link: Link,
    /// The driver has woken several tasks and writes when they have run.
    pub(crate) company: bool,
    /// How to reach the driver, and whether that was done since it last looked.
    pub(crate) driver: Option<Waker>,
    pub(crate) woken: bool,
    /// Whether a driver task exists.
    pub(crate) driven: bool,
    /// Whether the driver looks at the clock often enough to notice silence. On a quiet connection it does not, and is
    /// woken by the next command: an idle client has nothing to do.
    pub(crate) watched: bool,
    /// Whether the server is silent at the moment.
    pub(crate) silent: bool,
    /// Why the connection is to be opened anew.
    pub(crate) reset: Option<Error>,
    /// Whether the last attempt to connect failed.
    pub(crate) failing: bool,
    /// When the server at the other end was started, at the latest; if the endpoint says to ask.
    pub(crate) server_started: Option<Instant>,
}

/// The state of the link.
pub(crate) enum Link {
    /// Commands may be queued.
    Up(Option<SharedWriter>),
    /// Being reopened, because of this.
    Down(Error),
    /// No more commands; those in flight may still be answered.
    Closing,
    /// No more commands, and no answers either.
    Aborted,
    /// The same, because its stream ended for this reason and there is no other.
    Ended(Error),
}

/// Why nothing was queued.
enum Refused {
    Closed,
    Ended(Error),
    Down(Error),
    Full,
}

impl Connection {
    /// Connects and shakes hands, within the endpoint's connect timeout.
    ///
    /// # Errors
    ///
    /// Whatever kept the handshake from ending. Nothing is left behind.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O and time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes the half-open connection.
    pub async fn connect(endpoint: Endpoint) -> Result<Self, Error> {
        let this = Self::lazy(endpoint, None);
        this.open().await?;
        Ok(this)
    }

    /// [`connect`](Self::connect), with someone who hears pushes and learns when the connection goes down and up.
    ///
    /// # Errors
    ///
    /// As of [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As of [`connect`](Self::connect).
    pub async fn connect_observed(endpoint: Endpoint, observer: Observer) -> Result<Self, Error> {
        let this = Self::lazy(endpoint, Some(observer));
        this.open().await?;
        Ok(this)
    }

    /// [`connect`](Self::connect), for one user who keeps state in the connection: a transaction, or what `WAIT` waits
    /// for. It is not reopened, because the new one would know nothing of that.
    pub(crate) async fn connect_once(endpoint: Endpoint) -> Result<Self, Error> {
        let node = endpoint.node();
        let established = handshake::establish(&endpoint, &node).await?;
        Ok(Self::start_once(endpoint, established))
    }

    /// A connection that is not open yet: [`open`](Self::open) and [`start`](Self::start) do that, and so does whoever
    /// waits until it is [`ready`](Self::ready). For nodes that nobody may ever need.
    #[must_use]
    pub fn lazy(mut endpoint: Endpoint, observer: Option<Observer>) -> Self {
        let node = endpoint.node();
        let pipeline = Pipeline::new(Arc::clone(&node), endpoint.command_timeout);
        endpoint.command_timeout = pipeline.timeout();
        let down = Error::not_sent(&node, "not connected yet");
        let state = State {
            pipeline,
            link: Link::Down(down),
            company: false,
            driver: None,
            woken: false,
            driven: false,
            watched: endpoint.silence.is_none(),
            silent: false,
            reset: None,
            failing: false,
            server_started: None,
        };
        let shared = Arc::new(Shared {
            endpoint,
            node,
            state: Mutex::new(state),
            changed: Notify::new(),
            observer,
            handle: std::sync::OnceLock::new(),
        });
        let this = Self(Arc::new(Handle(shared)));
        let _ = this.shared().handle.set(Arc::downgrade(&this.0));
        this
    }

    /// Connects and shakes hands, once; nothing if that is done or being done already.
    ///
    /// # Errors
    ///
    /// As of [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As of [`connect`](Self::connect).
    pub async fn open(&self) -> Result<(), Error> {
        let shared = self.shared();
        if shared.lock().driven {
            return Ok(());
        }
        let established = handshake::establish(&shared.endpoint, &shared.node).await?;
        let first = !std::mem::replace(&mut shared.lock().driven, true);
        if first {
            // The link is up before the caller goes on, not when the driver gets its turn.
            driver::bring_up(shared, &established);
            tokio::spawn(driver::drive(Arc::clone(shared), Some(established)));
        }
        Ok(())
    }

    /// Opens the connection in the background, if nobody did; again and again until it succeeds. Outside of a runtime
    /// nothing happens.
    pub fn start(&self) {
        let mut state = self.shared().lock();
        if !state.driven
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // A driver dies with the runtime it ran on; whoever needs it next brings a new one.
            state.driven = true;
            drop(state);
            runtime.spawn(driver::drive(Arc::clone(self.shared()), None));
        }
    }

    /// Shakes hands over a stream that is open already; it cannot be reopened, so the connection ends with it.
    ///
    /// # Errors
    ///
    /// As of [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As of [`connect`](Self::connect).
    pub async fn over(
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        endpoint: Endpoint,
    ) -> Result<Self, Error> {
        let node = endpoint.node();
        let shaking = handshake::shake_hands(Socket::owned(stream), &endpoint, &node);
        let established = tokio::time::timeout(endpoint.connect_timeout, shaking)
            .await
            .unwrap_or_else(|_| {
                Err(Error::not_sent(
                    &node,
                    format!("no handshake within {:?}", endpoint.connect_timeout),
                ))
            })?;
        Ok(Self::start_once(endpoint, established))
    }

    /// A connection that ends with its stream.
    fn start_once(endpoint: Endpoint, established: Established) -> Self {
        let this = Self::lazy(endpoint, None);
        this.shared().lock().driven = true;
        driver::bring_up(this.shared(), &established);
        tokio::spawn(driver::drive_once(Arc::clone(this.shared()), established));
        this
    }

    /// Queues a command at once; the future gives its reply. Submitting never waits, so `Drop` may do it.
    ///
    /// While the connection is down, or its queue is full, the reply is an immediate *not sent*.
    pub fn submit<E: Encode + ?Sized>(&self, command: &E) -> Reply {
        if let Some(what) = command.breaks_sharing() {
            let detail = format!(
                "{what} blocks or changes a connection, so it must not be one that others share"
            );
            return Reply::failed(Error::new(ErrorKind::Config, &self.shared().node, detail));
        }
        self.reply(self.shared().submit(command, Shape::Reply, Duration::ZERO))
    }

    /// [`submit`](Self::submit), with `ASKING` right before the command. Only for an `-ASK` that was just received.
    pub fn submit_asking<E: Encode + ?Sized>(&self, command: &E) -> Reply {
        self.reply(
            self.shared()
                .submit(&Asking(command), Shape::AfterAsking(None), Duration::ZERO),
        )
    }

    /// Queues a command that may take as long as `timeout`, on a connection that nobody else uses.
    pub(crate) fn submit_alone<E: Encode + ?Sized>(&self, command: &E, timeout: Duration) -> Reply {
        self.reply(self.shared().submit(command, Shape::Reply, timeout))
    }

    /// Submits a (un)subscription. The reply is null, once every channel was confirmed; messages reach the observer.
    ///
    /// It has no deadline of its own: a connection whose oldest request has no answer for twice the command timeout ends.
    pub fn subscribe(&self, subscribe: &Subscribe) -> Reply {
        if subscribe.channels.is_empty() {
            let detail = "a subscription needs a channel";
            return Reply::failed(Error::new(ErrorKind::Config, &self.shared().node, detail));
        }
        let shape = Shape::Confirmations {
            kind: subscribe.kind,
            channels: subscribe.confirmations(),
        };
        self.reply(self.shared().submit(subscribe, shape, Duration::ZERO))
    }

    /// Submits a (un)subscription whose outcome goes to `done`, on the connection's task and never right here, so that
    /// the caller may hold a lock that `done` needs. `false` if it was refused; `done` is not called then.
    pub fn subscribe_then(
        &self,
        subscribe: &Subscribe,
        done: impl FnOnce(Outcome) + Send + 'static,
    ) -> bool {
        let shape = Shape::Confirmations {
            kind: subscribe.kind,
            channels: subscribe.confirmations(),
        };
        let node = Arc::clone(self.node());
        let done: Callback = Box::new(move |outcome| done(checked(outcome, &node)));
        self.shared()
            .submit_with(subscribe, shape, Duration::ZERO, Some(done))
            .is_ok()
    }

    fn reply(&self, submitted: Result<SlotId, Refused>) -> Reply {
        match submitted {
            Ok(id) => Reply::queued(Arc::clone(self.shared()), id),
            Err(refused) => Reply::failed(self.shared().explain(refused)),
        }
    }

    /// Submits a command and waits for its reply, and before that for the connection or for room in its queue if need
    /// be; all within the endpoint's command timeout.
    ///
    /// # Errors
    ///
    /// See [`Error`]; [`Error::may_have_executed`] says whether the command may have run. It is never sent twice.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back a command that was submitted.
    pub async fn send<E: Encode + ?Sized>(&self, command: &E) -> Result<Value, Error> {
        let reply = self.submit(command);
        if reply.is_refused() {
            self.send_late(command).await
        } else {
            reply.await
        }
    }

    /// [`send`](Self::send) for when there is no room right now: what was waited for it counts.
    async fn send_late<E: Encode + ?Sized>(&self, command: &E) -> Result<Value, Error> {
        let timeout = self.shared().endpoint.command_timeout;
        let deadline = Instant::now() + timeout;
        let reply = loop {
            self.ready(deadline).await?;
            let reply = self.submit(command);
            // Others may have been quicker, but not for ever.
            if !reply.is_refused() || Instant::now() >= deadline {
                break reply;
            }
        };
        tokio::time::timeout_at(deadline.into(), reply)
            .await
            .unwrap_or_else(|_| {
                let detail = format!(
                    "no reply within {timeout:?}, most of which went by before it could be sent"
                );
                Err(Error::new(ErrorKind::Timeout, &self.shared().node, detail))
            })
    }

    /// Waits until commands can be queued.
    ///
    /// # Errors
    ///
    /// At `deadline`, what has kept the connection down. [`ErrorKind::Closed`] at once after [`close`](Self::close).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn ready(&self, deadline: Instant) -> Result<(), Error> {
        loop {
            let mut changed = std::pin::pin!(self.shared().changed.notified());
            changed.as_mut().enable();
            match self.shared().check() {
                Ok(()) => return Ok(()),
                Err(refused @ (Refused::Closed | Refused::Ended(_))) => {
                    return Err(self.shared().explain(refused));
                }
                Err(refused) => {
                    self.start();
                    if tokio::time::timeout_at(deadline.into(), changed)
                        .await
                        .is_err()
                    {
                        return Err(self.shared().explain(refused));
                    }
                }
            }
        }
    }

    /// Whether commands can be queued right now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.shared().lock().link, Link::Up(_))
    }

    /// Whether it is down and the last attempt to open it failed. [`start`](Self::start) sees to it that there will be
    /// others.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.shared().lock().failing
    }

    /// Whether [`Event::Silent`] was the last that was heard of the server.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.shared().lock().silent
    }

    /// Opens the connection anew; what is in flight fails, because of `reason`. Nothing if it is not up.
    pub fn reset(&self, reason: &str) {
        let mut state = self.shared().lock();
        if matches!(state.link, Link::Up(_)) {
            state.reset = Some(Error::unknown(&self.shared().node, reason));
            wake_driver(state);
        }
    }

    /// When the server at the other end was started, at the latest, if [`Endpoint::ask_uptime`] is set and the
    /// connection was ever up. After a reconnect it may be another one.
    #[must_use]
    pub fn server_started(&self) -> Option<Instant> {
        self.shared().lock().server_started
    }

    /// The node's name in messages.
    #[must_use]
    pub fn node(&self) -> &Arc<str> {
        &self.shared().node
    }

    /// The endpoint this was made from.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.shared().endpoint
    }

    /// Refuses further commands; the connection ends when those in flight have been answered or have expired.
    pub fn close(&self) {
        self.shared().end(Link::Closing);
    }

    /// Ends the connection at once; what is in flight fails.
    pub fn abort(&self) {
        self.shared().end(Link::Aborted);
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("pipeline", &self.shared().lock().pipeline)
            .finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.end(Link::Closing);
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics half way through a change of the state, and if it did, the other callers must still get
        // their errors.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit<E: Encode + ?Sized>(
        &self,
        command: &E,
        shape: Shape,
        timeout: Duration,
    ) -> Result<SlotId, Refused> {
        self.submit_with(command, shape, timeout, None)
    }

    fn submit_with<E: Encode + ?Sized>(
        &self,
        command: &E,
        shape: Shape,
        timeout: Duration,
        done: Option<Callback>,
    ) -> Result<SlotId, Refused> {
        let now = Instant::now();
        let mut state = self.lock();
        match &state.link {
            Link::Up(_) => {}
            Link::Down(reason) => return Err(Refused::Down(reason.clone())),
            Link::Ended(reason) => return Err(Refused::Ended(reason.clone())),
            Link::Closing | Link::Aborted => return Err(Refused::Closed),
        }
        let id = state
            .pipeline
            .submit_within(command, shape, now, timeout)
            .map_err(|_| Refused::Full)?;
        if let Some(done) = done {
            // Its outcome cannot be known yet, so nothing comes back.
            let _ = state.pipeline.detach(id, done);
        }
        let unwatched = !std::mem::replace(&mut state.watched, true);
        self.flush(state);
        if unwatched {
            wake_driver(self.lock());
        }
        Ok(id)
    }

    /// Sees to it that what was queued gets written: here, or by the driver.
    fn flush(&self, state: MutexGuard<'_, State>) {
        // A caller or the driver is writing, or the socket is full: only that one goes on.
        if state.pipeline.is_writing() {
            return;
        }
        let quiet = !state.company && state.pipeline.in_flight() <= INLINE_IN_FLIGHT;
        if (quiet || state.pipeline.unwritten() >= FLUSH_AT)
            && let Link::Up(Some(writer)) = &state.link
        {
            let writer = writer.clone();
            self.write_inline(state, &writer);
            return;
        }
        if !state.company {
            wake_driver(state);
        }
    }

    /// Writes the outbox from the caller's thread. What the socket does not take is the driver's to finish.
    fn write_inline(&self, mut state: MutexGuard<'_, State>, writer: &SharedWriter) {
        let mut writing = state.pipeline.begin_write();
        drop(state);
        // An error here is an error for the reader too, and the driver acts on that.
        if let Ok(n) = writer.try_write(writing.rest()) {
            writing.advance(n);
        }
        let mut state = self.lock();
        let done = state.pipeline.end_write(writing);
        // Others may have queued meanwhile, relying on whoever was writing.
        if !done || (!state.pipeline.is_flushed() && !state.company) {
            wake_driver(state);
        }
    }

    fn check(&self) -> Result<(), Refused> {
        let state = self.lock();
        match &state.link {
            Link::Up(_) if state.pipeline.is_full() => Err(Refused::Full),
            Link::Up(_) => Ok(()),
            Link::Down(reason) => Err(Refused::Down(reason.clone())),
            Link::Ended(reason) => Err(Refused::Ended(reason.clone())),
            Link::Closing | Link::Aborted => Err(Refused::Closed),
        }
    }

    fn explain(&self, refused: Refused) -> Error {
        match refused {
            Refused::Closed => Error::new(
                ErrorKind::Closed,
                &self.node,
                "the connection was closed here",
            ),
            Refused::Ended(reason) => {
                let detail = format!("this connection cannot be reopened: {}", reason.detail());
                Error::new(ErrorKind::Closed, &self.node, detail).with_source(reason)
            }
            Refused::Down(reason) => {
                Error::not_sent(&self.node, reason.detail()).with_source(reason)
            }
            Refused::Full => {
                Error::not_sent(&self.node, "too many commands are waiting for replies")
            }
        }
    }

    fn end(&self, link: Link) {
        let mut state = self.lock();
        if !matches!(state.link, Link::Aborted | Link::Ended(_)) {
            state.link = link;
        }
        wake_driver(state);
        self.changed.notify_waiters();
    }

    /// Tells the observer, unless nobody uses the connection any more.
    pub(crate) fn observe(&self, event: Event) {
        if let Some(observer) = &self.observer
            && let Some(handle) = self.handle.get().and_then(std::sync::Weak::upgrade)
        {
            observer(&Connection(handle), event);
        }
    }
}

/// Wakes the driver, once for everything that happens until it looks.
fn wake_driver(mut state: MutexGuard<'_, State>) {
    if state.woken {
        return;
    }
    state.woken = true;
    let driver = state.driver.clone();
    drop(state);
    if let Some(driver) = driver {
        driver.wake();
    }
}

impl State {
    /// Ends the link for `reason`, for good or until it is reopened: nothing can be queued, everything in flight fails.
    pub(crate) fn bring_down(&mut self, reason: &Error, reopens: bool, wakes: &mut Wakes) {
        if matches!(self.link, Link::Up(_) | Link::Down(_)) {
            self.link = if reopens {
                Link::Down(reason.clone())
            } else {
                Link::Ended(reason.clone())
            };
        }
        self.pipeline.fail_all(reason, wakes);
        self.company = false;
    }
}
