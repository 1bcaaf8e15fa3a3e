//! A cluster of scripted nodes that know each other.
//!
//! Handshakes, `CLUSTER SLOTS` and the question for sharded channels are answered as real nodes
//! would; the script answers everything else.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use leasehold_resp::Value;

use crate::scripted::{Peer, Scripted};

/// Running nodes; they end when dropped.
#[derive(Debug)]
pub struct FakeCluster {
    nodes: Vec<Scripted>,
    shared: Arc<Shared>,
}

/// A request that the script is to answer.
#[derive(Debug)]
pub struct Asked<'a> {
    /// The node that was asked.
    pub node: usize,
    /// Number of earlier requests to that node, on all its connections.
    pub earlier: usize,
    /// The request.
    pub request: &'a [String],
    /// Ports of the nodes.
    pub ports: &'a [u16],
}

/// A node's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// These bytes, line end included.
    Say(String),
    /// These bytes, and the end of the connection.
    SayAndEnd(String),
    /// No reply.
    Silence,
}

#[derive(Debug, Default)]
struct Shared {
    /// Known when all nodes listen.
    ports: OnceLock<Vec<u16>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Ranges of slots, both ends included, and their nodes: the map of all nodes.
    owners: Vec<(u16, u16, usize)>,
    /// Requests to each node, without handshakes and requests for the map.
    asked: Vec<Vec<Vec<String>>>,
}

impl FakeCluster {
    /// Starts nodes with an equal share of the slots each.
    ///
    /// # Panics
    ///
    /// When a node cannot listen.
    pub async fn start(
        nodes: usize,
        script: impl Fn(Asked<'_>) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let share = 16_384 / u16::try_from(nodes).expect("few");
        for node in 0..nodes {
            let number = u16::try_from(node).expect("few");
            let last = if node + 1 == nodes {
                16_383
            } else {
                (number + 1) * share - 1
            };
            shared.lock().owners.push((number * share, last, node));
            shared.lock().asked.push(Vec::new());
        }
        let script = Arc::new(script);
        let mut listening = Vec::new();
        for node in 0..nodes {
            let (script, shared) = (Arc::clone(&script), Arc::clone(&shared));
            let serve = move |peer| serve(peer, node, Arc::clone(&shared), Arc::clone(&script));
            listening.push(Scripted::start(serve).await);
        }
        shared
            .ports
            .set(listening.iter().map(|node| node.addr().port()).collect())
            .expect("set once");
        Self {
            nodes: listening,
            shared,
        }
    }

    /// `redis-cluster://127.0.0.1:40001`, with the first node only.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis-cluster://{}", self.nodes[0].addr())
    }

    /// Number of connections that a node has accepted.
    #[must_use]
    pub fn accepted(&self, node: usize) -> u64 {
        self.nodes[node].accepted()
    }

    /// From now on `CLUSTER SLOTS` names this node as the owner of all slots.
    pub fn give_all_to(&self, node: usize) {
        self.shared.lock().owners = vec![(0, 16_383, node)];
    }

    /// Requests to a node so far, without handshakes and requests for the map.
    #[must_use]
    pub fn asked(&self, node: usize) -> Vec<Vec<String>> {
        self.shared.lock().asked[node].clone()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ports(&self) -> &[u16] {
        self.ports.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// The reply to `CLUSTER SLOTS`.
    fn slots(&self) -> Value {
        let state = self.lock();
        let range = |(first, last, node): &(u16, u16, usize)| {
            let master = vec![
                Value::Bulk("127.0.0.1".into()),
                Value::Integer(self.ports()[*node].into()),
                Value::Bulk(node.to_string().into()),
            ];
            Value::Array(vec![
                Value::Integer((*first).into()),
                Value::Integer((*last).into()),
                Value::Array(master),
            ])
        };
        Value::Array(state.owners.iter().map(range).collect())
    }
}

async fn serve(
    mut peer: Peer,
    node: usize,
    shared: Arc<Shared>,
    script: Arc<impl Fn(Asked<'_>) -> Answer>,
) {
    while let Some(request) = peer.greet().await {
        match request[0].as_str() {
            "CLUSTER" => {
                peer.answer(shared.slots()).await;
                continue;
            }
            "PUBSUB" => {
                peer.answer(Value::Array(Vec::new())).await;
                continue;
            }
            _ => {}
        }
        let earlier = {
            let asked = &mut shared.lock().asked[node];
            asked.push(request.clone());
            asked.len() - 1
        };
        match script(Asked {
            node,
            earlier,
            request: &request,
            ports: shared.ports(),
        }) {
            Answer::Say(reply) => peer.say(reply).await,
            Answer::SayAndEnd(reply) => {
                peer.say(reply).await;
                return peer.hang_up().await;
            }
            Answer::Silence => {}
        }
    }
}
