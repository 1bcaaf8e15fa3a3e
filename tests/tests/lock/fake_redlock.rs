//! The fake of a Redlock: what a test can make its nodes do, and the same behaviours at it and at real servers.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::observer::Primitive;
use leasehold::testing::{Fake, FakeRedlock, Held, What};
use leasehold::{ErrorKind, Guard, LostReason, Redlock, Release};
use leasehold_testkit::Server;

use crate::redlock::{over, servers, taken};
use crate::support::{locks, ms, take, until, within};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Three nodes: servers, or those of the fake.
enum Nodes {
    Servers(Vec<Server>),
    Fake(FakeRedlock),
}

/// What somebody else holds there.
enum Theirs {
    Guards(Vec<Guard>),
    Held(Held),
}

impl Nodes {
    async fn red(&self, lease: Duration) -> Redlock {
        match self {
            Self::Servers(servers) => over(servers, lease).await,
            Self::Fake(fake) => fake.builder().lease(lease).connect().await.unwrap(),
        }
    }

    async fn hold(&self, name: &str, nodes: &[usize]) -> Theirs {
        match self {
            Self::Servers(servers) => {
                let mut guards = Vec::new();
                for &node in nodes {
                    guards.push(take(&locks(&servers[node]).await, name).await);
                }
                Theirs::Guards(guards)
            }
            Self::Fake(fake) => Theirs::Held(fake.hold(name, nodes.iter().copied()).await),
        }
    }

    async fn stop(&self, node: usize) {
        match self {
            Self::Servers(servers) => servers[node].pause(),
            Self::Fake(fake) => fake.stop(node).await,
        }
    }

    async fn start(&self, node: usize) {
        match self {
            Self::Servers(servers) => servers[node].resume(),
            Self::Fake(fake) => fake.start(node).await,
        }
    }

    async fn flush(&self, node: usize) {
        match self {
            Self::Servers(servers) => {
                servers[node].raw().await.cmd(&["FLUSHALL"]).await;
            }
            Self::Fake(fake) => fake.flush(node),
        }
    }

    /// Lets time pass.
    async fn pass(&self, time: Duration) {
        match self {
            Self::Servers(_) => tokio::time::sleep(time).await,
            Self::Fake(fake) => fake.advance(time).await,
        }
    }
}

/// At how many nodes that answer somebody holds it.
async fn having(red: &Redlock, name: &str) -> usize {
    let nodes = red.mutex(name).inspect().await;
    let held = |node: &Result<leasehold::Inspection, leasehold::Error>| {
        node.as_ref().is_ok_and(|seen| !seen.holders().is_empty())
    };
    nodes.iter().filter(|node| held(node)).count()
}

async fn all_have(red: &Redlock, name: &str, count: usize) {
    until("that many nodes have it", async || {
        having(red, name).await == count
    })
    .await;
}

#[tokio::test]
async fn servers_and_the_fake_behave_alike() {
    for nodes in [
        Nodes::Servers(servers(3).await),
        Nodes::Fake(FakeRedlock::new(3)),
    ] {
        holders_exclude_each_other(&nodes).await;
        minorities_are_no_obstacle(&nodes).await;
        majorities_are(&nodes).await;
        a_node_may_be_away_or_forget(&nodes).await;
    }
}

