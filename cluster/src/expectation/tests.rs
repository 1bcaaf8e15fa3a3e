#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use crate::replication_info::ConnectedReplica;

fn at(port: u16) -> NodeAddress {
    NodeAddress {
        host: "10.0.0.1".into(),
        port,
    }
}

fn listed(ports: &[u16], down: &[u16]) -> Vec<ListedReplica> {
    ports
        .iter()
        .map(|port| ListedReplica {
            address: at(*port),
            is_down: down.contains(port),
        })
        .collect()
}

/// A master whose replicas have confirmed so much.
fn info_of(replicas: &[(u16, u64)]) -> ReplicationInfo {
    ReplicationInfo {
        is_master: true,
        history: "a".into(),
        former_history: None,
        offset: 100,
        replicas: replicas
            .iter()
            .map(|(port, offset)| ConnectedReplica {
                address: at(*port),
                offset: *offset,
            })
            .collect(),
    }
}

fn all(listed: &[ListedReplica], info: &ReplicationInfo) -> Result<Expectation, Refusal> {
    Expectation::new(Quorum::All, listed, info)
}

#[test]
fn what_is_listed_must_confirm_whether_or_not_it_is_connected() {
    let info = info_of(&[(2, 100)]);
    let both = all(&listed(&[1, 2], &[]), &info).unwrap();
    assert_eq!(both.required(), 2);
    assert_eq!(
        both.judge(100, &info),
        Verdict::Missing {
            confirmed: 1,
            wait_for: 2
        },
        "one that the master has lost may be its successor"
    );
}

#[test]
fn what_is_connected_must_confirm_whether_or_not_it_is_listed() {
    let info = info_of(&[(1, 100), (3, 40)]);
    let both = all(&listed(&[1], &[]), &info).unwrap();
    assert_eq!(both.required(), 2);
    assert_eq!(
        both.judge(100, &info),
        Verdict::Missing {
            confirmed: 1,
            wait_for: 2
        }
    );
}

#[test]
fn what_a_majority_holds_to_be_down_need_not_confirm() {
    let info = info_of(&[(2, 100)]);
    let one = all(&listed(&[1, 2], &[1]), &info).unwrap();
    assert!(one.used_drop);
    assert_eq!(one.required(), 1);
    assert_eq!(one.judge(100, &info), Verdict::Confirmed(1));
    let live = all(&listed(&[1, 2], &[]), &info).unwrap();
    assert!(!live.used_drop);
}

#[test]
fn with_every_replica_down_nothing_needs_to_confirm_and_without_any_nothing_can() {
    let alone = info_of(&[]);
    let none = all(&listed(&[1], &[1]), &alone).unwrap();
    assert_eq!((none.required(), none.used_drop), (0, true));
    assert_eq!(none.judge(100, &alone), Verdict::Confirmed(0));
    assert_eq!(all(&[], &alone), Err(Refusal::NoneListed));
    assert_eq!(
        Expectation::new(Quorum::AtLeast(1), &[], &alone),
        Err(Refusal::NoneListed)
    );
}

#[test]
fn others_cannot_make_up_the_number() {
    // One that is held to be down has confirmed it, and one that must has not.
    let info = info_of(&[(1, 100), (2, 99)]);
    let one = all(&listed(&[1, 2], &[1]), &info).unwrap();
    assert_eq!(
        one.judge(100, &info),
        Verdict::Missing {
            confirmed: 0,
            wait_for: 2
        }
    );
    let both = info_of(&[(1, 100), (2, 100)]);
    assert_eq!(one.judge(100, &both), Verdict::Confirmed(2));
}

#[test]
fn a_replica_under_two_names_is_counted_once() {
    // Listed by the addresses clients use, connected from others.
    let info = info_of(&[(11, 100), (12, 100)]);
    let two = all(&listed(&[1, 2], &[1]), &info).unwrap();
    assert_eq!((two.required(), two.used_drop), (2, false));
    assert_eq!(two.judge(100, &info), Verdict::Confirmed(2));
    let fewer = info_of(&[(11, 100)]);
    let two = all(&listed(&[1, 2], &[]), &fewer).unwrap();
    assert_eq!(
        two.judge(100, &fewer),
        Verdict::Missing {
            confirmed: 1,
            wait_for: 2
        }
    );
}

#[test]
fn a_replica_that_is_connected_twice_counts_once() {
    let info = info_of(&[(1, 100), (1, 20)]);
    let both = Expectation::new(Quorum::AtLeast(2), &listed(&[1, 2], &[]), &info).unwrap();
    assert_eq!(
        both.judge(100, &info),
        Verdict::Missing {
            confirmed: 1,
            wait_for: 2
        }
    );
}

#[test]
fn at_least_counts_whichever_confirm_and_leaves_none_out() {
    let info = info_of(&[(2, 100), (1, 3)]);
    let one = Expectation::new(Quorum::AtLeast(1), &listed(&[1, 2], &[1]), &info).unwrap();
    assert!(!one.used_drop);
    assert_eq!(one.judge(100, &info), Verdict::Confirmed(1));
    let two = Expectation::new(Quorum::AtLeast(2), &listed(&[1, 2], &[1]), &info).unwrap();
    assert_eq!(two.required(), 2, "closed while one of two is down");
    assert_eq!(
        Expectation::new(Quorum::AtLeast(3), &listed(&[1, 2], &[]), &info),
        Err(Refusal::TooManyAskedFor {
            asked: 3,
            listed: 2
        })
    );
}

#[test]
fn a_replica_that_is_listed_twice_counts_once_and_is_down_only_if_both_say_so() {
    let info = info_of(&[]);
    let twice = |first, second| {
        let mut listed = listed(&[1, 1], &[]);
        (listed[0].is_down, listed[1].is_down) = (first, second);
        all(&listed, &info).map(|expectation| expectation.required())
    };
    assert_eq!(twice(false, false), Ok(1));
    assert_eq!(twice(true, false), Ok(1));
    assert_eq!(twice(true, true), Ok(0));
}
