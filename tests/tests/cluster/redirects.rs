//! Redirects of real servers: every reply a client can meet while slots move, nodes load, and
//! shards are down.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use leasehold_cluster::OwnedCall;
use leasehold_resp::{Command, Error, ServerErrorKind};
use leasehold_testkit::Cluster;
use tokio::time::sleep;

use crate::support::{TAKE, TAKE_AND_COUNT, calls, client, set, soon, take};

/// Names in one slot, at the first of three masters, with the slot.
async fn names(cluster: &Cluster) -> (impl Fn(&str) -> String + use<>, u16) {
    let tag = cluster.key_at(0, "tag").await;
    let slot = cluster.slot_of(&tag).await;
    (move |name: &str| format!("{{{tag}}}{name}"), slot)
}

async fn half_moved() -> (Cluster, impl Fn(&str) -> String, u16) {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (name, slot) = names(&cluster).await;
    let mut source = cluster.raw(0).await;
    for key in ["here", "here2", "gone", "gone2"] {
        assert!(
            source
                .cmd(&["SET", &name(key), "first", "PX", "60000"])
                .await
                .is_ok()
        );
    }
    let migration = cluster.migration(slot, 1).await;
    migration.begin().await;
    migration.move_keys(&[name("gone"), name("gone2")]).await;
    (cluster, name, slot)
}

#[tokio::test]
async fn one_key_is_served_wherever_it_is_while_its_slot_moves() {
    let (cluster, name, _) = half_moved().await;
    let client = client(&cluster.url()).await;
    for key in ["here", "gone"] {
        let value = client
            .call(name(key).as_bytes(), &Command::new("GET").arg(name(key)))
            .await
            .unwrap();
        assert_eq!(value.as_str(), Some("first"), "{key}");
        assert_eq!(
            take(&client, &name(key), "second", soon()).await.unwrap(),
            0,
            "{key} is held"
        );
        assert_eq!(
            take(&client, &name(key), "first", soon()).await.unwrap(),
            1,
            "{key} is its holder's"
        );
    }
    assert_eq!(
        take(&client, &name("new"), "second", soon()).await.unwrap(),
        1,
        "a new lock can be taken"
    );
    assert!(set(&client, &name("new2"), "1").await.is_ok());
}

/// `ASKING` on a slot that is being imported executes on an empty key, so a lock that is held at
/// the source would be granted once more. It may go out behind a fresh `ASK` only, for that one
/// command.
#[tokio::test]
async fn ask_is_never_remembered() {
    let (cluster, name, _) = half_moved().await;
    let client = client(&cluster.url()).await;
    let (mut source, mut target) = (cluster.raw(0).await, cluster.raw(1).await);
    for round in 1..=10 {
        assert_eq!(
            take(&client, &name("gone"), "second", soon())
                .await
                .unwrap(),
            0
        );
        assert_eq!(
            take(&client, &name("here"), "second", soon())
                .await
                .unwrap(),
            0
        );
        assert_eq!(calls(&mut target, "asking").await, round);
    }
    // Every call asked the source first.
    let asked = calls(&mut source, "evalsha").await + calls(&mut source, "eval").await;
    assert!(asked >= 20, "{asked}");
}

/// The `ASKING` is used up by an `EVALSHA` that answers `NOSCRIPT`; the `EVAL` behind it needs its
/// own.
#[tokio::test]
async fn asking_is_repeated_in_front_of_the_source_of_a_forgotten_script() {
    let (cluster, name, _) = half_moved().await;
    let client = client(&cluster.url()).await;
    let mut target = cluster.raw(1).await;
    let elsewhere = cluster.key_at(1, "k").await;
    assert_eq!(take(&client, &elsewhere, "me", soon()).await.unwrap(), 1);
    assert_eq!(take(&client, &elsewhere, "me", soon()).await.unwrap(), 1);
    target.cmd(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(
        take(&client, &name("gone"), "second", soon())
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        calls(&mut target, "asking").await,
        2,
        "once for EVALSHA, once for EVAL"
    );
}

/// The error of the server with which a call ends at its deadline, a second from now. If that falls between a request and its
/// reply, as on a busy machine, the error is another one, and the call is made again.
async fn refused_within_a_second<T: Debug>(
    mut call: impl AsyncFnMut(Instant) -> Result<T, Error>,
) -> Error {
    leasehold_testkit::until("a call with the server's own error", async || {
        let begun = Instant::now();
        let error = call(begun + Duration::from_secs(1)).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10));
        if error.as_server().is_some() {
            Ok(error)
        } else {
            Err(error.to_string())
        }
    })
    .await
}

