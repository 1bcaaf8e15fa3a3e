//! A partition with the master and the holder of its locks on one side, and everything else on the
//! other: the lonely master goes on answering the holder's renewals.
//!
//! With `LEASEHOLD_LONG=1` in the environment there are more rounds.

use std::time::{Duration, Instant};

use leasehold::{Guard, Locks, LocksBuilder, Replicas};
use leasehold_testkit::{Cluster, Proxy, Sentinels, network, until};

use crate::support::{granted, ms, within};

const LEASE: Duration = Duration::from_secs(3);

/// Locks that are held when it happens.
const LOCKS: usize = 8;

fn rounds() -> usize {
    if std::env::var_os("LEASEHOLD_LONG").is_some() {
        9
    } else {
        1
    }
}

fn builder(url: String) -> LocksBuilder {
    Locks::builder(url)
        .lease(LEASE)
        .replicated(Replicas::All)
        // The servers are younger than any lease, and have forgotten nothing.
        .restart_guard(ms(10))
        .command_timeout(ms(1_000))
}

/// Number of locks that were held twice, once the others have got all of them.
async fn held_twice(held: &[Guard], names: &[String], url: &str, cut: Instant) -> usize {
    let fresh = builder(url.to_owned()).connect().await.unwrap();
    let mut twice = 0;
    let mut theirs = Vec::new();
    for (name, first) in names.iter().zip(held) {
        let second = granted(&fresh, name).await;
        if first.is_held() && second.is_held() {
            println!("{name} is held twice {:?} after the cut", cut.elapsed());
            twice += 1;
        }
        theirs.push(second);
    }
    println!("all granted anew {:?} after the cut", cut.elapsed());
    for guard in held {
        within("the loss", guard.lost()).await;
    }
    for guard in theirs {
        guard.release().await.unwrap();
    }
    twice
}

/// Holds the locks for long enough that each was renewed, with the replicas' confirmation.
async fn hold(locks: &Locks, names: &[String]) -> Vec<Guard> {
    let mut held = Vec::new();
    for name in names {
        held.push(granted(locks, name).await);
    }
    tokio::time::sleep(LEASE + LEASE / 2).await;
    for guard in &held {
        assert!(guard.is_held(), "{guard:?}");
    }
    held
}

#[tokio::test]
async fn a_holder_that_is_cut_off_with_its_master_loses_its_locks_behind_sentinels() {
    if !network::can_be_cut() {
        return;
    }
    let sentinels = Sentinels::builder().isolable().start().await;
    let mut twice = 0;
    for round in 0..rounds() {
        let master = until("there is a master", async || {
            sentinels.master().await.ok_or_else(|| "none".into())
        })
        .await;
        let proxies: Vec<_> = (0..3)
            .map(|index| Proxy::start(sentinels.sentinel(index).addr()))
            .collect();
        let hosts: Vec<_> = proxies
            .iter()
            .map(|proxy| proxy.addr().to_string())
            .collect();
        let url = format!(
            "redis-sentinel://{}/{}",
            hosts.join(","),
            sentinels.service()
        );
        let ours = builder(url).connect().await.unwrap();
        let names: Vec<_> = (0..LOCKS).map(|n| format!("{round}:{n}")).collect();
        let held = hold(&ours, &names).await;

        sentinels.servers().isolate(master);
        proxies.iter().for_each(Proxy::blackhole);
        let cut = Instant::now();
        until("another one is promoted", async || {
            match sentinels.master().await {
                Some(other) if other != master => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        println!("another master {:?} after the cut", cut.elapsed());
        twice += held_twice(&held, &names, &sentinels.url(), cut).await;
        sentinels.servers().rejoin(master);
        until("it is a replica", async || {
            match sentinels.servers().role(master).await {
                Some(role) if role == "slave" => Ok(()),
                role => Err(format!("{role:?}")),
            }
        })
        .await;
        sentinels.servers().wait_until_linked(2).await;
        sentinels.wait_until_ready().await;
    }
    assert_eq!(twice, 0, "of {} locks", LOCKS * rounds());
}

/// The master answers the holder for as long as it has not noticed that it is alone.
#[tokio::test]
async fn a_holder_that_is_cut_off_with_its_master_loses_its_locks_in_a_cluster() {
    if !network::can_be_cut() {
        return;
    }
    let mut twice = 0;
    for _ in 0..rounds() {
        // The new master has a replica too, or nobody is granted anything.
        let cluster = Cluster::builder().replicas(2).isolable().start().await;
        let route = cluster.route();
        let tag = cluster.key_at(0, "k").await;
        let names: Vec<_> = (0..LOCKS).map(|n| format!("{{{tag}}}{n}")).collect();
        let accepts = || -> Vec<u64> {
            let proxies = (0..cluster.len()).map(|index| cluster.proxy(index));
            proxies.map(Proxy::accepts).collect()
        };
        let before = accepts();
        let ours = builder(route.url()).connect().await.unwrap();
        let held = hold(&ours, &names).await;
        assert_eq!(accepts(), before, "it takes another way");

        cluster.isolate_with(0, &route);
        let cut = Instant::now();
        until("another one is promoted", async || {
            match cluster.master_of(&tag).await {
                Some(other) if other != 0 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        println!("another master {:?} after the cut", cut.elapsed());
        twice += held_twice(&held, &names, &cluster.url(), cut).await;
    }
    assert_eq!(twice, 0, "of {} locks", LOCKS * rounds());
}

/// The holder goes on reaching the others, and finds its locks at the new master,
/// where they were renewed. Nobody else gets them, also not those that were renewed at the old
/// master alone.
#[tokio::test]
async fn a_holder_whose_master_is_cut_off_is_the_only_one_in_a_cluster() {
    if !network::can_be_cut() {
        return;
    }
    let cluster = Cluster::builder().isolable().start().await;
    let tag = cluster.key_at(0, "k").await;
    let names: Vec<_> = (0..LOCKS).map(|n| format!("{{{tag}}}{n}")).collect();
    let ours = builder(cluster.url()).connect().await.unwrap();
    let held = hold(&ours, &names).await;
    cluster.isolate(0);
    let (cut, mut twice, mut theirs) = (Instant::now(), 0, Vec::new());
    while cut.elapsed() < LEASE * 3 {
        let fresh = builder(cluster.url()).connect().await;
        let Ok(fresh) = fresh else { continue };
        for (name, first) in names.iter().zip(&held) {
            if let Ok(Some(second)) = fresh.mutex(name).try_lock().await {
                twice += usize::from(first.is_held() && second.is_held());
                theirs.push(second);
            }
        }
        tokio::time::sleep(ms(20)).await;
    }
    let still = held.iter().filter(|guard| guard.is_held()).count();
    println!(
        "{still} of {LOCKS} are held still, {} by others",
        theirs.len()
    );
    cluster.rejoin(0);
    assert_eq!(twice, 0, "of {LOCKS} locks");
}
