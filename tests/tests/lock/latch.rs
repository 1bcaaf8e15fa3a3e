//! The latch: what it counts and whom it wakes, on one server. What goes wrong has `latch_faults`.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Interop, Locks};
use leasehold_testkit::statistics::subscribers;
use leasehold_testkit::{Raw, RawValue, Server};
use tokio::task::JoinHandle;

use crate::support::{calls, connect, exists, locks, ms, pttl, scripts_run, until, within};

/// Our own channel for the latch `a`, which is the key of its notes too.
const OURS: &str = "leasehold_latch:{a}";
const REDISSONS: &str = "redisson_countdownlatch__channel__{a}";

async fn beside_redisson(server: &Server) -> Locks {
    Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap()
}

/// A task that waits for the latch `a`, and listens.
async fn waiting(raw: &mut Raw, locks: &Locks) -> JoinHandle<Result<(), Error>> {
    let before = subscribers(raw, OURS).await;
    let latch = locks.latch("a");
    let waiter = tokio::spawn(async move { latch.wait().await });
    until("a waiter that listens", async || {
        subscribers(raw, OURS).await > before
    })
    .await;
    waiter
}

async fn released(waiter: JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    within("the opening", waiter).await.unwrap()
}

#[tokio::test]
async fn a_latch_opens_for_everybody_when_it_is_counted_down() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let latch = ours.latch("a");
    assert_eq!(latch.count().await.unwrap(), 0);
    latch.wait().await.expect("one that is not set is open");
    assert!(latch.try_set_count(3).await.unwrap());
    assert!(!theirs.latch("a").try_set_count(9).await.unwrap());
    let waiters = [
        waiting(&mut raw, &ours).await,
        waiting(&mut raw, &theirs).await,
    ];
    assert_eq!(theirs.latch("a").count_down().await.unwrap(), 2);
    assert_eq!(latch.count_down().await.unwrap(), 1);
    assert!(!latch.wait_for(ms(100)).await.unwrap());
    assert!(!latch.wait_for(Duration::ZERO).await.unwrap());
    assert_eq!(latch.count().await.unwrap(), 1);
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(latch.count_down().await.unwrap(), 0);
    for waiter in waiters {
        released(waiter).await.unwrap();
    }
    assert!(latch.wait_for(Duration::ZERO).await.unwrap());
    assert_eq!(latch.count_down().await.unwrap(), 0, "it is open");
    until("nobody listens any more", async || {
        subscribers(&mut raw, OURS).await == 0
    })
    .await;
    // Again, for the next ones.
    assert!(theirs.latch("a").try_set_count(1).await.unwrap());
    assert!(!latch.wait_for(ms(50)).await.unwrap());
}

#[tokio::test]
async fn a_reset_keeps_those_who_wait_until_the_new_count_is_down() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a");
    latch.reset(1).await.unwrap();
    let waiter = waiting(&mut raw, &locks).await;
    latch.reset(2).await.unwrap();
    assert_eq!(latch.count_down().await.unwrap(), 1);
    tokio::time::sleep(ms(100)).await;
    assert!(!waiter.is_finished());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    released(waiter).await.unwrap();
}

#[tokio::test]
async fn a_participant_counts_once_for_each_count_that_is_set() {
    let server = Server::start().await;
    let (ours, theirs) = (
        locks(&server).await.latch("a"),
        locks(&server).await.latch("a"),
    );
    for round in 0..2 {
        assert!(ours.try_set_count(2).await.unwrap(), "round {round}");
        assert_eq!(ours.count_down_as("x").await.unwrap(), 1);
        assert_eq!(ours.count_down_as("x").await.unwrap(), 1);
        assert_eq!(theirs.count_down_as("x").await.unwrap(), 1);
        ours.reset(3).await.unwrap();
        assert_eq!(theirs.count_down_as("x").await.unwrap(), 2);
        assert_eq!(theirs.count_down_as("y").await.unwrap(), 1);
        assert_eq!(ours.count_down_as("y").await.unwrap(), 1);
        assert_eq!(
            ours.count_down_as("").await.unwrap_err().kind(),
            ErrorKind::BadName
        );
        assert_eq!(ours.count_down_as("ä b\0").await.unwrap(), 0);
        assert_eq!(ours.count_down_as("x").await.unwrap(), 0, "it is open");
    }
}

