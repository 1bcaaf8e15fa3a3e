//! The client: one handle for a server, a cluster, or the master that sentinels name.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use leasehold_resp::timer::timer_at;
use leasehold_resp::{Connection, Encode, Error, Value};

use crate::discovery::Discovery;
use crate::inbox::SubscriptionEvent;
use crate::monitor::Monitor;
use crate::node::Node;
use crate::redirect::{RetryState, Step};
use crate::router::Router;
use crate::script::{OwnedCall, ScriptCall};
use crate::slot::slot;
use crate::source::Source;
use crate::submitted::{Submitted, note};
use crate::subscriptions::Subscription;
use crate::target::Target;
use crate::unanswered::{Pending, Unanswered};

/// Upper bound on waiting for a node or for another map before the map is asked for again. Both are noticed as soon as
/// they come; this is for searches that have ended with the runtime they were on.
const MAP_RECHECK: Duration = Duration::from_millis(250);

/// A submission within this time of the start of its call counts as made at once.
const SUBMITTED_AT_ONCE: Duration = Duration::from_millis(20);

/// A client; clones share its connections.
///
/// # Runtimes
///
/// A connection lives on the runtime of the call that opened it, and so do the tasks that look for a newer map. Calls may
/// come from other runtimes. Each of them ends within its deadline, or one command timeout if that is longer, also while the
/// runtime of the connection is blocked or not driven; it fails then. When that runtime ends, the connection moves to the
/// runtime of the next call.
#[derive(Clone)]
pub struct Client(Arc<Router>);

/// The reply to a script, and how it came about.
#[derive(Debug)]
pub struct Evaluated {
    /// The reply; never an error.
    pub value: Value,
    /// When the attempt that was answered was submitted, by the monotonic clock.
    pub sent: Instant,
    /// The same instant by the wall clock.
    pub sent_wall: SystemTime,
    /// Whether an earlier attempt of the same call may have run as well.
    pub repeated: bool,
    /// The connection that it came over; `None` if that is not certain.
    pub source: Option<Source>,
    /// Whether it came from a node that does not serve the slot yet (`ASK`): the slot is being moved there.
    pub migrating: bool,
}

/// How messages reach the subscriptions of a [`Client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// `PUBLISH` at the one server.
    Server,
    /// `SPUBLISH` at the node of the channel's slot.
    Sharded,
    /// `PUBLISH` at any node of the cluster: how many receive it is not known there.
    Cluster,
}

/// Where the next attempt goes.
enum Route {
    /// To the node that the map names.
    Map,
    /// To this node, behind an `ASKING`.
    Ask(Arc<Node>),
}

impl Client {
    /// Connects: to the server, to a node of the cluster, or to the master that the sentinels name.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, refuses the connection, or does not speak the protocol.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes what was opened.
    pub async fn connect(target: impl Into<Target>) -> Result<Self, Error> {
        Self::connect_to(target.into(), Arc::default()).await
    }

    /// [`connect`](Self::connect), with its requests and changes told to `monitor`.
    ///
    /// # Errors
    ///
    /// As of [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As of [`connect`](Self::connect).
    pub async fn connect_monitored(
        target: impl Into<Target>,
        monitor: Arc<Monitor>,
    ) -> Result<Self, Error> {
        Self::connect_to(target.into(), monitor).await
    }

    /// Boxed, so that the future of a caller does not contain all of its state.
    fn connect_to(
        target: Target,
        monitor: Arc<Monitor>,
    ) -> Pin<Box<dyn Future<Output = Result<Self, Error>> + Send>> {
        Box::pin(async move {
            let client = Self::lazy_monitored(target, monitor);
            client.contact().await?;
            Ok(client)
        })
    }

    /// A client that connects when it is first used. Does no I/O.
    ///
    /// Until [`contact`](Self::contact) has succeeded once, calls that do not wait are refused.
    #[must_use]
    pub fn lazy(target: impl Into<Target>) -> Self {
        Self::lazy_monitored(target, Arc::default())
    }

    /// [`lazy`](Self::lazy), with its requests and changes told to `monitor`.
    #[must_use]
    pub fn lazy_monitored(target: impl Into<Target>, monitor: Arc<Monitor>) -> Self {
        let (discovery, template) = Discovery::new(target.into());
        Self(Router::new(template, discovery, monitor))
    }

    /// Connects, unless that was done: to the server, to a node of the cluster, or to the master that the sentinels name. A
    /// server that refuses connections fails it at once; the next call tries again. Once it has succeeded, calls wait for a
    /// server that went away.
    ///
    /// # Errors
    ///
    /// As of [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes what was opened.
    pub async fn contact(&self) -> Result<(), Error> {
        if self.is_contacted() {
            return Ok(());
        }
        // Boxed, so that the future of a caller does not contain all of its state.
        Box::pin(self.0.contact()).await
    }

