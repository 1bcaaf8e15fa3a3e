//! Elections where something is missing: an answer, an announcement, an end; and with many who observe.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use leasehold::{ErrorKind, Leader, Leaders, Leadership, Locks};
use leasehold_testkit::{Cut, Fault, Proxy, Server};
use tokio::task::JoinSet;

use crate::support::{command_for_renewals, locks, ms, registered, scripts_run, until, within};

const ENTRY: &str = "leasehold_leader:{a}";

async fn campaign(locks: &Locks, value: &str) -> Leadership {
    let election = locks.election("a").value(value);
    within("a campaign", election.campaign()).await.unwrap()
}

/// What the observer is told next.
async fn next(observer: &mut Leaders) -> Option<Leader> {
    within("a change", observer.next()).await.unwrap()
}

/// The lock was had, and the announcement has no answer.
#[tokio::test]
async fn a_campaign_that_cannot_announce_itself_hands_over_and_can_be_repeated() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let direct = locks(&server).await;
    let ours = Locks::builder(proxy.url())
        .command_timeout(ms(500))
        .connect()
        .await
        .unwrap();
    // From here on a campaign has two replies, and no other connection waits for its second: that for renewals has been
    // greeted.
    let first = campaign(&ours, "first").await;
    let mut raw = server.raw().await;
    until("a connection for renewals", async || {
        let command = command_for_renewals(&mut raw).await;
        command.is_some_and(|command| command != "hello")
    })
    .await;
    first.resign().await.unwrap();
    registered([&ours]).await;
    proxy.to_client(Fault::LoseReply {
        nth: 2,
        how: Cut::Silence,
    });
    let election = ours.election("a").value("lost");
    let error = election.campaign().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("is being removed"), "{error}");
    proxy.heal();
    proxy.reset_all();
    // It does not lead, and the next one need not wait for the end of its lease.
    drop(campaign(&direct, "other").await);
    let leader = campaign(&ours, "again").await;
    proxy.to_client(Fault::Blackhole);
    let error = leader.publish("value").await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    proxy.heal();
}

/// A lock that nothing frees is asked for as rarely as any other, and so is one whose holder is never announced.
#[tokio::test]
async fn a_leader_that_is_not_announced_or_never_ends_is_looked_for_now_and_then() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    let holder = "8d5f5f3e-3c1f-4a80-9d0b-1f2d3c4b5a69:7";
    raw.cmd(&["HSET", "a", holder, "1"]).await;
    let mut observer = ours.election("a").observe();
    assert_eq!(next(&mut observer).await, None);
    let watching = tokio::spawn(async move {
        let leader = next(&mut observer).await;
        (leader, observer)
    });
    let before = scripts_run(&mut raw).await;
    tokio::time::sleep(ms(1_500)).await;
    let looks = scripts_run(&mut raw).await - before;
    assert!(looks < 10, "{looks} looks for one that is not announced");

    let entry = ["id", holder, "n", "0", "token", "7", "value", "it"];
    raw.cmd(&[&["HSET", ENTRY], &entry[..]].concat()).await;
    raw.cmd(&["PUBLISH", ENTRY, ""]).await;
    let (leader, mut observer) = within("the leader", watching).await.unwrap();
    let leader = leader.expect("it is announced");
    assert_eq!(leader.value(), Some("it"));
    let watching = tokio::spawn(async move { next(&mut observer).await });
    let before = scripts_run(&mut raw).await;
    tokio::time::sleep(ms(1_500)).await;
    let looks = scripts_run(&mut raw).await - before;
    assert!(looks < 10, "{looks} looks for one that never ends");
    watching.abort();
}

/// Each one that joins has a look made. Those that know what it sees sleep on: else ten thousand that join one by one would
/// wake each other fifty million times.
#[tokio::test]
async fn observers_that_join_one_by_one_do_not_wake_each_other() {
    const OBSERVERS: usize = 300;
    let server = Server::start().await;
    let ours = locks(&server).await;
    let leader = campaign(&ours, "it").await;
    let began = Instant::now();
    let polls = Arc::new(AtomicUsize::new(0));
    let told = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for n in 1..=OBSERVERS {
        let mut observer = ours.election("a").observe();
        let (polls, told_it) = (Arc::clone(&polls), Arc::clone(&told));
        tasks.spawn(async move {
            loop {
                let mut next = pin!(observer.next());
                let leader = poll_fn(|cx| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    next.as_mut().poll(cx)
                });
                leader.await.unwrap();
                told_it.fetch_add(1, Ordering::Relaxed);
            }
        });
        until("it is told", async || told.load(Ordering::Relaxed) >= n).await;
    }
    // Each looks by itself about once a second while others ask for looks.
    let seconds = began.elapsed().as_secs() as usize + 1;
    let polls = polls.load(Ordering::Relaxed);
    assert!(
        polls < OBSERVERS * (10 + 4 * seconds),
        "{polls} polls of {OBSERVERS} observers in {seconds} s"
    );
    // And all of them are told what is news.
    leader.publish("news").await.unwrap();
    until("all are told", async || {
        told.load(Ordering::Relaxed) == 2 * OBSERVERS
    })
    .await;
}
