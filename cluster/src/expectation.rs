//! Which replicas must have a write before it counts, and whether they have it. Pure.
//!
//! The expectation comes from the sentinels or from the cluster's node list, and belongs to a master. A master's own word
//! on its connected replicas only adds to it: a master that was frozen while it was replaced finds fewer replicas than
//! there are, and one of those that are missing has taken its place.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use std::fmt;

use crate::replication_info::ReplicationInfo;
use crate::topology::NodeAddress;

/// How many replicas must confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quorum {
    /// All that are listed for the master, without those that a majority holds to be down.
    All,
    /// This many of those that are listed.
    AtLeast(usize),
}

/// A replica as sentinels or a cluster list it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedReplica {
    /// Where it listens.
    pub address: NodeAddress,
    /// Whether a majority holds it to be down: `s_down` at more than half of the sentinels, `fail` in a cluster.
    pub is_down: bool,
}

/// Why a write does not count although it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Fewer replicas confirmed it in time than had to.
    TooFew {
        /// Replicas that confirmed it.
        confirmed: usize,
        /// Replicas that had to.
        required: usize,
    },
    /// No replica is known, so "all" would confirm nothing.
    NoneListed,
    /// More replicas were asked for than there are.
    TooManyAskedFor {
        /// Asked for.
        asked: usize,
        /// Known.
        listed: usize,
    },
    /// The server stopped being the master, or its data were replaced, before replicas had confirmed the write.
    NotMasterAnyMore,
    /// A former replica of the server calls itself a master now.
    Rival(NodeAddress),
    /// A replica was left out because it was held to be down, and that could not be confirmed again.
    DownNoLonger,
}

/// The replicas that must confirm one write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    rule: Rule,
    /// Whether a listed replica was left out because it is held to be down.
    pub(crate) used_drop: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// Each of these.
    Each(Vec<NodeAddress>),
    /// This many, whichever they are.
    Count(usize),
}

/// Whether a write is confirmed, by the `INFO replication` after its `WAIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Confirmed, by this many replicas.
    Confirmed(usize),
    /// Not by all that must: this many is what to `WAIT` for next, so that others cannot make up the number.
    Missing {
        /// Confirmations so far.
        confirmed: usize,
        /// The number to wait for.
        wait_for: usize,
    },
}

impl Expectation {
    /// Decides what must confirm a write at a master for which `listed` replicas are known, and which says `info` of its
    /// own.
    ///
    /// # Errors
    ///
    /// The replicas that are known can never be enough.
    pub fn new(
        quorum: Quorum,
        listed: &[ListedReplica],
        info: &ReplicationInfo,
    ) -> Result<Self, Refusal> {
        let listed = distinct(listed);
        let is_listed =
            |address: &NodeAddress| listed.iter().any(|known| known.address == *address);
        let mut connected: Vec<&NodeAddress> = Vec::new();
        for replica in &info.replicas {
            if !connected.contains(&&replica.address) {
                connected.push(&replica.address);
            }
        }
        let unlisted = connected
            .iter()
            .filter(|address| !is_listed(address))
            .count();
        let absent = listed
            .iter()
            .filter(|replica| !connected.contains(&&replica.address))
            .count();
        let known = listed.len().saturating_add(unlisted);
        if known == 0 {
            return Err(Refusal::NoneListed);
        }
        // A replica behind address translation, or with a host name here and an address there, is listed under one name
        // and connected under another: then only the number of confirmations can be checked.
        let names_differ = unlisted > 0 && absent > 0;
        let count = if names_differ {
            listed.len().max(connected.len())
        } else {
            known
        };
        match quorum {
            Quorum::AtLeast(asked) if asked > count => Err(Refusal::TooManyAskedFor {
                asked,
                listed: count,
            }),
            Quorum::AtLeast(asked) => Ok(Self::counting(asked)),
            Quorum::All if names_differ => Ok(Self::counting(count)),
            Quorum::All => {
                let is_down = |address: &NodeAddress| {
                    listed
                        .iter()
                        .any(|known| known.address == *address && known.is_down)
                };
                let all = listed.iter().map(|known| &known.address);
                let added = connected.into_iter().filter(|address| !is_listed(address));
                let each: Vec<_> = all
                    .chain(added)
                    .filter(|address| !is_down(address))
                    .cloned()
                    .collect();
                Ok(Self {
                    used_drop: each.len() < known,
                    rule: Rule::Each(each),
                })
            }
        }
    }

    const fn counting(count: usize) -> Self {
        Self {
            rule: Rule::Count(count),
            used_drop: false,
        }
    }

    /// How many replicas must confirm.
    #[must_use]
    pub fn required(&self) -> usize {
        match &self.rule {
            Rule::Each(each) => each.len(),
            Rule::Count(count) => *count,
        }
    }

    /// Whether `info`, of the same history, shows that all who must have confirmed it up to `offset`.
    #[must_use]
    pub fn judge(&self, offset: u64, info: &ReplicationInfo) -> Verdict {
        let mut confirmed: Vec<&NodeAddress> = Vec::new();
        for replica in &info.replicas {
            if replica.offset >= offset && !confirmed.contains(&&replica.address) {
                confirmed.push(&replica.address);
            }
        }
        let count = confirmed.len();
        match &self.rule {
            Rule::Count(required) if count >= *required => Verdict::Confirmed(count),
            Rule::Count(required) => Verdict::Missing {
                confirmed: count,
                wait_for: *required,
            },
            Rule::Each(each) if each.iter().all(|address| confirmed.contains(&address)) => {
                Verdict::Confirmed(count)
            }
            Rule::Each(each) => {
                let others = confirmed
                    .iter()
                    .filter(|address| !each.contains(address))
                    .count();
                Verdict::Missing {
                    confirmed: count.saturating_sub(others),
                    wait_for: each.len().saturating_add(others),
                }
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew {
                confirmed,
                required,
            } => write!(f, "{confirmed} of {required} replicas confirmed it in time"),
            Self::NoneListed => f.write_str("the server has no known replica"),
            Self::TooManyAskedFor { asked, listed } => {
                write!(
                    f,
                    "{asked} replicas must confirm it, and there are {listed}"
                )
            }
            Self::NotMasterAnyMore => f.write_str(
                "the server stopped being the master before its replicas had confirmed it",
            ),
            Self::Rival(rival) => write!(
                f,
                "{rival}, which was a replica of the server, is a master by now"
            ),
            Self::DownNoLonger => f.write_str(
                "a replica that was held to be down may be back, and did not confirm it",
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// Each address once; down only if all that is listed there is.
fn distinct(listed: &[ListedReplica]) -> Vec<ListedReplica> {
    let mut distinct: Vec<ListedReplica> = Vec::with_capacity(listed.len());
    for replica in listed {
        match distinct
            .iter_mut()
            .find(|known| known.address == replica.address)
        {
            Some(known) => known.is_down &= replica.is_down,
            None => distinct.push(replica.clone()),
        }
    }
    distinct
}

#[cfg(test)]
#[path = "expectation/tests.rs"]
mod tests;
