//! The semaphore that only counts, and Redisson's.

use leasehold_testkit::history::now;

use crate::stage::{Stage, everywhere};
use crate::support::{HandOffs, until, within};

#[tokio::test]
async fn counted_permits_are_conserved() {
    everywhere(async |stage| {
        let name = stage.name("count");
        let java = stage.java[0].thread();
        let count = format!("sem({name})");
        let ours = stage.locks.semaphore(&name, 5).counting();

        assert!(java.says(format!("{count}.trySetPermits(5)")).await);
        assert!(!ours.try_set_permits(9).await.unwrap(), "it is set");
        ours.acquire(2).await.unwrap();
        java.ok(format!("{count}.acquire(2)")).await;
        both_see(stage, &name, 1).await;
        assert!(!java.says(format!("{count}.tryAcquire(2)")).await);
        assert!(!ours.try_acquire(2).await.unwrap());
        assert!(ours.try_acquire(1).await.unwrap());
        both_see(stage, &name, 0).await;
        // They have no owners: each may return what the other took.
        java.ok(format!("{count}.release(3)")).await;
        ours.release(2).await.unwrap();
        both_see(stage, &name, 5).await;
    })
    .await;
}

#[tokio::test]
async fn a_counted_permit_wakes_a_waiter_of_the_other() {
    everywhere(hand_over).await;
}

/// Hands permits from the one to the other and back.
pub(crate) async fn hand_over(stage: &Stage) {
    let name = stage.name("count");
    let java = stage.java[0].thread();
    let count = format!("sem({name})");
    let ours = stage.locks.semaphore(&name, 3).counting();
    assert!(ours.try_set_permits(3).await.unwrap());
    let mut to_us = HandOffs::new(format!("from Redisson's semaphore: {}", stage.label));
    let mut to_java = HandOffs::new(format!("to Redisson's semaphore: {}", stage.label));
    while to_us.are_fewer_than(3) || to_java.are_fewer_than(3) {
        java.ok(format!("{count}.acquire(3)")).await;
        let began = now();
        let waits = {
            let ours = ours.clone();
            tokio::spawn(async move { ours.acquire(3).await })
        };
        until("a ticket", async || stage.tickets(&name).await == 1).await;
        let released = java.call(format!("{count}.release(3)")).await;
        released.ok();
        within("our turn", waits).await.unwrap().unwrap();
        to_us.add(began, released.begin, now());

        let began = now();
        let waits = java.begin(format!("{count}.acquire(2)"));
        java.sleeps().await;
        let released = now();
        ours.release(3).await.unwrap();
        let taken = waits.answer().await;
        taken.ok();
        to_java.add(began, released, taken.end);
        java.ok(format!("{count}.release(2)")).await;
    }
    to_us.print();
    to_java.print();
    both_see(stage, &name, 3).await;
}

/// Both say that so many are free.
async fn both_see(stage: &Stage, name: &str, free: u32) {
    let java = stage.java[1].thread();
    let ours = stage.locks.semaphore(name, 1).counting();
    until(&format!("{free} permits are free"), async || {
        let seen = ours.available().await.unwrap();
        let seen_there = java.ok(format!("sem({name}).availablePermits()")).await;
        if seen == free && seen_there == free.to_string() {
            return Ok(());
        }
        Err(format!("{}: we see {seen}, Java {seen_there}", stage.label))
    })
    .await;
}
