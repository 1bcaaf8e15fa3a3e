//! Sharded channels: subscribed at their slot's master, also after it moves, and every gap is
//! reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_cluster::{Channels, Client, Subscription, SubscriptionEvent};
use leasehold_resp::push::{Confirmation, Subscribe};
use leasehold_resp::{Command, Connection, Endpoint, Error};
use leasehold_testkit::cluster::Step;
use leasehold_testkit::{Cluster, Failover, until};

use crate::support::{BOUND, calls, client, soon, take};

async fn next(subscription: &mut Subscription) -> SubscriptionEvent {
    tokio::time::timeout(BOUND, subscription.next())
        .await
        .expect("an event")
}

/// The next message, and the number of gaps reported before it.
async fn message(subscription: &mut Subscription) -> (String, usize) {
    let mut gaps = 0;
    loop {
        match next(subscription).await {
            SubscriptionEvent::Message(message) => {
                return (String::from_utf8(message.to_vec()).unwrap(), gaps);
            }
            SubscriptionEvent::Subscribed => gaps += 1,
            other => panic!("{other:?}"),
        }
    }
}

async fn publish(client: &Client, channel: &str, message: &str) -> Result<i64, Error> {
    let command = Command::new(match client.channels() {
        Channels::Sharded => "SPUBLISH",
        _ => "PUBLISH",
    })
    .arg(channel)
    .arg(message);
    Ok(client
        .call(channel.as_bytes(), &command)
        .await?
        .as_int()
        .unwrap())
}

/// Number of subscribers of the channel at a node.
async fn subscribers(cluster: &Cluster, node: usize, channel: &str) -> i64 {
    cluster
        .raw(node)
        .await
        .cmd(&["PUBSUB", "SHARDNUMSUB", channel])
        .await
        .array()[1]
        .int()
}

/// Whether the servers know sharded channels. Redis before 7.0 does not, and the client uses plain
/// ones.
async fn sharded(cluster: &Cluster) -> bool {
    let known = cluster.node(0).knows("ssubscribe").await;
    if !known {
        println!("skipped: the server does not know sharded channels");
    }
    known
}

#[tokio::test]
async fn a_channel_is_heard_at_the_master_of_its_slot_and_nowhere_else() {
    let cluster = Cluster::start().await;
    let (listener, speaker) = (client(&cluster.url()).await, client(&cluster.url()).await);
    for shard in 0..3 {
        let channel = cluster.key_at(shard, "ch").await;
        let mut subscription = listener.subscribe(channel.as_bytes());
        assert!(matches!(
            next(&mut subscription).await,
            SubscriptionEvent::Subscribed
        ));
        if cluster.node(0).knows("ssubscribe").await {
            for node in 0..6 {
                assert_eq!(
                    subscribers(&cluster, node, &channel).await,
                    i64::from(node == shard),
                    "node {node}"
                );
            }
            assert_eq!(publish(&speaker, &channel, "hello").await.unwrap(), 1);
        } else {
            // Redis 6.2 counts the subscribers of the node that was asked only.
            publish(&speaker, &channel, "hello").await.unwrap();
        }
        assert_eq!(message(&mut subscription).await, ("hello".into(), 0));
    }
}

