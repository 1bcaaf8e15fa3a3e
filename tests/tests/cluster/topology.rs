//! The map from `CLUSTER SLOTS`, for every possible reply: pure, without any server.

use leasehold_cluster::slot::SLOTS;
use leasehold_cluster::topology::{NodeAddress, Shard, View};
use leasehold_resp::Value;
use proptest::prelude::*;

fn asked() -> NodeAddress {
    address("seed.example", 7000)
}

fn address(host: &str, port: u16) -> NodeAddress {
    NodeAddress {
        host: host.to_owned(),
        port,
    }
}

fn text(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec().into())
}

fn array(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

fn node(host: Value, port: i64) -> Value {
    array([
        host,
        Value::Integer(port),
        text("0123456789012345678901234567890123456789"),
    ])
}

fn node_with(host: Value, port: i64, metadata: Value) -> Value {
    array([host, Value::Integer(port), text("id"), metadata])
}

fn range(start: i64, end: i64, nodes: impl IntoIterator<Item = Value>) -> Value {
    array(
        [Value::Integer(start), Value::Integer(end)]
            .into_iter()
            .chain(nodes),
    )
}

fn parse(ranges: impl IntoIterator<Item = Value>) -> View {
    View::parse(&array(ranges), &asked(), false).unwrap()
}

fn master_of(view: &View, slot: u16) -> Option<NodeAddress> {
    view.owner(slot)
        .map(|owner| view.shards()[owner].master.clone())
}

#[test]
fn an_ordinary_reply_is_read_with_masters_in_front_and_replicas_behind() {
    let view = parse([
        range(
            0,
            8191,
            [
                node(text("10.0.0.1"), 1),
                node(text("10.0.0.2"), 2),
                node(text("10.0.0.3"), 3),
            ],
        ),
        range(8192, 16383, [node(text("10.0.0.4"), 4)]),
    ]);
    assert_eq!(view.coverage(), usize::from(SLOTS));
    let replicas = vec![address("10.0.0.2", 2), address("10.0.0.3", 3)];
    assert_eq!(
        view.shards()[0],
        Shard {
            master: address("10.0.0.1", 1),
            replicas
        }
    );
    for (slot, port) in [(0, 1), (8191, 1), (8192, 4), (16383, 4)] {
        assert_eq!(master_of(&view, slot).unwrap().port, port);
    }
    assert_eq!(view.owner(SLOTS), None);
    assert_eq!(view.owner(u16::MAX), None);
}

/// `""` and null mean the host that was asked, a name is a name, IPv6 comes without brackets.
#[test]
fn every_form_of_endpoint_leads_to_an_address() {
    let cases = [
        (text("10.1.2.3"), "10.1.2.3"),
        (text("cache-1.example"), "cache-1.example"),
        (text("2001:db8::7"), "2001:db8::7"),
        (text(""), "seed.example"),
        (Value::Null, "seed.example"),
    ];
    for (endpoint, host) in cases {
        let view = parse([range(0, 16383, [node(endpoint.clone(), 7)])]);
        assert_eq!(master_of(&view, 5), Some(address(host, 7)), "{endpoint:?}");
    }
    assert_eq!(address("2001:db8::7", 7).to_string(), "[2001:db8::7]:7");
    assert_eq!(
        address("cache-1.example", 7).to_string(),
        "cache-1.example:7"
    );
}

/// A node that wants to announce a name and has none says `?`: its slots have no reachable master.
/// That must not make a replica the master: it would refuse every write.
#[test]
fn a_master_that_cannot_be_reached_leaves_its_slots_unserved() {
    let view = parse([
        range(0, 99, [node(text("?"), 1), node(text("10.0.0.2"), 2)]),
        range(
            100,
            199,
            [
                node(text("10.0.0.3"), 3),
                node(text("?"), 4),
                node(text("10.0.0.5"), 5),
            ],
        ),
    ]);
    assert_eq!(master_of(&view, 0), None);
    assert_eq!(view.coverage(), 100);
    assert_eq!(
        view.shards(),
        [Shard {
            master: address("10.0.0.3", 3),
            replicas: vec![address("10.0.0.5", 5)]
        }]
    );
}

/// Certificates are issued for names. In RESP2 metadata is a flat array, in RESP3 a map.
#[test]
fn with_tls_the_name_in_the_metadata_goes_before_the_address() {
    let map = Value::Map(vec![
        (text("ip"), text("10.0.0.9")),
        (text("hostname"), text("a.example")),
    ]);
    let flat = array([
        text("ip"),
        text("10.0.0.9"),
        text("hostname"),
        text("a.example"),
    ]);
    for metadata in [map, flat] {
        let reply = array([range(0, 16383, [node_with(text("10.0.0.1"), 1, metadata)])]);
        let with = View::parse(&reply, &asked(), true).unwrap();
        assert_eq!(master_of(&with, 0), Some(address("a.example", 1)));
        let without = View::parse(&reply, &asked(), false).unwrap();
        assert_eq!(master_of(&without, 0), Some(address("10.0.0.1", 1)));
    }
    // No name after all: the address has to do.
    let metadata = [
        Value::Map(vec![]),
        array([]),
        array([text("hostname")]),
        array([text("hostname"), text("")]),
        Value::Null,
        Value::Integer(1),
    ];
    for metadata in metadata {
        let reply = array([range(
            0,
            16383,
            [node_with(text("10.0.0.1"), 1, metadata.clone())],
        )]);
        let view = View::parse(&reply, &asked(), true).unwrap();
        assert_eq!(
            master_of(&view, 0),
            Some(address("10.0.0.1", 1)),
            "{metadata:?}"
        );
    }
}

#[test]
fn a_master_in_several_ranges_is_one_master() {
    let a = || node(text("10.0.0.1"), 1);
    let view = parse([
        range(0, 0, [a()]),
        range(2, 2, [node(text("10.0.0.2"), 1)]),
        range(4, 4, [a()]),
    ]);
    assert_eq!(view.shards().len(), 2);
    assert_eq!(view.owner(0), view.owner(4));
    assert_eq!(view.coverage(), 3);
    for slot in [1, 3, 5, 16383] {
        assert_eq!(view.owner(slot), None);
    }
}

#[test]
fn of_ranges_that_overlap_the_later_one_counts() {
    let view = parse([
        range(0, 100, [node(text("a"), 1)]),
        range(50, 150, [node(text("b"), 2)]),
    ]);
    assert_eq!(master_of(&view, 49).unwrap().host, "a");
    assert_eq!(master_of(&view, 50).unwrap().host, "b");
    assert_eq!(view.coverage(), 151);
}

/// A cluster that is just forming, a server without slots, a proxy that answers anything: the old
/// map is better than an empty one.
#[test]
fn a_map_is_never_empty() {
    let reachable = || node(text("a"), 1);
    for reply in [
        array([]),
        Value::Null,
        Value::Integer(1),
        text("OK"),
        Value::Map(vec![]),
        array([Value::Null]),
        array([array([])]),
        array([array([Value::Integer(0)])]),
        array([range(0, 100, [])]),
        array([range(0, 100, [node(text("?"), 1)])]),
        array([range(0, 16384, [reachable()])]),
        array([range(-1, 5, [reachable()])]),
        array([range(7, 6, [reachable()])]),
        array([range(0, 5, [node(text("a"), -1)])]),
        array([range(0, 5, [node(text("a"), 65536)])]),
        array([range(0, 5, [node(Value::Integer(5), 1)])]),
        array([range(0, 5, [array([text("a")])])]),
        array([range(
            0,
            5,
            [node(Value::Bulk(b"\xff\xfe".to_vec().into()), 1)],
        )]),
    ] {
        assert!(View::parse(&reply, &asked(), false).is_err(), "{reply:?}");
    }
    assert_eq!(View::agreed(Vec::new()), None);
}

/// One range a slot and five replicas for each: more than the largest possible cluster sends.
#[test]
fn a_hundred_thousand_nodes_are_read() {
    let ranges = (0..SLOTS).map(|slot| {
        let nodes =
            (0..6).map(move |n| node(text(&format!("10.{n}.{}.{}", slot >> 8, slot & 255)), 6379));
        range(slot.into(), slot.into(), nodes)
    });
    let view = parse(ranges);
    assert_eq!(view.shards().len(), usize::from(SLOTS));
    assert_eq!(
        view.shards()
            .iter()
            .map(|shard| 1 + shard.replicas.len())
            .sum::<usize>(),
        98_304
    );
    assert_eq!(master_of(&view, 300).unwrap().host, "10.0.1.44");

    // More masters than there are slots, all of them for slot 0: each replaces the one before.
    let crowd = |count: u32| {
        array((0..count).map(|n| {
            range(
                0,
                0,
                [node(
                    text(&format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255)),
                    1,
                )],
            )
        }))
    };
    let view = View::parse(&crowd(65_535), &asked(), false).unwrap();
    assert_eq!(master_of(&view, 0).unwrap().host, "10.0.255.254");
    assert_eq!(view.coverage(), 1);
    for too_many in [65_536, 100_000] {
        assert!(
            View::parse(&crowd(too_many), &asked(), false).is_err(),
            "{too_many}"
        );
    }
}

