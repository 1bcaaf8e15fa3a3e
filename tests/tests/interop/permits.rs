//! The semaphore with leases and Redisson's.

use leasehold::{Acquire, Error, Permit};
use leasehold_testkit::history::now;

use crate::stage::{Stage, everywhere};
use crate::support::{HandOffs, ms, until, within};

#[tokio::test]
async fn permits_are_conserved() {
    everywhere(async |stage| {
        let name = stage.name("permits");
        let java = stage.java[0].thread();
        let pool = format!("pes({name})");
        let ours = stage.locks.semaphore(&name, 5);

        assert!(java.says(format!("{pool}.trySetPermits(5)")).await);
        both_see(stage, &name, 5).await;
        let two = ours.acquire_many(2).await.unwrap();
        both_see(stage, &name, 3).await;
        let id = java.ok(format!("{pool}.acquire()")).await;
        both_see(stage, &name, 2).await;
        let ids = java.ok(format!("{pool}.acquire(2)")).await;
        both_see(stage, &name, 0).await;
        assert_eq!(java.ok(format!("{pool}.tryAcquire()")).await, "null");
        assert!(ours.try_acquire().await.unwrap().is_none());
        assert_eq!(java.ok(format!("{pool}.getPermits()")).await, "5");

        assert_eq!(java.ok(format!("{pool}.tryRelease({id})")).await, "true");
        both_see(stage, &name, 1).await;
        assert!(ours.try_acquire_many(2).await.unwrap().is_none());
        two.release().await.unwrap();
        both_see(stage, &name, 3).await;
        // What is returned twice counts once.
        let ids = ids.trim_matches(['[', ']']).to_owned();
        assert_eq!(java.ok(format!("{pool}.tryRelease({ids})")).await, "2");
        assert_eq!(java.ok(format!("{pool}.tryRelease({ids})")).await, "0");
        both_see(stage, &name, 5).await;
    })
    .await;
}

#[tokio::test]
async fn permits_that_expire_come_back_to_both() {
    everywhere(async |stage| {
        let name = stage.name("permits");
        let java = stage.java[0].thread();
        let pool = format!("pes({name})");
        let ours = stage.locks.semaphore(&name, 2);
        assert!(java.says(format!("{pool}.trySetPermits(2)")).await);

        java.ok(format!("{pool}.acquire(2, 400, ms)")).await;
        drop(
            within("Java's permits", ours.acquire_many(2).into_future())
                .await
                .unwrap(),
        );
        both_see(stage, &name, 2).await;

        let permit = ours.acquire_many(2).lease(ms(400)).await.unwrap();
        permit.forget();
        until("our permits", async || {
            java.ok(format!("{pool}.availablePermits()")).await == "2"
        })
        .await;
        both_see(stage, &name, 2).await;
    })
    .await;
}

#[tokio::test]
async fn a_returned_permit_wakes_a_waiter_of_the_other() {
    everywhere(hand_over).await;
}

/// Hands permits from the one to the other and back.
pub(crate) async fn hand_over(stage: &Stage) {
    let name = stage.name("permits");
    let java = stage.java[0].thread();
    let pool = format!("pes({name})");
    let ours = stage.locks.semaphore(&name, 3);
    assert!(java.says(format!("{pool}.trySetPermits(3)")).await);
    let mut to_us = HandOffs::new(format!("from Redisson's permits: {}", stage.label));
    let mut to_java = HandOffs::new(format!("to Redisson's permits: {}", stage.label));
    while to_us.are_fewer_than(3) || to_java.are_fewer_than(3) {
        let ids = java.ok(format!("{pool}.acquire(3)")).await;
        let ids = ids.trim_matches(['[', ']']).to_owned();
        let began = now();
        let waits = spawn(ours.acquire_many(3));
        until("a ticket", async || stage.tickets(&name).await == 1).await;
        let released = java.call(format!("{pool}.release({ids})")).await;
        released.ok();
        let permit = within("our turn", waits).await.unwrap().unwrap();
        to_us.add(began, released.begin, now());

        let began = now();
        let waits = java.begin(format!("{pool}.acquire()"));
        java.sleeps().await;
        let released = now();
        drop(permit);
        let taken = waits.answer().await;
        to_java.add(began, released, taken.end);
        java.ok(format!("{pool}.release({})", taken.ok())).await;
    }
    to_us.print();
    to_java.print();
    both_see(stage, &name, 3).await;
}

/// Java's threads take single permits as fast as they can; a request of ours for all of them is served all the same.
#[tokio::test]
async fn single_requests_of_java_do_not_starve_a_large_one_of_ours() {
    everywhere(async |stage| {
        let name = stage.name("permits");
        let pool = format!("pes({name})");
        let ours = stage.locks.semaphore(&name, 3);
        let threads: Vec<_> = (0..3).map(|n| stage.java[n % 2].thread()).collect();
        assert!(threads[0].says(format!("{pool}.trySetPermits(3)")).await);
        let served = std::cell::Cell::new(false);
        let theirs = threads.iter().map(async |thread| {
            while !served.get() {
                let id = thread.ok(format!("{pool}.acquire()")).await;
                thread.ok(format!("{pool}.release({id})")).await;
            }
        });
        let all = async {
            for _ in 0..3 {
                drop(
                    within("all permits", ours.acquire_many(3).into_future())
                        .await
                        .unwrap(),
                );
            }
            served.set(true);
        };
        let [first, second, third] = theirs.collect::<Vec<_>>().try_into().ok().unwrap();
        tokio::join!(all, first, second, third);
        both_see(stage, &name, 3).await;
    })
    .await;
}

fn spawn(acquire: Acquire<Permit>) -> tokio::task::JoinHandle<Result<Permit, Error>> {
    tokio::spawn(acquire.into_future())
}

/// Both say that so many are free. A drop is on its way for a moment.
async fn both_see(stage: &Stage, name: &str, free: u32) {
    let java = stage.java[1].thread();
    let ours = stage.locks.semaphore(name, 0);
    until(&format!("{free} permits are free"), async || {
        let seen = ours.available().await.unwrap();
        let seen_there = java.ok(format!("pes({name}).availablePermits()")).await;
        if seen == free && seen_there == free.to_string() {
            return Ok(());
        }
        Err(format!("{}: we see {seen}, Java {seen_there}", stage.label))
    })
    .await;
}
