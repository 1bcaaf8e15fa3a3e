//! A master that is frozen while a request waits in its socket, replaced, and wakes up. It answers
//! the request although another client got the lock from its successor: without confirmation of all
//! replicas there are two holders.
//!
//! With `LEASEHOLD_LONG=1` in the environment there are more rounds.

use std::time::Duration;

use leasehold::{ErrorKind, Locks, Replicas};
use leasehold_testkit::{Failover, until};

use crate::shard::Shard;
use crate::support::{granted, ms, within};

/// Time for a request to wait in a frozen server's socket, and then for replicas that cannot
/// confirm. Longer than a promotion, without which the test shows nothing; a round takes about as
/// long.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(6);

#[tokio::test]
async fn all_replicas_expose_a_frozen_master_in_a_cluster() {
    // The votes of the other shards make no difference to clients, so only one shard matters.
    all_replicas_expose_a_frozen_master(Shard::of_cluster(1).await).await;
}

#[tokio::test]
async fn all_replicas_expose_a_frozen_master_behind_sentinels() {
    all_replicas_expose_a_frozen_master(Shard::behind_sentinels().await).await;
}

async fn all_replicas_expose_a_frozen_master(shard: Shard) {
    let rounds = if std::env::var_os("LEASEHOLD_LONG").is_some() {
        50
    } else {
        5
    };
    shard.settle_wholly().await;
    let mut both = 0;
    for number in 0..rounds {
        both += usize::from(round(&shard, number).await);
    }
    println!(
        "{both} of {rounds} times the master that woke up granted what its successor had granted"
    );
    assert!(both > 0, "no master woke up in time for what this is about");
}

/// Returns whether the master that woke up granted the fast client what its successor had granted.
async fn round(shard: &Shard, number: usize) -> bool {
    let (safe_name, fast_name) = (format!("safe{number}"), format!("fast{number}"));
    let master = shard.master().await;
    let others = shard.replicas_of(master).await;

    // All clients are connected before the freeze. A first safe lock leaves its connection for the
    // next one.
    let safe = Locks::builder(shard.url())
        .replicated(Replicas::All)
        // The servers are younger than any lease, and have forgotten nothing.
        .restart_guard(ms(10))
        .command_timeout(COMMAND_TIMEOUT);
    let safe = safe.connect().await.unwrap();
    until("a safe lock", async || {
        match safe.mutex(format!("warm{number}")).try_lock().await {
            Ok(Some(warm)) => {
                assert_eq!(warm.acknowledged(), 2);
                warm.release()
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    // The fast client knows only this server: one that knows more would ask the successor when it
    // gets no reply.
    let fast = Locks::builder(shard.node(master).url())
        .command_timeout(COMMAND_TIMEOUT)
        .connect()
        .await
        .unwrap();
    let mut successors = Vec::new();
    for node in &others {
        successors.push(Locks::connect(shard.node(*node).url()).await.unwrap());
    }

    shard.node(master).pause();
    let take = |locks: &Locks, name: &str| {
        let attempt = locks.mutex(name).try_lock();
        tokio::spawn(async move { attempt.await })
    };
    let (safe_try, fast_try) = (take(&safe, &safe_name), take(&fast, &fast_name));
    // Until both are in the socket of the frozen server.
    tokio::time::sleep(ms(100)).await;

    let promoted = promote_one_of(shard, &others).await;
    let history = shard.history(promoted).await;
    let successor = &successors[others.iter().position(|node| *node == promoted).unwrap()];
    let safe_holder = granted(successor, &safe_name).await;
    let fast_holder = granted(successor, &fast_name).await;
    shard.node(master).resume();

    let safe_outcome = within("the safe one's answer", safe_try).await.unwrap();
    let (is_held, holder) = (
        safe_holder.is_held(),
        successor.mutex(&safe_name).holder().await,
    );
    if history.is_none() || shard.history(promoted).await != history {
        // A sentinel that does not know of the promotion and finds the old master healthy reverts
        // to it, which loses all grants of the new one alone.
        println!("round {number}: the promotion was taken back");
        let _ = fast_try.await;
        shard.settle_wholly().await;
        return false;
    }
    match safe_outcome {
        // The old master was a replica by the time it looked at the request, and sent it to its
        // successor.
        Ok(None) => {}
        Ok(Some(guard)) => panic!("round {number}: two holders, {guard:?} and {safe_holder:?}"),
        Err(error) => assert!(
            matches!(
                error.kind(),
                ErrorKind::NotReplicated | ErrorKind::Unknown | ErrorKind::Unavailable
            ),
            "{error}"
        ),
    }
    assert!(is_held);
    assert_eq!(
        holder.unwrap().expect("it is held").client(),
        successor.client_id()
    );

    // The fast client may get a held lock. The token tells which of the two grants was the later
    // one, so that the storage can refuse the other.
    let fast_guard = within("the fast one's answer", fast_try)
        .await
        .unwrap()
        .ok()
        .flatten();
    if let Some(guard) = &fast_guard {
        assert_eq!(guard.acknowledged(), 0);
        assert!(
            guard.token() > fast_holder.token(),
            "round {number}: {guard:?} came after {fast_holder:?}"
        );
    }
    let fast_granted = fast_guard.is_some();
    drop((fast_guard, safe_holder, fast_holder));
    shard.settle_wholly().await;
    fast_granted
}

/// Returns at the moment of the promotion: others may still follow the old master.
async fn promote_one_of(shard: &Shard, replicas: &[usize]) -> usize {
    if let Shard::Cluster(cluster) = shard {
        cluster.failover(replicas[0], Failover::Takeover).await;
        return replicas[0];
    }
    until("the sentinels promote a replica", async || {
        let promoted = shard.promoted(replicas).await;
        promoted.ok_or_else(|| "none is a master".into())
    })
    .await
}
