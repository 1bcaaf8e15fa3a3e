//! Handing over beside Redisson, whose clients stand in no line: they hear of a release on its
//! channel and try then. Its client here plays the steps that were recorded of one.

use std::time::Duration;

use leasehold::{Interop, Locks};
use leasehold_testkit::statistics::subscribers;
use leasehold_testkit::{Raw, RawValue, Server};

use crate::support::{exists, in_line, its_turn, ms, nobody_in_line, scripts_run, until, within};

const CHANNEL: &str = "redisson_lock__channel:{a}";

async fn beside_redisson(server: &Server) -> Locks {
    Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap()
}

/// A thread of Redisson's.
struct Java {
    commands: Raw,
    messages: Raw,
    id: String,
}

impl Java {
    async fn new(server: &Server, thread: u32) -> Self {
        let mut messages = server.raw().await;
        messages.hello3().await;
        Self {
            commands: server.raw().await,
            messages,
            id: format!("00000000-0000-4000-8000-000000000001:{thread}"),
        }
    }

    /// The lease that is left to another holder; `None` if it is taken now.
    async fn try_lock(&mut self) -> Option<i64> {
        const TRY: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then \
                           return redis.call('PTTL', KEYS[1]) end \
                           redis.call('HINCRBY', KEYS[1], ARGV[2], 1) \
                           redis.call('PEXPIRE', KEYS[1], ARGV[1]) return false";
        let tried = self
            .commands
            .cmd(&["EVAL", TRY, "1", "a", "30000", &self.id])
            .await;
        (!tried.is_null()).then(|| tried.int())
    }

    /// Tries, subscribes, and tries at each message and when a lease ends that it has seen.
    async fn lock(&mut self) {
        if self.try_lock().await.is_none() {
            return;
        }
        self.messages.send(&["SUBSCRIBE", CHANNEL]).await.unwrap();
        self.messages.push().await;
        while let Some(left) = self.try_lock().await {
            let left = Duration::from_millis(left.max(1).unsigned_abs());
            // A message that comes later is taken for the next one, as a permit is there.
            let _ = tokio::time::timeout(left, self.messages.push()).await;
        }
        self.messages.send(&["UNSUBSCRIBE", CHANNEL]).await.unwrap();
        while self.messages.push().await[0] != RawValue::Bulk("unsubscribe".into()) {}
    }

    async fn unlock(&mut self) {
        let removed = self.commands.cmd(&["HDEL", "a", &self.id]).await;
        assert_eq!(removed.int(), 1, "it has held the lock");
        self.commands.cmd(&["PUBLISH", CHANNEL, "0"]).await;
    }
}

#[tokio::test]
async fn a_release_by_redisson_is_heard_and_serves_the_first_in_line() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Java::new(&server, 1).await;
    let (first, second) = (
        beside_redisson(&server).await,
        beside_redisson(&server).await,
    );
    for _ in 0..5 {
        within("a free lock", java.lock()).await;
        let waiters = [
            in_line(&mut raw, &first, "a").await,
            in_line(&mut raw, &second, "a").await,
        ];
        until("both listen", async || {
            subscribers(&mut raw, CHANNEL).await == 2
        })
        .await;
        java.unlock().await;
        for (waiter, locks) in waiters.into_iter().zip([&first, &second]) {
            let guard = its_turn(waiter).await;
            let holder = locks.mutex("a").holder().await.unwrap().unwrap();
            assert_eq!(holder.client(), locks.client_id());
            guard.release().await.unwrap();
        }
        assert!(!exists(&mut raw, "a").await);
    }
}

/// To Redisson a granted lock is held; ours go on as if it were not there.
#[tokio::test]
async fn without_a_waiter_of_redisson_every_release_grants() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut listener = server.raw().await;
    let holder = beside_redisson(&server).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(beside_redisson(&server).await);
    }
    // More than the number after which one release is open.
    for _ in 0..6 {
        let mut held = holder.mutex("a").lock().await.unwrap();
        let mut waiters = Vec::new();
        for locks in &clients {
            waiters.push(in_line(&mut raw, locks, "a").await);
        }
        for waiter in waiters {
            held.release().await.unwrap();
            assert!(exists(&mut listener, "a").await, "granted by the release");
            held = its_turn(waiter).await;
        }
        held.release().await.unwrap();
        nobody_in_line(&mut raw, "a").await;
    }
}

/// Two processes of ours that never rest, and a thread of Redisson's that wants the lock as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redissons_waiter_and_ours_both_have_their_turns() {
    let server = Server::start().await;
    let mut java = Java::new(&server, 1).await;
    let clients = [
        beside_redisson(&server).await,
        beside_redisson(&server).await,
    ];
    let turns: [std::sync::Arc<std::sync::atomic::AtomicUsize>; 2] = Default::default();
    let tasks: Vec<_> = clients
        .iter()
        .zip(&turns)
        .map(|(locks, turns)| {
            let (mutex, turns) = (locks.mutex("a"), turns.clone());
            tokio::spawn(async move {
                loop {
                    let guard = mutex.lock().await.unwrap();
                    turns.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    tokio::time::sleep(ms(1)).await;
                    drop(guard);
                }
            })
        })
        .collect();
    let had = || {
        turns
            .each_ref()
            .map(|turns| turns.load(std::sync::atomic::Ordering::SeqCst))
    };
    until("ours take part", async || had().iter().all(|&had| had > 0)).await;
    for _ in 0..5 {
        let before = had();
        // It has 5 ms for each turn that it is offered, in a thread of this busy process.
        let turn = tokio::time::timeout(Duration::from_secs(60), java.lock());
        turn.await.expect("a turn of Redisson's");
        tokio::time::sleep(ms(1)).await;
        java.unlock().await;
        // Both of ours come back after it.
        let after = had();
        until("turns of ours", async || {
            had().iter().zip(after).all(|(now, then)| *now > then)
        })
        .await;
        println!("{before:?} then Redisson, then {after:?}");
    }
    for task in tasks {
        task.abort();
    }
}

/// The release that is announced leaves the lock to whoever comes first: if nobody of Redisson's
/// does, the first in line takes it soon.
#[tokio::test]
async fn a_listener_that_never_comes_costs_a_moment_now_and_then() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut idle = server.raw().await;
    idle.cmd(&["SUBSCRIBE", CHANNEL]).await;
    let (holder, ours) = (
        beside_redisson(&server).await,
        beside_redisson(&server).await,
    );
    let mut open = 0;
    for _ in 0..64 {
        let held = holder.mutex("a").lock().await.unwrap();
        let waiter = in_line(&mut raw, &ours, "a").await;
        let asked = scripts_run(&mut raw).await;
        held.release().await.unwrap();
        let next = its_turn(waiter).await;
        // A release that grants is the only request.
        open += usize::from(scripts_run(&mut raw).await > asked + 1);
        next.release().await.unwrap();
    }
    assert!(open >= 4, "{open} of 64 releases were open");
}
