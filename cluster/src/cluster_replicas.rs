//! The replicas of a cluster's master, by its own node list. Pure.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use std::collections::HashMap;

use leasehold_resp::Value;

use crate::expectation::{ListedReplica, Refusal};
use crate::topology::NodeAddress;

/// A line of `CLUSTER NODES` or `CLUSTER REPLICAS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Its id.
    pub id: Box<str>,
    /// Where it listens; an empty host if that is not known.
    pub address: NodeAddress,
    /// Whether it calls itself a master.
    pub is_master: bool,
    /// Whether a majority of the masters holds it to be down: `fail`, not `fail?`.
    pub is_failed: bool,
    /// The id of its master, if it is a replica.
    pub master: Option<Box<str>>,
    /// Whether it serves slots.
    pub has_slots: bool,
}

/// The nodes that were known to belong to masters, by the masters' node ids.
#[derive(Debug, Default)]
pub struct KnownReplicas(HashMap<Box<str>, Vec<Known>>);

/// A node that belongs to a master.
#[derive(Clone, Debug)]
struct Known {
    id: Box<str>,
    /// Whether it was the master before, and has not been seen as a replica since.
    was_master: bool,
}

impl ClusterNode {
    /// Reads the reply to `CLUSTER REPLICAS`; `None` if a line cannot be read.
    #[must_use]
    pub fn parse_list(reply: &Value) -> Option<Vec<Self>> {
        reply
            .as_array()?
            .iter()
            .map(|line| Self::parse(line.as_str()?))
            .collect()
    }

    /// Reads the reply to `CLUSTER NODES`; `None` if a line cannot be read.
    #[must_use]
    pub fn parse_nodes(reply: &Value) -> Option<Vec<Self>> {
        reply.as_str()?.lines().map(Self::parse).collect()
    }

    /// `id host:port@bus[,name] flags master ping pong epoch link slot slot …`
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (id, address, flags, master) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        let (host, port) = address.split(['@', ',']).next()?.rsplit_once(':')?;
        let has = |flag: &str| flags.split(',').any(|other| other == flag);
        // Behind ping, pong, epoch and link; a slot on the move stands in brackets.
        let has_slots = words.skip(4).any(|slot| !slot.starts_with('['));
        Some(Self {
            id: id.into(),
            address: NodeAddress {
                host: host.to_owned(),
                port: port.parse().ok()?,
            },
            is_master: has("master"),
            is_failed: has("fail"),
            master: (master != "-").then(|| master.into()),
            has_slots,
        })
    }

    fn listed(&self) -> ListedReplica {
        ListedReplica {
            address: self.address.clone(),
            is_down: self.is_failed,
        }
    }
}

impl KnownReplicas {
    /// Whether nodes that belonged to `master` are missing from its list, so that [`settle`](Self::settle) needs to know
    /// what became of them. Notes those that are listed.
    pub fn misses_any(&mut self, master: &str, listed: &[ClusterNode]) -> bool {
        if !self.0.contains_key(master) {
            let inherited = self.inherited(master);
            self.0.insert(master.into(), inherited);
        }
        let known = self.0.entry(master.into()).or_default();
        for node in listed {
            match known.iter_mut().find(|known| known.id == node.id) {
                Some(known) => known.was_master = false,
                None => known.push(Known {
                    id: node.id.clone(),
                    was_master: false,
                }),
            }
        }
        let is_listed = |known: &Known| listed.iter().any(|node| node.id == known.id);
        !known.iter().all(is_listed)
    }