async fn holders_exclude_each_other(nodes: &Nodes) {
    let (ours, theirs) = (nodes.red(secs(30)).await, nodes.red(secs(30)).await);
    let first = within("the lock", ours.mutex("a").lock().fenced().into_future()).await;
    let first = first.unwrap();
    // Two of three are enough for the lock: the third may be asked by the others first.
    all_have(&ours, "a", 3).await;
    assert!(theirs.mutex("a").try_lock().await.unwrap().is_none());
    assert!(ours.mutex("a").try_lock().await.unwrap().is_none());
    let waited = theirs.mutex("a").try_lock_for(ms(50)).await.unwrap();
    assert!(waited.is_none());
    for node in theirs.mutex("a").inspect().await {
        let node = node.unwrap();
        let holder = &node.holders()[0];
        assert_eq!(holder.client(), ours.client_id());
    }
    let waiting = tokio::spawn(theirs.mutex("a").lock().fenced().into_future());
    tokio::task::yield_now().await;
    let token = first.token();
    assert_eq!(first.release().await.unwrap(), Release::Released);
    let second = within("its turn", waiting).await.unwrap().unwrap();
    assert!(second.token() > token);
    assert_eq!(second.release().await.unwrap(), Release::Released);
    all_have(&ours, "a", 0).await;
}

async fn minorities_are_no_obstacle(nodes: &Nodes) {
    let red = nodes.red(secs(30)).await;
    let theirs = nodes.hold("b", &[1]).await;
    let guard = taken(&red, "b").await;
    all_have(&red, "b", 3).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    all_have(&red, "b", 1).await;
    theirs.release().await;
    all_have(&red, "b", 0).await;
}

async fn majorities_are(nodes: &Nodes) {
    let red = nodes.red(secs(30)).await;
    let theirs = nodes.hold("c", &[0, 2]).await;
    assert!(red.mutex("c").try_lock().await.unwrap().is_none());
    // What the third one granted is given back.
    all_have(&red, "c", 2).await;
    let waiting = tokio::spawn(red.mutex("c").lock().into_future());
    tokio::task::yield_now().await;
    theirs.release().await;
    let guard = within("its turn", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

async fn a_node_may_be_away_or_forget(nodes: &Nodes) {
    let lease = ms(3_000);
    let red = nodes.red(lease).await;
    let guard = taken(&red, "d").await;
    all_have(&red, "d", 3).await;
    nodes.stop(0).await;
    nodes.pass(lease * 2).await;
    assert!(guard.is_held(), "two renew it");
    drop(taken(&red, "e").await);
    nodes.start(0).await;
    // It is taken there again, and then another one may forget it.
    all_have(&red, "d", 3).await;
    nodes.pass(lease).await;
    nodes.flush(1).await;
    nodes.pass(lease).await;
    assert!(guard.is_held());
    all_have(&red, "d", 3).await;
    nodes.stop(0).await;
    nodes.stop(1).await;
    nodes.pass(lease).await;
    assert!(!guard.is_held());
    assert_eq!(within("the loss", guard.lost()).await, LostReason::Expired);
    let error = red.mutex("f").try_lock().await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
        "{error}"
    );
    nodes.start(0).await;
    nodes.start(1).await;
    drop(taken(&red, "d").await);
}

impl Theirs {
    async fn release(self) {
        match self {
            Self::Guards(guards) => {
                for guard in guards {
                    guard.release().await.unwrap();
                }
            }
            Self::Held(held) => held.release().await,
        }
    }
}

#[tokio::test]
async fn leases_end_when_the_clock_moves_and_majorities_renew_theirs() {
    let fake = FakeRedlock::new(5);
    let red = fake.builder().lease(secs(30)).connect().await.unwrap();
    let renewed = taken(&red, "renewed").await;
    let fixed = red.mutex("fixed").lock().lease(secs(30)).await.unwrap();
    let bounded = red.mutex("bounded").lock().max_hold(secs(70)).await;
    let bounded = bounded.unwrap();
    fake.advance(secs(29)).await;
    assert!(renewed.is_held() && fixed.is_held() && bounded.is_held());
    fake.advance(secs(2)).await;
    assert!(renewed.is_held() && bounded.is_held() && !fixed.is_held());
    assert_eq!(fixed.lost().await, LostReason::Expired);
    fake.advance(secs(300)).await;
    assert!(renewed.is_held());
    assert_eq!(bounded.lost().await, LostReason::MaxHold);
    fake.stop(0).await;
    fake.stop(3).await;
    fake.advance(secs(60)).await;
    assert!(renewed.is_held(), "three of five renew it");
    fake.stop(1).await;
    fake.advance(secs(31)).await;
    assert_eq!(renewed.lost().await, LostReason::Expired);
}

#[tokio::test]
async fn the_time_to_wait_is_that_of_the_clock() {
    let fake = FakeRedlock::new(3);
    let red = fake.redlock().await.unwrap();
    let theirs = fake.hold("a", [0, 1, 2]).await;
    let mutex = red.mutex("a");
    let waiting = tokio::spawn(async move { mutex.try_lock_for(secs(90)).await });
    fake.advance(secs(89)).await;
    assert!(!waiting.is_finished());
    fake.advance(secs(2)).await;
    assert!(within("the end", waiting).await.unwrap().unwrap().is_none());

    // For nodes that are away it is the command timeout.
    theirs.release().await;
    fake.stop(0).await;
    fake.stop(1).await;
    let mutex = red.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    fake.advance(secs(4)).await;
    assert!(!waiting.is_finished());
    fake.advance(secs(2)).await;
    let error = within("the end", waiting).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("of 3 nodes"), "{error}");
}