#[tokio::test]
async fn a_slot_that_moves_takes_its_subscribers_with_it_and_they_are_told() {
    let cluster = Cluster::builder().replicas(0).start().await;
    if !sharded(&cluster).await {
        return;
    }
    let (listener, speaker) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let channel = cluster.key_at(0, "ch").await;
    let (mut one, mut other) = (
        listener.subscribe(channel.as_bytes()),
        listener.subscribe(channel.as_bytes()),
    );
    for subscription in [&mut one, &mut other] {
        assert!(matches!(
            next(subscription).await,
            SubscriptionEvent::Subscribed
        ));
    }
    let slot = cluster.slot_of(&channel).await;
    for target in [1, 2, 0] {
        let migration = cluster.migration(slot, target).await;
        migration.begin().await;
        // While it moves the source still has the channel.
        publish(&speaker, &channel, "moving").await.unwrap();
        for subscription in [&mut one, &mut other] {
            assert_eq!(message(subscription).await, ("moving".into(), 0));
        }
        migration.move_all_keys().await;
        migration.finish().await;
        for subscription in [&mut one, &mut other] {
            assert!(
                matches!(next(subscription).await, SubscriptionEvent::Subscribed),
                "the gap is told"
            );
        }
        assert_eq!(subscribers(&cluster, target, &channel).await, 1);
        assert_eq!(publish(&speaker, &channel, "arrived").await.unwrap(), 1);
        for subscription in [&mut one, &mut other] {
            assert_eq!(message(subscription).await, ("arrived".into(), 0));
        }
    }
}

/// While the slot is streamed the source has the channel, and no message is lost. When it has
/// moved, the source ends the subscription.
#[tokio::test]
async fn a_slot_that_servers_move_by_themselves_takes_its_subscribers_with_it_and_they_are_told() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (listener, speaker) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let channel = cluster.key_at(0, "ch").await;
    let Some(migration) = cluster
        .atomic_migration(cluster.slot_of(&channel).await, 1)
        .await
    else {
        return println!("skipped: the server does not know CLUSTER MIGRATESLOTS");
    };
    let mut subscription = listener.subscribe(channel.as_bytes());
    assert!(matches!(
        next(&mut subscription).await,
        SubscriptionEvent::Subscribed
    ));
    for said in ["streaming", "streaming again"] {
        migration.start_until(Step::Streaming).await;
        assert_eq!(publish(&speaker, &channel, said).await.unwrap(), 1);
        migration.cancel().await;
        assert_eq!(message(&mut subscription).await, (said.into(), 0));
    }
    migration.start().await;
    migration.finish().await;
    assert!(
        matches!(next(&mut subscription).await, SubscriptionEvent::Subscribed),
        "the gap is told"
    );
    assert_eq!(subscribers(&cluster, 1, &channel).await, 1);
    assert_eq!(publish(&speaker, &channel, "arrived").await.unwrap(), 1);
    assert_eq!(message(&mut subscription).await, ("arrived".into(), 0));
}

/// The server ends a subscription by itself and then reads our `SUNSUBSCRIBE`, which it answers
/// with `MOVED`: one answer more than a lone unsubscription expects. A client that mistakes the
/// first for the second gives the next caller a foreign error, and all later ones foreign replies.
#[tokio::test]
async fn a_subscription_that_ends_while_its_slot_moves_away_shifts_no_reply() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    if !sharded(&cluster).await {
        return;
    }
    let channel = cluster.key_at(0, "ch").await;
    let slot = cluster.slot_of(&channel).await;
    let connection = Connection::connect(Endpoint::parse(&cluster.node(0).url()).unwrap())
        .await
        .unwrap();
    let asked = |kind| Subscribe {
        kind,
        channels: vec![channel.clone().into()],
    };
    connection
        .subscribe(&asked(Confirmation::Ssubscribe))
        .await
        .unwrap();
    // On another runtime, while this one is blocked: the server's push is read after our request
    // was queued.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            runtime.block_on(async {
                let migration = cluster.migration(slot, 1).await;
                migration.begin().await;
                migration.finish().await;
            });
        });
    });
    runtime.shutdown_background();
    let ended = connection.subscribe(&asked(Confirmation::Sunsubscribe));
    let echoes = ["a", "b", "c"].map(|text| connection.submit(&Command::new("ECHO").arg(text)));
    let error = tokio::time::timeout(BOUND, ended)
        .await
        .expect("an answer")
        .unwrap_err();
    assert!(
        error.as_server().is_some_and(|server| server.is_redirect()),
        "{error}"
    );
    for (echo, text) in echoes.into_iter().zip(["a", "b", "c"]) {
        assert_eq!(
            tokio::time::timeout(BOUND, echo)
                .await
                .expect("a reply")
                .unwrap()
                .as_str(),
            Some(text)
        );
    }
}