    /// The replicas of `master`: those that are listed, and those that belonged to it and are neither gone from the
    /// cluster nor in another shard by now, which are forgotten. A former master that has not become a replica yet need
    /// not confirm, as nothing can promote it; if it is down, it is a replica that is down.
    ///
    /// # Errors
    ///
    /// [`Refusal::Rival`] if one that was a replica is a master now.
    pub fn settle(
        &mut self,
        master: &str,
        listed: &[ClusterNode],
        nodes: &[ClusterNode],
    ) -> Result<Vec<ListedReplica>, Refusal> {
        let mut replicas = replicas_of(listed);
        let Some(known) = self.0.get_mut(master) else {
            return Ok(replicas);
        };
        let node = |id: &str| nodes.iter().find(|node| *node.id == *id);
        let serves = |id: &str| node(id).is_some_and(|node| node.has_slots);
        let mut rival = None;
        known.retain(|known| {
            if listed.iter().any(|node| node.id == known.id) {
                return true;
            }
            let Some(node) = node(&known.id) else {
                return false;
            };
            let follows = node.master.as_deref();
            if follows.is_some_and(|other| *other != *master && serves(other)) {
                return false;
            }
            if node.is_failed || !node.is_master {
                replicas.push(node.listed());
            } else if !known.was_master {
                rival = Some(node.address.clone());
            } else if node.has_slots {
                return false;
            }
            true
        });
        rival.map_or(Ok(replicas), |rival| Err(Refusal::Rival(rival)))
    }

    /// The shard of a replica that has become a master: the replicas that its master had, and that master.
    fn inherited(&self, master: &str) -> Vec<Known> {
        let is_it = |known: &Known| *known.id == *master;
        let Some((former, shard)) = self.0.iter().find(|(_, shard)| shard.iter().any(is_it)) else {
            return Vec::new();
        };
        let mut inherited: Vec<_> = shard
            .iter()
            .filter(|known| !is_it(known))
            .cloned()
            .collect();
        inherited.push(Known {
            id: former.clone(),
            was_master: true,
        });
        inherited
    }
}

