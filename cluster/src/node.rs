//! One server that keys live on.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold_resp::connection::{Event, Observer};
use leasehold_resp::pool::Pool;
use leasehold_resp::{Connection, Endpoint, Error, Reply, ServerErrorKind};

use crate::background::OnlyOne;
use crate::locking::lock;
use crate::replication_info::ReplicationInfo;
use crate::script::{Bit, Known, ScriptCall};
use crate::source::Source;
use crate::topology::NodeAddress;

/// How long a connection that is opened for the first time may take before a successor of its node is looked for.
const CONNECT_WAIT: Duration = Duration::from_millis(50);

/// The next [`Node::id`].
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// A server: its connections, and what is known of it since they were opened.
#[derive(Debug)]
pub(crate) struct Node {
    /// Differs from that of any other node, also of one at the same address.
    pub(crate) id: u64,
    /// Its address in the topology.
    pub(crate) address: NodeAddress,
    pub(crate) pool: Pool,
    /// The scripts it remembers.
    pub(crate) known: Known,
    /// The process that was met there last, by scripts that replicas confirm.
    identity: Mutex<Option<Arc<Identity>>>,
    /// The search for its successor, while it is down.
    pub(crate) search: OnlyOne,
    /// Whether its last reply was `CLUSTERDOWN`: then it has lost the other nodes, and its view is old.
    cluster_down: AtomicBool,
    /// Counts the times the shared connection went down: subscriptions made before are gone.
    session: AtomicU64,
    /// Whether the shared connection is up, and since when.
    link: Mutex<Link>,
    /// When it was needed for the first time.
    needed_since: OnceLock<Instant>,
}

/// The state of the shared connection.
#[derive(Clone, Copy, Debug)]
enum Link {
    New,
    Up(Instant),
    Down(Instant),
}

/// A server process, as it was when it was first met.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Absent if the user may not ask.
    pub(crate) run_id: Option<Box<str>>,
    /// Its node id, in a cluster.
    pub(crate) cluster_id: Option<Box<str>>,
    pub(crate) info: ReplicationInfo,
}

impl Node {
    /// A node whose connections are opened by the first call that waits for them; `observe` is called with their events.
    pub(crate) fn new(
        address: NodeAddress,
        endpoint: &Endpoint,
        observe: impl Fn(&Arc<Self>, Event) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let weak = weak.clone();
            let observer: Observer = Arc::new(move |_: &Connection, event| {
                let Some(node) = weak.upgrade() else { return };
                if matches!(event, Event::Down) {
                    node.forget();
                }
                observe(&node, event);
            });
            Self {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                address,
                pool: Pool::lazy(endpoint, Some(observer)),
                known: Known::default(),
                identity: Mutex::default(),
                search: OnlyOne::default(),
                cluster_down: AtomicBool::new(false),
                session: AtomicU64::new(0),
                link: Mutex::new(Link::New),
                needed_since: OnceLock::new(),
            }
        })
    }

    /// The process that was met there last.
    pub(crate) fn identity(&self) -> Option<Arc<Identity>> {
        lock(&self.identity).clone()
    }

    pub(crate) fn identify(&self, identity: Identity) {
        *lock(&self.identity) = Some(Arc::new(identity));
    }

    /// The connection that all callers share.
    pub(crate) fn connection(&self) -> &Connection {
        self.pool.shared()
    }

    /// The number of the shared connection: another one each time it is opened anew.
    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Acquire)
    }

    /// The shared connection as it is now.
    pub(crate) fn source(&self) -> Source {
        Source {
            node: self.id,
            session: self.session(),
        }
    }

    /// Whether its view of the cluster is worth asking for.
    pub(crate) fn may_vote(&self) -> bool {
        !self.cluster_down.load(Ordering::Relaxed)
    }

    /// Opens the shared connection anew: the node is stalled and its keys are served by another one, so what waits for
    /// its answer need not wait any longer.
    pub(crate) fn replace(&self) {
        self.connection()
            .reset("the node does not answer, and its keys are served by another one now");
    }

    /// To be called when the node is needed and not up: how long it may still take before its successor is looked for.
    pub(crate) fn time_to_connect(&self) -> Duration {
        let since = self.needed_since.get_or_init(Instant::now);
        if self.connection().is_failing() {
            return Duration::ZERO;
        }
        CONNECT_WAIT.saturating_sub(since.elapsed())
    }

    /// The shared connection is up. Returns for how long it was down, unless it is the first one.
    pub(crate) fn came_up(&self) -> Option<Duration> {
        let now = Instant::now();
        let _ = self.needed_since.set(now);
        match std::mem::replace(&mut *self.link(), Link::Up(now)) {
            Link::Down(since) => Some(now.saturating_duration_since(since)),
            Link::New | Link::Up(_) => None,
        }
    }

    /// The shared connection is down: how long it was up.
    pub(crate) fn went_down(&self) -> Duration {
        let now = Instant::now();
        let mut link = self.link();
        let Link::Up(since) = *link else {
            return Duration::ZERO;
        };
        *link = Link::Down(now);
        now.saturating_duration_since(since)
    }

    /// Updates the known scripts and the state in the cluster after an error.
    pub(crate) fn note(&self, error: &Error, script: Bit) {
        if is(error, &ServerErrorKind::NoScript) {
            self.known.forget(script);
        }
        self.note_refusal(error);
    }

    /// Updates the state in the cluster after an error.
    pub(crate) fn note_refusal(&self, error: &Error) {
        if error.as_server().is_some() {
            let down = is(error, &ServerErrorKind::ClusterDown);
            self.cluster_down.store(down, Ordering::Relaxed);
        }
    }

    /// Updates the state in the cluster after a command that ran.
    pub(crate) fn note_success(&self) {
        // All callers share it, and it is rarely set.
        if self.cluster_down.load(Ordering::Relaxed) {
            self.cluster_down.store(false, Ordering::Relaxed);
        }
    }

    /// [`submit`](Self::submit) for a task that awaits the reply next.
    pub(crate) fn submit_awaited(
        &self,
        call: &ScriptCall<'_>,
        asking: bool,
        needs_source: bool,
    ) -> impl Future<Output = Reply> {
        poll_fn(move |cx| {
            if asking || needs_source || !self.known.has(call.script().bit()) {
                return Poll::Ready(self.submit(call, asking, needs_source));
            }
            let reply = self.connection().submit_polled(call, cx);
            if reply.is_refused() {
                self.connection().start();
            }
            Poll::Ready(reply)
        })
    }

    /// Queues one attempt at a script: by its SHA if the node is known to remember it, with its source otherwise, or if
    /// the call `needs_source`.
    pub(crate) fn submit(&self, call: &ScriptCall<'_>, asking: bool, needs_source: bool) -> Reply {
        let connection = self.connection();
        let reply = match (self.known.has(call.script().bit()) && !needs_source, asking) {
            (true, false) => connection.submit(call),
            (false, false) => connection.submit(&call.with_source()),
            (true, true) => connection.submit_asking(call),
            (false, true) => connection.submit_asking(&call.with_source()),
        };
        if reply.is_refused() {
            // A caller that cannot wait for it comes back later.
            connection.start();
        }
        reply
    }

    /// The connection has ended. The server may have been restarted, and then it remembers nothing.
    fn forget(&self) {
        self.known.forget_all();
        self.cluster_down.store(false, Ordering::Relaxed);
        self.session.fetch_add(1, Ordering::AcqRel);
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        lock(&self.link)
    }
}

fn is(error: &Error, kind: &ServerErrorKind) -> bool {
    error
        .as_server()
        .is_some_and(|server| server.kind() == kind)
}
