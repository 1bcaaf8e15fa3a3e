//! Replies of sentinels about a master, and the master's `ROLE`: every reply is read entirely or
//! refused.

use leasehold_cluster::role::{Votes, master_shard, named_master};
use leasehold_cluster::topology::NodeAddress;
use leasehold_resp::Value;

fn address(host: &str, port: u16) -> NodeAddress {
    NodeAddress {
        host: host.into(),
        port,
    }
}

fn text(text: &str) -> Value {
    Value::Bulk(text.to_owned().into())
}

fn array(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

fn place(host: &str, port: &str) -> Value {
    array([text(host), text(port)])
}

#[test]
fn a_sentinel_names_somebody_who_can_be_connected_to_or_nobody() {
    assert_eq!(
        named_master(&place("localhost", "7000")),
        Some(address("localhost", 7000))
    );
    assert_eq!(named_master(&place("::1", "1")), Some(address("::1", 1)));
    for nobody in [
        Value::Null,
        text("OK"),
        array([]),
        array([text("localhost")]),
        array([text("localhost"), Value::Integer(7000)]),
        place("", "7000"),
        place("localhost", "0"),
        place("localhost", "65536"),
        place("localhost", "-1"),
        place("local\nhost", "7000"),
    ] {
        assert_eq!(named_master(&nobody), None, "{nobody:?}");
    }
}

#[test]
fn a_master_has_as_many_replicas_as_it_names_and_whoever_is_none_has_no_shard() {
    let role = |kind: &str, replicas: Value| array([text(kind), Value::Integer(5), replicas]);
    let me = address("me", 1);
    let two = array([place("a", "1"), array([text("b"), text("2"), text("77")])]);
    let shard = master_shard(&role("master", two), &me).unwrap();
    assert_eq!(
        (shard.master, shard.replicas),
        (me.clone(), vec![address("a", 1), address("b", 2)])
    );
    assert_eq!(
        master_shard(&role("master", array([])), &me)
            .unwrap()
            .replicas,
        []
    );
    // A tool that follows as a replica does need not listen anywhere, and is one that must confirm.
    assert_eq!(
        master_shard(&role("master", array([place("a", "0")])), &me)
            .unwrap()
            .replicas
            .len(),
        1
    );
    for none in [
        role("slave", array([])),
        role("master", Value::Null),
        role("master", array([place("a", "1"), place("", "2")])),
        role("master", array([place("a", "1"), Value::Null])),
        array([text("sentinel"), array([text("mymaster")])]),
        array([
            text("slave"),
            text("a"),
            Value::Integer(1),
            text("connected"),
            Value::Integer(5),
        ]),
        array([text("master")]),
        Value::Null,
    ] {
        assert_eq!(master_shard(&none, &me), None, "{none:?}");
    }
}

#[test]
fn most_sentinels_decide_and_the_rest_is_tried_in_their_order() {
    let (old, new) = (address("old", 1), address("new", 1));
    let mut votes = Votes::default();
    assert!(!votes.are_decided(1));
    votes.add(old.clone());
    assert!(votes.are_decided(1) && !votes.are_decided(2) && !votes.are_decided(3));
    votes.add(new.clone());
    assert!(!votes.are_decided(2) && !votes.are_decided(3));
    assert_eq!(votes.clone().ranked(), [old.clone(), new.clone()]);
    votes.add(new.clone());
    assert!(votes.are_decided(3) && !votes.are_decided(4));
    assert_eq!(votes.ranked(), [new, old]);
}
