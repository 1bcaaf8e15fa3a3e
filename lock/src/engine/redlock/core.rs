//! The state that all handles and guards of one `Redlock` share, and its thread.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_cluster::Target;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::super::clock::Clock;
use super::super::home::Home;
use super::super::presence::Presence;
use super::super::telemetry::Telemetry;
use super::node::{Node, connect};
use super::turns::Turns;
use crate::error::{Error, ErrorKind};
use crate::options::Interop;
use crate::process::Process;
use crate::state::deadline::millis;
use crate::state::id::{ClientId, HoldId};
use crate::state::jitter::Jitter;
use crate::state::names::Name;

/// How long a connect waits for the other nodes once a majority is there.
const OTHERS: Duration = Duration::from_millis(250);
/// A node that was restarted grants nothing for the longest lease and this.
const BEYOND_LEASE: Duration = Duration::from_secs(1);
/// The round trip that is assumed of nodes that are nearer, for pauses.
const SHORTEST_ROUND_TRIP: Duration = Duration::from_micros(250);

pub(crate) struct Core {
    pub(super) nodes: Box<[Arc<Node>]>,
    pub(crate) config: Config,
    pub(super) turns: Arc<Turns>,
    pub(super) jitter: Jitter,
    pub(crate) home: Home,
    pub(crate) telemetry: Arc<Telemetry>,
    /// The time of leases and waits. Time limits of requests keep that of the machine.
    pub(crate) clock: Clock,
    /// The longest lease that was asked for here, in milliseconds.
    longest_lease: AtomicU64,
    id: ClientId,
    /// The number of the next hold.
    next: AtomicU64,
    /// These connect to nodes that are not there yet.
    _connecting: Vec<AbortOnDrop>,
    thread: Thread,
}

/// Settings of a `Redlock`.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) namespace: Option<Arc<str>>,
    /// Of locks that ask for none.
    pub(crate) lease: Duration,
    /// The longest lease that anything uses at these nodes, as far as it is known.
    pub(crate) longest_lease: Duration,
    /// Whether nodes that were restarted have every lock that they ever confirmed.
    pub(crate) is_durable: bool,
    /// Counters of fencing tokens are kept as this says.
    pub(crate) interop: Interop,
    pub(crate) connect_timeout: Duration,
    /// How long a majority may be unreachable before waiting ends with an error.
    pub(crate) command_timeout: Duration,
}

/// A task that ends with the one that waits for it.
struct AbortOnDrop(JoinHandle<()>);

/// A thread with a runtime, which ends when this is dropped.
struct Thread {
    runtime: Handle,
    /// `None` for locks of a fake, which run on the runtime of their test: its time may be paused.
    _keep: Option<oneshot::Sender<()>>,
}

impl Core {
    /// Connects to the nodes at `targets`: returns when all are there, or a majority and the others have had their time.
    pub(crate) async fn connect(
        targets: Vec<Target>,
        config: Config,
        process: Process,
        telemetry: Arc<Telemetry>,
    ) -> Result<Arc<Self>, Error> {
        let clock = telemetry.clock().clone();
        let thread = Thread::start(&clock);
        let thread = thread.map_err(|error| Error::new(ErrorKind::Thread, error.to_string()))?;
        let (id, news) = (ClientId::random(), Arc::new(Notify::new()));
        let nodes: Box<[_]> = targets
            .iter()
            .enumerate()
            .map(|(index, target)| {
                let presence = Presence::new(id.as_str(), process.clone(), clock.clone());
                Node::new(index, target, presence, &news)
            })
            .collect();
        let connecting = nodes.iter().zip(targets).map(|(node, target)| {
            let monitor = telemetry.monitor();
            let connecting = connect(Arc::clone(node), nodes.clone(), target, monitor);
            AbortOnDrop(thread.runtime.spawn(connecting))
        });
        let connecting = connecting.collect();
        await_nodes(&nodes, &news, config.connect_timeout).await?;
        let core = Arc::new(Self {
            nodes,
            turns: Arc::default(),
            jitter: Jitter::new(id.seed()),
            home: Home::here(),
            telemetry,
            clock,
            longest_lease: AtomicU64::new(millis(config.lease.max(config.longest_lease))),
            id,
            next: AtomicU64::new(1),
            _connecting: connecting,
            thread,
            config,
        });
        // On the thread, where the connections are that it may need.
        let grown = Arc::clone(&core);
        let waiting = core
            .thread
            .runtime
            .spawn(async move { grown.await_age().await });
        let mut waiting = AbortOnDrop(waiting);
        let _ = (&mut waiting.0).await;
        Ok(core)
    }