/// A majority of those that were told to fail is a failure, a minority is none.
#[tokio::test]
async fn calls_at_a_node_fail_as_the_test_says_and_the_next_ones_do_not() {
    let fake = FakeRedlock::new(3);
    let red = fake.redlock().await.unwrap();
    for kind in [
        ErrorKind::Denied,
        ErrorKind::WrongType,
        ErrorKind::Unavailable,
        ErrorKind::Unknown,
    ] {
        fake.fail_next(2, kind);
        let guard = red.mutex("a").try_lock().await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        fake.fail_next(2, kind);
        fake.fail_next(0, kind);
        let error = red.mutex("a").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains('a'), "{error}");
        assert!(red.mutex("a").try_lock().await.unwrap().is_some());
        all_have(&red, "a", 0).await;
    }
    // One that passes is what a wait is for.
    fake.fail_next(0, ErrorKind::Unavailable);
    fake.fail_next(1, ErrorKind::Unavailable);
    let guard = taken(&red, "b").await;
    fake.fail_next(0, ErrorKind::Unknown);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    all_have(&red, "b", 0).await;
    fake.fail_next(1, ErrorKind::Denied);
    let nodes = red.mutex("b").inspect().await;
    let failed: Vec<_> = nodes.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true, false]);
    // What others hold and give back does not use it up.
    fake.fail_next(0, ErrorKind::Denied);
    fake.hold("c", [0]).await.release().await;
    assert!(red.mutex("c").inspect().await[0].is_err());
}

#[tokio::test]
async fn what_a_test_takes_away_is_lost_and_free_for_the_next() {
    let fake = FakeRedlock::new(3);
    let (here, there) = (fake.redlock().await.unwrap(), fake.redlock().await.unwrap());
    for reason in [
        LostReason::NoMajority,
        LostReason::Expired,
        LostReason::MaxHold,
    ] {
        let guard = taken(&here, "a").await;
        assert_eq!(fake.lose("b", reason).await, 0);
        assert_eq!(fake.lose("a", reason).await, 1);
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, reason);
        assert_eq!(fake.lose("a", reason).await, 0, "it is lost already");
        drop(taken(&there, "a").await);
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
    }
}

