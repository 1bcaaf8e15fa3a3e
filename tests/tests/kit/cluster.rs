//! The kit's cluster does what tests rely on.

use std::time::{Duration, Instant};

use leasehold_testkit::cluster::Step;
use leasehold_testkit::{Cluster, Failover, Raw, ms, network, until};
use tokio::time::timeout;

#[tokio::test]
async fn a_cluster_is_ready_when_it_has_started_and_gone_when_it_is_dropped() {
    let begun = Instant::now();
    let cluster = Cluster::start().await;
    println!("3 + 3 nodes are ready after {:?}", begun.elapsed());
    assert_eq!((cluster.len(), cluster.masters()), (6, 3));
    for master in 0..3 {
        let key = cluster.key_at(master, "k").await;
        assert_eq!(cluster.master_of(&key).await, Some(master));
        assert_eq!(cluster.replicas_of(master).await, [master + 3]);
        // The first try of a raw client succeeds, and reaches the replica.
        let mut raw = cluster.raw(master).await;
        assert!(raw.cmd(&["SET", &key, "1", "PX", "60000"]).await.is_ok());
        assert_eq!(raw.cmd(&["WAIT", "1", "10000"]).await.int(), 1);
        // Another node points there, at the address that the URL has, too.
        let moved = cluster
            .raw((master + 1) % 3)
            .await
            .cmd(&["GET", &key])
            .await;
        assert_eq!(
            moved.error().unwrap(),
            format!(
                "MOVED {} {}",
                cluster.slot_of(&key).await,
                cluster.addr(master)
            ),
        );
        assert!(cluster.url().contains(&cluster.addr(master).to_string()));
    }
    let nodes: Vec<_> = (0..6).map(|index| cluster.addr(index)).collect();
    drop(cluster);
    for addr in nodes {
        assert!(Raw::connect(addr).await.is_err());
    }
}

#[tokio::test]
async fn other_shapes_and_settings_are_to_be_had() {
    let cluster = Cluster::builder()
        .masters(2)
        .replicas(0)
        .spares(1)
        .node_timeout(Duration::from_millis(1500))
        .config("maxmemory 100mb")
        .start()
        .await;
    assert_eq!((cluster.len(), cluster.masters()), (3, 2));
    let settings = cluster
        .raw(0)
        .await
        .cmd(&["CONFIG", "GET", "cluster-node-timeout"])
        .await;
    assert_eq!(settings.array()[1].int(), 1500);
    let settings = cluster
        .raw(2)
        .await
        .cmd(&["CONFIG", "GET", "maxmemory"])
        .await;
    assert_eq!(settings.array()[1].int(), 100 << 20);
    assert!(cluster.is_master(2).await);
    let view = cluster.view(0).await.unwrap();
    let spare = view
        .iter()
        .find(|member| member.id == cluster.id(2))
        .unwrap();
    assert_eq!(spare.slots, []);
}

#[tokio::test]
async fn a_replica_takes_over_when_it_is_told_to_and_when_its_master_is_killed_or_frozen() {
    let cluster = Cluster::start().await;
    let keys = [
        cluster.key_at(0, "k").await,
        cluster.key_at(1, "k").await,
        cluster.key_at(2, "k").await,
    ];
    // Each in a shard of its own: a replica of Redis 7.0 that was elected a moment ago counts its
    // old votes again when its next master fails, becomes master with an epoch that is too old, and
    // loses the slots again.
    for (shard, how) in [Failover::Graceful, Failover::Force, Failover::Takeover]
        .into_iter()
        .enumerate()
    {
        cluster.failover(shard + 3, how).await;
        assert_eq!(
            cluster.master_of(&keys[shard]).await,
            Some(shard + 3),
            "{how:?}"
        );
        // Until the old master has heard of it, it takes writes too, unless it was asked.
        cluster.wait_until_ok().await;
        assert_eq!(
            cluster.wait_for_writable(&keys[shard]).await,
            shard + 3,
            "{how:?}"
        );
        assert_eq!(cluster.replicas_of(shard + 3).await, [shard], "{how:?}");
    }

    cluster.kill(3);
    let killed = Instant::now();
    assert_eq!(cluster.wait_for_writable(&keys[0]).await, 0);
    println!("kill -9 to writable: {:?}", killed.elapsed());
    cluster.restart(3).await;
    cluster.wait_until_ok().await;
    assert_eq!(cluster.replicas_of(0).await, [3]);

    cluster.freeze(5);
    let frozen = Instant::now();
    assert_eq!(cluster.wait_for_writable(&keys[2]).await, 2);
    println!("SIGSTOP to writable: {:?}", frozen.elapsed());
    cluster.thaw(5);
    cluster.wait_until_ok().await;
    assert_eq!(cluster.replicas_of(2).await, [5]);
}

