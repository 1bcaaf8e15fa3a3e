//! An exclusive connection to a master, for writes that its replicas confirm and for the questions that go with them.
//!
//! Nothing waits at a master that was replaced: while it says nothing, the map is learned anew, and when the map names
//! another node for the key, the wait ends.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold_resp::pool::Exclusive;
use leasehold_resp::{Command, ConnectionId, Encode, Error, Value};

use crate::cluster_replicas::ClusterNode;
use crate::data_guard::{Mastership, Trust};
use crate::expectation::{ListedReplica, Refusal};
use crate::listing::Listing;
use crate::node::{Identity, Node};
use crate::replication_info::{ReplicationInfo, oldest_replica};
use crate::router::Router;

/// How long a master may say nothing before the map is learned anew, where its node does not say.
const STALLED_AFTER: Duration = Duration::from_millis(250);

/// Pause between two looks for a successor while it goes on saying nothing.
const RECHECK: Duration = Duration::from_millis(100);

/// The resolution of the ages that servers tell, which are whole seconds rounded down.
const AGE_RESOLUTION: Duration = Duration::from_secs(1);

/// The link, with what it watches while it waits.
pub(crate) struct MasterLink<'a> {
    watch: Watch<'a>,
    connection: Exclusive,
}

/// Waits at a node for a key.
struct Watch<'a> {
    router: &'a Arc<Router>,
    node: &'a Arc<Node>,
    key: &'a [u8],
    asking: bool,
    deadline: Instant,
}

/// Replies to what was asked together, an error that the server answered with among them.
pub(crate) type Replies = std::vec::IntoIter<Result<Value, Error>>;

impl<'a> MasterLink<'a> {
    /// Takes a connection from the node's pool, or opens one.
    pub(crate) async fn open(
        router: &'a Arc<Router>,
        node: &'a Arc<Node>,
        key: &'a [u8],
        asking: bool,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let watch = Watch {
            router,
            node,
            key,
            asking,
            deadline,
        };
        let connection = watch.over(node.pool.exclusive()).await;
        let connection = connection.map_err(|error| {
            // Connecting sends no command.
            if error.may_have_executed() {
                Error::not_sent(&error.node().into(), error.detail())
            } else {
                error
            }
        })?;
        Ok(Self { watch, connection })
    }