#[tokio::test]
async fn the_history_has_one_entry_for_a_majority() {
    let fake = FakeRedlock::new(3);
    let (here, there) = (fake.redlock().await.unwrap(), fake.redlock().await.unwrap());
    let a = here.mutex("a").lock().fenced().await.unwrap();
    fake.advance(secs(5)).await;
    let b = taken(&there, "b").await;
    assert!(there.mutex("a").try_lock().await.unwrap().is_none());
    let token = a.token();
    a.release().await.unwrap();
    fake.lose("b", LostReason::NoMajority).await;
    let history = fake.history();
    let seen: Vec<_> = history
        .iter()
        .map(|event| (event.name(), event.what(), event.client()))
        .collect();
    let (one, other) = (here.client_id(), there.client_id());
    let expected = [
        ("a", What::Taken, one),
        ("b", What::Taken, other),
        ("a", What::Released, one),
        ("b", What::Lost(LostReason::NoMajority), other),
    ];
    assert_eq!(seen, expected);
    assert!(
        history
            .iter()
            .all(|event| event.primitive() == Primitive::Redlock)
    );
    assert_eq!(history[0].token(), token);
    assert!(token.is_some() && history[1].token().is_none());
    assert!(history[1].after() >= history[0].after() + secs(5));
    drop(b);
}

/// Time that is paused goes on where nothing is left to do; the clock of the nodes goes with it.
#[tokio::test(start_paused = true)]
async fn paused_time_and_the_clock_of_the_nodes_go_together() {
    let since = Instant::now();
    let fake = FakeRedlock::new(3);
    let red = fake.builder().lease(secs(60)).connect().await.unwrap();
    let theirs = fake.hold("a", [0, 1, 2]).await;
    let renewed = taken(&red, "renewed").await;
    let fixed = red.mutex("fixed").lock().lease(secs(45)).await.unwrap();
    let waited = red.mutex("a").try_lock_for(secs(60)).await.unwrap();
    assert!(waited.is_none());
    assert!(renewed.is_held(), "renewed on the way");
    assert_eq!(fixed.lost().await, LostReason::Expired);
    let waiting = tokio::spawn(red.mutex("a").lock().into_future());
    tokio::time::sleep(secs(5)).await;
    theirs.release().await;
    drop(within("the lock", waiting).await.unwrap().unwrap());
    fake.stop(2).await;
    tokio::time::sleep(secs(150)).await;
    fake.advance(secs(150)).await;
    assert!(renewed.is_held());
    fake.start(2).await;
    assert_eq!(renewed.release().await.unwrap(), Release::Released);
    assert!(since.elapsed() < secs(60), "by the clock on the wall");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_several_threads_nothing_is_lost_while_the_clock_moves() {
    let fake = FakeRedlock::new(3);
    let lease = secs(60);
    let here = fake.builder().lease(lease).connect().await.unwrap();
    let there = fake.builder().lease(lease).connect().await.unwrap();
    let mut guards = Vec::new();
    for n in 0..10 {
        let red = if n % 2 == 0 { &here } else { &there };
        guards.push(taken(red, &format!("a{n}")).await);
    }
    for round in 0..5 {
        fake.advance(secs(97)).await;
        for guard in &guards {
            assert!(guard.is_held(), "{} in round {round}", guard.key());
        }
    }
}

#[tokio::test]
async fn nodes_that_are_away_from_the_start_join_later() {
    let fake = FakeRedlock::new(3);
    fake.stop(1).await;
    let red = within("a majority", fake.redlock()).await.unwrap();
    let guard = taken(&red, "a").await;
    fake.start(1).await;
    let renewed = async || {
        fake.advance(secs(4)).await;
        having(&red, "a").await == 3
    };
    until("the third has it too", renewed).await;
    drop(guard);
    fake.stop(0).await;
    fake.stop(2).await;
    let none = fake.builder().connect_timeout(ms(200)).connect().await;
    assert_eq!(none.unwrap_err().kind(), ErrorKind::Unavailable);
    // Other fakes know nothing of it.
    assert!(Fake::new().locks().await.is_ok());
}

#[tokio::test]
#[should_panic(expected = "`a` is held already")]
async fn what_a_majority_holds_cannot_be_held_by_somebody_else() {
    let fake = FakeRedlock::new(3);
    let red = fake.redlock().await.unwrap();
    let _guard = taken(&red, "a").await;
    let _ = fake.hold("a", [2]).await;
}