/// What Redisson writes and publishes for `trySetCount(2)`, `trySetCount(9)` and three counts; and nothing
/// beside it that has no expiry.
#[tokio::test]
async fn keys_and_messages_are_redissons() {
    let server = Server::start().await;
    let (mut raw, mut java, mut own) = (server.raw().await, server.raw().await, server.raw().await);
    for (ear, channel) in [(&mut java, REDISSONS), (&mut own, OURS)] {
        ear.hello3().await;
        ear.send(&["SUBSCRIBE", channel]).await.unwrap();
        ear.push().await;
    }
    let locks = beside_redisson(&server).await;
    let latch = locks.latch("a");
    assert!(latch.try_set_count(2).await.unwrap());
    assert_eq!(raw.cmd(&["GET", "a"]).await.str(), "2");
    assert_eq!(pttl(&mut raw, "a").await, -1, "Redisson's has no expiry");
    assert!(pttl(&mut raw, OURS).await > 0);
    assert!(!latch.try_set_count(9).await.unwrap());
    for left in [1, 0, 0] {
        assert_eq!(latch.count_down().await.unwrap(), left);
    }
    assert!(!exists(&mut raw, "a").await);
    assert!(pttl(&mut raw, OURS).await > 0);
    // A last one, to know that there was none in between.
    latch.reset(5).await.unwrap();
    for ear in [&mut java, &mut own] {
        for message in ["1", "0", "1"] {
            assert_eq!(
                within("a message", ear.push()).await[2],
                RawValue::Bulk(message.into())
            );
        }
    }
    // Without Redisson nobody is there who hears its channel.
    let alone = connect(server.url()).await;
    alone.latch("a").reset(1).await.unwrap();
    locks.latch("a").reset(2).await.unwrap();
    within("one message", java.push()).await;
    let published = tokio::time::timeout(ms(50), java.push()).await;
    assert!(published.is_err(), "the one of the first reset");
}

/// The steps of Redisson's scripts.
struct Java(Raw);

impl Java {
    async fn try_set_count(&mut self, count: &str) -> bool {
        const SET: &str = "if redis.call('EXISTS', KEYS[1]) == 0 then \
                           redis.call('SET', KEYS[1], ARGV[2]) redis.call('PUBLISH', ARGV[3], '1') \
                           return 1 end return 0";
        let set = self
            .0
            .cmd(&["EVAL", SET, "1", "a", "", count, REDISSONS])
            .await;
        set.int() == 1
    }

    async fn count_down(&mut self) {
        const COUNT: &str = "local v = redis.call('DECR', KEYS[1]) \
                             if v <= 0 then redis.call('DEL', KEYS[1]) end \
                             if v == 0 then redis.call('PUBLISH', ARGV[1], '0') end return v";
        self.0.cmd(&["EVAL", COUNT, "1", "a", REDISSONS]).await;
    }
}

#[tokio::test]
async fn redisson_counts_and_is_counted() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Java(server.raw().await);
    let locks = beside_redisson(&server).await;
    let latch = locks.latch("a");
    for _ in 0..3 {
        assert!(java.try_set_count("2").await);
        assert!(!latch.try_set_count(2).await.unwrap());
        let waiter = waiting(&mut raw, &locks).await;
        assert_eq!(latch.count_down_as("ours").await.unwrap(), 1);
        assert_eq!(latch.count_down_as("ours").await.unwrap(), 1);
        java.count_down().await;
        released(waiter).await.unwrap();
        assert!(latch.try_set_count(2).await.unwrap());
        assert!(!java.try_set_count("3").await);
        java.count_down().await;
        assert_eq!(latch.count().await.unwrap(), 1);
        let waiter = waiting(&mut raw, &locks).await;
        assert_eq!(latch.count_down_as("ours").await.unwrap(), 0);
        released(waiter).await.unwrap();
    }
    // It deletes a latch too, and says `1` then.
    assert!(java.try_set_count("4").await);
    let waiter = waiting(&mut raw, &locks).await;
    raw.cmd(&["DEL", "a"]).await;
    raw.cmd(&["PUBLISH", REDISSONS, "1"]).await;
    released(waiter).await.unwrap();
}