    pub(crate) const fn node(&self) -> &'a Arc<Node> {
        self.watch.node
    }

    /// Whether the node was named by an `ASK`, and the map names another one.
    pub(crate) const fn is_asking(&self) -> bool {
        self.watch.asking
    }

    pub(crate) fn id(&self) -> Option<ConnectionId> {
        self.connection.id()
    }

    pub(crate) fn time_left(&self) -> Duration {
        self.watch
            .deadline
            .saturating_duration_since(Instant::now())
    }

    /// Runs the commands, sent in one write.
    pub(crate) async fn call_all(
        &mut self,
        commands: &[&(dyn Encode + Sync)],
    ) -> Result<Replies, Error> {
        let left = self.time_left().max(Duration::from_millis(1));
        self.watch.router.monitor.sent(commands.len());
        let calls = self.connection.call_all(commands, left);
        self.watch.over(calls).await.map(Vec::into_iter)
    }

    /// For how long the master may grant nothing yet, before it is asked to; zero if it may, or if its data are not known
    /// and have to be looked at with the reply.
    pub(crate) async fn untrusted_for(&mut self, guard: Duration) -> Result<Duration, Error> {
        let run_id = self.id().and_then(|id| id.run_id);
        let known = self.node().identity();
        if let Some(known) = known
            && known.run_id == run_id
        {
            return self.check(&known.info, guard).await;
        }
        let info = self.identify(run_id).await?;
        self.check(&info, guard).await
    }

    /// The first look at a server process.
    async fn identify(&mut self, run_id: Option<Box<str>>) -> Result<ReplicationInfo, Error> {
        let my_id = Command::new("CLUSTER").arg("MYID");
        let info = info_replication();
        let commands: [&(dyn Encode + Sync); 2] = [&info, &my_id];
        let is_cluster = self.watch.router.is_cluster();
        let mut replies = self
            .call_all(&commands[..1 + usize::from(is_cluster)])
            .await
            .map_err(nothing_written)?;
        let info = self.info(replies.next()).map_err(nothing_written)?;
        let cluster_id = match replies.next() {
            Some(id) => Some(id?.as_str().unwrap_or_default().into()),
            None => None,
        };
        self.node().identify(Identity {
            run_id,
            cluster_id,
            info: info.clone(),
        });
        Ok(info)
    }

    /// For how long the master with these data may grant nothing yet.
    pub(crate) async fn check(
        &mut self,
        info: &ReplicationInfo,
        guard: Duration,
    ) -> Result<Duration, Error> {
        let started = self.connection.server_started();
        let memory = self.watch.router.memory();
        let mut trust = memory.trust(info, started, None, guard);
        if trust == Trust::AskMastership {
            let since = self.mastership().await?;
            trust = memory.trust(info, started, Some(since), guard);
        }
        Ok(match trust {
            Trust::In(left) => left,
            Trust::Complete | Trust::AskMastership => Duration::ZERO,
        })
    }

    /// Since when the server has been a master, by sentinels or by the ages of its replicas' connections.
    async fn mastership(&mut self) -> Result<Mastership, Error> {
        if let Some(service) = self.watch.router.service(false).await
            && let Some(since) = service?.mastership()
        {
            return Ok(since);
        }
        let clients = Command::new("CLIENT")
            .arg("LIST")
            .arg("TYPE")
            .arg("replica");
        let asked = Instant::now();
        let reply = self.call_all(&[&clients]).await?.next();
        // A user without the right to ask is told nothing.
        let age = reply.and_then(Result::ok).as_ref().and_then(oldest_replica);
        Ok(age.map_or(Mastership::Unknown, |age| {
            Mastership::Since(asked.checked_sub(age.saturating_sub(AGE_RESOLUTION)))
        }))
    }

    /// Reads a reply to `INFO replication`.
    pub(crate) fn info(
        &self,
        reply: Option<Result<Value, Error>>,
    ) -> Result<ReplicationInfo, Error> {
        let name = self.node().connection().node();
        let reply = reply.unwrap_or_else(|| Err(Error::unknown(name, "a reply is missing")))?;
        let info = ReplicationInfo::parse(&reply);
        info.ok_or_else(|| Error::unknown(name, "`INFO replication` cannot be read"))
    }

    /// The question about replicas that goes into the write of a script: `CLUSTER REPLICAS` of the node itself, in a cluster.
    pub(crate) fn replicas_question(&self) -> Option<Command> {
        let known = self.node().identity()?;
        let id = known.cluster_id.as_deref()?;
        Some(Command::new("CLUSTER").arg("REPLICAS").arg(id))
    }

    /// Reads the reply to that, which was asked at `asked`.
    pub(crate) async fn cluster_listing(
        &mut self,
        reply: Result<Value, Error>,
        asked: Instant,
    ) -> Result<Result<Listing, Refusal>, Error> {
        let name = Arc::clone(self.node().connection().node());
        let unreadable = |what| Error::unknown(&name, format!("`CLUSTER {what}` cannot be read"));
        let listed = ClusterNode::parse_list(&reply?).ok_or_else(|| unreadable("REPLICAS"))?;
        let id = self
            .node()
            .identity()
            .and_then(|known| known.cluster_id.clone());
        let id = id.unwrap_or_default();
        let memory = self.watch.router.memory();
        let replicas = match memory.of_cluster(&id, &listed, None) {
            Some(replicas) => replicas,
            None => {
                let question = Command::new("CLUSTER").arg("NODES");
                let reply = self.call_all(&[&question]).await?.next();
                let nodes = match reply {
                    Some(reply) => ClusterNode::parse_nodes(&reply?),
                    None => None,
                };
                let nodes = nodes.ok_or_else(|| unreadable("NODES"))?;
                memory
                    .of_cluster(&id, &listed, Some(&nodes))
                    .unwrap_or(Err(Refusal::NoneListed))
            }
        };
        Ok(replicas.map(|replicas: Vec<ListedReplica>| Listing { replicas, asked }))
    }
}

/// `INFO replication`.
pub(crate) fn info_replication() -> Command {
    Command::new("INFO").arg("replication")
}

/// An error of a question before anything was written: whatever became of the question, nothing has changed.
pub(crate) fn nothing_written(error: Error) -> Error {
    match error.as_server() {
        Some(_) => error,
        None => Error::not_sent(&error.node().into(), error.detail()),
    }
}

impl Watch<'_> {
    /// The outcome of `future`, unless the time is over or the map moves on.
    async fn over<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let mut future = pin!(future);
        let endpoint = self.node.connection().endpoint();
        let mut pause = endpoint.stall_after.unwrap_or(STALLED_AFTER);
        loop {
            let mut changed = pin!(self.router.changed.notified());
            changed.as_mut().enable();
            if self.has_moved_on() {
                let detail = "the node says nothing, and its keys are served by another one now";
                return Err(Error::unknown(self.node.connection().node(), detail));
            }
            let until = self.deadline.min(Instant::now() + pause);
            let either = poll_fn(|cx| match future.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending => changed.as_mut().poll(cx).map(|()| None),
            });
            match tokio::time::timeout_at(until.into(), either).await {
                Ok(Some(outcome)) => return outcome,
                Ok(None) => {}
                Err(_) if Instant::now() >= self.deadline => {
                    let node = self.node.connection().node();
                    return Err(Error::unknown(node, "no reply in time"));
                }
                Err(_) => {
                    pause = RECHECK;
                    self.router.refresh();
                }
            }
        }
    }

    fn has_moved_on(&self) -> bool {
        let owner = (!self.asking)
            .then(|| self.router.node_of(self.key))
            .flatten();
        owner.is_some_and(|owner| !Arc::ptr_eq(&owner, self.node))
    }
}