    /// Runs `work` on the thread.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        #[cfg(feature = "testing")]
        if let Some(world) = self.clock.fake() {
            self.thread.runtime.spawn(world.clock.tracked(work));
            return;
        }
        self.thread.runtime.spawn(work);
    }

    /// Whether `name` can be locked here now.
    pub(super) fn check_name(&self, name: &Name) -> Result<(), Error> {
        self.check()?;
        name.bad().map_or(Ok(()), |bad| Err(Error::bad_name(bad)))
    }

    /// Whether anything can be done here.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.home.is_elsewhere() {
            return Err(Error::new(ErrorKind::Forked, ""));
        }
        Ok(())
    }

    /// The id that holders begin with.
    pub(crate) fn id(&self) -> &str {
        self.id.as_str()
    }

    pub(super) fn next_hold(&self) -> HoldId {
        HoldId::new(&self.id, self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// How old a node must be that may grant a lock with `lease`; `None` where that does not matter.
    pub(super) fn guard_time(&self, lease: Duration) -> Option<Duration> {
        let longest = self
            .longest_lease
            .fetch_max(millis(lease), Ordering::Relaxed);
        let longest = Duration::from_millis(longest).max(lease);
        (!self.config.is_durable).then(|| longest + BEYOND_LEASE)
    }

    /// How many nodes are a majority.
    pub(super) const fn needed(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// The round trip within which a majority answers.
    pub(super) fn round_trip(&self) -> Duration {
        let mut known: Vec<_> = self.nodes.iter().map(|node| node.round_trip()).collect();
        known.sort_unstable();
        known[self.needed() - 1].max(SHORTEST_ROUND_TRIP)
    }

    /// Waits until a majority of the nodes is old enough to grant anything, or no more of them can be reached.
    async fn await_age(&self) {
        let Some(guard) = self.guard_time(self.config.lease) else {
            return;
        };
        let deadline = Instant::now() + guard + BEYOND_LEASE;
        loop {
            let mut left = Vec::new();
            for node in &self.nodes {
                left.extend(node.too_young_for(guard).await);
            }
            left.sort_unstable();
            let majority = left.get(self.needed() - 1).copied();
            match majority {
                Some(left) if !left.is_zero() && Instant::now() < deadline => {
                    tokio::time::sleep(left.min(BEYOND_LEASE)).await;
                }
                _ => return,
            }
        }
    }
}

/// Waits until the nodes are connected, or what is missing has had its time.
async fn await_nodes(nodes: &[Arc<Node>], news: &Notify, timeout: Duration) -> Result<(), Error> {
    let needed = nodes.len() / 2 + 1;
    let mut until = Instant::now() + timeout;
    let mut has_majority = false;
    loop {
        let mut changed = std::pin::pin!(news.notified());
        changed.as_mut().enable();
        let connected = nodes.iter().filter(|node| node.is_connected()).count();
        if let Some(error) = nodes.iter().find_map(|node| node.refused()) {
            return Err(error);
        }
        if connected >= needed && !has_majority {
            has_majority = true;
            until = until.min(Instant::now() + OTHERS);
        }
        let has_tried = |node: &Arc<Node>| node.is_connected() || node.failure().is_some();
        if nodes.iter().all(has_tried) || Instant::now() >= until {
            if has_majority {
                return Ok(());
            }
            let failure = nodes.iter().find_map(|node| node.failure());
            return Err(too_few(connected, nodes.len(), failure));
        }
        let _ = tokio::time::timeout_at(until.into(), changed).await;
    }
}

/// The error that this many of all nodes can be reached.
fn too_few(reached: usize, all: usize, failure: Option<Error>) -> Error {
    let detail = format!("{reached} of {all} nodes answered in time, too few for a majority");
    match failure {
        Some(error) => error.reason_for(&detail),
        None => Error::new(ErrorKind::Unavailable, detail),
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Thread {
    fn start(clock: &Clock) -> io::Result<Self> {
        if clock.is_fake() {
            return Ok(Self {
                runtime: Handle::current(),
                _keep: None,
            });
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (keep, over) = oneshot::channel();
        std::thread::Builder::new()
            .name("leasehold-redlock".into())
            .spawn(move || {
                let _ = runtime.block_on(over);
            })?;
        Ok(Self {
            runtime: handle,
            _keep: Some(keep),
        })
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("nodes", &self.nodes)
            .field("namespace", &self.config.namespace)
            .finish_non_exhaustive()
    }
}
