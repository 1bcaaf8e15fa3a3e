//! A client's connections: the number it opens, settings of the URL, and their end.

use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Target};
use leasehold_resp::{Command, ErrorKind};
use leasehold_testkit::{Cluster, Raw, Sentinels, Server, until};
use tokio::time::timeout;

use crate::map_questions::connections_of;
use crate::support::{BOUND, client, soon, take};

/// The lines of `CLIENT LIST` that contain this.
async fn clients(mut raw: Raw, part: &str) -> usize {
    let clients = raw.cmd(&["CLIENT", "LIST"]).await;
    let lines = clients.str().lines();
    lines.filter(|line| line.contains(part)).count()
}

/// Whether servers have this line in their configuration.
async fn has_option(name: &str) -> bool {
    let server = Server::start().await;
    let known = server.raw().await.cmd(&["CONFIG", "GET", name]).await;
    !known.array().is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_client_leaves_no_connection_to_servers_or_sentinels() {
    let sentinels = Sentinels::start().await;
    let client = client(&format!("{}?client_name=closing", sentinels.url())).await;
    let _subscription = client.subscribe(b"channel");
    assert_eq!(take(&client, "k", "me", soon()).await.unwrap(), 1);
    // Sentinels do not subscribe to each other: the client is the one that does.
    let open = async || {
        let mut open = 0;
        for sentinel in 0..3 {
            open += clients(sentinels.sentinel(sentinel).raw().await, " sub=1 ").await;
        }
        for server in 0..sentinels.servers().len() {
            open += clients(sentinels.node(server).raw().await, " name=closing ").await;
        }
        open
    };
    until(
        "it is connected to the master and all sentinels",
        async || match open().await {
            4.. => Ok(()),
            open => Err(format!("{open} connections")),
        },
    )
    .await;
    client.close();
    until("all are closed", async || match open().await {
        0 => Ok(()),
        open => Err(format!("{open} connections")),
    })
    .await;
    // The handle exists, and nothing is opened through it.
    let error = take(&client, "k", "me", soon()).await.unwrap_err();
    assert!(error.is_closed(), "{error}");
    assert_eq!(open().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_closed_or_dropped_during_a_search_leaves_no_connection() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let key = cluster.key_at(0, "k").await;
    let open = async || connections_of(&cluster, "searching").await;
    for closes in [true, false] {
        let client = client(&format!("{}?client_name=searching", cluster.url())).await;
        assert_eq!(take(&client, &key, "me", soon()).await.unwrap(), 1);
        cluster.kill(0);
        let waiting = tokio::spawn({
            let (client, key) = (client.clone(), key.clone());
            async move { take(&client, &key, "me", soon()).await }
        });
        until("other nodes are asked", async || {
            let mut open = 0;
            for node in [1, 2] {
                open += clients(cluster.raw(node).await, " name=searching ").await;
            }
            if open > 0 {
                Ok(())
            } else {
                Err("not yet".into())
            }
        })
        .await;
        if closes {
            client.close();
            assert!(waiting.await.unwrap().unwrap_err().is_closed());
        } else {
            waiting.abort();
            drop(client);
        }
        cluster.restart(0).await;
        until("all are closed", async || {
            let open = open().await;
            if open.iter().all(|open| *open == 0) {
                Ok(())
            } else {
                Err(format!("{open:?}"))
            }
        })
        .await;
        // Longer than the pauses of a search.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(open().await, [0; 3]);
        cluster.wait_until_ok().await;
    }
}

/// Valkey 9 can have databases in a cluster. Other servers cannot, and their refusal does not say
/// where the number is from.
#[tokio::test]
async fn a_database_in_the_url_of_a_cluster_is_used_or_refused() {
    let can = has_option("cluster-databases").await;
    let cluster = Cluster::builder().masters(1).replicas(0);
    let cluster = if can {
        cluster.config("cluster-databases 16").start().await
    } else {
        cluster.start().await
    };
    for url in [
        format!("{}?db=1", cluster.url()),
        format!("{}/1", cluster.url()),
    ] {
        let client = Client::connect(Target::parse(&url).unwrap()).await;
        if can {
            assert_eq!(take(&client.unwrap(), "k", "me", soon()).await.unwrap(), 1);
            let mut raw = cluster.raw(0).await;
            assert_eq!(raw.cmd(&["EXISTS", "k"]).await.int(), 0);
            assert!(raw.cmd(&["SELECT", "1"]).await.is_ok());
            assert_eq!(raw.cmd(&["EXISTS", "k"]).await.int(), 1);
        } else {
            let error = client.unwrap_err();
            println!("{error}");
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("database 1"), "{error}");
        }
    }
}

/// A single shard that does not serve all slots: the others are no node's.
#[tokio::test]
async fn a_slot_that_no_node_serves_is_named_and_no_node_is() {
    let cluster = Cluster::builder()
        .masters(1)
        .replicas(0)
        .config("cluster-require-full-coverage no")
        .start()
        .await;
    let slot = cluster.slot_of("k").await.to_string();
    let mut raw = cluster.raw(0).await;
    let reply = raw.cmd(&["CLUSTER", "DELSLOTS", &slot]).await;
    assert!(reply.is_ok(), "{reply:?}");
    let client = client(&cluster.url()).await;
    let deadline = Instant::now() + Duration::from_millis(500);
    let error = take(&client, "k", "me", deadline).await.unwrap_err();
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::NotSent);
    assert!(
        error.to_string().contains(&format!("slot {slot} ")),
        "{error}"
    );
    assert_eq!(error.node(), "");
    let served = (0..).map(|n| format!("k{n}"));
    let served = served
        .take(3)
        .find(|key| leasehold_cluster::slot::slot(key.as_bytes()).to_string() != slot);
    assert_eq!(
        take(&client, &served.unwrap(), "me", soon()).await.unwrap(),
        1
    );
}