/// A view with these masters, each with an equal share of the slots.
fn split_between(hosts: &[&str]) -> View {
    let share = i64::from(SLOTS) / i64::try_from(hosts.len()).unwrap();
    let bound = |n: usize| share * i64::try_from(n).unwrap();
    parse(
        hosts
            .iter()
            .enumerate()
            .map(|(n, host)| range(bound(n), bound(n + 1) - 1, [node(text(host), 1)])),
    )
}

#[test]
fn of_several_views_the_one_that_most_have_wins() {
    let (old, new) = (split_between(&["a", "b"]), split_between(&["a", "c"]));
    assert_eq!(
        View::agreed(vec![old.clone(), new.clone(), new.clone()]),
        Some(new.clone())
    );
    assert_eq!(
        View::agreed(vec![new.clone(), old.clone(), new.clone()]),
        Some(new.clone())
    );
    assert_eq!(
        View::agreed(vec![new.clone(), old.clone(), old.clone()]),
        Some(old.clone())
    );
    // Among equals the more complete one, then the first.
    let partial = parse([range(0, 99, [node(text("a"), 1)])]);
    assert_eq!(View::agreed(vec![partial, new.clone()]), Some(new.clone()));
    assert_eq!(View::agreed(vec![old.clone(), new]), Some(old));
}

