//! Several locks at once: ours and Redisson's multi-lock.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::{ErrorKind, Release};

use crate::handing_over::hand_over;
use crate::jvm::Client;
use crate::stage::everywhere;
use crate::support::within;

/// Redisson's multi-lock of these names.
fn multi(client: &Client, names: &[&str]) -> String {
    let part = |name: &&str| format!("{}/lock/{name}", client.name());
    let parts: Vec<_> = names.iter().map(part).collect();
    format!("multi({})", parts.join(","))
}

#[tokio::test]
async fn a_part_of_the_one_is_held_for_the_other() {
    everywhere(async |stage| {
        let [a, b, c] = ["a", "b", "c"].map(|part| stage.name(part));
        let java = stage.java[0].thread();
        let ours = stage.locks.multi([&b, &c]);
        let theirs = multi(&stage.java[0], &[&a, &b]);

        java.ok(format!("{theirs}.lock()")).await;
        assert!(ours.try_lock().await.unwrap().is_none(), "{b} is held");
        assert!(stage.locks.mutex(&a).try_lock().await.unwrap().is_none());
        drop(
            stage
                .locks
                .mutex(&c)
                .try_lock()
                .await
                .unwrap()
                .expect("it was given back"),
        );
        java.ok(format!("{theirs}.unlock()")).await;

        let guard = ours.lock().await.unwrap();
        assert!(!java.says(format!("{theirs}.tryLock()")).await);
        assert!(!java.says(format!("lock({c}).tryLock()")).await);
        assert!(
            java.says(format!("lock({a}).tryLock()")).await,
            "it was given back"
        );
        java.ok(format!("lock({a}).unlock()")).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        assert!(java.says(format!("{theirs}.tryLock()")).await);
        java.ok(format!("{theirs}.unlock()")).await;
    })
    .await;
}

#[tokio::test]
async fn multi_locks_that_cross_do_not_wait_for_each_other_for_ever() {
    everywhere(async |stage| {
        const ROUNDS: u32 = 15;
        let [a, b, c] = ["a", "b", "c"].map(|part| stage.name(part));
        let inside = AtomicU32::new(0);
        // All of them meet at `b`.
        let enters = || {
            assert_eq!(
                inside.fetch_add(1, Ordering::SeqCst),
                0,
                "{b} is held twice"
            )
        };
        let leaves = || inside.fetch_sub(1, Ordering::SeqCst);
        let theirs = async |client: &Client, names: [&str; 3]| {
            let (java, lock) = (client.thread(), multi(client, &names));
            for _ in 0..ROUNDS {
                // Without a bound two of Redisson's own wait for each other up to their random patience.
                while !java.says(format!("{lock}.tryLock(200, 30000, ms)")).await {}
                enters();
                tokio::task::yield_now().await;
                leaves();
                java.ok(format!("{lock}.unlock()")).await;
            }
        };
        let ours = async |names: [&str; 3]| {
            let multi = stage.locks.multi(names);
            for _ in 0..ROUNDS {
                let guard = within("all of them", multi.lock().into_future())
                    .await
                    .unwrap();
                enters();
                tokio::task::yield_now().await;
                leaves();
                guard.release().await.unwrap();
            }
        };
        tokio::join!(
            theirs(&stage.java[0], [&a, &b, &c]),
            ours([&c, &b, &a]),
            theirs(&stage.java[1], [&b, &c, &a]),
            ours([&a, &b, &c]),
        );
    })
    .await;
}

#[tokio::test]
async fn a_release_of_a_part_wakes_a_multi_lock_of_the_other() {
    everywhere(async |stage| {
        let [a, b] = ["a", "b"].map(|part| stage.name(part));
        let ours = stage.locks.mutex(&b);
        // One of ours against both of theirs, which wait for it and hold it together with the other.
        let theirs = multi(&stage.java[0], &[&a, &b]);
        hand_over(stage, &b, &theirs, 3, || ours.lock()).await;
    })
    .await;
}

/// Its hash is another one: ours refuses it, and leaves it alone. Redisson's does not look what the hash is.
#[tokio::test]
async fn a_group_of_redissons_is_refused_where_it_holds_and_let_in_where_a_mutex_does() {
    everywhere(async |stage| {
        let name = stage.name("group");
        let [java, other] = [0, 1].map(|n| stage.java[n].thread());
        let (group, same) = (format!("group({name}/a,b)"), format!("group({name}/b,c)"));
        let mutex = stage.locks.mutex(&name);

        java.ok(format!("{group}.lock()")).await;
        let error = mutex.lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        let error = mutex.force_unlock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        assert!(!other.says(format!("{same}.tryLock()")).await, "b is held");
        java.ok(format!("{group}.unlock()")).await;
        let guard = mutex.try_lock().await.unwrap().expect("it is free");
        // Redisson's takes a hash of another kind for a free one.
        assert!(other.says(format!("{group}.tryLock()")).await);
        assert!(guard.is_held());
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        let error = mutex.try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        other.ok(format!("{group}.unlock()")).await;
        drop(mutex.try_lock().await.unwrap().expect("it is free"));
    })
    .await;
}
