//! A node that is cut off from the others, while clients go on reaching it.

use leasehold_cluster::Client;
use leasehold_testkit::{Cluster, network, until};

use crate::support::{client, soon, take};

/// A client that knows only the node that was cut off learns the other nodes from it, and the
/// current map from them.
#[tokio::test]
async fn a_node_that_tells_yesterdays_map_is_overruled() {
    if !network::can_be_cut() {
        return;
    }
    let cluster = Cluster::builder().isolable().start().await;
    let key = cluster.key_at(0, "lock").await;
    let url = cluster.url_of(&[0]);
    let early = client(&url).await;
    assert_eq!(take(&early, &key, "me", soon()).await.unwrap(), 1);
    cluster.isolate(0);
    let node = until("another one is promoted", async || {
        let master = cluster.master_of(&key).await;
        master
            .filter(|master| *master != 0)
            .ok_or_else(|| format!("{master:?}"))
    })
    .await;

    // It may stop only after another one has begun.
    until("it notices that it is alone", async || {
        match cluster.raw(0).await.cmd(&["GET", &key]).await {
            refused
                if refused
                    .error()
                    .is_some_and(|line| line.starts_with("CLUSTERDOWN")) =>
            {
                Ok(())
            }
            reply => Err(format!("{reply:?}")),
        }
    })
    .await;
    let yesterday = cluster.raw(0).await.cmd(&["CLUSTER", "SLOTS"]).await;
    let own = i64::from(cluster.addr(0).port());
    assert!(
        yesterday
            .array()
            .iter()
            .any(|range| range.array()[2].array()[1].int() == own),
        "{yesterday:?}"
    );
    let late = client(&url).await;
    for client in [&early, &late] {
        assert_eq!(take(client, &key, "me", soon()).await.unwrap(), 1);
        assert_eq!(used(client, &key), cluster.addr(node).to_string());
    }
    // Also after repeated questions.
    let newcomers = async || {
        let newcomer = client(&url).await;
        assert_eq!(take(&newcomer, &key, "me", soon()).await.unwrap(), 1);
        assert_eq!(used(&newcomer, &key), cluster.addr(node).to_string());
        assert_eq!(used(&early, &key), cluster.addr(node).to_string());
    };
    for _ in 0..10 {
        newcomers().await;
    }
    cluster.rejoin(0);
    newcomers().await;
    cluster.wait_until_ok().await;
    newcomers().await;
}

fn used(client: &Client, key: &str) -> String {
    client.node(key.as_bytes()).to_string()
}
