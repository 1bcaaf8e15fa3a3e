//! Views of a cluster: the masters and their slots as one node reports them, and the agreement of several views.
//!
//! A view is never changed in place; a change makes another one.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use std::collections::HashMap;
use std::fmt;

use leasehold_resp::{Address, Endpoint, Value};

use crate::slot::SLOTS;

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeAddress {
    /// Name or address; IPv6 without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// A master and its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The node that takes writes.
    pub master: NodeAddress,
    /// The nodes that follow it, as far as this view knows.
    pub replicas: Vec<NodeAddress>,
}

/// The masters and the slots that they serve.
#[derive(Clone, PartialEq, Eq)]
pub struct View {
    shards: Vec<Shard>,
    /// For each slot an index into `shards`, or [`UNSERVED`].
    /// A single entry if one shard serves everything: a lone server needs no table.
    slots: Vec<u16>,
    /// Other names of nodes. A node that is called by its host name here has an address in redirects, unless the servers
    /// are told to prefer names there too.
    aliases: HashMap<NodeAddress, NodeAddress>,
}

const UNSERVED: u16 = u16::MAX;

/// A reply that is no topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply to CLUSTER SLOTS cannot be used: {0}")]
pub struct BadTopology(&'static str);

impl View {
    /// Reads the reply to `CLUSTER SLOTS` of the node at `asked`.
    ///
    /// A host that is empty or null is the host that was asked. A `?` means that the node wants to announce a name and
    /// has none: the address in the metadata of the entry is used then. Without one the node cannot be reached, and its
    /// slots count as unserved. With `names`, the host name in the
    /// metadata of an entry goes before its address: certificates are made out to names.
    ///
    /// # Errors
    ///
    /// The reply has another shape, or serves no slot at all: an empty map is never worth having.
    pub fn parse(reply: &Value, asked: &NodeAddress, names: bool) -> Result<Self, BadTopology> {
        let ranges = reply.as_array().ok_or(BadTopology("not an array"))?;
        let mut view = Self {
            shards: Vec::new(),
            slots: vec![UNSERVED; SLOTS as usize],
            aliases: HashMap::new(),
        };
        let mut known = HashMap::new();
        for range in ranges {
            let [start, end, nodes @ ..] = range
                .as_array()
                .ok_or(BadTopology("a range is not an array"))?
            else {
                return Err(BadTopology("a range without its ends"));
            };
            let (start, end) = (slot_number(start)?, slot_number(end)?);
            let mut nodes = nodes
                .iter()
                .map(|node| address(node, asked, names, &mut view.aliases));
            // The first one is the master, reachable or not: a replica in its place would refuse every write.
            let Some(master) = nodes.next().transpose()?.flatten() else {
                continue;
            };
            let replicas = nodes
                .filter_map(Result::transpose)
                .collect::<Result<_, _>>()?;
            let index = match known.get(&master) {
                Some(index) => *index,
                None => {
                    let index = u16::try_from(view.shards.len())
                        .map_err(|_| BadTopology("too many masters"))?;
                    known.insert(master.clone(), index);
                    view.shards.push(Shard { master, replicas });
                    index
                }
            };
            let slots = view
                .slots
                .get_mut(start..=end)
                .ok_or(BadTopology("a range ends before it starts"))?;
            slots.fill(index);
        }
        if view.coverage() == 0 {
            Err(BadTopology("it serves no slot"))
        } else {
            Ok(view)
        }
    }

    /// No shard at all: nothing is known yet.
    #[must_use]
    pub(crate) fn none() -> Self {
        Self {
            shards: Vec::new(),
            slots: vec![UNSERVED; SLOTS as usize],
            aliases: HashMap::new(),
        }
    }

    /// One shard that serves everything: a server that is not a cluster.
    #[must_use]
    pub fn single(shard: Shard) -> Self {
        Self {
            shards: vec![shard],
            slots: vec![0],
            aliases: HashMap::new(),
        }
    }

    /// The view that most of `views` agree with; among equals the one that serves most slots, then the one with most names
    /// (a node learns those of others by and by), then the first.
    ///
    /// Neither `CLUSTER SLOTS` nor `CLUSTER SHARDS` carries an epoch, so age cannot decide.
    #[must_use]
    pub fn agreed(views: Vec<Self>) -> Option<Self> {
        let votes = |view: &Self| views.iter().filter(|other| other.agrees_with(view)).count();
        let best = views
            .iter()
            .rev()
            .max_by_key(|view| (votes(view), view.coverage(), view.aliases.len()))?;
        Some(best.clone())
    }

    /// The same view with `slot` at `master`, which the view need not have known.
    #[must_use]
    pub fn with_moved(&self, slot: u16, master: &NodeAddress) -> Self {
        let mut view = self.clone();
        if view.is_single() {
            view.slots = vec![0; SLOTS as usize];
        }
        let index = view
            .shards
            .iter()
            .position(|shard| shard.master == *master)
            .unwrap_or_else(|| {
                view.shards.push(Shard {
                    master: master.clone(),
                    replicas: Vec::new(),
                });
                view.shards.len().saturating_sub(1)
            });
        if let (Some(owner), Ok(index)) =
            (view.slots.get_mut(usize::from(slot)), u16::try_from(index))
        {
            *owner = index;
        }
        view
    }

    /// The address that this view has for the node that has another name, or this one, elsewhere.
    #[must_use]
    pub fn known_as<'a>(&'a self, address: &'a NodeAddress) -> &'a NodeAddress {
        if self.shards.iter().any(|shard| shard.master == *address) {
            return address;
        }
        self.aliases.get(address).unwrap_or(address)
    }

    /// The masters with their replicas, in the order the view named them.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The index of the shard that serves `slot`.
    #[must_use]
    pub fn owner(&self, slot: u16) -> Option<usize> {
        let index = if self.is_single() {
            0
        } else {
            usize::from(slot)
        };
        self.slots
            .get(index)
            .filter(|owner| **owner != UNSERVED)
            .map(|owner| usize::from(*owner))
    }

    /// Whether one shard serves everything, without slots.
    #[must_use]
    pub const fn is_single(&self) -> bool {
        self.slots.len() == 1
    }

    /// How many slots are served.
    #[must_use]
    pub fn coverage(&self) -> usize {
        if self.is_single() {
            return SLOTS as usize;
        }
        self.slots
            .iter()
            .filter(|owner| **owner != UNSERVED)
            .count()
    }

    /// Whether both name the same master for each slot. Replicas come and go at different times for different nodes.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        // Slots come in long runs: what was compared for the one before need not be compared again.
        let mut same = None;
        self.slots.iter().zip(&other.slots).all(|(&ours, &theirs)| {
            same == Some((ours, theirs)) || {
                same = Some((ours, theirs));
                match (self.master(ours), other.master(theirs)) {
                    (Some(ours), Some(theirs)) => {
                        ours == theirs
                            || self.known_as(theirs) == ours
                            || other.known_as(ours) == theirs
                    }
                    (ours, theirs) => ours == theirs,
                }
            }
        })
    }

    fn master(&self, owner: u16) -> Option<&NodeAddress> {
        self.shards
            .get(usize::from(owner))
            .map(|shard| &shard.master)
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("shards", &self.shards)
            .field("coverage", &self.coverage())
            .finish()
    }
}

