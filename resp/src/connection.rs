//! One connection that all callers in a process share.
//!
//! Callers encode into the shared outbox themselves, under a short lock, so there is no channel, no allocation and no
//! task between them and the wire. On a quiet connection the caller also writes; on a busy one the driver writes what
//! the tasks it just woke have queued, so that a wave of commands costs one system call.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind};
use crate::protocol::command::{Asking, Encode};
use crate::protocol::greeting::ConnectionId;
use crate::protocol::push::Subscribe;
use crate::protocol::value::Value;
use crate::timer::timer_at;

mod backoff;
mod dial;
mod driver;
mod handshake;
#[cfg(feature = "in-process")]
#[doc(hidden)]
pub mod in_process;
pub mod pipeline;
pub mod pool;
pub mod reply;
mod secure;
mod shared;
mod socket;
mod stall;

use handshake::Established;
use pipeline::{Callback, Outcome, Phase, RequestId, Shape};
use reply::{Reply, checked};
pub use shared::Event;
use shared::{EventSink, Refused, Shared, State, Status, wake_driver};
use socket::Socket;

/// A pipelined connection to one server; clones share it.
///
/// It reconnects by itself, with increasing pauses. While it is down, commands fail at once as *not sent*;
/// [`ready`](Self::ready) waits. It ends when the last clone is dropped, after what was submitted has been answered.
///
/// It lives on the runtime that it was connected on: a task there reads the replies. If that runtime ends, what is in
/// flight fails, and the connection moves to the runtime of the next caller that waits for it. While that runtime is
/// blocked no reply arrives; calls from other runtimes still fail at their deadline, by timers of their own. Callbacks
/// and events wait until it runs again.
#[derive(Clone)]
pub struct Connection(Arc<Handle>);

/// Counts the users: the driver holds `Shared` alone, so that the connection ends with the last of them.
struct Handle(Arc<Shared>);

/// Receives what is not a reply. Runs on the connection's task: it must be quick and must not block.
pub type Observer = Arc<dyn Fn(&Connection, Event) + Send + Sync>;

impl Connection {
    /// Connects and shakes hands, within the endpoint's connect timeout.
    ///
    /// # Errors
    ///
    /// The reason for which the handshake did not end. Nothing is left behind.
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

    /// A connection that is opened on demand: by [`open`](Self::open), [`start`](Self::start), or the first caller that
    /// waits until it is [`ready`](Self::ready).
    #[must_use]
    pub fn lazy(endpoint: Endpoint, observer: Option<Observer>) -> Self {
        let node = endpoint.node();
        Self(Arc::new_cyclic(|handle: &Weak<Handle>| {
            let handle = Weak::clone(handle);
            // Weak: events stop with the last user.
            let sink = observer.map(|observer| -> EventSink {
                Box::new(move |event| {
                    if let Some(handle) = handle.upgrade() {
                        observer(&Self(handle), event);
                    }
                })
            });
            Handle(Arc::new(Shared::new(endpoint, node, sink)))
        }))
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
        if shared.lock().is_driven {
            return Ok(());
        }
        let established = handshake::establish(&shared.endpoint, &shared.node).await?;
        let is_first = shared.lock().drive_on(&tokio::runtime::Handle::current());
        if is_first {
            // The link is up before the caller goes on, not when the driver gets its turn.
            driver::bring_up(shared, &established);
            tokio::spawn(driver::drive(Arc::clone(shared), Some(established)));
        }
        Ok(())
    }

    /// Opens the connection in the background unless that was done; retries until it succeeds. Outside of a runtime
    /// nothing happens.
    pub fn start(&self) {
        let mut state = self.shared().lock();
        if !state.is_driven
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // A driver ends with the runtime it ran on; the next caller brings a new one.
            state.drive_on(&runtime);
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
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        endpoint: Endpoint,
    ) -> Result<Self, Error> {
        let node = endpoint.node();
        let shaking = handshake::shake_hands(Socket::Owned(Box::new(stream)), &endpoint, &node);
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
        this.shared()
            .lock()
            .drive_on(&tokio::runtime::Handle::current());
        driver::bring_up(this.shared(), &established);
        tokio::spawn(driver::drive_once(Arc::clone(this.shared()), established));
        this
    }