#[tokio::test]
async fn a_latch_with_an_expiry_does_not_open_by_it() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for locks in [locks(&server).await, beside_redisson(&server).await] {
        let latch = locks.latch("a").expiry(ms(400));
        assert!(latch.try_set_count(2).await.unwrap());
        assert!((1..=400).contains(&pttl(&mut raw, "a").await));
        assert!(pttl(&mut raw, OURS).await > 400, "it is to be known then");
        assert_eq!(latch.count_down().await.unwrap(), 1);
        assert!((1..=400).contains(&pttl(&mut raw, "a").await));
        let error = within("the end", latch.wait()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
        assert!(error.to_string().contains("expired"), "{error}");
        assert_eq!(latch.count().await.unwrap_err().kind(), ErrorKind::Broken);
        assert_eq!(latch.wait().await.unwrap_err().kind(), ErrorKind::Broken);
        // It can be set again.
        assert!(locks.latch("a").try_set_count(1).await.unwrap());
        assert_eq!(pttl(&mut raw, "a").await, -1);
        assert_eq!(latch.count_down().await.unwrap(), 0);
        latch.wait().await.unwrap();
    }
}

/// Waiters of one client cost the server the same whatever their number.
#[tokio::test]
async fn a_thousand_waiters_cost_what_one_does() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let setter = locks(&server).await;
    let mut costs = Vec::new();
    for waiters in [1, 1_000] {
        let locks = locks(&server).await;
        setter.latch("a").try_set_count(1).await.unwrap();
        let before = (
            scripts_run(&mut raw).await,
            calls(&mut raw, "subscribe").await,
        );
        let waiters: Vec<_> = (0..waiters)
            .map(|_| {
                let latch = locks.latch("a");
                tokio::spawn(async move { latch.wait().await })
            })
            .collect();
        until("they listen", async || {
            subscribers(&mut raw, OURS).await == 1
        })
        .await;
        tokio::time::sleep(ms(200)).await;
        setter.latch("a").count_down().await.unwrap();
        for waiter in waiters {
            released(waiter).await.unwrap();
        }
        costs.push((
            scripts_run(&mut raw).await - before.0,
            calls(&mut raw, "subscribe").await - before.1,
        ));
    }
    let [(one, one_subscription), (many, subscriptions)] = costs[..] else {
        panic!("two were measured");
    };
    assert_eq!((one_subscription, subscriptions), (1, 1));
    // The looks before and after the subscription, and one of those who came while another was under way.
    assert!(many <= one + 2, "{many} scripts, {one} for a single waiter");
}

/// The commands that the server executes, those of the scripts included.
#[tokio::test]
async fn operations_cost_so_many_commands() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a");
    // The scripts are known from here on.
    latch.reset(2).await.unwrap();
    latch.count_down_as("x").await.unwrap();
    latch.count().await.unwrap();
    let mut costs = Vec::new();
    let total = async |raw: &mut Raw| {
        let statistics = raw.cmd(&["INFO", "commandstats"]).await;
        let counts = statistics.str().lines().filter_map(|line| {
            let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let count = fields.strip_prefix("calls=")?.split(',').next()?;
            (name != "info").then(|| count.parse::<u64>().expect("a count"))
        });
        counts.sum::<u64>()
    };
    for what in ["set", "count", "participant", "look", "open"] {
        let before = total(&mut raw).await;
        match what {
            "set" => latch.reset(3).await.map(|()| 3),
            "participant" => latch.count_down_as("x").await,
            "look" => latch.count().await,
            _ => latch.count_down().await,
        }
        .unwrap();
        costs.push((what, total(&mut raw).await - before));
    }
    let expected = [
        ("set", 14),
        ("count", 11),
        ("participant", 12),
        ("look", 4),
        ("open", 15),
    ];
    assert_eq!(costs, expected);
}