impl NodeAddress {
    /// The endpoint of the node: `template` with another address.
    pub(crate) fn endpoint(&self, template: &Endpoint) -> Endpoint {
        let mut endpoint = template.clone();
        endpoint.address = Address::Tcp {
            host: self.host.clone(),
            port: self.port,
        };
        endpoint
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

fn slot_number(value: &Value) -> Result<usize, BadTopology> {
    let number = value
        .as_int()
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number < SLOTS);
    number
        .map(usize::from)
        .ok_or(BadTopology("a slot out of range"))
}

/// `[endpoint, port, id, metadata]`; `None` for a node that cannot be reached. What else it is called goes to `aliases`.
fn address(
    node: &Value,
    asked: &NodeAddress,
    names: bool,
    aliases: &mut HashMap<NodeAddress, NodeAddress>,
) -> Result<Option<NodeAddress>, BadTopology> {
    let [endpoint, port, rest @ ..] = node
        .as_array()
        .ok_or(BadTopology("a node is not an array"))?
    else {
        return Err(BadTopology("a node without host and port"));
    };
    let port = port
        .as_int()
        .and_then(|port| u16::try_from(port).ok())
        .ok_or(BadTopology("a port out of range"))?;
    let said = |key| rest.get(1).and_then(|metadata| entry(metadata, key));
    let (ip, name) = (said("ip"), said("hostname"));
    let host = match (name.filter(|_| names), endpoint) {
        (Some(name), _) => name,
        (None, Value::Null) => &asked.host,
        (None, endpoint) => match endpoint
            .as_str()
            .ok_or(BadTopology("a host that is not text"))?
        {
            "" => &asked.host,
            "?" => match ip {
                Some(ip) => ip,
                None => return Ok(None),
            },
            host => host,
        },
    };
    let address = NodeAddress {
        host: host.to_owned(),
        port,
    };
    for other in [endpoint.as_str(), ip, name].into_iter().flatten() {
        if !matches!(other, "" | "?") && other != host {
            aliases.insert(
                NodeAddress {
                    host: other.to_owned(),
                    port,
                },
                address.clone(),
            );
        }
    }
    Ok(Some(address))
}

/// The value of `wanted` in an entry's metadata, which is a flat array in RESP2 and a map in RESP3.
fn entry<'a>(metadata: &'a Value, wanted: &str) -> Option<&'a str> {
    let found = match metadata {
        Value::Map(pairs) => pairs
            .iter()
            .find(|(key, _)| key.as_str() == Some(wanted))
            .map(|(_, value)| value),
        Value::Array(flat) => flat.chunks_exact(2).find_map(|pair| match pair {
            [key, value] if key.as_str() == Some(wanted) => Some(value),
            _ => None,
        }),
        _ => None,
    };
    found
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty() && *name != "?")
}