/// Subscriptions to channels of other slots on the same connection have nothing to do with it.
#[tokio::test]
async fn channels_of_slots_that_stay_have_no_gap() {
    let cluster = Cluster::builder().replicas(0).start().await;
    if !sharded(&cluster).await {
        return;
    }
    let client = client(&cluster.url()).await;
    let (goes, stays) = (
        cluster.key_at(0, "goes").await,
        cluster.key_at(0, "stays").await,
    );
    let (slot, other) = (cluster.slot_of(&goes).await, cluster.slot_of(&stays).await);
    assert_ne!(slot, other);
    let (mut moved, mut still) = (
        client.subscribe(goes.as_bytes()),
        client.subscribe(stays.as_bytes()),
    );
    assert!(matches!(
        next(&mut moved).await,
        SubscriptionEvent::Subscribed
    ));
    assert!(matches!(
        next(&mut still).await,
        SubscriptionEvent::Subscribed
    ));
    let migration = cluster.migration(slot, 1).await;
    migration.begin().await;
    migration.finish().await;
    assert!(matches!(
        next(&mut moved).await,
        SubscriptionEvent::Subscribed
    ));
    assert_eq!(publish(&client, &stays, "still here").await.unwrap(), 1);
    assert_eq!(message(&mut still).await, ("still here".into(), 0));
}

