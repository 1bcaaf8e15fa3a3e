//! Looking for a newer map: which nodes are believed, and how often they are asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use leasehold_resp::Command;
use leasehold_testkit::{Cluster, Replicas, Scripted, network, until};

use crate::support::{calls, client, soon, take};

/// How often these nodes were asked for the map, all together.
async fn map_questions(cluster: &Cluster, nodes: &[usize]) -> u64 {
    let mut sum = 0;
    for node in nodes {
        let mut raw = cluster.raw(*node).await;
        // Servers before 7.0 count all subcommands together.
        sum += calls(&mut raw, "cluster|slots").await + calls(&mut raw, "cluster").await;
    }
    sum
}

/// Two of ten masters lose their bus but not their clients, and come first in every map.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masters_that_are_cut_off_do_not_outvote_the_others() {
    if !network::can_be_cut() {
        return;
    }
    let cluster = Cluster::builder()
        .masters(10)
        .replicas(0)
        .spares(2)
        .isolable()
        .start()
        .await;
    for master in [0, 1] {
        let mut replica = cluster.raw(10 + master).await;
        let reply = replica
            .cmd(&["CLUSTER", "REPLICATE", cluster.id(master)])
            .await;
        assert!(reply.is_ok(), "{reply:?}");
    }
    cluster.wait_until_ok().await;
    let client = client(&cluster.url()).await;
    let mut keys = Vec::new();
    for master in 0..10 {
        let key = cluster.key_at(master, "k").await;
        assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
        keys.push(key);
    }
    let lost = &keys[..2];
    cluster.isolate(0);
    cluster.isolate(1);
    for key in lost {
        until("another one is promoted", async || {
            let master = cluster.master_of(key).await;
            master
                .filter(|master| *master >= 10)
                .ok_or_else(|| format!("{master:?}"))
        })
        .await;
    }
    let since = Instant::now();
    for key in lost {
        // The other masters must be believed; the old one may grant it for a
        // moment.
        until("the client goes to the new master", async || {
            let soon = Instant::now() + Duration::from_secs(1);
            let taken = take(&client, key, "another", soon).await;
            let node = client.node(key.as_bytes());
            let old = [0, 1].map(|old| cluster.addr(old).to_string());
            if old.contains(&node.to_string()) {
                Err(format!("{taken:?} at {node}"))
            } else {
                Ok(())
            }
        })
        .await;
    }
    // The cut lasts: nothing but the votes of the others can have led there.
    println!("followed {:?} after the promotion", since.elapsed());
}

/// A shard that stays dead, and a client that goes on waiting for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_that_lasts_costs_about_a_question_a_second() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let client = client(&cluster.url()).await;
    let mut keys = Vec::new();
    for master in 0..3 {
        let key = cluster.key_at(master, "k").await;
        assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
        keys.push(key);
    }
    cluster.kill(0);
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let (client, key) = (client.clone(), keys[0].clone());
            tokio::spawn(async move { take(&client, &key, "me", soon()).await })
        })
        .collect();
    // Quickly at first: at the later pace they would take five seconds.
    let since = Instant::now();
    until("ten questions", async || {
        map_questions(&cluster, &[1, 2]).await >= 10
    })
    .await;
    assert!(since.elapsed() < Duration::from_secs(4));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = map_questions(&cluster, &[1, 2]).await;
    let since = Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let asked = map_questions(&cluster, &[1, 2]).await - before;
    let most = 2 * since.elapsed().as_secs();
    assert!(asked <= most, "{asked} questions in {:?}", since.elapsed());
    assert!(asked >= 1, "the search goes on");
    for waiter in waiting {
        waiter.abort();
    }
}

/// Sentinels name a server that is no master, for as long as anyone looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_no_master_is_asked_on_one_connection() {
    let servers = Replicas::builder().replicas(1).start().await;
    let (master, replica) = (servers.node(0).port(), servers.node(1).port());
    let named = Arc::new(AtomicU16::new(master));
    let sentinel = Scripted::start({
        let named = Arc::clone(&named);
        move |mut peer| {
            let named = Arc::clone(&named);
            async move {
                while let Some(request) = peer.greet().await {
                    let port = named.load(Ordering::SeqCst).to_string();
                    let reply = match request[0].as_str() {
                        "SENTINEL" => {
                            format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
                        }
                        "SUBSCRIBE" => {
                            ">3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n".into()
                        }
                        _ => "+OK\r\n".into(),
                    };
                    peer.say(reply).await;
                }
            }
        }
    })
    .await;
    let client = client(&format!("redis-sentinel://{}/mymaster", sentinel.addr())).await;
    assert_eq!(take(&client, "k", "me", soon()).await.unwrap(), 1);
    named.store(replica, Ordering::SeqCst);
    servers.node(0).kill();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { take(&client, "k", "me", soon()).await }
    });
    let mut raw = servers.node(1).raw().await;
    let connections = async |raw: &mut leasehold_testkit::Raw| {
        let stats = raw.cmd(&["INFO", "stats"]).await;
        let line = stats
            .str()
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = connections(&mut raw).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let opened = connections(&mut raw).await - before;
    println!("{opened} connections in 5 s");
    assert!(opened <= 3, "{opened} connections");

    let promoted = raw.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    assert!(promoted.is_ok(), "{promoted:?}");
    assert_eq!(waiting.await.unwrap().unwrap(), 1, "and it is still asked");
}

/// All nodes are in the URL, and some of them were asked for the map.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_keeps_connections_only_to_the_nodes_it_uses() {
    let cluster = Cluster::start().await;
    let url = format!("{}?client_name=few", cluster.url());
    let client = client(&url).await;
    let key = cluster.key_at(0, "k").await;
    assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
    // Redirects: the map is in doubt, and several nodes are asked.
    let elsewhere = cluster.key_at(1, "k").await;
    let misled = Command::new("GET").arg(&elsewhere);
    client.call(key.as_bytes(), &misled).await.unwrap_err();
    until("the others are closed", async || {
        let open = connections_of(&cluster, "few").await;
        if open == [1, 0, 0, 0, 0, 0] {
            Ok(())
        } else {
            Err(format!("{open:?}"))
        }
    })
    .await;
}

/// How many connections with this name each node has.
pub(crate) async fn connections_of(cluster: &Cluster, name: &str) -> Vec<usize> {
    let mut open = Vec::new();
    for node in 0..cluster.len() {
        let clients = cluster.raw(node).await.cmd(&["CLIENT", "LIST"]).await;
        let own = format!(" name={name} ");
        open.push(
            clients
                .str()
                .lines()
                .filter(|line| line.contains(&own))
                .count(),
        );
    }
    open
}