#[tokio::test]
async fn two_new_keys_of_a_moving_slot_need_the_call_that_does_with_one() {
    let (cluster, name, slot) = half_moved().await;
    let client = client(&cluster.url()).await;
    let (lock, counter) = (name("new"), name("counter"));
    let keys: [&[u8]; 2] = [lock.as_bytes(), counter.as_bytes()];

    // Without an alternative it ends with the server's error, in time, and with few attempts.
    let mut target = cluster.raw(1).await;
    let error = refused_within_a_second(async |deadline| {
        let before = calls(&mut target, "asking").await;
        let call = TAKE_AND_COUNT.call(&keys, &[b"me"]);
        let refused = client.eval(&call, deadline).await;
        let asked = calls(&mut target, "asking").await - before;
        println!("{asked} attempts in a second");
        assert!(asked <= 50, "{asked}");
        refused
    })
    .await;
    assert_eq!(
        error.as_server().unwrap().kind(),
        &ServerErrorKind::TryAgain,
        "{error}"
    );
    assert!(!error.may_have_executed());

    let single = || OwnedCall::new(&TAKE, vec![keys[0].into()], vec![(*b"me").into()]);
    let done = client
        .eval(
            &TAKE_AND_COUNT.call(&keys, &[b"me"]).with_fallback(&single),
            soon(),
        )
        .await
        .unwrap();
    assert_eq!(done.value.as_int(), Some(1), "the call with one key");
    assert!(!done.repeated);

    // And when the slot has arrived, with both again.
    let migration = cluster.migration(slot, 1).await;
    migration.move_all_keys().await;
    migration.finish().await;
    let done = client
        .eval(
            &TAKE_AND_COUNT.call(&keys, &[b"me"]).with_fallback(&single),
            soon(),
        )
        .await
        .unwrap();
    assert_eq!(done.value.as_int(), Some(2));
}

#[tokio::test]
async fn two_keys_are_served_when_they_are_together_and_waited_for_while_they_are_not() {
    let (cluster, name, slot) = half_moved().await;
    let client = client(&cluster.url()).await;
    for pair in [["here", "here2"], ["gone", "gone2"]] {
        let [a, b] = pair.map(&name);
        let done = client
            .eval(
                &TAKE_AND_COUNT.call(&[a.as_bytes(), b.as_bytes()], &[b"first"]),
                soon(),
            )
            .await
            .unwrap();
        assert_eq!(done.value.as_int(), Some(2), "{pair:?}");
    }
    let (a, b) = (name("here"), name("gone"));
    let keys: [&[u8]; 2] = [a.as_bytes(), b.as_bytes()];
    let call = TAKE_AND_COUNT.call(&keys, &[b"first"]);
    let (done, ()) = tokio::join!(client.eval(&call, soon()), async {
        sleep(Duration::from_millis(300)).await;
        let migration = cluster.migration(slot, 1).await;
        migration.move_all_keys().await;
        migration.finish().await;
    });
    assert_eq!(done.unwrap().value.as_int(), Some(2));
}

