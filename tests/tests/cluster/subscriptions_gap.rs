//! Subscriptions over a connection that breaks: every gap is reported to the subscriber.

use std::time::Duration;

use bytes::Bytes;
use leasehold_cluster::{Client, Subscription, SubscriptionEvent};
use leasehold_resp::push::{Confirmation, Subscribe};
use leasehold_resp::{Command, Connection, Endpoint, ServerErrorKind};
use leasehold_testkit::scripted::Scripted;
use leasehold_testkit::statistics::subscribers;
use leasehold_testkit::{Accept, Fault, Proxy, Server, until};

use crate::support::{BOUND, client};

async fn next(subscription: &mut Subscription) -> SubscriptionEvent {
    tokio::time::timeout(BOUND, subscription.next())
        .await
        .expect("an event")
}

async fn subscribed(subscription: &mut Subscription) {
    let event = next(subscription).await;
    assert!(matches!(event, SubscriptionEvent::Subscribed), "{event:?}");
}

async fn message(subscription: &mut Subscription, expected: &str) {
    loop {
        match next(subscription).await {
            SubscriptionEvent::Message(payload) => return assert_eq!(payload, expected.as_bytes()),
            // A confirmation may always come once more.
            SubscriptionEvent::Subscribed => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_subscription_is_confirmed_hears_and_ends_with_its_handle() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let client = client(&server.url()).await;
    let mut subscription = client.subscribe(b"c");
    subscribed(&mut subscription).await;
    raw.cmd(&["PUBLISH", "c", "hello"]).await;
    message(&mut subscription, "hello").await;
    // From the same connection as well.
    client
        .call(b"", &Command::new("PUBLISH").arg("c").arg("own"))
        .await
        .unwrap();
    message(&mut subscription, "own").await;
    drop(subscription);
    until("nobody listens", async || {
        subscribers(&mut raw, "c").await == 0
    })
    .await;
}

#[tokio::test]
async fn after_each_kill_it_is_confirmed_again_and_hears_again() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let client = client(&server.url()).await;
    let mut subscriptions: Vec<_> = ["a", "b", "c"]
        .map(|name| client.subscribe(name.as_bytes()))
        .into();
    for subscription in &mut subscriptions {
        subscribed(subscription).await;
    }
    for round in 0..10 {
        raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        for subscription in &mut subscriptions {
            subscribed(subscription).await;
        }
        for (subscription, name) in subscriptions.iter_mut().zip(["a", "b", "c"]) {
            let text = format!("{name}{round}");
            raw.cmd(&["PUBLISH", name, &text]).await;
            message(subscription, &text).await;
        }
    }
}

#[tokio::test]
async fn two_on_one_channel_are_one_at_the_server_and_both_hear() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let client = client(&server.url()).await;
    let (mut one, mut two) = (client.subscribe(b"c"), client.subscribe(b"c"));
    subscribed(&mut one).await;
    subscribed(&mut two).await;
    // A third one gets its confirmation although the server has confirmed the channel before.
    let mut three = client.subscribe(b"c");
    subscribed(&mut three).await;
    assert_eq!(subscribers(&mut raw, "c").await, 1);
    raw.cmd(&["PUBLISH", "c", "all"]).await;
    for subscription in [&mut one, &mut two, &mut three] {
        message(subscription, "all").await;
    }
    drop((one, two));
    raw.cmd(&["PUBLISH", "c", "left"]).await;
    message(&mut three, "left").await;
    drop(three);
    until("nobody listens", async || {
        subscribers(&mut raw, "c").await == 0
    })
    .await;
}

/// It used to deadlock: the refusal came back while the list of subscriptions was locked.
#[tokio::test]
async fn subscribing_and_unsubscribing_while_the_server_is_away_is_made_good_later() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let client = client(&proxy.url()).await;
    let given_up = client.subscribe(b"given up");
    let mut kept = client.subscribe(b"kept");
    subscribed(&mut kept).await;
    proxy.accept(Accept::Refuse);
    proxy.reset_all();
    until("it is down", async || {
        client.call(b"", &Command::new("PING")).await.is_err()
            || subscribers(&mut raw, "kept").await == 0
    })
    .await;
    let working = tokio::task::spawn_blocking({
        let client = client.clone();
        move || {
            let new = client.subscribe(b"new");
            drop(client.subscribe(b"never"));
            drop(given_up);
            new
        }
    });
    let mut new = tokio::time::timeout(BOUND, working)
        .await
        .expect("no deadlock")
        .unwrap();
    proxy.accept(Accept::Forward);
    subscribed(&mut kept).await;
    subscribed(&mut new).await;
    for (subscription, name) in [(&mut kept, "kept"), (&mut new, "new")] {
        raw.cmd(&["PUBLISH", name, name]).await;
        message(subscription, name).await;
    }
    for name in ["given up", "never"] {
        assert_eq!(subscribers(&mut raw, name).await, 0, "{name}");
    }
}