    /// Whether [`contact`](Self::contact) has succeeded.
    #[must_use]
    pub fn is_contacted(&self) -> bool {
        self.0.is_contacted()
    }

    /// Runs an idempotent script, and again on transient failures until `deadline`, following the slot wherever it
    /// goes. One round trip when the server knows the script or is not known to know it (then the source goes along);
    /// two after it forgot the script.
    ///
    /// # Errors
    ///
    /// The last failure. [`Error::may_have_executed`] is true if any of the attempts may have run.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn eval(&self, call: &ScriptCall<'_>, deadline: Instant) -> Result<Evaluated, Error> {
        self.eval_tracked(call, deadline, &mut Unanswered::default())
            .await
    }

    /// [`eval`](Self::eval), which notes in `unanswered` the connections over which an attempt without an answer was
    /// sent, also if the future is dropped. Before another attempt they are killed at the server where that is permitted.
    ///
    /// # Errors
    ///
    /// As of [`eval`](Self::eval).
    ///
    /// # Cancel safety
    ///
    /// As of [`eval`](Self::eval).
    pub async fn eval_tracked(
        &self,
        call: &ScriptCall<'_>,
        deadline: Instant,
        unanswered: &mut Unanswered,
    ) -> Result<Evaluated, Error> {
        self.contact().await?;
        let mut fallback: Option<Box<OwnedCall>> = None;
        let mut retry = RetryState::new(deadline, true);
        let mut route = Route::Map;
        loop {
            let call = fallback.as_ref().map_or(*call, |owned| owned.as_call());
            let (node, asking) = match &route {
                Route::Map => match self.0.serving(call.key()) {
                    Some(node) => (node, false),
                    None => (self.node_for(call.key(), &retry).await?, false),
                },
                Route::Ask(node) => (Arc::clone(node), true),
            };
            let kills = (!unanswered.is_empty() && node.connection().is_up())
                .then(|| unanswered.kill(&node, node.connection()));
            let (sent, sent_wall) = (Instant::now(), SystemTime::now());
            let source = node.source();
            let submitted = node.submit_awaited(&call, asking, retry.needs_source());
            let reply = submitted.await;
            if reply.is_refused() {
                drop(reply);
                self.await_node(&node, &retry).await?;
                if !node.connection().is_up() {
                    // An ASK that cannot be followed at once is not followed later: it takes another one.
                    route = Route::Map;
                }
                continue;
            }
            self.0.monitor.sent(1);
            let pending = Pending::new(reply, &node, asking, unanswered);
            let outcome = self.answer(pending, &node, sent, &retry).await;
            note(&self.0, &node, call.script().bit(), &outcome);
            unanswered.settle_after(kills, &outcome);
            match outcome {
                Ok(value) => {
                    return Ok(Evaluated {
                        value,
                        sent,
                        sent_wall,
                        repeated: retry.repeated(),
                        source: (node.source() == source).then_some(source),
                        migrating: asking,
                    });
                }
                Err(error) => {
                    if let Some(single) = call.fallback_after(&error) {
                        fallback = Some(Box::new(single));
                        route = Route::Map;
                        continue;
                    }
                    let step = retry.failed(error, &node.address.host, Instant::now())?;
                    route = self.follow(step, route, call.key(), &node).await;
                }
            }
        }
    }

    /// Makes one attempt at a script, queued at once behind everything this client has queued for that key: for `Drop`,
    /// which cannot wait, and for callers that depend on the order. A `NOSCRIPT` or a redirect comes back as the error.
    pub fn submit(&self, call: &ScriptCall<'_>) -> Submitted {
        match self.0.node_of(call.key()) {
            Some(node) => {
                let reply = node.submit(call, false, false);
                if reply.is_refused() {
                    // No call waits for it here, and it may never come up.
                    self.0.search(&node);
                } else {
                    self.0.monitor.sent(1);
                }
                Submitted::sent(reply, &self.0, node, call.script().bit())
            }
            None => Submitted::failed(self.0.unserved(call.key())),
        }
    }

    /// How many times the map changed or a connection came up. Each time, what is held there may be gone.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.0.changes()
    }

    /// Resolves when there were other [`changes`](Self::changes) than those that were `seen`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only watches.
    pub async fn changed(&self, seen: u64) {
        loop {
            let changed = self.0.changed.notified();
            if self.0.changes() != seen {
                return;
            }
            changed.await;
        }
    }

    /// Keys with the same number may go into one script call, others may not: their slot in a cluster, always 0
    /// elsewhere.
    #[must_use]
    pub fn group(&self, key: &[u8]) -> u16 {
        if self.0.is_cluster() { slot(key) } else { 0 }
    }

    /// Runs one command at the node of `key`, following the slot; never sent again once it may have run.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn call<E: Encode + ?Sized>(&self, key: &[u8], command: &E) -> Result<Value, Error> {
        self.contact().await?;
        let deadline = Instant::now() + self.0.command_timeout();
        let mut retry = RetryState::new(deadline, false);
        let mut route = Route::Map;
        loop {
            let (node, reply) = match &route {
                Route::Map => {
                    let node = self.node_for(key, &retry).await?;
                    let reply = node.connection().submit(command);
                    (node, reply)
                }
                Route::Ask(node) => (Arc::clone(node), node.connection().submit_asking(command)),
            };
            if reply.is_refused() {
                drop(reply);
                self.await_node(&node, &retry).await?;
                if !node.connection().is_up() {
                    // An ASK that cannot be followed at once is not followed later: it takes another one.
                    route = Route::Map;
                }
                continue;
            }
            self.0.monitor.sent(1);
            match reply.await {
                Ok(value) => {
                    node.note_success();
                    return Ok(value);
                }
                Err(error) => {
                    node.note_refusal(&error);
                    let step = retry.failed(error, &node.address.host, Instant::now())?;
                    route = self.follow(step, route, key, &node).await;
                }
            }
        }
    }

    /// Subscribes to `channel`. The confirmation arrives as [`SubscriptionEvent::Subscribed`](crate::SubscriptionEvent).
    #[must_use]
    pub fn subscribe(&self, channel: &[u8]) -> Subscription {
        Subscription::new(&self.0.hub, Arc::clone(&self.0) as _, channel)
    }

    /// Subscribes to `channel`, whose events go to `listener` on the connection's task, each with the connection it came
    /// over. The listener must not block.
    #[must_use]
    pub fn listen(
        &self,
        channel: &[u8],
        listener: impl Fn(SubscriptionEvent, Source) + Send + Sync + 'static,
    ) -> Subscription {
        Subscription::listening(&self.0.hub, Arc::clone(&self.0) as _, channel, listener)
    }

    /// How messages reach our subscriptions.
    #[must_use]
    pub fn channels(&self) -> Channels {
        if self.0.hub.is_sharded() {
            Channels::Sharded
        } else if self.0.is_cluster() {
            Channels::Cluster
        } else {
            Channels::Server
        }
    }

    /// Upper bound on the instant at which the server of `key` was started, if the endpoints ask for it. Waits until its
    /// connection is up.
    ///
    /// # Errors
    ///
    /// At `deadline`, what has kept it down.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn server_started(
        &self,
        key: &[u8],
        deadline: Instant,
    ) -> Result<Option<Instant>, Error> {
        let up = self.0.serving(key);
        if let Some(node) = up.filter(|node| node.connection().is_up()) {
            return Ok(node.connection().server_started());
        }
        // On the heap, since its size would be part of every acquisition.
        Box::pin(async {
            let retry = RetryState::new(deadline, false);
            loop {
                let node = self.node_for(key, &retry).await?;
                if node.connection().is_up() {
                    return Ok(node.connection().server_started());
                }
                self.await_node(&node, &retry).await?;
            }
        })
        .await
    }

    /// Sends one command to the masters of the map, to `most` of them at most. Returns the answers by the names of their
    /// nodes; a node that has not answered by `deadline` is left out.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn ask_masters<E: Encode + ?Sized>(
        &self,
        command: &E,
        most: usize,
        deadline: Instant,
    ) -> Vec<(Arc<str>, Result<Value, Error>)> {
        let mut answers = Vec::new();
        let map = self.0.map();
        for node in map.nodes().iter().take(most) {
            let connection = node.connection();
            let answer = async {
                connection.ready(deadline).await?;
                connection.submit(command).await
            };
            if let Ok(answer) = tokio::time::timeout_at(timer_at(deadline), answer).await {
                answers.push((Arc::clone(connection.node()), answer));
            }
        }
        answers
    }

    /// The connections to the masters of the map, for commands that belong to no key, such as `SCAN`. Those of a cluster may be
    /// others after the next change.
    #[must_use]
    pub fn masters(&self) -> Vec<Connection> {
        let map = self.0.map();
        map.nodes()
            .iter()
            .map(|node| node.connection().clone())
            .collect()
    }

    /// The connection to the master that serves `key`, for several commands about it.
    ///
    /// # Errors
    ///
    /// None does within a command timeout.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn master_of(&self, key: &[u8]) -> Result<Connection, Error> {
        let deadline = Instant::now() + self.0.command_timeout();
        let node = self
            .node_for(key, &RetryState::new(deadline, false))
            .await?;
        Ok(node.connection().clone())
    }

    /// How long one command may take.
    #[must_use]
    pub fn command_timeout(&self) -> Duration {
        self.0.command_timeout()
    }

    /// The name, in messages, of the node that serves `key`; empty when none does.
    #[must_use]
    pub fn node(&self, key: &[u8]) -> Arc<str> {
        self.0.node_of(key).map_or_else(
            || Arc::from(""),
            |node| Arc::clone(node.connection().node()),
        )
    }

    /// Refuses further commands; connections end when those under way have been answered.
    pub fn close(&self) {
        self.0.close();
    }

    /// The node that the map names, as soon as it names one.
    pub(crate) async fn node_for(
        &self,
        key: &[u8],
        retry: &RetryState,
    ) -> Result<Arc<Node>, Error> {
        loop {
            let changed = self.0.changed.notified();
            if self.0.is_closed() {
                return Err(self.0.unserved(key));
            }
            if let Some(node) = self.0.node_of(key) {
                return Ok(node);
            }
            self.0.refresh();
            if Instant::now() >= retry.deadline() {
                return Err(retry.verdict(self.0.unserved(key)));
            }
            let recheck = (Instant::now() + MAP_RECHECK).min(retry.deadline());
            let _ = tokio::time::timeout_at(timer_at(recheck), changed).await;
        }
    }

    /// Waits until `node` is up or it is time to look at the map again.
    async fn await_node(&self, node: &Arc<Node>, retry: &RetryState) -> Result<(), Error> {
        let deadline = retry.deadline();
        let ready = if self.0.is_dynamic() {
            let mut changed = pin!(self.0.changed.notified());
            self.0.search(node);
            let recheck = (Instant::now() + MAP_RECHECK).min(deadline);
            let mut ready = pin!(node.connection().ready(recheck));
            let ready_or_news = poll_fn(|cx| match ready.as_mut().poll(cx) {
                Poll::Pending => changed.as_mut().poll(cx).map(Ok),
                ready => ready,
            });
            match ready_or_news.await {
                Err(_) if recheck < deadline && !self.0.is_closed() => Ok(()),
                ready => ready,
            }
        } else {
            node.connection().ready(deadline).await
        };
        ready.map_err(|error| retry.verdict(error))
    }

    /// The reply to an attempt that was submitted at `sent`. One that is submitted at once has the timeout of its connection,
    /// which needs no timer of its own; one that had to wait for the connection, and later attempts, only what is left.
    async fn answer(
        &self,
        pending: Pending<'_>,
        node: &Node,
        sent: Instant,
        retry: &RetryState,
    ) -> Result<Value, Error> {
        let at_once = sent + self.command_timeout() <= retry.deadline() + SUBMITTED_AT_ONCE;
        if at_once && !retry.repeated() {
            return pending.outcome().await;
        }
        let late = tokio::time::timeout_at(timer_at(retry.deadline()), pending.outcome()).await;
        late.unwrap_or_else(|_| Err(Error::unknown(node.connection().node(), "no reply in time")))
    }

    /// Acts on what was decided; returns where the next attempt goes.
    async fn follow(&self, step: Step, route: Route, key: &[u8], node: &Arc<Node>) -> Route {
        match step {
            // An EVAL behind a NOSCRIPT needs an ASKING of its own: the first one is used up.
            Step::Again => route,
            Step::Ask(address) => Route::Ask(self.0.node_at(&address)),
            step => {
                self.take(step, key, node).await;
                Route::Map
            }
        }
    }

    /// Acts on what was decided after `node` failed, where the next attempt goes by the map.
    pub(crate) async fn take(&self, step: Step, key: &[u8], node: &Arc<Node>) {
        match step {
            Step::Again | Step::Ask(_) => {}
            Step::Moved(slot, address) => self.0.moved(slot, &address),
            Step::Pause { pause, refresh } => {
                let changed = self.0.changed.notified();
                if refresh {
                    if self
                        .0
                        .node_of(key)
                        .is_some_and(|owner| !Arc::ptr_eq(&owner, node))
                    {
                        return;
                    }
                    self.0.refresh();
                    // Another map, or the node being back, is what this waits for.
                    let _ = tokio::time::timeout(pause, changed).await;
                } else {
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    pub(crate) fn router(&self) -> &Arc<Router> {
        &self.0
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("map", &self.0.map())
            .finish_non_exhaustive()
    }
}
