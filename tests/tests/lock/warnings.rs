//! Settings of servers that locks should not be used with are told.

use leasehold::{Locks, Replicas, Warning};
use leasehold_testkit::{Cluster, Sentinels, Server};

use crate::support::{locks, ms};

#[tokio::test]
async fn a_server_that_evicts_locks_is_warned_of() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    assert!(locks(&server).await.warnings().is_empty());
    for policy in [
        "volatile-lru",
        "volatile-ttl",
        "volatile-random",
        "allkeys-lru",
        "allkeys-lfu",
    ] {
        raw.cmd(&["CONFIG", "SET", "maxmemory-policy", policy])
            .await;
        let locks = locks(&server).await;
        let [warning] = locks.warnings() else {
            panic!("{policy}: {:?}", locks.warnings());
        };
        assert!(matches!(warning, Warning::Eviction { policy: told, .. } if told == policy));
        assert_eq!(warning.node(), server.addr().to_string());
        let text = warning.to_string();
        for part in [warning.node(), policy, "noeviction"] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
    }
    raw.cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])
        .await;
    assert!(locks(&server).await.warnings().is_empty());
}

/// The reason for the warning: an eviction is a loss.
#[tokio::test]
async fn a_lock_that_is_evicted_is_lost() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"])
        .await;
    let locks = crate::support::short_locks(&server, ms(600)).await;
    assert_eq!(locks.warnings().len(), 1);
    let guard = locks.mutex("a").lock().await.unwrap();
    raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    // Every write makes room first.
    crate::support::within("the loss", async {
        while guard.is_held() {
            raw.cmd(&["SET", "cache", "entry"]).await;
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert_eq!(guard.lost().await, leasehold::LostReason::Stolen);
}

#[tokio::test]
async fn a_user_that_may_not_ask_connects_without_warnings() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .await;
    raw.cmd(&[
        "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info",
    ])
    .await;
    let url = server.url().replace("://", "://app:secret@");
    let locks = Locks::connect(url).await.unwrap();
    assert!(locks.warnings().is_empty());
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn each_master_of_a_cluster_is_named() {
    let cluster = Cluster::builder().masters(3).replicas(0).start().await;
    for node in [0, 2] {
        let mut raw = cluster.raw(node).await;
        raw.cmd(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"])
            .await;
    }
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let mut named: Vec<&str> = locks.warnings().iter().map(Warning::node).collect();
    named.sort_unstable();
    let mut expected = [0, 2].map(|node| cluster.addr(node).to_string());
    expected.sort_unstable();
    assert_eq!(named, expected);
}

/// With a lease that is too short for it, a replica that fails costs all locks that replicas confirm.
#[tokio::test]
async fn a_failure_detection_that_does_not_fit_the_lease_is_warned_of() {
    let sentinels = Sentinels::builder().down_after(ms(2_000)).start().await;
    let cluster = Cluster::builder().node_timeout(ms(1_000)).start().await;
    let settings = [
        (sentinels.url(), "down-after-milliseconds"),
        (cluster.url(), "cluster-node-timeout"),
    ];
    for (url, setting) in settings {
        let warnings = async |lease: u64, replicas: Replicas| {
            let locks = Locks::builder(url.clone()).lease(ms(lease));
            let locks = locks.replicated(replicas).connect().await.unwrap();
            locks.warnings().to_vec()
        };
        // 2 s to detect it and 2 s to replace it are to be less than 0.6 of the lease.
        assert_eq!(warnings(7_000, Replicas::All).await, []);
        assert_eq!(warnings(6_000, Replicas::None).await, []);
        let told = warnings(6_000, Replicas::All).await;
        let [warning] = &told[..] else {
            panic!("{setting}: {told:?}");
        };
        assert!(
            matches!(warning, Warning::SlowDetection { setting: told, .. } if *told == setting)
        );
        for part in [setting, warning.node(), "6s"] {
            let text = warning.to_string();
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
    }
}
