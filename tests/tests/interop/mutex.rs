//! The mutex, and all of Redisson's locks that are on the same key.

use leasehold::{LostReason, Release};

use crate::handing_over::hand_over;
use crate::stage::{everywhere, leased};
use crate::support::{fields, ms, until, within};

/// Redisson's kinds of locks with the layout of a mutex.
const KINDS: [&str; 4] = ["lock", "fenced", "spin", "nonreentrant"];

/// Rounds of a hand-off.
const ROUNDS: usize = 5;

#[tokio::test]
async fn a_lock_of_the_one_is_held_for_the_other() {
    everywhere(async |stage| {
        for kind in KINDS {
            let name = stage.name(kind);
            let (java, lock) = (stage.java[0].thread(), format!("{kind}({name})"));
            let mutex = stage.locks.mutex(&name);

            java.ok(format!("{lock}.lock()")).await;
            assert!(mutex.try_lock().await.unwrap().is_none(), "{lock}");
            assert!(mutex.try_lock_for(ms(30)).await.unwrap().is_none());
            let holder = mutex.holder().await.unwrap().expect("Java holds it");
            assert_eq!(holder.id(), java.id().await);
            java.ok(format!("{lock}.unlock()")).await;

            let guard = mutex.lock().await.unwrap();
            assert!(!java.says(format!("{lock}.tryLock()")).await, "{lock}");
            assert!(!java.says(format!("{lock}.tryLock(30, ms)")).await);
            let unlocked = java.call(format!("{lock}.unlock()")).await;
            assert!(
                unlocked.threw("IllegalMonitorStateException"),
                "{unlocked:?}"
            );
            assert!(guard.is_held());
            assert_eq!(guard.release().await.unwrap(), Release::Released);
            assert!(java.says(format!("{lock}.tryLock()")).await, "{lock}");
            java.ok(format!("{lock}.unlock()")).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_release_wakes_a_waiter_of_the_other() {
    everywhere(async |stage| {
        for kind in ["lock", "fenced", "nonreentrant"] {
            let name = stage.name(kind);
            let mutex = stage.locks.mutex(&name);
            hand_over(stage, &name, &format!("{kind}({name})"), ROUNDS, || {
                mutex.lock()
            })
            .await;
        }
    })
    .await;
}

#[tokio::test]
async fn re_entrant_holds_stay_as_java_left_them() {
    everywhere(async |stage| {
        let name = stage.name("nested");
        let (java, lock) = (stage.java[0].thread(), format!("lock({name})"));
        let id = java.id().await;
        let mutex = stage.locks.mutex(&name);
        let mut raw = stage.raw(&name).await;
        for _ in 0..3 {
            java.ok(format!("{lock}.lock()")).await;
        }
        let waits = tokio::spawn(mutex.lock().into_future());
        until("a ticket", async || stage.tickets(&name).await == 1).await;
        for left in (1..=3).rev() {
            assert_eq!(fields(&mut raw, &name).await, format!("{id}={left}"));
            let count = java.ok(format!("{lock}.getHoldCount()")).await;
            assert_eq!(count, left.to_string());
            assert!(mutex.try_lock().await.unwrap().is_none());
            assert!(!waits.is_finished());
            java.ok(format!("{lock}.unlock()")).await;
        }
        let guard = within("our turn", waits).await.unwrap().unwrap();
        assert_eq!(java.ok(format!("{lock}.getHoldCount()")).await, "0");
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    })
    .await;
}

#[tokio::test]
async fn each_notices_that_the_other_forced_it_out() {
    everywhere(async |stage| {
        let name = stage.name("forced");
        let [java, other] = [0, 1].map(|n| stage.java[n].thread());
        let lock = format!("lock({name})");
        let mutex = stage.locks.mutex(&name);

        java.ok(format!("{lock}.lock()")).await;
        let waits = other.begin(format!("{lock}.lock()"));
        other.sleeps().await;
        assert!(mutex.force_unlock().await.unwrap());
        waits.answer().await.ok();
        let unlocked = java.call(format!("{lock}.unlock()")).await;
        assert!(
            unlocked.threw("IllegalMonitorStateException"),
            "{unlocked:?}"
        );
        other.ok(format!("{lock}.unlock()")).await;

        // A lease that is renewed soon: the renewal finds it gone.
        let short = leased(&stage.url, ms(1_500)).await;
        let guard = short.mutex(&name).lock().await.unwrap();
        let waits = tokio::spawn(mutex.lock().into_future());
        until("a ticket", async || stage.tickets(&name).await == 1).await;
        assert!(java.says(format!("{lock}.forceUnlock()")).await);
        let why = within("the loss", guard.lost()).await;
        // The connection of the renewals, if it comes up just then, puts the server in doubt.
        let known = matches!(why, LostReason::Stolen | LostReason::NodeGone);
        assert!(known, "{}: {why}", stage.label);
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
        drop(within("our turn", waits).await.unwrap().unwrap());
        short.shutdown().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn fencing_tokens_increase_across_both() {
    everywhere(async |stage| {
        let name = stage.name("fenced");
        let threads = [0, 1].map(|n| stage.java[n].thread());
        let lock = format!("fenced({name})");
        let mutex = stage.locks.mutex(&name);
        let mut last = 0;
        let mut increases = |token: u64, whose: &str| {
            assert!(token > last, "{whose}: {token} after {last}");
            last = token;
        };
        for round in 0..8 {
            let java = &threads[round % 2];
            let token = java.ok(format!("{lock}.lockAndGetToken()")).await;
            increases(token.parse().unwrap(), "Java");
            // Nested, it takes another one.
            let token = java.ok(format!("{lock}.lockAndGetToken()")).await;
            increases(token.parse().unwrap(), "Java");
            let ours = tokio::spawn(mutex.lock().into_future());
            until("a ticket", async || stage.tickets(&name).await == 1).await;
            java.ok(format!("{lock}.unlock()")).await;
            java.ok(format!("{lock}.unlock()")).await;
            let guard = within("our turn", ours).await.unwrap().unwrap();
            increases(guard.token().as_u64(), "ours");
            guard.release().await.unwrap();
            let guard = mutex.try_lock().await.unwrap().expect("it is free");
            increases(guard.token().as_u64(), "ours");
            guard.release().await.unwrap();
        }
    })
    .await;
}

/// Waiters of both kinds, who stay where they are until it is their turn: nobody is forgotten.
#[tokio::test]
async fn waiters_of_both_kinds_all_get_their_turn() {
    everywhere(async |stage| {
        let name = stage.name("crowd");
        let lock = format!("lock({name})");
        let mutex = stage.locks.mutex(&name);
        let guard = mutex.lock().await.unwrap();
        let theirs: Vec<_> = (0..6)
            .map(|n| {
                let (java, lock) = (stage.java[n % 2].thread(), lock.clone());
                tokio::spawn(async move {
                    java.ok(format!("{lock}.lock()")).await;
                    java.ok(format!("{lock}.unlock()")).await;
                })
            })
            .collect();
        let ours: Vec<_> = (0..6)
            .map(|_| {
                let mutex = mutex.clone();
                tokio::spawn(async move {
                    let guard = mutex.lock().await.unwrap();
                    tokio::time::sleep(ms(2)).await;
                    guard.release().await.unwrap()
                })
            })
            .collect();
        tokio::time::sleep(ms(100)).await;
        guard.release().await.unwrap();
        for task in theirs {
            within("their turns", task).await.unwrap();
        }
        for task in ours {
            let released = within("our turns", task).await.unwrap();
            assert_eq!(released, Release::Released);
        }
    })
    .await;
}
