//! Clients that connect while a master is replaced. They know nothing from before: whatever they
//! believe of masters and replicas they learn in the middle of it. The old master is frozen, and
//! wakes up at the moment of the promotion.
//!
//! With `LEASEHOLD_LONG=1` in the environment there are more rounds.

use std::time::{Duration, Instant};

use leasehold::{Guard, Locks, Replicas};
use leasehold_testkit::until;
use tokio::task::JoinSet;

use crate::shard::{Shard, TAG};
use crate::support::{calls, ms};

/// Longer than a round takes: no lock of a round ends by itself.
const LEASE: Duration = Duration::from_secs(60);

/// Pause between two clients that connect.
const STEP: Duration = Duration::from_millis(20);

/// How long clients go on connecting after the promotion.
const AFTERWARDS: Duration = Duration::from_secs(2);

#[tokio::test]
async fn clients_that_connect_during_a_failover_are_granted_nothing_twice_behind_sentinels() {
    nothing_is_granted_twice(Shard::behind_sentinels().await).await;
}

#[tokio::test]
async fn clients_that_connect_during_a_failover_are_granted_nothing_twice_in_a_cluster() {
    nothing_is_granted_twice(Shard::of_cluster(3).await).await;
}

async fn nothing_is_granted_twice(shard: Shard) {
    let rounds = if std::env::var_os("LEASEHOLD_LONG").is_some() {
        10
    } else {
        2
    };
    let (mut tried, mut granted, mut twice) = (0, 0, 0);
    for number in 0..rounds {
        shard.settle().await;
        let round = round(&shard, number).await;
        println!("round {number}: {round:?}");
        tried += round.tried;
        granted += round.granted;
        twice += round.twice;
        shard.settle().await;
        until("a fresh client is granted a lock", async || {
            let granted = fresh_client(&shard.url(), &format!("{TAG}:after")).await;
            granted.map(drop).ok_or_else(|| "not yet".into())
        })
        .await;
    }
    println!("{twice} of {tried} tries granted twice, {granted} granted in all");
    assert_eq!(twice, 0, "of {tried} tries in {rounds} rounds");
}

#[derive(Debug, Default)]
struct Round {
    /// Locks that a fresh client asked for.
    tried: usize,
    /// Of these, those it got.
    granted: usize,
    /// Of these, those that a client of the new master held at the same time.
    twice: usize,
    /// Times the old master was asked to wait for replicas after it woke up.
    waits: u64,
}

/// A master is frozen, replaced, and wakes up. From the freeze until two seconds after the
/// promotion clients connect, each for a lock of its own. Afterwards the same locks are taken at
/// the new master, without waiting for any replica: those that a fresh client was granted must be
/// held there.
async fn round(shard: &Shard, number: usize) -> Round {
    let master = shard.master().await;
    let replicas = shard.replicas_of(master).await;
    let mut witnesses = Vec::new();
    for replica in &replicas {
        let witness = Locks::builder(shard.node(*replica).url()).lease(LEASE);
        witnesses.push(witness.connect().await.unwrap());
    }
    // More than a round needs.
    let names: Vec<String> = (0..1_000)
        .map(|name| format!("{TAG}:{number}:{name}"))
        .collect();
    let mut old = shard.node(master).raw().await;
    let before = calls(&mut old, "wait").await;
    shard.node(master).pause();

    let mut fresh = JoinSet::new();
    let mut next = 0;
    let mut try_next = |next: &mut usize| {
        let (url, name) = (shard.url(), names[*next].clone());
        let number = *next;
        fresh.spawn(async move { (number, fresh_client(&url, &name).await) });
        *next += 1;
    };
    let promoted = loop {
        let promoted = shard.promoted(&replicas).await;
        if let Some(promoted) = promoted {
            break promoted;
        }
        try_next(&mut next);
        tokio::time::sleep(STEP).await;
    };
    shard.node(master).resume();
    let promotion = Instant::now();
    let history = shard.history(promoted).await.expect("it was promoted");
    let witness = &witnesses[replicas.iter().position(|at| *at == promoted).unwrap()];
    while promotion.elapsed() < AFTERWARDS {
        try_next(&mut next);
        tokio::time::sleep(STEP).await;
    }
    let mut held: Vec<Option<Guard>> = Vec::new();
    for name in &names[..next] {
        held.push(at_the_new_master(witness, name).await);
    }

    let mut round = Round {
        tried: next,
        ..Round::default()
    };
    let mut guards = Vec::new();
    while let Some(outcome) = fresh.join_next().await {
        let (number, guard) = outcome.unwrap();
        let Some((locks, guard)) = guard else {
            continue;
        };
        round.granted += 1;
        if guard.is_held() && held[number].as_ref().is_some_and(Guard::is_held) {
            println!("{} was granted twice: {guard:?}", names[number]);
            round.twice += 1;
        }
        guards.push((locks, guard));
    }
    round.waits = calls(&mut shard.node(master).raw().await, "wait")
        .await
        .saturating_sub(before);
    if shard.history(promoted).await.as_ref() != Some(&history) {
        // Sentinels that have not heard of the promotion and find the old master well may take it
        // back, and with it all that was granted by the new one alone.
        println!("round {number}: the promotion was taken back");
        round.twice = 0;
    }
    for guard in held.into_iter().flatten() {
        let _ = guard.release().await;
    }
    round
}

/// Connects, tries once, and keeps what it got.
async fn fresh_client(url: &str, name: &str) -> Option<(Locks, Guard)> {
    let locks = Locks::builder(url)
        .lease(LEASE)
        .replicated(Replicas::All)
        .restart_guard(ms(10))
        .command_timeout(Duration::from_secs(4))
        .connect_timeout(Duration::from_secs(4));
    let locks = locks.connect().await.ok()?;
    let guard = locks.mutex(name).try_lock().lease(LEASE).await.ok()??;
    Some((locks, guard))
}

/// The lock from the new master alone; `None` if it is held there.
async fn at_the_new_master(witness: &Locks, name: &str) -> Option<Guard> {
    until("the new master answers", async || {
        let attempt = witness.mutex(name).try_lock().lease(LEASE).await;
        attempt.map_err(|error| error.to_string())
    })
    .await
}