#[tokio::test]
async fn a_slot_migrates_step_by_step() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let key = cluster.key_at(0, "k").await;
    let (here, gone, absent) = (
        format!("{{{key}}}here"),
        format!("{{{key}}}gone"),
        format!("{{{key}}}absent"),
    );
    let (mut source, mut target, mut third) = (
        cluster.raw(0).await,
        cluster.raw(1).await,
        cluster.raw(2).await,
    );
    for key in [&here, &gone] {
        assert!(source.cmd(&["SET", key, "1", "PX", "60000"]).await.is_ok());
    }
    let slot = cluster.slot_of(&key).await;
    let (at_source, at_target) = (
        format!("{slot} {}", cluster.addr(0)),
        format!("{slot} {}", cluster.addr(1)),
    );

    let migration = cluster.migration(slot, 1).await;
    assert_eq!((migration.source(), migration.target()), (0, 1));
    migration.begin().await;
    migration.move_keys(&[&gone]).await;
    assert_eq!(source.cmd(&["GET", &here]).await.str(), "1");
    for key in [&gone, &absent] {
        assert_eq!(
            source.cmd(&["GET", key]).await.error().unwrap(),
            format!("ASK {at_target}")
        );
    }
    assert_eq!(
        target.cmd(&["GET", &gone]).await.error().unwrap(),
        format!("MOVED {at_source}")
    );
    assert!(target.cmd(&["ASKING"]).await.is_ok());
    assert_eq!(target.cmd(&["GET", &gone]).await.str(), "1");

    assert_eq!(migration.move_all_keys().await, 1);
    migration.finish().await;
    assert_eq!(
        source.cmd(&["GET", &here]).await.error().unwrap(),
        format!("MOVED {at_target}")
    );
    assert_eq!(target.cmd(&["GET", &here]).await.str(), "1");
    migration.tell_everybody().await;
    assert_eq!(
        third.cmd(&["GET", &here]).await.error().unwrap(),
        format!("MOVED {at_target}")
    );
    cluster.wait_for_agreement().await;
    assert_eq!(cluster.master_of(&key).await, Some(1));

    // And a migration that is called off.
    let migration = cluster.migration(slot, 2).await;
    migration.begin().await;
    migration.cancel().await;
    assert_eq!(target.cmd(&["GET", &absent]).await.error(), None);
}