#[test]
fn views_agree_when_their_masters_do_whatever_order_ranges_and_replicas_have() {
    let (a, b) = (|| node(text("a"), 1), || node(text("b"), 1));
    let one = parse([
        range(0, 8191, [a(), node(text("r"), 1)]),
        range(8192, 16383, [b()]),
    ]);
    let other = parse([
        range(8192, 16383, [b()]),
        range(0, 4095, [a()]),
        range(4096, 8191, [a()]),
    ]);
    let third = split_between(&["x", "y"]);
    let agreed = View::agreed(vec![third, one, other]).unwrap();
    assert_eq!(master_of(&agreed, 0).unwrap().host, "a");
}

/// A node learns the names of others gradually, and redirects have addresses where maps have names.
#[test]
fn a_node_is_the_same_one_by_its_name_and_by_its_address() {
    let metadata = |key: &str, value: &str| Value::Map(vec![(text(key), text(value))]);
    let one = |endpoint: &str, other: Value| {
        array([range(0, 16383, [node_with(text(endpoint), 1, other)])])
    };
    let read = |reply: &Value, names| View::parse(reply, &asked(), names).unwrap();
    let named = read(&one("10.0.0.9", metadata("hostname", "a.example")), true);
    assert_eq!(
        named.known_as(&address("10.0.0.9", 1)),
        &address("a.example", 1)
    );
    assert_eq!(
        named.known_as(&address("10.0.0.9", 2)),
        &address("10.0.0.9", 2)
    );
    // The other way round: names are announced, and one view has the address from elsewhere.
    let preferred = read(&one("a.example", metadata("ip", "10.0.0.9")), false);
    assert_eq!(
        preferred.known_as(&address("10.0.0.9", 1)),
        &address("a.example", 1)
    );

    // A view without the name means the same master, and the view with the name is preferred.
    let unnamed = read(&one("10.0.0.9", Value::Map(vec![])), true);
    let stranger = read(&one("10.0.0.7", Value::Map(vec![])), true);
    for views in [[&stranger, &unnamed, &named], [&named, &unnamed, &stranger]] {
        assert_eq!(
            View::agreed(views.map(Clone::clone).to_vec()).unwrap(),
            named
        );
    }
    // A name that another master announces belongs to that master.
    let second = node_with(text("a.example"), 1, metadata("hostname", "b.example"));
    let first = node_with(text("10.0.0.9"), 1, metadata("hostname", "a.example"));
    let odd = read(&array([range(0, 1, [first]), range(2, 3, [second])]), true);
    assert_eq!(
        odd.known_as(&address("a.example", 1)),
        &address("a.example", 1)
    );
}

