//! Masters and their replicas, as remembered between the locks that replicas confirm.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::cluster_replicas::{ClusterNode, KnownReplicas, replicas_of};
use crate::data_guard::{DataGuard, Mastership, Trust};
use crate::expectation::{ListedReplica, Refusal};
use crate::locking::lock;
use crate::replication_info::ReplicationInfo;
use crate::sentinel_account::ServiceState;
use crate::topology::NodeAddress;

/// How long a master and the full list of its replicas go together: making an old pair unsafe takes a second event.
const LIST_VALID: Duration = Duration::from_secs(10);

/// How long a list of which replicas are left out may be used for a new attempt. At the end of an attempt they may have
/// been left out for [`DROP_VALID`] at most.
const DROP_USABLE: Duration = Duration::from_millis(500);

/// How old the word that a replica is down may be when a lock is believed without it.
pub(crate) const DROP_VALID: Duration = Duration::from_secs(1);

/// The facts that are remembered.
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

/// The sentinels' account of a service, and when they were asked.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) state: ServiceState,
    pub(crate) asked: Instant,
    /// The router's count of changes then.
    pub(crate) changes: u64,
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

    /// The last reply of the sentinels, if it can still be used and the router counts as many `changes` as then.
    pub(crate) fn service(&self, changes: u64) -> Option<Arc<Service>> {
        lock(&self.service)
            .clone()
            .filter(|known| known.changes == changes && known.asked.elapsed() < known.usable_for())
    }

    /// Remembers the reply of the sentinels.
    pub(crate) fn remember(&self, service: &Arc<Service>) {
        *lock(&self.service) = Some(Arc::clone(service));
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