#[tokio::test]
async fn a_slot_migrates_atomically_and_can_be_held_called_off_and_failed() {
    let cluster = Cluster::builder()
        .masters(2)
        .replicas(0)
        .spares(1)
        .start()
        .await;
    let key = cluster.key_at(0, "k").await;
    let slot = cluster.slot_of(&key).await;
    let Some(migration) = cluster.atomic_migration(slot, 2).await else {
        return println!("skipped: the server does not know CLUSTER MIGRATESLOTS");
    };
    assert_eq!((migration.source(), migration.target()), (0, 2));
    let (mut source, mut target) = (cluster.raw(0).await, cluster.raw(2).await);
    let (at_source, at_target) = (cluster.addr(0), cluster.addr(2));
    let set = ["SET", &key, "1", "PX", "60000"];
    assert!(source.cmd(&set).await.is_ok());

    // While it is streamed, all is as before; and so it is when it was called off.
    for _ in 0..2 {
        migration.start_until(Step::Streaming).await;
        assert!(source.cmd(&set).await.is_ok());
        assert!(target.cmd(&["ASKING"]).await.is_ok());
        assert_eq!(
            target.cmd(&["GET", &key]).await.error().unwrap(),
            format!("MOVED {slot} {at_source}")
        );
        migration.cancel().await;
        assert!(source.cmd(&set).await.is_ok());
    }

    // Then reads are answered, and writes only when it is decided where.
    for (cancelled, master) in [(true, 0), (false, 2)] {
        migration.start_until(Step::Paused).await;
        let mut writer = cluster.raw(0).await;
        let key = key.clone();
        let write =
            tokio::spawn(async move { writer.cmd(&["SET", &key, "2", "PX", "60000"]).await });
        until("the write is held back", async || {
            let info = source.cmd(&["INFO", "clients"]).await;
            if info.str().contains("blocked_clients:1") {
                Ok(())
            } else {
                Err(info.str().to_owned())
            }
        })
        .await;
        if cancelled {
            migration.cancel().await
        } else {
            migration.finish().await
        }
        let written = write.await.unwrap();
        match written.error() {
            None => assert!(cancelled && written.is_ok()),
            Some(error) => assert_eq!(
                (cancelled, error),
                (false, &*format!("MOVED {slot} {at_target}"))
            ),
        }
        assert_eq!(cluster.master_of_slot(slot).await, Some(master));
    }
    assert_eq!(target.cmd(&["GET", &key]).await.str(), "2");
    assert_eq!(source.cmd(&["DBSIZE"]).await.int(), 0);

    // Back, with a target that dies.
    let key = cluster.key_at(1, "k").await;
    let slot = cluster.slot_of(&key).await;
    let migration = cluster.atomic_migration(slot, 2).await.unwrap();
    migration.start_until(Step::Streaming).await;
    cluster.kill(2);
    migration.failed().await;
    assert!(
        cluster
            .raw(1)
            .await
            .cmd(&["SET", &key, "1", "PX", "60000"])
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn proxies_stand_where_the_cluster_says_its_nodes_are() {
    let cluster = Cluster::builder().proxied().start().await;
    let key = cluster.key_at(1, "k").await;
    let moved = cluster.raw(0).await.cmd(&["GET", &key]).await;
    assert_eq!(
        moved.error().unwrap(),
        format!(
            "MOVED {} {}",
            cluster.slot_of(&key).await,
            cluster.proxy(1).addr()
        )
    );

    // A restarted node is behind its proxy again.
    cluster.kill(1);
    assert_eq!(cluster.wait_for_writable(&key).await, 4);
    cluster.restart(1).await;
    until("the others learn where it is", async || {
        let view = cluster.view(0).await.ok_or("no answer")?;
        let port = view
            .iter()
            .find(|member| member.id == cluster.id(1))
            .map(|member| member.port);
        if port == Some(cluster.proxy(1).addr().port()) {
            Ok(())
        } else {
            Err(format!("{port:?}"))
        }
    })
    .await;
}

/// A client that follows the addresses it is told stays on its route.
#[tokio::test]
async fn on_a_route_servers_name_its_own_addresses_and_a_cut_concerns_it_alone() {
    if !network::can_be_cut() {
        return;
    }
    let cluster = Cluster::builder().isolable().start().await;
    let key = cluster.key_at(1, "k").await;
    let route = cluster.route();
    let addr = |index: usize| route.proxy(index).addr();
    let mut raw = Raw::connect(addr(0)).await.unwrap();
    let moved = raw.cmd(&["GET", &key]).await;
    let slot = cluster.slot_of(&key).await;
    assert_eq!(moved.error().unwrap(), format!("MOVED {slot} {}", addr(1)));
    let slots = raw.cmd(&["CLUSTER", "SLOTS"]).await;
    for range in slots.array() {
        for node in &range.array()[2..] {
            let port = node.array()[1].int();
            assert!((0..6).any(|index| i64::from(addr(index).port()) == port));
        }
    }
    let replication = raw.cmd(&["INFO", "replication"]).await;
    let replica = format!("ip=127.0.0.1,port={},", addr(3).port());
    assert!(replication.str().contains(&replica), "{replication:?}");

    cluster.isolate_with(0, &route);
    assert_eq!(raw.cmd(&["PING"]).await.str(), "PONG");
    let mut cut = Raw::connect(addr(1)).await.unwrap();
    assert!(timeout(ms(100), cut.try_cmd(&["PING"])).await.is_err());
    let mut theirs = Raw::connect(cluster.addr(0)).await.unwrap();
    assert!(timeout(ms(100), theirs.try_cmd(&["PING"])).await.is_err());
    let mut theirs = Raw::connect(cluster.addr(1)).await.unwrap();
    assert_eq!(theirs.cmd(&["PING"]).await.str(), "PONG");
}