#[tokio::test]
async fn a_channel_that_the_user_may_not_hear_is_refused_and_takes_no_other_with_it() {
    let server = Server::builder()
        .config("user app on >secret ~* +@all resetchannels &open:*")
        .start()
        .await;
    let mut raw = server.raw().await;
    let client = client(&format!("redis://app:secret@{}", server.addr())).await;
    let mut open: Vec<_> = (0..5)
        .map(|n| client.subscribe(format!("open:{n}").as_bytes()))
        .collect();
    let mut closed = client.subscribe(b"closed");
    let refused = |event| match event {
        SubscriptionEvent::Refused(error) => assert_eq!(
            *error.as_server().unwrap().kind(),
            ServerErrorKind::NoPerm,
            "{error}"
        ),
        other => panic!("{other:?}"),
    };
    refused(next(&mut closed).await);
    // A later subscriber gets it as well.
    let mut later = client.subscribe(b"closed");
    refused(next(&mut later).await);
    for subscription in &mut open {
        subscribed(subscription).await;
    }
    // Nor after a reconnect, when all are asked for again.
    raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    for (n, subscription) in open.iter_mut().enumerate() {
        subscribed(subscription).await;
        raw.cmd(&["PUBLISH", &format!("open:{n}"), "x"]).await;
        message(subscription, "x").await;
    }
    // It is confirmed after all, on a connection that may.
    raw.cmd(&["ACL", "SETUSER", "app", "&closed"]).await;
    raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    until("it is confirmed", async || {
        matches!(next(&mut closed).await, SubscriptionEvent::Subscribed)
    })
    .await;
}

/// lettuce 2940 and 3213, go-redis 3806: a subscription in progress when the socket broke is lost.
#[tokio::test]
async fn cut_at_any_byte_of_subscribing_and_unsubscribing_the_wish_is_what_holds_in_the_end() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let client = client(&proxy.url()).await;
    for (n, to_server) in (0..45_u64).flat_map(|n| [(n, true), (n, false)]) {
        let fault = Fault::Cut {
            after: n,
            how: leasehold_testkit::Cut::Rst,
        };
        if to_server {
            proxy.to_server(fault)
        } else {
            proxy.to_client(fault)
        }
        let name = format!("wanted:{n}:{to_server}");
        let mut wanted = client.subscribe(name.as_bytes());
        subscribed(&mut wanted).await;
        until("it is heard", async || {
            subscribers(&mut raw, &name).await == 1
        })
        .await;
        proxy.heal();
        let fault = Fault::Cut {
            after: n,
            how: leasehold_testkit::Cut::Rst,
        };
        if to_server {
            proxy.to_server(fault)
        } else {
            proxy.to_client(fault)
        }
        drop(wanted);
        until("nobody listens", async || {
            subscribers(&mut raw, &name).await == 0
        })
        .await;
        proxy.heal();
    }
}

/// A confirmation is a push instead of a reply; one that is taken for something else shifts every
/// reply behind it. The server itself puts our own message before the reply of its `PUBLISH` (up to
/// 7.0) or behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_subscriptions_and_messages_keeps_replies_in_order() {
    let server = Server::start().await;
    let client = client(&server.url()).await;
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for n in 0..300 {
                    let name = format!("c{}", (task + n) % 5);
                    let subscription = client.subscribe(name.as_bytes());
                    let publish = Command::new("PUBLISH").arg(&name).arg("x");
                    let tag = format!("{task}:{n}");
                    let echo = Command::new("ECHO").arg(&tag);
                    let (heard, reply) =
                        tokio::join!(client.call(b"", &publish), client.call(b"", &echo));
                    assert!((0..=1).contains(&heard.unwrap().as_int().expect("a number")));
                    assert_eq!(reply.unwrap().as_str(), Some(tag.as_str()));
                    drop(subscription);
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(BOUND, task)
            .await
            .expect("no request hangs")
            .unwrap();
    }
    let mut raw = server.raw().await;
    for name in ["c0", "c1", "c2", "c3", "c4"] {
        until("nobody listens", async || {
            subscribers(&mut raw, name).await == 0
        })
        .await;
    }
}

