//! The entries of a process at the nodes of a Redlock, by which a holder there leads to host, process and application.

#[cfg(feature = "testing")]
use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use leasehold::{ErrorKind, Process, Redlock};
use leasehold_testkit::Server;

use crate::redlock::{having, over, servers, taken};
#[cfg(feature = "testing")]
use crate::support::within;
use crate::support::{exists, ms, pttl, until};

/// A node may take a twentieth of it for an answer.
const LEASE: Duration = Duration::from_secs(30);

fn key(red: &Redlock) -> String {
    format!("lockp:{}", red.client_id())
}

async fn process_of(red: &Redlock, client: &str) -> Process {
    let found = until("the entry", async || {
        let found = red.process_of(client).await.unwrap();
        found.ok_or_else(|| "there is none".to_owned())
    });
    found.await
}

async fn is_registered(servers: &[Server], red: &Redlock) {
    for server in servers {
        let mut raw = server.raw().await;
        until("the entry", async || exists(&mut raw, &key(red)).await).await;
    }
}

#[tokio::test]
async fn a_holder_at_any_node_leads_to_its_process() {
    let servers = servers(3).await;
    let before = SystemTime::now() - ms(1);
    let urls = servers.iter().map(Server::url);
    let ours = Redlock::builder(urls)
        .durable()
        .lease(LEASE)
        .namespace("shop");
    let ours = ours
        .application("billing", "1.2")
        .metadata("job", "nightly")
        .connect()
        .await
        .unwrap();
    let theirs = over(&servers, LEASE).await;
    assert_eq!(theirs.process_of(ours.client_id()).await.unwrap(), None);
    let _guard = taken(&ours, "a").await;
    is_registered(&servers, &ours).await;
    for node in ours.mutex("a").inspect().await {
        let node = node.unwrap();
        let process = process_of(&theirs, node.holders()[0].client()).await;
        assert_eq!(process.pid(), std::process::id());
        assert_eq!(
            (process.application(), process.version()),
            ("billing", Some("1.2"))
        );
        assert_eq!(process.metadata()["job"], "nightly");
        assert!(process.since() >= before && process.since() <= SystemTime::now());
    }
    for server in &servers {
        let ttl = pttl(&mut server.raw().await, &key(&ours)).await;
        assert!((60_000..=90_000).contains(&ttl), "{ttl}");
        assert!(!exists(&mut server.raw().await, &key(&theirs)).await);
    }
    // A node that is away hides nothing, and what no node knows is no error.
    servers[0].pause();
    process_of(&theirs, ours.client_id()).await;
    assert_eq!(theirs.process_of(theirs.client_id()).await.unwrap(), None);
    assert_eq!(theirs.process_of("nobody").await.unwrap(), None);
    servers[0].resume();
}

/// It comes behind the answer to the first lock of each node, and never again for a while.
#[tokio::test]
async fn one_request_a_node_registers_however_many_locks_are_taken() {
    const ROUNDS: i64 = 20;
    let servers = servers(3).await;
    let red = over(&servers, Duration::from_secs(60)).await;
    drop(taken(&red, "warm").await);
    is_registered(&servers, &red).await;
    until("the release", async || having(&servers, "warm").await == 0).await;
    let mut before = Vec::new();
    for server in &servers {
        before.push(scripts(server).await);
    }
    for n in 0..ROUNDS {
        let name = format!("a{n}");
        let guard = taken(&red, &name).await;
        until("all have it", async || having(&servers, &name).await == 3).await;
        drop(guard);
        until("the release", async || having(&servers, &name).await == 0).await;
    }
    for (server, before) in servers.iter().zip(before) {
        assert_eq!(scripts(server).await - before, ROUNDS * 2);
    }
}

/// How many scripts a server has run.
async fn scripts(server: &Server) -> i64 {
    let statistics = server.raw().await.cmd(&["INFO", "commandstats"]).await;
    let calls = statistics.str().lines().filter_map(|line| {
        let (command, fields) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = fields.split(',').next()?.parse::<i64>().ok()?;
        matches!(command, "eval" | "evalsha").then_some(calls)
    });
    calls.sum()
}

#[tokio::test]
async fn an_entry_that_a_node_lost_is_written_again_with_the_next_renewal() {
    let servers = servers(3).await;
    let red = over(&servers, ms(6_000)).await;
    let guard = taken(&red, "a").await;
    is_registered(&servers, &red).await;
    servers[0].restart().await;
    is_registered(&servers, &red).await;
    assert!(guard.is_held());
}

#[tokio::test]
async fn without_the_right_to_it_nothing_else_is_missing() {
    let servers = servers(3).await;
    let mut urls = Vec::new();
    for server in &servers {
        let mut raw = server.raw().await;
        let command = [
            "ACL",
            "SETUSER",
            "blind",
            "on",
            ">secret",
            "resetchannels",
            "~shop:*",
            "~*{shop:*",
            "&*",
            "+@all",
        ];
        assert!(raw.cmd(&command).await.is_ok());
        raw.cmd(&["ACL", "LOG", "RESET"]).await;
        urls.push(format!("redis://blind:secret@{}", server.addr()));
    }
    let builder = Redlock::builder(urls).namespace("shop").lease(ms(6_000));
    let red = builder.durable().connect().await.unwrap();
    let guard = taken(&red, "a").await;
    tokio::time::sleep(ms(7_000)).await;
    assert!(guard.is_held(), "renewed");
    guard.release().await.unwrap();
    drop(taken(&red, "b").await);
    for server in &servers {
        let log = server.raw().await.cmd(&["ACL", "LOG"]).await;
        let count = |entry: &leasehold_testkit::RawValue| entry.get("count").unwrap().int();
        let denials: i64 = log.array().iter().map(count).sum();
        assert_eq!(denials, 1, "{log:?}");
    }
    let error = red.process_of(red.client_id()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(error.key(), key(&red));
}

#[cfg(feature = "testing")]
#[tokio::test]
async fn it_is_refreshed_while_anything_is_held_and_ends_by_itself() {
    let fake = leasehold::testing::FakeRedlock::new(3);
    let (red, other) = (fake.redlock().await.unwrap(), fake.redlock().await.unwrap());
    let guard = taken(&red, "a").await;
    for _ in 0..5 {
        fake.advance(Duration::from_secs(120)).await;
        process_of(&other, red.client_id()).await;
    }
    guard.release().await.unwrap();
    fake.advance(Duration::from_secs(91)).await;
    assert_eq!(other.process_of(red.client_id()).await.unwrap(), None);
    // One for a long time is known for as long.
    let long = red.mutex("b").lock().lease(Duration::from_secs(600));
    let long = within("the lock", long.into_future()).await.unwrap();
    fake.advance(Duration::from_secs(590)).await;
    process_of(&other, red.client_id()).await;
    drop(long);
    let bad = fake.builder().application("", "").connect().await;
    assert_eq!(bad.unwrap_err().kind(), ErrorKind::Config);
}