    /// Queues a command at once; the future gives its reply. Submitting never waits, so `Drop` may do it.
    ///
    /// While the connection is down, or its queue is full, the reply is an immediate *not sent*.
    pub fn submit<E: Encode + ?Sized>(&self, command: &E) -> Reply {
        if let Some(refused) = self.refused(command) {
            return refused;
        }
        self.reply(self.shared().submit(command, Shape::Reply, Duration::ZERO))
    }

    /// [`submit`](Self::submit) for the task of `cx`, which must poll the reply before its own poll returns, as `await` in
    /// the same function does: it is woken without having looked for the reply first, which would take another lock.
    #[doc(hidden)]
    pub fn submit_polled<E: Encode + ?Sized>(&self, command: &E, cx: &Context<'_>) -> Reply {
        if let Some(refused) = self.refused(command) {
            return refused;
        }
        let phase = Phase::Waiting(Some(cx.waker().clone()));
        let shared = self.shared();
        match shared.submit_for(command, Shape::Reply, Duration::ZERO, phase) {
            Ok(queued) => Reply::registered(Arc::clone(shared), queued),
            Err(refused) => Reply::failed(shared.explain(refused)),
        }
    }

    /// [`submit`](Self::submit), with `ASKING` right before the command. Only for an `-ASK` that was just received.
    pub fn submit_asking<E: Encode + ?Sized>(&self, command: &E) -> Reply {
        if let Some(refused) = self.refused(command) {
            return refused;
        }
        self.reply(
            self.shared()
                .submit(&Asking(command), Shape::AfterAsking(None), Duration::ZERO),
        )
    }

    /// Queues a command that may take as long as `timeout`, on a connection with one user.
    pub(crate) fn submit_alone<E: Encode + ?Sized>(&self, command: &E, timeout: Duration) -> Reply {
        self.reply(self.shared().submit(command, Shape::Reply, timeout))
    }

    /// Queues several such commands, which are written together.
    pub(crate) fn submit_all_alone(
        &self,
        commands: &[&(dyn Encode + Sync)],
        timeout: Duration,
    ) -> Vec<Reply> {
        match self.shared().submit_all(commands, timeout) {
            Ok(ids) => ids
                .into_iter()
                .map(|id| Reply::queued(Arc::clone(self.shared()), id))
                .collect(),
            Err(refused) => vec![Reply::failed(self.shared().explain(refused))],
        }
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
        let shared = Arc::clone(self.shared());
        let done: Callback = Box::new(move |outcome| done(checked(outcome, &shared)));
        self.shared()
            .submit_for(subscribe, shape, Duration::ZERO, Phase::Detached(done))
            .is_ok()
    }

    /// The reply to a command that a shared connection must not send.
    fn refused<E: Encode + ?Sized>(&self, command: &E) -> Option<Reply> {
        let what = command.breaks_sharing()?;
        let detail = format!(
            "{what} blocks or changes a connection that others share: use an exclusive one, `Pool::exclusive`"
        );
        let error = Error::new(ErrorKind::Config, &self.shared().node, detail);
        Some(Reply::failed(error))
    }