#[tokio::test]
async fn a_failover_takes_the_subscribers_to_the_new_master() {
    let cluster = Cluster::start().await;
    let (listener, speaker) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let channels = [
        cluster.key_at(0, "ch").await,
        cluster.key_at(1, "ch").await,
        cluster.key_at(2, "ch").await,
    ];
    let mut subscriptions: Vec<_> = channels
        .iter()
        .map(|channel| listener.subscribe(channel.as_bytes()))
        .collect();
    for subscription in &mut subscriptions {
        assert!(matches!(
            next(subscription).await,
            SubscriptionEvent::Subscribed
        ));
    }
    // By agreement, by a kill, and by a freeze that no connection notices.
    cluster.failover(3, Failover::Graceful).await;
    cluster.wait_until_ok().await;
    for (shard, trouble) in [(0, "failover"), (1, "kill"), (2, "freeze")] {
        match trouble {
            "kill" => cluster.kill(shard),
            "freeze" => cluster.freeze(shard),
            _ => {}
        }
        let (channel, subscription) = (&channels[shard], &mut subscriptions[shard]);
        assert_eq!(
            cluster.wait_for_writable(channel).await,
            shard + 3,
            "{trouble}"
        );
        until("a message is heard", async || {
            // There may be no subscriber yet, and the publisher may still have to find the new
            // master.
            match publish(&speaker, channel, trouble).await {
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
            match tokio::time::timeout(Duration::from_millis(200), message(subscription)).await {
                Ok((heard, _)) if heard == trouble => Ok(()),
                outcome => Err(format!("{outcome:?}")),
            }
        })
        .await;
        println!("{trouble}: heard at node {}", shard + 3);
    }
}

/// A client that only subscribes receives nothing: it has to detect by itself that its master is
/// gone.
#[tokio::test]
async fn a_client_that_only_listens_notices_a_frozen_master() {
    let cluster = Cluster::start().await;
    let listener = client(&cluster.url()).await;
    let channel = cluster.key_at(0, "ch").await;
    let mut subscription = listener.subscribe(channel.as_bytes());
    assert!(matches!(
        next(&mut subscription).await,
        SubscriptionEvent::Subscribed
    ));
    let begun = Instant::now();
    cluster.freeze(0);
    // It asks after 15 s without a byte from the server, and waits 10 s for an answer.
    let event = tokio::time::timeout(BOUND * 2, subscription.next())
        .await
        .expect("an event");
    assert!(matches!(event, SubscriptionEvent::Subscribed), "{event:?}");
    println!("subscribed again {:?} after the freeze", begun.elapsed());
    assert_eq!(cluster.wait_for_writable(&channel).await, 3);
    let command = if cluster.node(3).knows("spublish").await {
        "SPUBLISH"
    } else {
        "PUBLISH"
    };
    assert_eq!(
        cluster
            .raw(3)
            .await
            .cmd(&[command, &channel, "hello"])
            .await
            .int(),
        1
    );
    assert_eq!(message(&mut subscription).await.0, "hello");
}

/// A dropped subscription ends at the server, also when its slot has moved since.
#[tokio::test]
async fn nobody_listens_any_more_after_a_drop() {
    let cluster = Cluster::builder().replicas(0).start().await;
    if !sharded(&cluster).await {
        return;
    }
    let client = client(&cluster.url()).await;
    let channel = cluster.key_at(0, "ch").await;
    let mut subscription = client.subscribe(channel.as_bytes());
    assert!(matches!(
        next(&mut subscription).await,
        SubscriptionEvent::Subscribed
    ));
    let migration = cluster.migration(cluster.slot_of(&channel).await, 1).await;
    migration.begin().await;
    migration.finish().await;
    assert!(matches!(
        next(&mut subscription).await,
        SubscriptionEvent::Subscribed
    ));
    drop(subscription);
    until("nobody listens", async || {
        let counts = [
            subscribers(&cluster, 0, &channel).await,
            subscribers(&cluster, 1, &channel).await,
        ];
        if counts == [0, 0] {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    })
    .await;
}

/// All channels of a shard lose their server at once, and it says so of each of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_channels_move_with_their_shard_and_hinder_no_command() {
    const CHANNELS: usize = 10_000;
    let cluster = Cluster::start().await;
    if !sharded(&cluster).await {
        return;
    }
    let client = client(&cluster.url()).await;
    let elsewhere = cluster.key_at(1, "lock").await;
    let last_slot = 16_384 / 3 - 1;
    let mut subscriptions: Vec<_> = (0..)
        .map(|n| format!("channel:{n}"))
        .filter(|name| leasehold_cluster::slot::slot(name.as_bytes()) <= last_slot)
        .take(CHANNELS)
        .map(|name| client.subscribe(name.as_bytes()))
        .collect();
    for subscription in &mut subscriptions {
        assert!(matches!(
            next(subscription).await,
            SubscriptionEvent::Subscribed
        ));
    }

    let stop = Arc::new(AtomicBool::new(false));
    let unrelated = tokio::spawn({
        let stop = Arc::clone(&stop);
        async move {
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::SeqCst) {
                let sent = Instant::now();
                let taken = take(&client, &elsewhere, "me", soon()).await;
                assert_eq!(taken.unwrap(), 1);
                longest = longest.max(sent.elapsed());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            longest
        }
    });
    cluster.failover(3, Failover::Graceful).await;
    let since = Instant::now();
    for subscription in &mut subscriptions {
        assert!(matches!(
            next(subscription).await,
            SubscriptionEvent::Subscribed
        ));
    }
    let all = since.elapsed();
    stop.store(true, Ordering::SeqCst);
    let longest = unrelated.await.unwrap();
    let asked = calls(&mut cluster.raw(3).await, "ssubscribe").await;
    println!(
        "{all:?} until all are subscribed again by {asked} commands; longest command {longest:?}"
    );
    // Each once; a few more for those that were asked for before the replica had taken over.
    assert!(asked <= CHANNELS as u64 + 2_000, "{asked} subscriptions");
    // Bounds against standstill: a hundred milliseconds are usual.
    assert!(all < BOUND / 2 && longest < BOUND / 3);
}