#[test]
fn a_redirect_moves_one_slot_also_to_a_node_that_was_unknown() {
    let view = split_between(&["a", "b"]);
    let known = view.with_moved(5, &address("b", 1));
    assert_eq!(
        (master_of(&known, 5), master_of(&known, 6)),
        (Some(address("b", 1)), Some(address("a", 1)))
    );
    assert_eq!(known.shards().len(), 2);
    let unknown = view.with_moved(5, &address("c", 1));
    assert_eq!(
        (master_of(&unknown, 5), unknown.shards().len()),
        (Some(address("c", 1)), 3)
    );
    assert_eq!(
        master_of(&view, 5),
        Some(address("a", 1)),
        "a view is never changed in place"
    );
    // A slot without a master, and one that does not exist.
    let partial = parse([range(0, 0, [node(text("a"), 1)])]);
    assert_eq!(
        master_of(&partial.with_moved(9, &address("a", 1)), 9),
        Some(address("a", 1))
    );
    assert_eq!(partial.with_moved(SLOTS, &address("a", 1)).coverage(), 1);
}

/// Anything a server could send, shaped a little like the real thing so that it gets far.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        (-2_i64..70_000).prop_map(Value::Integer),
        prop_oneof![
            Just(""),
            Just("?"),
            Just("hostname"),
            Just("a"),
            Just("::1")
        ]
        .prop_map(text),
        proptest::collection::vec(any::<u8>(), 0..6).prop_map(|bytes| Value::Bulk(bytes.into())),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            4 => proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            1 => proptest::collection::vec((inner.clone(), inner), 0..3).prop_map(Value::Map),
        ]
    })
}

fn some_range() -> impl Strategy<Value = Value> {
    let host = prop_oneof![Just(""), Just("?"), Just("a"), Just("b"), Just("c")].prop_map(text);
    let nodes = proptest::collection::vec(
        (host, 0_i64..4).prop_map(|(host, port)| node(host, port)),
        0..4,
    );
    (0_i64..16384, 0_i64..16384, nodes).prop_map(|(a, b, nodes)| range(a.min(b), a.max(b), nodes))
}

proptest! {
    #[test]
    fn whatever_is_read_is_a_consistent_map(ranges in proptest::collection::vec(prop_oneof![9 => some_range(), 1 => anything()], 0..8), names: bool) {
        if let Ok(view) = View::parse(&array(ranges), &asked(), names) {
            let owners: Vec<_> = (0..SLOTS).filter_map(|slot| view.owner(slot)).collect();
            prop_assert!(!owners.is_empty());
            prop_assert_eq!(owners.len(), view.coverage());
            prop_assert!(owners.iter().all(|owner| *owner < view.shards().len()));
            for shard in view.shards() {
                prop_assert!(shard.master.host != "?" && !shard.master.host.is_empty());
            }
            prop_assert_eq!(View::agreed(vec![view.clone(), view.clone()]), Some(view));
        }
    }

    #[test]
    fn nothing_makes_it_panic(reply in anything(), names: bool) {
        let _ = View::parse(&reply, &asked(), names);
    }
}
