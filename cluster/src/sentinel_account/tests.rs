#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use bytes::Bytes;

fn bulk(text: &str) -> Value {
    Value::Bulk(Bytes::copy_from_slice(text.as_bytes()))
}

fn map(fields: &[(&str, &str)]) -> Value {
    Value::Map(
        fields
            .iter()
            .map(|(key, value)| (bulk(key), bulk(value)))
            .collect(),
    )
}

fn master(port: &str, epoch: &str) -> Value {
    map(&[
        ("name", "mymaster"),
        ("ip", "127.0.0.1"),
        ("port", port),
        ("flags", "master"),
        ("role-reported", "master"),
        ("role-reported-time", "8000"),
        ("config-epoch", epoch),
        ("num-slaves", "2"),
        ("num-other-sentinels", "2"),
        ("down-after-milliseconds", "500"),
    ])
}

/// Replicas with their flags.
fn replicas(entries: &[(&str, &str)]) -> Value {
    Value::Array(
        entries
            .iter()
            .map(|(port, flags)| {
                map(&[
                    ("ip", "127.0.0.1"),
                    ("port", port),
                    ("flags", flags),
                    ("master-link-status", "err"),
                ])
            })
            .collect(),
    )
}

fn account(port: &str, epoch: &str, entries: &[(&str, &str)]) -> Account {
    let named = master(port, epoch);
    Account::parse(&named, &replicas(entries), &named).unwrap()
}

/// The ports of the replicas, and of those that are down.
fn state(accounts: &[Account]) -> (u16, Vec<u16>, Vec<u16>) {
    let state = ServiceState::of(accounts, 3).unwrap();
    let ports = |down: bool| {
        state
            .replicas
            .iter()
            .filter(|replica| !down || replica.is_down)
            .map(|replica| replica.address.port)
            .collect()
    };
    (state.master.port, ports(false), ports(true))
}

#[test]
fn a_replica_that_two_of_three_hold_to_be_down_is_down() {
    let frozen = [("2", "s_down,slave"), ("3", "slave")];
    let fine = [("2", "slave"), ("3", "slave")];
    let (two, three) = (account("1", "0", &frozen), account("1", "0", &fine));
    assert_eq!(
        state(&[two.clone(), two.clone(), three.clone()]),
        (1, vec![2, 3], vec![2])
    );
    assert_eq!(state(&[two.clone(), three.clone(), three]).2, []);
    assert_eq!(state(&[two]).2, [], "one of three is no majority");
}

/// Recorded at the promotion of 2: the sentinels' connections to it are gone, and it is the one that must not be left out.
#[test]
fn a_replica_that_is_merely_disconnected_is_not_down() {
    let promoted = [("2", "slave,disconnected,promoted"), ("3", "slave")];
    let all = [
        account("1", "0", &promoted),
        account("1", "0", &[("2", "slave,disconnected"), ("3", "slave")]),
        account("1", "0", &promoted),
    ];
    assert_eq!(state(&all), (1, vec![2, 3], vec![]));
}

/// Recorded after a switch with the old master dead.
#[test]
fn an_old_master_that_is_dead_is_down() {
    let dead = [("1", "s_down,slave,disconnected"), ("3", "slave")];
    let all: Vec<_> = (0..3).map(|_| account("2", "1", &dead)).collect();
    assert_eq!(state(&all), (2, vec![1, 3], vec![1]));
}

#[test]
fn a_sentinel_that_knows_more_sentinels_raises_the_majority() {
    let down = [("2", "s_down,slave")];
    let mut accounts: Vec<_> = (0..3).map(|_| account("1", "0", &down)).collect();
    accounts[0].other_sentinels = 5;
    assert_eq!(state(&accounts).2, [], "three of six");
}

#[test]
fn a_later_epoch_beats_a_majority() {
    let old = account("1", "4", &[("2", "slave"), ("3", "slave")]);
    let new = account("2", "5", &[("1", "slave"), ("3", "slave")]);
    assert_eq!(state(&[old.clone(), old, new]).0, 2);
}

#[test]
fn sentinels_that_disagree_in_the_same_epoch_name_nobody() {
    let (one, two) = (account("1", "0", &[]), account("2", "0", &[]));
    assert_eq!(ServiceState::of(&[one.clone(), two], 3), None);
    assert_eq!(ServiceState::of(&[one], 3).unwrap().master.port, 1);
    assert_eq!(ServiceState::of(&[], 3), None);
}

#[test]
fn replicas_that_one_sentinel_has_not_heard_of_are_listed() {
    let all = [
        account("1", "0", &[("2", "slave")]),
        account("1", "0", &[("3", "slave")]),
    ];
    assert_eq!(state(&all).1, [2, 3]);
}

/// The leader of a failover names the new master in its list of replicas a second before in its list of masters.
#[test]
fn a_pair_that_changed_in_between_is_no_account() {
    let list = replicas(&[("1", "slave"), ("3", "slave")]);
    assert_eq!(
        Account::parse(&master("1", "0"), &list, &master("2", "1")),
        None
    );
    assert_eq!(
        Account::parse(&master("2", "0"), &list, &master("2", "1")),
        None
    );
    let unreadable = replicas(&[("x", "slave")]);
    let named = master("1", "0");
    assert_eq!(
        Account::parse(&named, &unreadable, &named),
        None,
        "a replica that is overlooked would not have to confirm"
    );
}

#[test]
fn the_shortest_mastership_counts() {
    let mut accounts = vec![account("1", "0", &[]), account("1", "0", &[])];
    accounts[1].master_for = Some(Duration::from_secs(3));
    let state = ServiceState::of(&accounts, 2).unwrap();
    assert_eq!(state.master_for, Some(Duration::from_secs(3)));
}