/// A held lock stays held while its slot goes round the cluster, also for clients whose map is old.
#[tokio::test]
async fn a_lock_is_granted_once_while_its_slot_travels() {
    let cluster = Cluster::builder().replicas(0).spares(1).start().await;
    let (name, slot) = names(&cluster).await;
    let lock = name("lock");
    let holder = client(&cluster.url()).await;
    assert_eq!(take(&holder, &lock, "holder", soon()).await.unwrap(), 1);

    let url = cluster.url_of(&[2]);
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let contending = tokio::spawn({
        let lock = lock.clone();
        async move {
            let contender = client(&url).await;
            let mut attempts = 0;
            while !stopped.has_changed().unwrap() {
                assert_eq!(
                    take(&contender, &lock, "contender", soon()).await.unwrap(),
                    0,
                    "granted twice"
                );
                attempts += 1;
            }
            stopped.mark_unchanged();
            attempts
        }
    });
    for target in [1, 2, 0, 3] {
        let migration = cluster.migration(slot, target).await;
        migration.begin().await;
        sleep(Duration::from_millis(50)).await;
        migration.move_all_keys().await;
        sleep(Duration::from_millis(50)).await;
        migration.finish().await;
        sleep(Duration::from_millis(50)).await;
        assert_eq!(take(&holder, &lock, "holder", soon()).await.unwrap(), 1);
    }
    stop.send(true).unwrap();
    let attempts = contending.await.unwrap();
    println!("{attempts} attempts while the slot travelled");
    assert!(attempts > 0);
}

/// The node was not in the map, and the others do not know of the move.
#[tokio::test]
async fn a_slot_that_went_to_a_node_unknown_so_far_is_followed() {
    let cluster = Cluster::builder()
        .replicas(0)
        .spares(1)
        .proxied()
        .start()
        .await;
    let (name, slot) = names(&cluster).await;
    let client = client(&cluster.url_of(&[0])).await;
    assert!(set(&client, &name("k"), "1").await.is_ok());
    let migration = cluster.migration(slot, 3).await;
    migration.begin().await;
    migration.move_all_keys().await;

    // During the import no map contains the node: its connection has to be kept nevertheless.
    let before = cluster.proxy(3).accepts();
    for n in 0..20 {
        assert!(set(&client, &name(&format!("new{n}")), "1").await.is_ok());
    }
    let opened = cluster.proxy(3).accepts() - before;
    assert!(opened <= 2, "{opened} connections for 20 commands");

    migration.move_all_keys().await;
    migration.finish().await;
    assert!(set(&client, &name("k"), "2").await.is_ok());
    assert_eq!(
        client.node(name("k").as_bytes()).to_string(),
        cluster.addr(3).to_string()
    );
    assert_eq!(
        cluster.raw(3).await.cmd(&["GET", &name("k")]).await.str(),
        "2"
    );
}

#[tokio::test]
async fn a_slot_that_moves_atomically_is_followed() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (name, slot) = names(&cluster).await;
    let client = client(&cluster.url()).await;
    assert_eq!(take(&client, &name("k"), "me", soon()).await.unwrap(), 1);
    if !cluster.migrate_slot_atomically(slot, 1).await {
        return println!("skipped: the server does not know CLUSTER MIGRATESLOTS");
    }
    assert_eq!(take(&client, &name("k"), "other", soon()).await.unwrap(), 0);
    assert_eq!(
        client.node(name("k").as_bytes()).to_string(),
        cluster.addr(1).to_string()
    );
}

#[tokio::test]
async fn a_slot_without_a_node_is_waited_for() {
    let cluster = Cluster::builder()
        .replicas(0)
        .config("cluster-require-full-coverage no")
        .start()
        .await;
    let (name, slot) = names(&cluster).await;
    let client = client(&cluster.url()).await;
    let text = slot.to_string();
    for node in 0..3 {
        assert!(
            cluster
                .raw(node)
                .await
                .cmd(&["CLUSTER", "DELSLOTS", &text])
                .await
                .is_ok()
        );
    }
    let error = take(
        &client,
        &name("k"),
        "me",
        Instant::now() + Duration::from_millis(500),
    )
    .await
    .unwrap_err();
    assert!(!error.may_have_executed(), "{error}");
    println!("{error}");
    // Others are served meanwhile.
    let other = cluster.key_at(1, "k").await;
    assert!(set(&client, &other, "1").await.is_ok());

    let key = name("k");
    let (taken, ()) = tokio::join!(take(&client, &key, "me", soon()), async {
        sleep(Duration::from_millis(300)).await;
        assert!(
            cluster
                .raw(0)
                .await
                .cmd(&["CLUSTER", "ADDSLOTS", &text])
                .await
                .is_ok()
        );
    });
    assert_eq!(taken.unwrap(), 1);
}

