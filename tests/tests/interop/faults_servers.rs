//! Faults of Redisson's with replicas and with several servers, on demand: rows of the table in `leasehold::guides::beside_others`.

use std::time::Duration;

use leasehold::{Interop, Redlock, Release};
use leasehold_testkit::{Fault, Proxy, Raw, Server};

use crate::jvm;
use crate::stage::beside_redisson;
use crate::support::{exists, fields, until};

/// A replica of the server at this port, up to date.
async fn replica(of: u16) -> (Server, Raw) {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["REPLICAOF", "127.0.0.1", &of.to_string()]).await;
    until("the replica follows", async || {
        let info = raw.cmd(&["INFO", "replication"]).await;
        info.str().contains("master_link_status:up")
    })
    .await;
    (server, raw)
}

/// Of two replicas one has the lock when Redisson's call returns. The other one, which the master still counts, takes over.
#[tokio::test]
async fn a_lock_that_one_replica_of_two_confirmed_is_ours_after_the_failover_with_a_greater_token()
{
    let Some(jvm) = jvm::shared() else { return };
    let master = Server::start().await;
    let link = Proxy::start(master.addr());
    let (near, _) = replica(master.port()).await;
    let (lags, mut promoted) = replica(link.addr().port()).await;
    let mut raw = master.raw().await;
    until("both confirm", async || {
        raw.cmd(&["SET", "probe", "1", "PX", "60000"]).await;
        raw.cmd(&["WAIT", "2", "1000"]).await.int() == 2
    })
    .await;
    let url = format!("redis-replicated://{},{}", master.addr(), near.addr());
    let client = jvm.client(&url, &["slavesSync=500"]).await;
    let java = client.thread();
    link.stall();
    let token = java.ok("fenced(k).lockAndGetToken()").await;
    let info = raw.cmd(&["INFO", "replication"]).await;
    assert!(info.str().contains("connected_slaves:2"), "{}", info.str());
    assert_eq!(raw.cmd(&["WAIT", "2", "200"]).await.int(), 1);
    let id = java.id().await;
    let mut there = near.raw().await;
    assert_eq!(fields(&mut there, "k").await, format!("{id}=1"));

    client.end();
    master.kill();
    promoted.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    let ours = beside_redisson(&lags.url()).await;
    let guard = ours.mutex("k").try_lock().await.unwrap();
    let guard = guard.expect("nobody has it here");
    assert!(guard.token().as_u64() > token.parse().unwrap());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    ours.shutdown().await.unwrap();
}

/// The second server answers when the leases at the first two are over and the locks are ours: Redisson counts them all the same,
/// and sets the expiry of ours.
#[tokio::test]
async fn a_majority_that_is_over_is_redissons_all_the_same_and_ours_stays_with_us() {
    let Some(jvm) = jvm::shared() else { return };
    let (mut servers, mut proxies, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        let server = Server::start().await;
        let proxy = Proxy::start(server.addr());
        let options = ["timeout=15000", "retryAttempts=0"];
        let client = jvm.client(&proxy.url(), &options).await;
        // Its scripts are known there then.
        let warm = client.thread();
        warm.ok("lock(warm).lock()").await;
        warm.ok("lock(warm).unlock()").await;
        parts.push(format!("{}/lock/k", client.name()));
        servers.push((server.raw().await, server, client));
        proxies.push(proxy);
    }
    let urls = servers.iter().map(|(_, server, _)| server.url());
    let ours = Redlock::builder(urls).interop(Interop::Redisson);
    // Renewed within the lease that Redisson will set.
    let ours = ours
        .lease(Duration::from_millis(4_500))
        .connect()
        .await
        .unwrap();
    let (java, red) = (servers[0].2.thread(), format!("red({})", parts.join(",")));

    proxies[1].to_client(Fault::Stall);
    let asks = java.begin(format!("{red}.tryLock(-1, 3000, ms)"));
    for (raw, ..) in &mut servers[..2] {
        until("a grant", async || exists(raw, "k").await).await;
    }
    assert!(!exists(&mut servers[2].0, "k").await, "one after another");
    for (raw, ..) in &mut servers[..2] {
        until("its end", async || !exists(raw, "k").await).await;
    }
    assert!(!exists(&mut servers[2].0, "k").await, "nobody has it");
    let guard = ours.mutex("k").try_lock().await.unwrap();
    let guard = guard.expect("it is free");
    proxies[1].heal();
    assert_eq!(asks.answer().await.ok(), "true", "it believes so");
    assert!(guard.is_held());
    java.ok(format!("{red}.unlock()")).await;
    let mut left = async || servers[0].0.cmd(&["PTTL", "k"]).await.int();
    println!("{} ms of our lease were left", left().await);
    until("our renewal", async || left().await > 3_000).await;
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}