/// The replicas of a list that misses none.
#[must_use]
pub fn replicas_of(listed: &[ClusterNode]) -> Vec<ListedReplica> {
    listed.iter().map(ClusterNode::listed).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const NODES: &str = "aa 127.0.0.1:1@11 myself,master - 0 0 3 connected 0-5460\n\
        bb 127.0.0.1:2@12,host.example slave,fail? aa 0 0 3 disconnected\n\
        cc 127.0.0.1:3@13,,tls-port=0,shard-id=9 slave,fail aa 0 0 3 connected\n\
        dd 127.0.0.1:4@14 master - 0 0 4 connected 5461-9000 [9001->-aa]\n\
        ee 127.0.0.1:5@15 slave dd 0 0 4 connected\n\
        ff :0@0 master,noaddr - 0 0 0 disconnected\n";

    fn nodes(text: &str) -> Vec<ClusterNode> {
        let reply = Value::Bulk(bytes::Bytes::copy_from_slice(text.as_bytes()));
        ClusterNode::parse_nodes(&reply).unwrap()
    }

    fn following(master: &str, text: &str) -> Vec<ClusterNode> {
        let mut list = nodes(text);
        list.retain(|node| node.master.as_deref() == Some(master));
        list
    }

    /// Ports of the replicas, and of those that are down.
    fn ports(replicas: &[ListedReplica]) -> (Vec<u16>, Vec<u16>) {
        let all = replicas.iter().map(|replica| replica.address.port);
        let down = replicas.iter().filter(|replica| replica.is_down);
        (
            all.collect(),
            down.map(|replica| replica.address.port).collect(),
        )
    }

    #[test]
    fn only_fail_is_down() {
        assert_eq!(
            ports(&replicas_of(&following("aa", NODES))),
            (vec![2, 3], vec![3])
        );
        let dd = nodes(NODES).into_iter().find(|node| &*node.id == "dd");
        assert!(dd.is_some_and(|node| node.has_slots && node.is_master));
        assert!(!nodes(NODES).last().unwrap().has_slots);
    }

    #[test]
    fn a_replica_that_went_to_another_master_or_left_is_forgotten() {
        let mut known = KnownReplicas::default();
        assert!(!known.misses_any("aa", &following("aa", NODES)));
        let later = NODES
            .replace("slave,fail? aa", "slave dd")
            .replace("cc 127.0.0.1:3@13", "c2 127.0.0.1:3@13");
        let listed = following("aa", &later);
        assert!(known.misses_any("aa", &listed));
        let replicas = known.settle("aa", &listed, &nodes(&later)).unwrap();
        assert_eq!(ports(&replicas).0, [3]);
        assert!(!known.misses_any("aa", &listed), "both are forgotten");
    }

    #[test]
    fn a_replica_that_follows_a_master_without_slots_must_still_confirm() {
        let mut known = KnownReplicas::default();
        known.misses_any("aa", &following("aa", NODES));
        let later = NODES.replace("slave,fail? aa", "slave ff");
        let listed = following("aa", &later);
        assert!(known.misses_any("aa", &listed));
        let replicas = known.settle("aa", &listed, &nodes(&later)).unwrap();
        assert_eq!(ports(&replicas).0, [3, 2]);
    }

    #[test]
    fn a_replica_that_is_a_master_by_now_is_a_rival() {
        let mut known = KnownReplicas::default();
        known.misses_any("aa", &following("aa", NODES));
        let later = NODES.replace("slave,fail? aa", "master -");
        let listed = following("aa", &later);
        for _ in 0..2 {
            assert!(known.misses_any("aa", &listed));
            let refusal = known.settle("aa", &listed, &nodes(&later)).unwrap_err();
            assert!(matches!(refusal, Refusal::Rival(rival) if rival.port == 2));
        }
    }

    /// Recorded at a promotion: the old master is dead, and the other replica still follows it.
    #[test]
    fn a_replica_that_takes_over_has_the_shard_of_its_master() {
        let mut known = KnownReplicas::default();
        known.misses_any("aa", &following("aa", NODES));
        let later = NODES
            .replace(
                "myself,master - 0 0 3 connected 0-5460",
                "master,fail - 0 0 3 connected",
            )
            .replace(
                "slave,fail? aa 0 0 3 disconnected",
                "myself,master - 0 0 5 connected 0-5460",
            )
            .replace("slave,fail aa", "slave aa");
        let listed = following("bb", &later);
        assert!(listed.is_empty() && known.misses_any("bb", &listed));
        let replicas = known.settle("bb", &listed, &nodes(&later)).unwrap();
        assert_eq!(sorted(ports(&replicas)), (vec![1, 3], vec![1]));

        // The old master is back, and not a replica yet.
        let later = later.replace("master,fail", "master");
        let replicas = known.settle("bb", &listed, &nodes(&later)).unwrap();
        assert_eq!(ports(&replicas), (vec![3], vec![]));

        // From now on it is one like others, and a rival if it takes over against the map.
        let later = later
            .replace("master - 0 0 3 connected", "slave bb 0 0 3 connected")
            .replace("slave aa", "slave bb");
        let listed = following("bb", &later);
        assert!(!known.misses_any("bb", &listed));
        let later = later.replace("slave bb 0 0 3 connected", "master - 0 0 3 connected");
        let listed = following("bb", &later);
        assert!(known.misses_any("bb", &listed));
        assert!(known.settle("bb", &listed, &nodes(&later)).is_err());
    }

    fn sorted((mut all, mut down): (Vec<u16>, Vec<u16>)) -> (Vec<u16>, Vec<u16>) {
        all.sort_unstable();
        down.sort_unstable();
        (all, down)
    }

    #[test]
    fn masters_are_told_apart() {
        let mut known = KnownReplicas::default();
        known.misses_any("aa", &following("aa", NODES));
        assert!(!known.misses_any("dd", &following("dd", NODES)));
    }

    #[test]
    fn a_line_that_cannot_be_read_makes_the_list_unreadable() {
        let list = |line: &str| {
            Value::Array(vec![Value::Bulk(bytes::Bytes::copy_from_slice(
                line.as_bytes(),
            ))])
        };
        assert!(
            ClusterNode::parse_list(&list("aa 127.0.0.1:1@11 slave bb 0 0 1 connected")).is_some()
        );
        for broken in [
            "",
            "aa",
            "aa 127.0.0.1 slave bb",
            "aa 127.0.0.1:x@1 slave bb",
        ] {
            assert_eq!(ClusterNode::parse_list(&list(broken)), None, "{broken}");
        }
        assert_eq!(ClusterNode::parse_list(&Value::Null), None);
    }
}