#[tokio::test]
async fn a_confirmation_that_is_late_is_told_all_the_same() {
    let server = Scripted::start(|mut peer| async move {
        assert_eq!(peer.greet().await.unwrap(), ["SUBSCRIBE", "c"]);
        // Later than a command may take, but not yet so late that the connection is given up.
        tokio::time::sleep(Duration::from_secs(3)).await;
        peer.say(">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n").await;
        peer.behave().await;
    })
    .await;
    let mut endpoint = Endpoint::parse(&server.url()).unwrap();
    endpoint.command_timeout = Duration::from_secs(2);
    let client = Client::connect(endpoint).await.unwrap();
    let mut subscription = client.subscribe(b"c");
    subscribed(&mut subscription).await;
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn an_unasked_unsubscribe_is_answered_by_subscribing_again() {
    let server = Scripted::start(|mut peer| async move {
        assert_eq!(peer.greet().await.unwrap(), ["PING"]);
        peer.say("+PONG\r\n").await;
        assert_eq!(peer.request().await.unwrap(), ["SUBSCRIBE", "c"]);
        let confirmation = ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
        peer.say(confirmation).await;
        assert_eq!(peer.request().await.unwrap(), ["ECHO", "a"]);
        assert_eq!(peer.request().await.unwrap(), ["ECHO", "b"]);
        // Between two replies, and also of an unknown channel.
        peer.say(
            "+a\r\n>3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n>3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:0\r\n+b\r\n",
        )
        .await;
        assert_eq!(peer.request().await.unwrap(), ["SUBSCRIBE", "c"]);
        peer.say(confirmation).await;
        peer.say(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n").await;
        peer.silence().await;
    })
    .await;
    let client = client(&server.url()).await;
    // A channel subscribed before the first reply may be requested twice, which is one time too
    // many for this script.
    client.call(b"", &Command::new("PING")).await.unwrap();
    let mut subscription = client.subscribe(b"c");
    subscribed(&mut subscription).await;
    let (a, b) = (Command::new("ECHO").arg("a"), Command::new("ECHO").arg("b"));
    let (a, b) = tokio::join!(client.call(b"", &a), client.call(b"", &b));
    assert_eq!(
        (a.unwrap().as_str(), b.unwrap().as_str()),
        (Some("a"), Some("b"))
    );
    subscribed(&mut subscription).await;
    message(&mut subscription, "hi").await;
    assert_eq!(server.accepted(), 1);
}

/// redis 11784, hiredis 1170: n channels are n pushes and no reply, duplicate and unknown channels
/// included.
#[tokio::test]
async fn each_of_the_commands_is_answered_for_one_and_for_three_channels() {
    let server = Server::start().await;
    let connection = Connection::connect(Endpoint::parse(&server.url()).unwrap())
        .await
        .unwrap();
    use Confirmation::{Ssubscribe, Subscribe as Sub, Sunsubscribe, Unsubscribe};
    let sharded = server.knows("SSUBSCRIBE").await;
    for kind in [Sub, Unsubscribe, Ssubscribe, Sunsubscribe, Unsubscribe, Sub] {
        if matches!(kind, Ssubscribe | Sunsubscribe) && !sharded {
            continue;
        }
        for names in [
            &["a"][..],
            &["a", "b", "c"],
            &["a", "a", "b"],
            &["never heard of", "a", "never heard of"],
        ] {
            let channels = names
                .iter()
                .map(|name| Bytes::copy_from_slice(name.as_bytes()))
                .collect();
            let reply = connection.subscribe(&Subscribe { kind, channels });
            let behind = connection.submit(&Command::new("ECHO").arg("behind"));
            match tokio::time::timeout(BOUND, reply)
                .await
                .unwrap_or_else(|_| panic!("{kind:?} {names:?}"))
            {
                Ok(_) => {}
                // Valkey 8.0 sends one confirmation to a connection without any subscription.
                Err(error) => {
                    let kind_of_error = error.as_server().map(|server| server.kind());
                    assert_eq!(
                        kind_of_error,
                        Some(&ServerErrorKind::NotSubscribed),
                        "{kind:?} {names:?}: {error}"
                    );
                    assert!(matches!(kind, Unsubscribe | Sunsubscribe));
                }
            }
            assert_eq!(
                behind.await.unwrap().as_str(),
                Some("behind"),
                "{kind:?} {names:?}"
            );
        }
        let none = connection.subscribe(&Subscribe {
            kind,
            channels: Vec::new(),
        });
        assert!(
            tokio::time::timeout(BOUND, none)
                .await
                .expect("at once")
                .is_err()
        );
    }
}
