//! Sentinels name the master, and the master has to confirm it: failovers are followed, former
//! masters refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold_cluster::{Channels, Client, Target};
use leasehold_resp::Command;
use leasehold_testkit::{Raw, Scripted, Sentinels, Server, until};
use tokio::sync::{Notify, broadcast};

use crate::support::{BOUND, client, set, soon, take};

const KEY: &str = "lock";

/// The number of the server that the client uses.
fn used(client: &Client, sentinels: &Sentinels) -> Option<usize> {
    let name = client.node(KEY.as_bytes());
    (0..sentinels.servers().len()).find(|index| sentinels.node(*index).addr().to_string() == *name)
}

#[tokio::test]
async fn a_failover_is_followed_because_sentinels_announce_it() {
    let sentinels = Sentinels::start().await;
    let client = client(&sentinels.url()).await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
    assert_eq!(used(&client, &sentinels), Some(0));
    let master = sentinels.failover().await;
    // Without any command: the announcement is enough.
    until("the client follows", async || {
        match used(&client, &sentinels) {
            Some(used) if used == master => Ok(()),
            used => Err(format!("{used:?}")),
        }
    })
    .await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
    assert!(set(&client, KEY, "1").await.is_ok());
}

#[tokio::test]
async fn a_killed_master_and_a_frozen_one_are_replaced_and_do_not_come_back_when_they_do() {
    // On a busy machine a healthy one would be replaced, too, by the one that has woken up.
    let sentinels = Sentinels::builder()
        .down_after(Duration::from_secs(1))
        .start()
        .await;
    let client = client(&sentinels.url()).await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);

    sentinels.node(0).kill();
    let begun = Instant::now();
    let (taken, (second, raw)) = tokio::join!(take(&client, KEY, "me", soon()), async {
        let index = sentinels.wait_for_writable().await;
        (index, begun.elapsed())
    });
    assert_eq!(taken.unwrap(), 1);
    println!(
        "kill -9: a raw probe writes after {raw:?}, both are done after {:?}",
        begun.elapsed()
    );
    assert_eq!(used(&client, &sentinels), Some(second));
    sentinels.node(0).restart().await;
    sentinels.servers().wait_until_linked(2).await;
    sentinels.wait_until_ready().await;

    sentinels.node(second).pause();
    let begun = Instant::now();
    let (taken, (third, raw)) = tokio::join!(take(&client, KEY, "me", soon()), async {
        let index = sentinels.wait_for_writable().await;
        (index, begun.elapsed())
    });
    assert_eq!(taken.unwrap(), 1);
    println!(
        "SIGSTOP: a raw probe writes after {raw:?}, both are done after {:?}",
        begun.elapsed()
    );
    assert_ne!(third, second);
    assert_eq!(used(&client, &sentinels), Some(third));

    // It wakes, and for a while still considers itself the master: no client must use it, new ones
    // neither. (Once all sentinels know the new one. To a client of one that does not, both would
    // name the old one.)
    for sentinel in 0..3 {
        until("all sentinels name the new one", async || {
            match sentinels.named_by(sentinel).await {
                Some(named) if named == third => Ok(()),
                named => Err(format!("{sentinel} names {named:?}")),
            }
        })
        .await;
    }
    sentinels.node(second).resume();
    for _ in 0..20 {
        let newcomer = crate::support::client(&sentinels.url()).await;
        for client in [&client, &newcomer] {
            assert_eq!(take(client, KEY, "me", soon()).await.unwrap(), 1);
            assert_eq!(used(client, &sentinels), Some(third));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// While there is no master they are asked some forty times a second: over the connections that
/// there are.
#[tokio::test]
async fn looking_for_the_next_master_opens_no_connections_at_the_sentinels() {
    let sentinels = Sentinels::start().await;
    let client = client(&sentinels.url()).await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
    let mut raws = [
        sentinels.sentinel(0).raw().await,
        sentinels.sentinel(1).raw().await,
        sentinels.sentinel(2).raw().await,
    ];
    let received = async |raw: &mut Raw| -> u64 {
        let stats = raw.cmd(&["INFO", "stats"]).await;
        let line = stats
            .str()
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.expect("it counts them")
            .trim()
            .parse()
            .expect("a number")
    };
    for raw in &mut raws {
        // Then it is connected.
        until("the client listens", async || {
            let clients = raw.cmd(&["CLIENT", "LIST"]).await;
            if clients.str().contains(" sub=1 ") {
                Ok(())
            } else {
                Err(clients.str().to_owned())
            }
        })
        .await;
    }
    let mut before = Vec::new();
    for raw in &mut raws {
        before.push(received(raw).await);
    }
    sentinels.node(0).kill();
    assert_eq!(
        take(&client, KEY, "me", soon()).await.unwrap(),
        1,
        "by the next master"
    );
    for (raw, before) in raws.iter_mut().zip(before) {
        // The other two may have renewed their links. With a connection for each question it was
        // 45.
        let more = received(raw).await - before;
        assert!(more <= 8, "{more} connections");
    }
}

/// The server refuses writes, and the client must not go on using it.
#[tokio::test]
async fn a_master_that_was_demoted_under_the_client_is_left() {
    let sentinels = Sentinels::start().await;
    let client = client(&sentinels.url()).await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
    // Sentinels do not announce this one at first: the client learns it from READONLY.
    let master = sentinels.node(1).port().to_string();
    assert!(
        sentinels
            .node(1)
            .raw()
            .await
            .cmd(&["REPLICAOF", "NO", "ONE"])
            .await
            .is_ok()
    );
    assert!(
        sentinels
            .node(0)
            .raw()
            .await
            .cmd(&["REPLICAOF", "127.0.0.1", &master])
            .await
            .is_ok()
    );
    // Sentinels correct it, one way or the other; the client uses the resulting master. Redis 6.2
    // takes half a minute for it.
    let corrected = Instant::now() + Duration::from_secs(90);
    assert_eq!(take(&client, KEY, "me", corrected).await.unwrap(), 1);
    let index = used(&client, &sentinels).expect("a server of ours");
    assert_eq!(
        sentinels.servers().role(index).await.as_deref(),
        Some("master")
    );
}

/// Sentinels may be wrong for a while: a server whose role is replica is not used, even if all name
/// it.
#[tokio::test]
async fn a_replica_that_sentinels_call_the_master_is_refused() {
    let server = leasehold_testkit::Replicas::builder()
        .replicas(1)
        .start()
        .await;
    let port = server.node(1).port();
    let sentinel = Scripted::start(move |mut peer| async move {
        while let Some(request) = peer.greet().await {
            match request[0].as_str() {
                "SENTINEL" => {
                    peer.say(format!(
                        "*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n",
                        port.to_string().len()
                    ))
                    .await;
                }
                "SUBSCRIBE" => {
                    peer.say(">3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n")
                        .await
                }
                _ => peer.say("+OK\r\n").await,
            }
        }
    })
    .await;
    let url = format!("redis-sentinel://{}/mymaster", sentinel.addr());
    let error = Client::connect(Target::parse(&url).unwrap())
        .await
        .unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("master"), "{error}");
    assert!(!error.may_have_executed());
    // The role, not the write, decides: when it is promoted it may be used.
    assert!(
        server
            .node(1)
            .raw()
            .await
            .cmd(&["REPLICAOF", "NO", "ONE"])
            .await
            .is_ok()
    );
    let client = client(&url).await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
}

/// A sentinel that names these ports one after another, and from then on the last one. It announces
/// a new master on demand, and with its third answer: the first two are needed by a client that
/// connects.
struct Fickle {
    sentinel: Scripted,
    asked: Arc<AtomicUsize>,
    listening: Arc<Notify>,
    announce: broadcast::Sender<()>,
}

async fn fickle(ports: [u16; 4]) -> Fickle {
    const ANNOUNCEMENT: &str = ">3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$1\r\nx\r\n";
    let (announce, _) = broadcast::channel::<()>(8);
    let (asked, listening) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let shared = (announce.clone(), Arc::clone(&asked), Arc::clone(&listening));
    let sentinel = Scripted::start(move |mut peer| {
        let (announce, asked, listening) = shared.clone();
        let (mut announced, mut subscribed) = (announce.subscribe(), false);
        async move {
            loop {
                let request = tokio::select! {
                    request = peer.greet() => request,
                    Ok(()) = announced.recv(), if subscribed => {
                        peer.say(ANNOUNCEMENT).await;
                        continue;
                    }
                };
                let Some(request) = request else { return };
                if request[0] == "SUBSCRIBE" {
                    peer.say(">3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n")
                        .await;
                    subscribed = true;
                    listening.notify_one();
                    continue;
                }
                let time = asked.fetch_add(1, Ordering::SeqCst);
                if time == 2 {
                    peer.say(ANNOUNCEMENT).await;
                }
                peer.say(format!(
                    "*2\r\n$9\r\n127.0.0.1\r\n$5\r\n{}\r\n",
                    ports[time.min(3)]
                ))
                .await;
            }
        }
    })
    .await;
    Fickle {
        sentinel,
        asked,
        listening,
        announce,
    }
}

/// Sentinels announce a new master one after another. A sentinel that was asked just before still
/// names the old one, and the old one confirms it as long as it is cut off.
#[tokio::test]
async fn an_announcement_during_a_look_at_the_sentinels_is_followed_by_another_look() {
    let (old, new) = (Server::start().await, Server::start().await);
    let fickle = fickle([old.port(), old.port(), old.port(), new.port()]).await;
    let client = client(&format!(
        "redis-sentinel://{}/mymaster",
        fickle.sentinel.addr()
    ))
    .await;
    assert_eq!(*client.node(KEY.as_bytes()), *old.addr().to_string());
    fickle.listening.notified().await;
    fickle.announce.send(()).unwrap();
    let follows = until("the client follows", async || {
        if *client.node(KEY.as_bytes()) == *new.addr().to_string() {
            Ok(())
        } else {
            Err("not yet".into())
        }
    });
    tokio::time::timeout(BOUND, follows)
        .await
        .expect("it looks again");
}

/// It may have been frozen when they named it, and have woken up to confirm it.
#[tokio::test]
async fn a_master_that_is_not_named_any_more_when_it_confirms_its_role_is_not_gone_to() {
    let (master, woken) = (Server::start().await, Server::start().await);
    let fickle = fickle([master.port(), master.port(), woken.port(), master.port()]).await;
    let client = client(&format!(
        "redis-sentinel://{}/mymaster",
        fickle.sentinel.addr()
    ))
    .await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
    let changes = client.changes();
    fickle.listening.notified().await;
    fickle.announce.send(()).unwrap();
    until("the sentinel is asked once more", async || {
        match fickle.asked.load(Ordering::SeqCst) {
            5.. => Ok(()),
            asked => Err(format!("asked {asked} times")),
        }
    })
    .await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
    assert_eq!(
        (client.node(KEY.as_bytes()).as_ref(), client.changes()),
        (&*master.addr().to_string(), changes)
    );
}

#[tokio::test]
async fn sentinels_and_servers_have_passwords_of_their_own() {
    let sentinels = Sentinels::builder()
        .requirepass("servers")
        .sentinel_requirepass("theirs")
        .start()
        .await;
    let client = client(&sentinels.url()).await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
    sentinels.failover().await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);

    for wrong in [
        sentinels.url().replace("theirs", "mistaken"),
        sentinels.url().replace(":servers@", ":mistaken@"),
    ] {
        let error = Client::connect(Target::parse(&wrong).unwrap())
            .await
            .unwrap_err();
        println!("{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains("WRONGPASS"), "{text}");
        assert!(
            !text.contains("mistaken") && !text.contains("theirs"),
            "{text}"
        );
    }
}

/// A user that only sentinels know, with the least rights: what is asked, and what is announced.
#[tokio::test]
async fn sentinels_have_users_of_their_own_and_say_what_those_may_not_do() {
    const ASK: &str = "+sentinel|get-master-addr-by-name";
    const HEAR: &str = "+subscribe &+switch-master";
    let user =
        |name: &str, rights: &str| format!("user {name} on >theirs resetchannels -@all {rights}");
    let sentinels = Sentinels::builder()
        // On the servers: all rights but one.
        .config("user roleless on >secret allkeys allchannels +@all -role")
        .sentinel_config(user("both", &format!("{ASK} {HEAR}")))
        .sentinel_config(user("deaf", ASK))
        .sentinel_config(user("mute", HEAR))
        .start()
        .await;
    let url = |user: &str| {
        format!(
            "{}?sentinel_user={user}&sentinel_password=theirs",
            sentinels.url()
        )
    };
    for user in ["both", "deaf"] {
        let client = client(&url(user)).await;
        assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
        // A client that misses the announcement learns it from the old master, which refuses writes
        // or is gone.
        let master = sentinels.failover().await;
        until("the client follows", async || {
            match take(&client, KEY, "me", soon()).await {
                Ok(1) if used(&client, &sentinels) == Some(master) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        sentinels.servers().wait_until_linked(2).await;
    }
    let error = Client::connect(Target::parse(&url("mute")).unwrap())
        .await
        .unwrap_err();
    println!("{error}");
    let text = error.to_string();
    assert!(
        text.contains("NOPERM") && text.contains("sentinel"),
        "{text}"
    );
    let url = sentinels.url().replace("://", "://roleless:secret@");
    let roleless = Client::connect(Target::parse(&url).unwrap())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        roleless.contains("NOPERM") && roleless.contains("'role'"),
        "{roleless}"
    );
    assert!(
        (0..3).any(|index| roleless.contains(&sentinels.node(index).addr().to_string())),
        "{roleless}"
    );
    assert!(
        (0..3).any(|index| text.contains(&sentinels.sentinel(index).addr().to_string())),
        "{text}"
    );
}

#[tokio::test]
async fn one_sentinel_of_three_is_enough_and_a_service_that_none_knows_is_an_error() {
    let sentinels = Sentinels::start().await;
    sentinels.sentinel(0).pause();
    sentinels.sentinel(1).kill();
    let client = client(&sentinels.url()).await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);

    sentinels.sentinel(0).resume();
    let url = sentinels.url().replace("/mymaster", "/nobody");
    let error = Client::connect(Target::parse(&url).unwrap())
        .await
        .unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("nobody"), "{error}");
}

#[tokio::test]
async fn subscriptions_go_where_the_master_goes() {
    use leasehold_cluster::SubscriptionEvent;
    let sentinels = Sentinels::start().await;
    let client = client(&sentinels.url()).await;
    let mut subscription = client.subscribe(b"wake");
    let mut next = async || {
        tokio::time::timeout(BOUND, subscription.next())
            .await
            .expect("an event")
    };
    assert!(matches!(next().await, SubscriptionEvent::Subscribed));
    let master = sentinels.failover().await;
    // The gap is reported, and messages after it arrive again.
    assert!(matches!(next().await, SubscriptionEvent::Subscribed));
    until("a message reaches the client", async || {
        let heard = sentinels
            .node(master)
            .raw()
            .await
            .cmd(&["PUBLISH", "wake", "up"])
            .await
            .int();
        if heard > 0 {
            Ok(())
        } else {
            Err("nobody listens".into())
        }
    })
    .await;
    loop {
        match next().await {
            SubscriptionEvent::Message(message) => break assert_eq!(&message[..], b"up"),
            SubscriptionEvent::Subscribed => {}
            other => panic!("{other:?}"),
        }
    }
    let published = Command::new(match client.channels() {
        Channels::Sharded => "SPUBLISH",
        _ => "PUBLISH",
    })
    .arg("wake")
    .arg("again");
    assert_eq!(
        client.call(b"wake", &published).await.unwrap().as_int(),
        Some(1)
    );
    assert!(
        matches!(next().await, SubscriptionEvent::Message(message) if &message[..] == b"again")
    );
}
