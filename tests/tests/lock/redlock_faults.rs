//! Locks at five servers of which some die, freeze, forget or come back.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, LostReason, Redlock, Release};
use leasehold_testkit::{Cluster, Sentinels, Server, ms};

use crate::redlock::{having, nothing_is_left, over, servers, taken};
use crate::support::{exists, fields, until, within};

/// Long enough that a busy machine renews it in time.
const LEASE: Duration = ms(5_000);

#[tokio::test]
async fn two_dead_of_five_are_no_reason_to_wait_and_three_are_an_error() {
    let servers = servers(5).await;
    let red = over(&servers, Duration::from_secs(10)).await;
    let guard = taken(&red, "a").await;
    servers[0].kill();
    servers[3].kill();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    for _ in 0..20 {
        let guard = within(
            "three of five",
            red.mutex("a").lock().fenced().into_future(),
        )
        .await;
        assert_eq!(guard.unwrap().release().await.unwrap(), Release::Released);
    }
    servers[4].kill();
    let refused = async || red.mutex("a").try_lock().await.unwrap_err();
    let mut error = refused().await;
    // Of a request that was written before the end of the connection was seen, nobody knows whether it ran.
    if error.kind() == ErrorKind::Unknown {
        error = refused().await;
    }
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("of 5 nodes"), "{error}");
    nothing_is_left(&servers, "a").await;
    servers[4].restart().await;
    until("a majority is back", async || {
        red.mutex("a")
            .try_lock()
            .await
            .is_ok_and(|guard| guard.is_some())
    })
    .await;
}

/// A frozen server takes the request, and runs it when it wakes: by then nobody wants it any more.
#[tokio::test]
async fn what_frozen_nodes_grant_later_is_released() {
    let servers = servers(5).await;
    let red = over(&servers, Duration::from_secs(30)).await;
    drop(taken(&red, "a").await);
    nothing_is_left(&servers, "a").await;
    for frozen in [2, 3] {
        for server in &servers[..frozen] {
            server.pause();
        }
        let tried = red.mutex("a").try_lock().await;
        match tried {
            Ok(Some(guard)) if frozen == 2 => {
                assert_eq!(guard.release().await.unwrap(), Release::Released);
            }
            Err(error) if frozen == 3 => {
                assert!(
                    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
                    "{error}"
                );
            }
            tried => panic!("{frozen} frozen: {tried:?}"),
        }
        for server in &servers[..frozen] {
            server.resume();
        }
        nothing_is_left(&servers, "a").await;
        // What the frozen ones still had to run has run when they have answered somebody else.
        let again = within("the lock again", red.mutex("a").lock().into_future()).await;
        assert_eq!(again.unwrap().release().await.unwrap(), Release::Released);
        nothing_is_left(&servers, "a").await;
    }
}

#[tokio::test]
async fn it_lives_as_long_as_a_majority_renews_it() {
    let servers = servers(5).await;
    let lease = LEASE;
    let red = over(&servers, lease).await;
    let guard = taken(&red, "a").await;
    servers[1].kill();
    servers[2].pause();
    tokio::time::sleep(lease * 5 / 4).await;
    assert!(guard.is_held(), "three renew it");
    servers[4].pause();
    let frozen = Instant::now();
    tokio::time::sleep_until((frozen + lease).into()).await;
    assert!(!guard.is_held(), "not trusted beyond the lease");
    let reason = within("the loss", guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    servers[4].resume();
    servers[2].resume();
    nothing_is_left(&servers, "a").await;
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
}

#[tokio::test]
async fn a_node_that_forgot_takes_it_again_and_counts_then() {
    let servers = servers(3).await;
    let lease = LEASE;
    let red = over(&servers, lease).await;
    let guard = taken(&red, "a").await;
    until("all have it", async || having(&servers, "a").await == 3).await;
    let holder = fields(&mut servers[1].raw().await, "a").await;
    servers[0].restart().await;
    until("it is there again", async || {
        having(&servers[..1], "a").await == 1
    })
    .await;
    assert_eq!(fields(&mut servers[0].raw().await, "a").await, holder);
    tokio::time::sleep(lease * 2 / 3).await;
    // Now the other one may go.
    servers[1].kill();
    tokio::time::sleep(lease * 5 / 4).await;
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    nothing_is_left(&servers, "a").await;
}

#[tokio::test]
async fn a_majority_that_forgot_is_a_loss_at_the_next_renewal() {
    let servers = servers(3).await;
    let red = over(&servers, LEASE).await;
    let guard = taken(&red, "a").await;
    until("all have it", async || having(&servers, "a").await == 3).await;
    for server in &servers[..2] {
        server.raw().await.cmd(&["DEL", "a"]).await;
    }
    assert_eq!(
        within("the loss", guard.lost()).await,
        LostReason::NoMajority
    );
    nothing_is_left(&servers, "a").await;
}

/// Three of five are restarted empty while somebody holds the lock: they could grant it again at once.
#[tokio::test]
async fn nodes_that_were_restarted_grant_nothing_until_all_leases_are_over() {
    let lease = LEASE;
    let mut servers = servers(2).await;
    let started = Instant::now();
    // A majority is as old as the third.
    servers.extend(crate::redlock::servers(3).await);
    let connect = async || {
        let red = Redlock::builder(servers.iter().map(Server::url)).lease(lease);
        within("a connect", red.connect()).await.unwrap()
    };
    let (ours, theirs) = (connect().await, connect().await);
    assert!(
        started.elapsed() >= lease,
        "new nodes may have forgotten locks"
    );
    let guard = taken(&ours, "a").await;
    drop(taken(&theirs, "b").await);
    let restarted = Instant::now();
    for server in &servers[..3] {
        server.restart().await;
    }
    // Whatever its own renewals say by now, the lease of the first holder lasts.
    while restarted.elapsed() < lease {
        let tried = theirs.mutex("a").try_lock().await;
        assert!(!matches!(tried, Ok(Some(_))), "a second holder");
        tokio::time::sleep(ms(50)).await;
    }
    drop(guard);
    let next = within("their turn", theirs.mutex("a").lock().into_future()).await;
    assert!(restarted.elapsed() >= lease + Duration::from_secs(1));
    drop(next.unwrap());
}

/// The nodes are a server, a cluster, and a master behind sentinels.
#[tokio::test]
async fn nodes_of_all_kinds_make_a_majority() {
    let server = Server::start().await;
    let cluster = Cluster::builder().masters(2).replicas(0);
    // None of its nodes fails here.
    let cluster = cluster.node_timeout(Duration::from_secs(15)).start().await;
    let sentinels = Sentinels::start().await;
    let urls = [server.url(), cluster.url(), sentinels.url()];
    let red = Redlock::builder(urls).lease(LEASE);
    let red = within("a connect", red.connect()).await.unwrap();
    let name = cluster.key_at(1, "a").await;
    let guard = within("the lock", red.mutex(&name).lock().fenced().into_future()).await;
    let guard = guard.unwrap();
    assert!(guard.token().is_some());
    let mut raw = [
        server.raw().await,
        cluster.raw(1).await,
        sentinels.servers().node(0).raw().await,
    ];
    for raw in &mut raw {
        until("each has it", async || exists(raw, &name).await).await;
    }
    // One that was too young at first has taken it by now, and counts from its next renewal on.
    tokio::time::sleep(LEASE * 2 / 3).await;
    server.kill();
    tokio::time::sleep(LEASE * 5 / 4).await;
    assert!(guard.is_held(), "renewed at the two others");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    until("it is released", async || !exists(&mut raw[1], &name).await).await;
}
