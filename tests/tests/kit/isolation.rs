//! The kit can cut a node off from its like, and clients go on reaching it.

use std::time::Instant;

use leasehold_testkit::{Cluster, Raw, Sentinels, network, until};

async fn write(raw: &mut Raw, key: &str) -> String {
    format!("{:?}", raw.cmd(&["SET", key, "1", "PX", "60000"]).await)
}

#[tokio::test]
async fn a_node_that_is_cut_off_serves_for_a_while_is_replaced_and_comes_back_as_a_replica() {
    if !network::can_be_cut() {
        return;
    }
    let begun = Instant::now();
    let cluster = Cluster::builder().isolable().start().await;
    println!(
        "3 + 3 nodes that can be cut off are ready after {:?}",
        begun.elapsed()
    );
    let key = cluster.key_at(0, "k").await;
    for round in 0..2 {
        let old = cluster.master_of(&key).await.unwrap();
        let new = 3 - old;
        // At the proxy, as clients do.
        let mut at_old = Raw::connect(cluster.addr(old)).await.unwrap();
        assert_eq!(write(&mut at_old, &key).await, "Simple(\"OK\")");
        assert_eq!(at_old.cmd(&["WAIT", "1", "10000"]).await.int(), 1);

        cluster.isolate(old);
        let cut = Instant::now();
        let mut acknowledged = 0;
        until("it notices that it is alone", async || {
            match write(&mut at_old, &key).await {
                refused if refused.contains("CLUSTERDOWN") => Ok(()),
                done => {
                    acknowledged += 1;
                    Err(done)
                }
            }
        })
        .await;
        println!(
            "round {round}: CLUSTERDOWN after {:?}, {acknowledged} writes until then",
            cut.elapsed()
        );
        assert!(acknowledged > 0, "it went on for a while");
        until("another one is promoted", async || {
            match cluster.master_of(&key).await {
                Some(node) if node == new => Ok(()),
                node => Err(format!("{node:?}")),
            }
        })
        .await;
        println!("round {round}: a new master after {:?}", cut.elapsed());
        let mut at_new = Raw::connect(cluster.addr(new)).await.unwrap();
        until("the new master serves", async || {
            match write(&mut at_new, &key).await {
                done if done.contains("OK") => Ok(()),
                refused => Err(refused),
            }
        })
        .await;
        // It tells of the old days still.
        assert!(
            cluster
                .view(old)
                .await
                .unwrap()
                .iter()
                .any(|m| m.id == cluster.id(old) && m.is("master"))
        );
        assert_eq!(
            at_new.cmd(&["WAIT", "1", "100"]).await.int(),
            0,
            "nobody follows"
        );

        cluster.rejoin(old);
        cluster.wait_until_ok().await;
        println!("round {round}: all is well again after {:?}", cut.elapsed());
        // It may be the last to hear of it.
        until("the old master sends writers on", async || {
            match write(&mut at_old, &key).await {
                refused if refused.contains("MOVED") => Ok(()),
                done => Err(done),
            }
        })
        .await;
        until("the old master follows", async || {
            match cluster.replicas_of(new).await {
                replicas if replicas == [old] => Ok(()),
                replicas => Err(format!("{replicas:?}")),
            }
        })
        .await;
    }
}

/// A lone master is not told to stop.
#[tokio::test]
async fn a_master_that_is_cut_off_from_its_sentinels_goes_on_and_is_demoted_when_it_is_back() {
    if !network::can_be_cut() {
        return;
    }
    let sentinels = Sentinels::builder().isolable().start().await;
    let servers = sentinels.servers();
    let mut old = Raw::connect(("127.0.0.1", servers.port(0))).await.unwrap();
    assert!(write(&mut old, "k").await.contains("OK"));
    assert_eq!(old.cmd(&["WAIT", "2", "10000"]).await.int(), 2);

    servers.isolate(0);
    let cut = Instant::now();
    let new = until("another one is promoted", async || {
        match sentinels.master().await {
            Some(node) if node != 0 => Ok(node),
            node => Err(format!("{node:?}")),
        }
    })
    .await;
    println!("a new master after {:?}", cut.elapsed());
    assert!(write(&mut old, "k").await.contains("OK"), "nobody told it");
    assert_eq!(
        old.cmd(&["WAIT", "1", "100"]).await.int(),
        0,
        "nobody follows"
    );
    assert_eq!(servers.role(0).await.as_deref(), Some("master"));

    servers.rejoin(0);
    until("it is a replica", async || match servers.role(0).await {
        Some(role) if role == "slave" => Ok(()),
        role => Err(format!("{role:?}")),
    })
    .await;
    println!("demoted after {:?}", cut.elapsed());
    servers.wait_until_linked(2).await;
    // Sentinels end the connections of a server that they demote.
    let mut old = Raw::connect(("127.0.0.1", servers.port(0))).await.unwrap();
    assert!(write(&mut old, "k").await.contains("READONLY"));
    assert_eq!(sentinels.master().await, Some(new));
}
