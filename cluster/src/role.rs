//! The master of a service: the replies of sentinels that name it, and its own reply to `ROLE`. Pure.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use leasehold_resp::Value;

use crate::replication_info::host;
use crate::topology::{NodeAddress, Shard};

/// The master that a sentinel names in its reply to `SENTINEL GET-MASTER-ADDR-BY-NAME`; `None` if it knows none.
#[must_use]
pub fn named_master(reply: &Value) -> Option<NodeAddress> {
    host_and_port(reply).filter(|master| master.port != 0)
}

/// The shard of the server at `address` by its reply to `ROLE`; `None` if it is no master.
///
/// As many replicas as it names: how many there are decides how many must confirm a lock. One that cannot be read makes
/// it no reply at all.
#[must_use]
pub fn master_shard(role: &Value, address: &NodeAddress) -> Option<Shard> {
    let [kind, _offset, replicas, ..] = role.as_array()? else {
        return None;
    };
    if kind.as_str() != Some("master") {
        return None;
    }
    let replicas = replicas
        .as_array()?
        .iter()
        .map(host_and_port)
        .collect::<Option<_>>()?;
    Some(Shard {
        master: address.clone(),
        replicas,
    })
}

/// The masters that several sentinels name, with their votes.
#[derive(Clone, Debug, Default)]
pub struct Votes(Vec<(NodeAddress, usize)>);

impl Votes {
    /// Counts one more sentinel for `master`.
    pub fn add(&mut self, master: NodeAddress) {
        match self.0.iter_mut().find(|(known, _)| *known == master) {
            Some((_, count)) => *count = count.saturating_add(1),
            None => self.0.push((master, 1)),
        }
    }

    /// Whether most of so many `sentinels` agree, so that the others cannot change it.
    #[must_use]
    pub fn are_decided(&self, sentinels: usize) -> bool {
        self.0.iter().any(|(_, count)| *count > sentinels / 2)
    }

    /// All masters that were named, the one named most often first; among equals the one named first.
    #[must_use]
    pub fn ranked(mut self) -> Vec<NodeAddress> {
        self.0.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        self.0.into_iter().map(|(address, _)| address).collect()
    }
}

/// Reads `[host, port, …]`, both as text.
fn host_and_port(reply: &Value) -> Option<NodeAddress> {
    let [name, port, ..] = reply.as_array()? else {
        return None;
    };
    Some(NodeAddress {
        host: host(name.as_str()?)?,
        port: port.as_str()?.parse().ok()?,
    })
}