/// Nodes that are to announce a name and have none say `?`, and beside it their address.
#[tokio::test]
async fn nodes_without_the_name_that_they_should_announce_are_reached_by_their_address() {
    let line = "cluster-preferred-endpoint-type hostname";
    if !has_option("cluster-preferred-endpoint-type").await {
        return println!("skipped: nodes of this server cannot announce names");
    }
    let cluster = Cluster::builder().replicas(0).config(line).start().await;
    let slots = cluster.raw(0).await.cmd(&["CLUSTER", "SLOTS"]).await;
    let first = &slots.array()[0].array()[2];
    assert_eq!(first.array()[0].str(), "?", "{slots:?}");
    let client = client(&cluster.url_of(&[0])).await;
    for node in 0..3 {
        let key = cluster.key_at(node, "k").await;
        let deadline = Instant::now() + Duration::from_secs(5);
        assert_eq!(take(&client, &key, "me", deadline).await.unwrap(), 1);
    }
}

/// A program connects in one runtime and locks in another. The first one is then not driven any
/// more, or busy.
#[test]
fn a_call_ends_in_time_although_the_runtime_of_the_connection_is_not_driven() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let (server, cluster) = first.block_on(async {
        let cluster = Cluster::builder().masters(1).replicas(0).start().await;
        (Server::start().await, cluster)
    });
    for url in [server.url(), cluster.url()] {
        let mut target = Target::parse(&url).unwrap();
        for endpoint in target.endpoints_mut() {
            endpoint.command_timeout = Duration::from_millis(500);
        }
        let client = first.block_on(async {
            let client = Client::connect(target).await.unwrap();
            assert_eq!(take(&client, "k", "me", soon()).await.unwrap(), 1);
            client
        });
        let (done, outcome) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let call = async {
                    let deadline = Instant::now() + Duration::from_secs(1);
                    let taken = take(&client, "k", "me", deadline).await;
                    let got = client.call(b"k", &Command::new("GET").arg("k")).await;
                    (taken, got)
                };
                let _ = done.send(second.block_on(async { timeout(BOUND, call).await }));
            });
            let ended = outcome.recv_timeout(BOUND * 2).unwrap();
            let (taken, got) = ended.expect("both calls end");
            let (taken, got) = (taken.unwrap_err(), got.unwrap_err());
            println!("{taken}; {got}");
            assert!(taken.may_have_executed() && got.may_have_executed());
        });
        // When it is driven again everything goes on.
        first.block_on(async {
            assert_eq!(take(&client, "k", "me", soon()).await.unwrap(), 1);
        });
    }
}
