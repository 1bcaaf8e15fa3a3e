use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_resp::Endpoint;

use super::*;
use crate::topology::NodeAddress;

const CHANNELS: usize = 1_000;

/// A hub with a node that is never connected, and how often it was asked for the node of a channel.
fn hub() -> (Arc<Hub>, Arc<Node>, Arc<AtomicUsize>) {
    let address = NodeAddress {
        host: "127.0.0.1".into(),
        port: 1,
    };
    let endpoint = Endpoint::parse("redis://127.0.0.1:1").unwrap();
    let node = Node::new(address, &endpoint, |_, _| {});
    let lookups = Arc::new(AtomicUsize::new(0));
    let (found, counted) = (Arc::clone(&node), Arc::clone(&lookups));
    let routing = Routing {
        node_of: Box::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            Some(Arc::clone(&found))
        }),
        refresh: Box::new(|| {}),
        search: Box::new(|_| {}),
    };
    let hub = Hub::new(routing);
    hub.set_sharded(true);
    (hub, node, lookups)
}

fn names() -> impl Iterator<Item = Bytes> {
    (0..CHANNELS).map(|n| Bytes::from(format!("channel:{n}")))
}

#[test]
fn an_unasked_unsubscription_costs_the_same_for_any_number_of_channels() {
    let (hub, node, lookups) = hub();
    let subscriber = Arc::new(Subscriber(Box::new(|_, _| {})));
    for name in names() {
        hub.add(&name, &subscriber);
    }
    let before = lookups.load(Ordering::SeqCst);
    for name in names() {
        let push = Push::Unasked(Confirmation::Sunsubscribe, name);
        hub.observe(&node, Event::Push(push));
    }
    hub.reconcile();
    let lookups = lookups.load(Ordering::SeqCst) - before;
    assert!(lookups <= 2 * CHANNELS, "{lookups} lookups");
}

#[test]
fn a_walk_assigns_every_channel_slice_by_slice() {
    let (hub, node, _) = hub();
    let subscriber = Arc::new(Subscriber(Box::new(|_, _| {})));
    for name in names() {
        hub.add(&name, &subscriber);
    }
    for name in names() {
        hub.lock().channels.get_mut(&name).unwrap().at = None;
    }
    let (mut after, mut slices) = (None, 1);
    while let Some(last) = hub.assign_slice(after.take()) {
        after = Some(last);
        slices += 1;
    }
    assert_eq!(slices, CHANNELS / SLICE + 1);
    let state = hub.lock();
    assert!(state.channels.values().all(|channel| channel.is_at(&node)));
}

#[test]
fn a_channel_is_kept_until_its_last_subscriber_leaves() {
    let (hub, _, _) = hub();
    let (name, first, second) = (
        Bytes::from_static(b"channel"),
        Arc::new(Subscriber(Box::new(|_, _| {}))),
        Arc::new(Subscriber(Box::new(|_, _| {}))),
    );
    hub.add(&name, &first);
    hub.add(&name, &second);
    hub.remove(&name, &first);
    assert!(hub.lock().channels.contains_key(&name));
    hub.remove(&name, &second);
    assert!(hub.lock().channels.is_empty());
}

#[test]
fn more_subscriptions_are_under_way_the_farther_the_node_is() {
    let size = |round_trip: Option<u64>| {
        let window = Window {
            round_trip: round_trip.map(Duration::from_micros),
            ..Window::default()
        };
        window.size()
    };
    assert_eq!(size(None), FEWEST, "not known yet");
    assert_eq!(size(Some(40)), FEWEST, "on this machine");
    assert_eq!(size(Some(500)), 20, "in this region");
    assert_eq!(size(Some(50_000)), MOST, "in another one");
}

#[test]
fn the_shortest_round_trip_counts_and_a_failure_is_none() {
    let (hub, node, _) = hub();
    let name = Bytes::from_static(b"channel");
    hub.lock().windows.insert(node.id, Window::default());
    let known = |micros: u64, outcome| {
        let after = Duration::from_micros(micros);
        // Another one is under way, so the window stays.
        hub.lock().windows.entry(node.id).or_default().in_flight = 2;
        hub.answered((node.id, Some(&node)), 0, &name, after, outcome);
        hub.lock().windows[&node.id].round_trip
    };
    let micros = |n| Some(Duration::from_micros(n));
    assert_eq!(known(900, Ok(Value::Null)), micros(900));
    assert_eq!(known(700, Ok(Value::Null)), micros(700));
    assert_eq!(known(800, Ok(Value::Null)), micros(700));
    assert_eq!(
        known(1, Err(Error::unknown(&Arc::from("node"), "cut"))),
        micros(700)
    );
}