    fn reply(&self, submitted: Result<RequestId, Refused>) -> Reply {
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
        let reply = poll_fn(|cx| Poll::Ready(self.submit_polled(command, cx))).await;
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
            // Other callers may have taken the room first; the deadline bounds the retries.
            if !reply.is_refused() || Instant::now() >= deadline {
                break reply;
            }
        };
        tokio::time::timeout_at(timer_at(deadline), reply)
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
                Err(refused @ (Refused::Closed | Refused::Ended(_) | Refused::Forked)) => {
                    return Err(self.shared().explain(refused));
                }
                Err(_) => {
                    self.start();
                    let changed = tokio::time::timeout_at(timer_at(deadline), changed).await;
                    if changed.is_err() || deadline <= Instant::now() {
                        return self.down_for();
                    }
                    // A runtime that is shutting down drops each driver as soon as it is spawned, and waits for this poll.
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// [`ready`](Self::ready), which does not wait while the system refuses to connect: if the connection is down, another attempt
    /// is made at once.
    ///
    /// # Errors
    ///
    /// As of [`ready`](Self::ready), and of that attempt if it is refused.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn ready_unless_refused(&self, deadline: Instant) -> Result<(), Error> {
        if self.is_up() {
            return Ok(());
        }
        let shared = self.shared();
        let seen = shared.lock().attempts;
        shared.hurry.notify_one();
        let mut ready = std::pin::pin!(self.ready(deadline));
        loop {
            let mut refused = std::pin::pin!(shared.refused.notified());
            refused.as_mut().enable();
            if let Some(refusal) = shared.refused_after(seen) {
                return Err(refusal);
            }
            let is_ready = poll_fn(|cx| match ready.as_mut().poll(cx) {
                Poll::Ready(ready) => Poll::Ready(Some(ready)),
                Poll::Pending => refused.as_mut().poll(cx).map(|()| None),
            });
            if let Some(ready) = is_ready.await {
                return ready;
            }
        }
    }

    /// The error that keeps the connection down at the end of a wait, with its kind if waiting longer is pointless.
    fn down_for(&self) -> Result<(), Error> {
        match self.shared().check() {
            Err(Refused::Down(reason)) if reason.kind() == ErrorKind::Config => Err(reason),
            Err(refused) => Err(self.shared().explain(refused)),
            Ok(()) => Ok(()),
        }
    }

    /// Whether commands can be queued right now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.shared().lock().status, Status::Up)
    }

    /// Whether it is down and the last attempt to open it failed. [`start`](Self::start) sees to it that there will be
    /// others.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.shared().lock().last_connect_failed
    }

    /// Whether [`Event::Stalled`] was the last that was heard of the server.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.shared().lock().is_stalled
    }

    /// Opens the connection anew; what is in flight fails as *unknown*, because of `reason`, and the old connection ends
    /// with a TCP reset. Nothing if it is not up.
    pub fn reset(&self, reason: &str) {
        self.reset_with(self.shared().lock(), reason);
    }

    fn reset_with(&self, mut state: MutexGuard<'_, State>, reason: &str) {
        if matches!(state.status, Status::Up) {
            state.reset = Some(Error::unknown(&self.shared().node, reason));
            wake_driver(state);
        }
    }

    /// The present connection as the server knows it; absent while it is down, and if the server gave it no id.
    #[must_use]
    pub fn id(&self) -> Option<ConnectionId> {
        self.shared().lock().pipeline.connection().cloned()
    }

    /// [`reset`](Self::reset), if the present connection is `id`; returns whether it was.
    ///
    /// The connection ends with a TCP reset as soon as its task runs, so that this machine sends nothing of what was in
    /// flight any more. What left it before may still be on its way, or in the receive buffer of a server that is
    /// frozen: only after a `CLIENT KILL ID` over another connection can none of it run any more.
    pub fn abandon(&self, id: &ConnectionId, reason: &str) -> bool {
        let state = self.shared().lock();
        let is_present = state.pipeline.connection() == Some(id);
        if is_present {
            self.reset_with(state, reason);
        }
        is_present
    }

    /// When the server at the other end was started, at the latest, if [`Endpoint::ask_server`] says to ask and the
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
        self.shared().end(Status::Closing);
    }

    /// Ends the connection at once; what is in flight fails.
    pub fn abort(&self) {
        self.shared().end(Status::Aborted);
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
        self.0.end(Status::Closing);
    }
}
