//! Any reply to the questions about replicas: no panic, no address that cannot be connected to, no replica that is
//! overlooked, and no confirmation that the offsets do not bear out.
#![no_main]

use leasehold_cluster::cluster_replicas::{ClusterNode, KnownReplicas, replicas_of};
use leasehold_cluster::expectation::{Expectation, ListedReplica, Quorum, Verdict};
use leasehold_cluster::replication_info::{ReplicationInfo, oldest_replica};
use leasehold_cluster::sentinel_account::{Account, ServiceState};
use leasehold_fuzz::decode;
use leasehold_resp::{Frame, Limits, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (frames, _) = decode(Limits::default(), [input]);
    let replies: Vec<Value> = frames
        .into_iter()
        .filter_map(|frame| match frame {
            Frame::Reply(reply) => Some(reply),
            Frame::Push(_) => None,
        })
        .collect();
    let mut listed = sentinels(&replies);
    listed.extend(cluster(&replies));
    for reply in &replies {
        let _ = oldest_replica(reply);
        if let Some(info) = ReplicationInfo::parse(reply) {
            let text = reply.as_str().unwrap();
            let lines = text.lines().filter(|line| is_replica(line)).count();
            assert_eq!(lines, info.replicas.len());
            expectations(&listed, &info);
        }
    }
});

/// A line of `INFO replication` that tells of a replica.
fn is_replica(line: &str) -> bool {
    let number = line
        .split_once(':')
        .and_then(|(name, _)| name.strip_prefix("slave"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

fn sentinels(replies: &[Value]) -> Vec<ListedReplica> {
    let mut accounts = Vec::new();
    for asked in replies.windows(3) {
        if let Some(account) = Account::parse(&asked[0], &asked[1], &asked[2]) {
            assert_eq!(
                asked[1].as_array().map(<[Value]>::len),
                Some(account.replicas.len())
            );
            assert!(
                account
                    .replicas
                    .iter()
                    .all(|replica| !replica.address.host.is_empty())
            );
            accounts.push(account);
        }
    }
    let Some(state) = ServiceState::of(&accounts, 3) else {
        return Vec::new();
    };
    for account in accounts
        .iter()
        .filter(|account| account.master == state.master)
    {
        for replica in &account.replicas {
            assert!(
                state
                    .replicas
                    .iter()
                    .any(|known| known.address == replica.address)
            );
        }
    }
    // Fewer than two of three sentinels are no majority.
    assert!(accounts.len() > 1 || state.replicas.iter().all(|replica| !replica.is_down));
    state.replicas
}

fn cluster(replies: &[Value]) -> Vec<ListedReplica> {
    let mut known = KnownReplicas::default();
    let mut replicas = Vec::new();
    for reply in replies {
        let nodes = ClusterNode::parse_nodes(reply).unwrap_or_default();
        let Some(listed) = ClusterNode::parse_list(reply) else {
            continue;
        };
        for master in ["", "a"] {
            let misses = known.misses_any(master, &listed);
            if let Ok(settled) = known.settle(master, &listed, &nodes) {
                assert!(settled.len() >= listed.len());
                assert!(misses || settled.len() == listed.len());
            }
        }
        replicas.extend(replicas_of(&listed));
    }
    replicas
}

fn expectations(listed: &[ListedReplica], info: &ReplicationInfo) {
    for quorum in [Quorum::All, Quorum::AtLeast(1), Quorum::AtLeast(2)] {
        let Ok(expectation) = Expectation::new(quorum, listed, info) else {
            continue;
        };
        for offset in [0, 1, info.offset, u64::MAX] {
            let confirmed = info
                .replicas
                .iter()
                .filter(|replica| replica.offset >= offset)
                .count();
            match expectation.judge(offset, info) {
                Verdict::Confirmed(count) => {
                    assert!(count <= confirmed && count >= expectation.required());
                }
                Verdict::Missing {
                    confirmed: count,
                    wait_for,
                } => {
                    assert!(count <= confirmed && wait_for >= expectation.required());
                    assert!(count < expectation.required());
                }
            }
        }
    }
}
