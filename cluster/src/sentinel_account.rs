//! The accounts that sentinels give of a service: its master, its replicas, and which of them are down. Pure.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use std::time::Duration;

use leasehold_resp::Value;

use crate::expectation::ListedReplica;
use crate::replication_info::host;
use crate::topology::NodeAddress;

/// One sentinel's account of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The master it names.
    pub master: NodeAddress,
    /// The configuration epoch in which it was named.
    pub epoch: u64,
    /// How many other sentinels it knows.
    pub other_sentinels: usize,
    /// `down-after-milliseconds`.
    pub down_after: Duration,
    /// How long the master has been calling itself one; `None` while it says something else.
    pub master_for: Option<Duration>,
    /// The replicas it knows, connected or not. A sentinel forgets none by itself.
    pub replicas: Vec<ListedReplica>,
}

/// The state of a service, by the accounts of several sentinels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceState {
    /// The master.
    pub master: NodeAddress,
    /// All replicas that any of the sentinels which name this master knows.
    pub replicas: Vec<ListedReplica>,
    /// The shortest time that it has been a master for, by one of those sentinels.
    pub master_for: Option<Duration>,
    /// The longest `down-after-milliseconds`.
    pub down_after: Duration,
}

impl Account {
    /// Reads the replies to `SENTINEL MASTER`, `SENTINEL REPLICAS` and again `SENTINEL MASTER`, asked one after another.
    /// `None` if one of them cannot be read, or if the sentinel changed its mind in between: then the list may be that of
    /// another master.
    #[must_use]
    pub fn parse(before: &Value, replicas: &Value, after: &Value) -> Option<Self> {
        let named = |reply: &Value| {
            let epoch: u64 = number(reply, "config-epoch")?;
            Some((address(reply)?, epoch))
        };
        let (master, epoch) = named(before)?;
        if named(after)? != (master.clone(), epoch) {
            return None;
        }
        let reported = number(after, "role-reported-time").map(Duration::from_millis);
        Some(Self {
            master,
            epoch,
            other_sentinels: number(after, "num-other-sentinels")?,
            down_after: Duration::from_millis(number(after, "down-after-milliseconds")?),
            master_for: reported.filter(|_| text(after, "role-reported") == Some("master")),
            replicas: replicas
                .as_array()?
                .iter()
                .map(replica)
                .collect::<Option<_>>()?,
        })
    }
}

impl ServiceState {
    /// Combines `accounts` of a service whose URL names `known` sentinels. The account with the highest epoch counts;
    /// among equals the master that more than half of them name.
    ///
    /// A replica is down if more than half of all sentinels of the service say so. Those that do not answer do not.
    #[must_use]
    pub fn of(accounts: &[Account], known: usize) -> Option<Self> {
        let epoch = accounts.iter().map(|account| account.epoch).max()?;
        let latest: Vec<_> = accounts
            .iter()
            .filter(|account| account.epoch == epoch)
            .collect();
        let votes = |master: &NodeAddress| {
            latest
                .iter()
                .filter(|account| account.master == *master)
                .count()
        };
        let master = &latest
            .iter()
            .find(|account| votes(&account.master) > latest.len() / 2)?
            .master;
        let sentinels = accounts
            .iter()
            .map(|account| account.other_sentinels.saturating_add(1))
            .chain([known])
            .max()?;
        let naming = || accounts.iter().filter(|account| account.master == *master);
        let mut replicas: Vec<ListedReplica> = Vec::new();
        for replica in naming().flat_map(|account| &account.replicas) {
            if replicas
                .iter()
                .any(|known| known.address == replica.address)
            {
                continue;
            }
            let down = naming()
                .filter(|account| {
                    account
                        .replicas
                        .iter()
                        .any(|other| other.address == replica.address && other.is_down)
                })
                .count();
            replicas.push(ListedReplica {
                address: replica.address.clone(),
                is_down: down > sentinels / 2,
            });
        }
        Some(Self {
            master: master.clone(),
            replicas,
            master_for: naming().filter_map(|account| account.master_for).min(),
            down_after: naming()
                .map(|account| account.down_after)
                .max()
                .unwrap_or_default(),
        })
    }
}

fn replica(entry: &Value) -> Option<ListedReplica> {
    // `disconnected` says nothing: a promotion ends the sentinels' connections to the very replica that is promoted.
    let is_down = text(entry, "flags")?
        .split(',')
        .any(|flag| flag == "s_down");
    Some(ListedReplica {
        address: address(entry)?,
        is_down,
    })
}

fn address(entry: &Value) -> Option<NodeAddress> {
    Some(NodeAddress {
        host: host(text(entry, "ip")?)?,
        port: number(entry, "port")?,
    })
}

fn number<T: std::str::FromStr>(entry: &Value, name: &str) -> Option<T> {
    text(entry, name)?.parse().ok()
}

/// A field of an entry: a map, or a list of names and values.
fn text<'a>(entry: &'a Value, name: &str) -> Option<&'a str> {
    match entry {
        Value::Map(fields) => fields
            .iter()
            .find(|(key, _)| key.as_str() == Some(name))
            .and_then(|(_, value)| value.as_str()),
        entry => entry
            .as_array()?
            .chunks_exact(2)
            .find_map(|pair| match pair {
                [key, value] if key.as_str() == Some(name) => value.as_str(),
                _ => None,
            }),
    }
}

#[cfg(test)]
#[path = "sentinel_account/tests.rs"]
mod tests;
