//! The reply to `INFO replication`, and the ages of replica connections in `CLIENT LIST`. Pure.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use std::time::Duration;

use leasehold_resp::Value;

use crate::topology::NodeAddress;

/// Upper bound on the length of an id that is kept; servers use 40 characters.
const MAX_ID: usize = 64;

/// The reply to `INFO replication`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationInfo {
    /// Whether the server calls itself a master.
    pub is_master: bool,
    /// `master_replid`: the id of its data set's history. It changes with a promotion and with an empty restart.
    pub history: Box<str>,
    /// `master_replid2`: the history before the last promotion, if there was one.
    pub former_history: Option<Box<str>>,
    /// `master_repl_offset`: how far the history has got.
    pub offset: u64,
    /// Its connected replicas.
    pub replicas: Vec<ConnectedReplica>,
}

/// A replica in the `INFO replication` of its master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedReplica {
    /// Where it says it listens.
    pub address: NodeAddress,
    /// How far it has confirmed the history; 0 until its first synchronisation has ended.
    pub offset: u64,
}

impl ReplicationInfo {
    /// Reads a reply; `None` if it is not one to `INFO replication`.
    ///
    /// A replica whose line cannot be read makes it unreadable: one that is overlooked would not have to confirm.
    #[must_use]
    pub fn parse(reply: &Value) -> Option<Self> {
        let text = reply.as_str()?;
        let mut replicas = Vec::new();
        for line in text.lines() {
            if let Some((name, value)) = line.split_once(':')
                && name.strip_prefix("slave").is_some_and(is_number)
            {
                replicas.push(ConnectedReplica::parse(value)?);
            }
        }
        let former = field(text, "master_replid2").filter(|id| id.bytes().any(|byte| byte != b'0'));
        Some(Self {
            is_master: field(text, "role")? == "master",
            history: id(field(text, "master_replid")?)?,
            former_history: match former {
                Some(former) => Some(id(former)?),
                None => None,
            },
            offset: field(text, "master_repl_offset")?.parse().ok()?,
            replicas,
        })
    }

    /// How far the replica at `address` has confirmed; `None` if it is not connected.
    #[must_use]
    pub fn confirmed_by(&self, address: &NodeAddress) -> Option<u64> {
        // A replica that reconnects can be listed twice until the old connection is given up.
        self.replicas
            .iter()
            .filter(|replica| replica.address == *address)
            .map(|replica| replica.offset)
            .max()
    }
}

impl ConnectedReplica {
    /// Reads `ip=127.0.0.1,port=6380,state=online,offset=1520,lag=0`.
    fn parse(line: &str) -> Option<Self> {
        let part = |name: &str| {
            line.split(',')
                .filter_map(|part| part.split_once('='))
                .find_map(|(key, value)| (key == name).then_some(value))
        };
        let is_online = part("state") == Some("online");
        let offset: u64 = part("offset").map_or(Some(0), |offset| offset.parse().ok())?;
        Some(Self {
            address: NodeAddress {
                host: host(part("ip")?)?,
                port: part("port")?.parse().ok()?,
            },
            offset: if is_online { offset } else { 0 },
        })
    }
}

/// How long the longest connected replica has been connected, by a reply to `CLIENT LIST TYPE replica`, in whole seconds
/// rounded down; `None` without any. A promotion reconnects all replicas, so the server has been a master for longer.
#[must_use]
pub fn oldest_replica(clients: &Value) -> Option<Duration> {
    let age = |line: &str| {
        line.split(' ')
            .find_map(|part| part.strip_prefix("age="))?
            .parse()
            .ok()
    };
    clients
        .as_str()?
        .lines()
        .filter_map(age)
        .max()
        .map(Duration::from_secs)
}

/// A host that can be connected to and shown in a message.
pub(crate) fn host(host: &str) -> Option<String> {
    let is_good = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control());
    is_good.then(|| host.to_owned())
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim_end)
}

fn id(id: &str) -> Option<Box<str>> {
    let is_id = (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric());
    is_id.then(|| id.into())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn text(text: &str) -> Value {
        Value::Bulk(bytes::Bytes::copy_from_slice(text.as_bytes()))
    }

    /// Redis 7.0.15 and Valkey 9.1.2, at the promoted replica whose other replica has just come back.
    const REDIS: &str = "# Replication\r\nrole:master\r\nconnected_slaves:2\r\n\
        slave0:ip=127.0.0.1,port=21002,state=online,offset=4711,lag=0\r\n\
        slave1:ip=127.0.0.1,port=21003,state=wait_bgsave,offset=0,lag=0\r\n\
        master_failover_state:no-failover\r\n\
        master_replid:2b2c4ae6b4d35b8f7e0e0e2a7a3bdc6d8ad4f3b1\r\n\
        master_replid2:91e3a7a5e1f0c8d7b6a5948372615049382716fe\r\n\
        master_repl_offset:4720\r\nsecond_repl_offset:4501\r\nrepl_backlog_active:1\r\n";
    const VALKEY: &str = "# Replication\r\nrole:master\r\nconnected_slaves:1\r\nreplicas_waiting_psync:0\r\n\
        slave0:ip=::1,port=6380,state=online,offset=98,lag=1,type=replica\r\n\
        master_failover_state:no-failover\r\n\
        master_replid:0000000000000000000000000000000000000001\r\n\
        master_replid2:0000000000000000000000000000000000000000\r\n\
        master_repl_offset:112\r\nsecond_repl_offset:-1\r\n";

    #[test]
    fn a_master_with_its_replicas() {
        let info = ReplicationInfo::parse(&text(REDIS)).unwrap();
        assert!(info.is_master && info.offset == 4720 && info.former_history.is_some());
        let at = |port| NodeAddress {
            host: "127.0.0.1".into(),
            port,
        };
        assert_eq!(info.confirmed_by(&at(21002)), Some(4711));
        assert_eq!(info.confirmed_by(&at(21003)), Some(0));
        assert_eq!(info.confirmed_by(&at(21001)), None);
        let info = ReplicationInfo::parse(&text(VALKEY)).unwrap();
        assert_eq!((info.former_history, info.replicas.len()), (None, 1));
        assert_eq!(info.replicas.first().unwrap().address.host, "::1");
    }

    #[test]
    fn a_replica_and_what_cannot_be_read() {
        let replica = VALKEY.replace("role:master", "role:slave");
        assert!(!ReplicationInfo::parse(&text(&replica)).unwrap().is_master);
        for broken in [
            VALKEY.replace("port=6380", "port=x"),
            VALKEY.replace("ip=::1,", ""),
            VALKEY.replace("offset=98", "offset=-1"),
            VALKEY.replace("master_replid:", "other:"),
            VALKEY.replace("master_repl_offset:112", "master_repl_offset:"),
            String::new(),
        ] {
            assert_eq!(ReplicationInfo::parse(&text(&broken)), None, "{broken}");
        }
        assert_eq!(ReplicationInfo::parse(&Value::Integer(1)), None);
    }

    #[test]
    fn the_age_of_the_oldest_replica() {
        let clients =
            "id=5 addr=127.0.0.1:1 age=12 idle=0 flags=S\nid=9 addr=127.0.0.1:2 age=3 flags=S\n";
        assert_eq!(
            oldest_replica(&text(clients)),
            Some(Duration::from_secs(12))
        );
        assert_eq!(oldest_replica(&text("")), None);
    }
}
