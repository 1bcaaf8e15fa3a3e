//! What is remembered of masters and their replicas between the locks that replicas confirm.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leasehold_resp::{Command, Error, Value};

use crate::client::Client;
use crate::cluster_replicas::{ClusterNode, KnownReplicas, replicas_of};
use crate::data_guard::{DataGuard, Mastership, Trust};
use crate::expectation::{ListedReplica, Refusal};
use crate::replication_info::ReplicationInfo;
use crate::router::Router;
use crate::sentinel_account::ServiceState;
use crate::topology::NodeAddress;

/// How long a master and the full list of its replicas go together: making an old pair unsafe takes a second event.
const LIST_VALID: Duration = Duration::from_secs(10);

/// How long a list of which replicas are left out may be used for a new attempt. At the end of an attempt they may have
/// been left out for [`DROP_VALID`] at most.
const DROP_USABLE: Duration = Duration::from_millis(500);

/// How old the word that a replica is down may be when a lock is believed without it.
pub(crate) const DROP_VALID: Duration = Duration::from_secs(1);

/// What is remembered.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    guard: Mutex<DataGuard>,
    /// In a cluster.
    cluster: Mutex<KnownReplicas>,
    /// Behind sentinels.
    service: Mutex<Option<Arc<Service>>>,
    /// Of a server that nobody watches over: every replica it was seen with.
    single: Mutex<Vec<NodeAddress>>,
}

/// What the sentinels said, and when they were asked.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) state: ServiceState,
    pub(crate) asked: Instant,
    /// The router's count of changes then.
    changes: u64,
}

/// Replicas that are known for a master.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub(crate) replicas: Vec<ListedReplica>,
    /// When that was asked.
    pub(crate) asked: Instant,
}

impl Memory {
    /// Whether the data of a master may be trusted; see [`DataGuard::check`].
    pub(crate) fn trust(
        &self,
        info: &ReplicationInfo,
        started: Option<Instant>,
        master_since: Option<Mastership>,
        guard: Duration,
    ) -> Trust {
        lock(&self.guard).check(info, started, master_since, guard, Instant::now())
    }

    /// The replicas of the cluster's master `id`, which lists these.
    ///
    /// # Errors
    ///
    /// `None` if `nodes` are needed to tell what became of others, and were not given.
    pub(crate) fn of_cluster(
        &self,
        id: &str,
        listed: &[ClusterNode],
        nodes: Option<&[ClusterNode]>,
    ) -> Option<Result<Vec<ListedReplica>, Refusal>> {
        let mut known = lock(&self.cluster);
        if !known.misses_any(id, listed) {
            return Some(Ok(replicas_of(listed)));
        }
        nodes.map(|nodes| known.settle(id, listed, nodes))
    }

    /// All replicas that the sentinels listed for this master when they were last asked, none of them taken to be down.
    pub(crate) fn full_listing(&self, master: &NodeAddress) -> Option<Listing> {
        let service = lock(&self.service).clone()?;
        let mut listing = (service.state.master == *master).then(|| service.listing())?;
        for replica in &mut listing.replicas {
            replica.is_down = false;
        }
        Some(listing)
    }

    /// The replicas of a server that nobody watches over, which has those of `info` now: no other word on them exists, so
    /// one that was there is expected for good.
    pub(crate) fn of_single(&self, info: &ReplicationInfo) -> Vec<ListedReplica> {
        let mut known = lock(&self.single);
        for replica in &info.replicas {
            if !known.contains(&replica.address) {
                known.push(replica.address.clone());
            }
        }
        let listed = |address: &NodeAddress| ListedReplica {
            address: address.clone(),
            is_down: false,
        };
        known.iter().map(listed).collect()
    }
}

impl Router {
    /// What the sentinels say of the service: what they said a moment ago, if that can still be used, unless `anew`.
    /// `None` where there are none.
    pub(crate) async fn service(&self, anew: bool) -> Option<Result<Arc<Service>, Error>> {
        let sentinels = self.sentinels()?;
        let changes = self.changes();
        let known = lock(&self.memory().service).clone();
        if let Some(known) = known
            && !anew
            && known.changes == changes
            && known.asked.elapsed() < known.usable_for()
        {
            return Some(Ok(known));
        }
        // As old as the oldest of the answers.
        let asked = Instant::now();
        let service = match sentinels.state().await {
            Ok(state) => Arc::new(Service {
                state,
                asked,
                changes,
            }),
            Err(error) => return Some(Err(error)),
        };
        *lock(&self.memory().service) = Some(Arc::clone(&service));
        Some(Ok(service))
    }
}

/// How long it takes until a server that is dead is held to be down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureDetection {
    /// A server that it is about: the master, or one of them.
    pub node: Arc<str>,
    /// The setting that says so.
    pub setting: &'static str,
    /// Its value.
    pub value: Duration,
    /// How long it takes in all.
    pub time: Duration,
}

impl Client {
    /// How long it takes until dead servers are held to be down, by `down-after-milliseconds` of the sentinels or by
    /// `cluster-node-timeout`. `None` for a single server, and if it cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn failure_detection(&self, deadline: Instant) -> Option<FailureDetection> {
        let router = self.router();
        if let Some(service) = router.service(false).await {
            let state = &service.ok()?.state;
            return Some(FailureDetection {
                node: state.master.to_string().into(),
                setting: "down-after-milliseconds",
                value: state.down_after,
                time: state.down_after,
            });
        }
        if !router.is_cluster() {
            return None;
        }
        let setting = "cluster-node-timeout";
        let question = Command::new("CONFIG").arg("GET").arg(setting);
        let (node, answer) = self.ask_masters(&question, 1, deadline).await.pop()?;
        let value = Duration::from_millis(config_value(&answer.ok()?)?);
        Some(FailureDetection {
            node,
            setting,
            value,
            // Suspected after one timeout, and a replica waits for up to another until it stands for election.
            time: value * 2,
        })
    }
}

/// The number in a reply to `CONFIG GET` of one setting.
fn config_value(reply: &Value) -> Option<u64> {
    let value = match reply {
        Value::Map(fields) => &fields.first()?.1,
        reply => reply.as_array()?.get(1)?,
    };
    value.as_str()?.parse().ok()
}

impl Service {
    fn usable_for(&self) -> Duration {
        if self.state.replicas.iter().any(|replica| replica.is_down) {
            DROP_USABLE
        } else {
            LIST_VALID
        }
    }

    /// Since when the master has been one.
    pub(crate) fn mastership(&self) -> Option<Mastership> {
        let since = |age| Mastership::Since(self.asked.checked_sub(age));
        self.state.master_for.map(since)
    }

    pub(crate) fn listing(&self) -> Listing {
        Listing {
            replicas: self.state.replicas.clone(),
            asked: self.asked,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