#[tokio::test]
async fn a_cluster_that_is_down_ends_calls_in_time_and_says_that_nothing_ran() {
    let cluster = Cluster::builder()
        .replicas(0)
        .node_timeout(Duration::from_millis(500))
        .start()
        .await;
    let client = client(&cluster.url_of(&[0])).await;
    let key = cluster.key_at(0, "k").await;
    assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
    cluster.kill(1);
    cluster.kill(2);
    let mut raw = cluster.raw(0).await;
    leasehold_testkit::until("the cluster goes down", async || {
        let reply = raw.cmd(&["GET", &key]).await;
        reply
            .error()
            .map(|_| ())
            .ok_or_else(|| format!("{reply:?}"))
    })
    .await;
    let error =
        refused_within_a_second(async |deadline| take(&client, &key, "me", deadline).await).await;
    assert_eq!(
        error.as_server().unwrap().kind(),
        &ServerErrorKind::ClusterDown,
        "{error}"
    );
    assert!(!error.may_have_executed());

    cluster.restart(1).await;
    cluster.restart(2).await;
    assert_eq!(
        take(&client, &key, "me", soon()).await.unwrap(),
        1,
        "the same client, when the cluster is back"
    );
}

#[tokio::test]
async fn a_node_that_loads_or_is_busy_is_waited_for() {
    let cluster = Cluster::builder()
        .replicas(0)
        .node_timeout(Duration::from_secs(15))
        .start()
        .await;
    let client = client(&cluster.url()).await;
    let key = cluster.key_at(0, "k").await;
    assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
    let mut raw = cluster.raw(0).await;

    for (name, value) in [
        ("lua-time-limit", "50"),
        ("loading-process-events-interval-bytes", "1024"),
    ] {
        let reply = raw.cmd(&["CONFIG", "SET", name, value]).await;
        println!("{name}: {reply:?}");
    }
    raw.send(&["EVAL", "while true do end", "0"]).await.unwrap();
    let mut killer = cluster.raw(0).await;
    let (taken, ()) = tokio::join!(take(&client, &key, "me", soon()), async {
        leasehold_testkit::until("the server is busy", async || {
            let reply = killer.cmd(&["PING"]).await;
            if reply.error().is_some_and(|line| line.starts_with("BUSY")) {
                Ok(())
            } else {
                Err(format!("{reply:?}"))
            }
        })
        .await;
        sleep(Duration::from_millis(300)).await;
        assert!(killer.cmd(&["SCRIPT", "KILL"]).await.is_ok());
    });
    assert_eq!(taken.unwrap(), 1);
    assert!(raw.read().await.unwrap().error().is_some());

    raw.cmd(&["DEBUG", "POPULATE", "2000"]).await;
    assert!(
        raw.cmd(&["CONFIG", "SET", "key-load-delay", "500"])
            .await
            .is_ok()
    );
    raw.send(&["DEBUG", "RELOAD"]).await.unwrap();
    let mut asking = cluster.raw(0).await;
    let (taken, ()) = tokio::join!(take(&client, &key, "me", soon()), async {
        let reply = asking.cmd(&["GET", &key]).await;
        println!("while it loads: {reply:?}");
    });
    assert_eq!(taken.unwrap(), 1);
    assert!(raw.read().await.unwrap().is_ok());
}

#[tokio::test]
async fn keys_of_different_slots_are_the_callers_mistake() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let client = client(&cluster.url()).await;
    let keys: [&[u8]; 2] = [b"a", b"b"];
    let begun = Instant::now();
    let error = client
        .eval(&TAKE_AND_COUNT.call(&keys, &[b"me"]), soon())
        .await
        .unwrap_err();
    assert_eq!(
        error.as_server().unwrap().kind(),
        &ServerErrorKind::CrossSlot
    );
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "no retry can help"
    );
}
