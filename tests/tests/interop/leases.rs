//! Leases of both: renewed while their holders live, over when they died, and not renewed by those who wake up too late.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use leasehold::{Guard, LostReason, Permit, ReadGuard, WriteGuard};
use leasehold_testkit::Scratch;
use leasehold_testkit::process::Watched;

use crate::jvm::{self, Client, Jvm, Thread};
use crate::stage::{Stage, cluster, everywhere, leased, server, unique};
use crate::support::{ms, until, within};

/// Redisson's watchdog and our leases.
const LEASE: u64 = 1_500;

const WATCHDOG: &str = "watchdog=1500";

/// Kinds of Redisson's that are renewed.
const KINDS: [&str; 4] = ["lock", "fair", "read", "write"];

/// One hold of ours of each kind.
struct Ours {
    lock: Guard,
    fair: Guard,
    read: ReadGuard,
    write: WriteGuard,
    permit: Permit,
}

fn named(name: &str, kind: &str) -> String {
    format!("{kind}({name}-{kind})")
}

/// As what excludes a hold of this kind: a reader excludes only writers.
fn against(name: &str, kind: &str) -> String {
    let other = if kind == "read" { "write" } else { kind };
    format!("{other}({name}-{kind})")
}

/// Takes a lock of every kind, and a permit, as they come free.
async fn take_all(stage: &leasehold::Locks, name: &str) -> Ours {
    let of = |kind| format!("{name}-{kind}");
    let (lock, fair) = (stage.mutex(of("lock")), stage.fair_mutex(of("fair")));
    let (read, write) = (stage.rw_lock(of("read")), stage.rw_lock(of("write")));
    let pool = stage.semaphore(of("pes"), 1);
    let all = async {
        Ours {
            lock: lock.lock().await.unwrap(),
            fair: fair.lock().await.unwrap(),
            // Alone first: a reader would share the lock with the one that has to be gone.
            read: read.write().await.unwrap().downgrade().await.unwrap(),
            write: write.write().await.unwrap(),
            permit: pool.acquire().await.unwrap(),
        }
    };
    within("all of them", all).await
}

impl Ours {
    fn are_held(&self) -> bool {
        self.lock.is_held()
            && self.fair.is_held()
            && self.read.is_held()
            && self.write.is_held()
            && self.permit.is_held()
    }
}

/// Takes a lock of Redisson's of every kind in a thread each.
async fn java_takes_all(client: &Client, name: &str) -> Vec<Thread> {
    let mut threads = Vec::new();
    for kind in KINDS {
        let thread = client.thread();
        thread.ok(format!("{}.lock()", named(name, kind))).await;
        threads.push(thread);
    }
    threads
}

#[tokio::test]
async fn both_watchdogs_keep_their_holds_for_three_leases() {
    let Some(jvm) = jvm::shared() else { return };
    holds_last_for_three_leases(&jvm, &server().await.url()).await;
}

/// Where Redisson renews slot by slot, one after another.
#[tokio::test]
async fn both_watchdogs_keep_their_holds_for_three_leases_in_a_cluster() {
    let Some(jvm) = jvm::shared() else { return };
    holds_last_for_three_leases(&jvm, &cluster().await.url()).await;
}

async fn holds_last_for_three_leases(jvm: &Arc<Jvm>, url: &str) {
    let java = jvm.client(url, &[WATCHDOG]).await;
    let locks = leased(url, ms(LEASE)).await;
    let (theirs, ours) = (unique("theirs"), unique("ours"));
    let threads = java_takes_all(&java, &theirs).await;
    let held = take_all(&locks, &ours).await;
    let other = java.thread();
    let end = Instant::now() + 3 * ms(LEASE);
    while Instant::now() < end {
        let of = |kind| format!("{theirs}-{kind}");
        assert!(locks.mutex(of("lock")).try_lock().await.unwrap().is_none());
        assert!(
            locks
                .fair_mutex(of("fair"))
                .try_lock()
                .await
                .unwrap()
                .is_none()
        );
        assert!(
            locks
                .rw_lock(of("read"))
                .try_write()
                .await
                .unwrap()
                .is_none()
        );
        assert!(
            locks
                .rw_lock(of("write"))
                .try_read()
                .await
                .unwrap()
                .is_none()
        );
        for kind in KINDS {
            let lock = against(&ours, kind);
            assert!(!other.says(format!("{lock}.tryLock()")).await, "{lock}");
        }
        let permit = other
            .ok(format!("{}.tryAcquire()", named(&ours, "pes")))
            .await;
        assert_eq!(permit, "null");
        assert!(held.are_held());
        tokio::time::sleep(ms(100)).await;
    }
    for (thread, kind) in threads.iter().zip(KINDS) {
        thread
            .ok(format!("{}.unlock()", named(&theirs, kind)))
            .await;
    }
    drop(held);
    locks.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_a_killed_jvm_held_is_ours_when_its_lease_ends() {
    let Some(jvm) = jvm::another() else { return };
    let url = server().await.url();
    let name = unique("killed-jvm");
    let java = jvm.client(&url, &[WATCHDOG]).await;
    let _threads = java_takes_all(&java, &name).await;
    let pool = named(&name, "pes");
    assert!(java.thread().says(format!("{pool}.trySetPermits(1)")).await);
    java.thread()
        .ok(format!("{pool}.acquire({LEASE}, ms)"))
        .await;
    let count = format!("sem({name}-count)");
    assert!(
        java.thread()
            .says(format!("{count}.trySetPermits(2)"))
            .await
    );
    java.thread().ok(format!("{count}.acquire()")).await;
    let locks = leased(&url, ms(LEASE)).await;
    assert!(
        locks
            .mutex(format!("{name}-lock"))
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    let since = Instant::now();
    jvm.kill();
    let held = take_all(&locks, &name).await;
    println!("a killed JVM's locks were ours after {:?}", since.elapsed());
    // Permits without owners are gone with it.
    let count = locks.semaphore(format!("{name}-count"), 2).counting();
    assert_eq!(count.available().await.unwrap(), 1);
    assert!(held.are_held());
    drop(held);
    locks.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_a_killed_process_of_ours_held_is_javas_when_its_lease_ends() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let name = unique("killed-process");
    let java = jvm.client(&url, &[]).await;
    let dir = Scratch::new();
    let program = Path::new(env!("CARGO_BIN_EXE_interop_worker"));
    let args = ["hold".into(), url, LEASE.to_string(), name.clone()];
    let mut process = Watched::spawn(program, &args, dir.path(), &dir.join("log"));
    until("it holds them", async || {
        let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        if log.contains("held") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    let mut waiting = Vec::new();
    for kind in KINDS {
        let (thread, lock) = (java.thread(), against(&name, kind));
        assert!(!thread.says(format!("{lock}.tryLock()")).await, "{lock}");
        waiting.push(thread.begin(format!("{lock}.lock()")));
    }
    let since = Instant::now();
    process.kill();
    for pending in waiting {
        pending.answer().await.ok();
    }
    // A waiter for a permit of Redisson's would hear of none that expires; one that asks gets it.
    let thread = java.thread();
    until("the permit", async || {
        thread
            .ok(format!("{}.tryAcquire()", named(&name, "pes")))
            .await
            != "null"
    })
    .await;
    println!(
        "a killed process's locks were Java's after {:?}",
        since.elapsed()
    );
}

#[tokio::test]
async fn a_jvm_that_wakes_up_after_its_lease_releases_nothing_of_ours() {
    let Some(jvm) = jvm::another() else { return };
    let url = server().await.url();
    let name = unique("frozen");
    let java = jvm.client(&url, &[WATCHDOG]).await;
    let threads = java_takes_all(&java, &name).await;
    let pool = named(&name, "pes");
    let permits = java.thread();
    assert!(permits.says(format!("{pool}.trySetPermits(1)")).await);
    let permit = permits.ok(format!("{pool}.acquire({LEASE}, ms)")).await;
    let locks = leased(&url, ms(LEASE)).await;

    jvm.freeze();
    let held = take_all(&locks, &name).await;
    jvm.thaw();
    // Its watchdog and its threads find that they hold nothing.
    for (thread, kind) in threads.iter().zip(KINDS) {
        let unlocked = thread
            .call(format!("{}.unlock()", named(&name, kind)))
            .await;
        // Redisson's fair lock says so only where somebody else holds it, as here.
        assert!(
            unlocked.threw("IllegalMonitorStateException"),
            "{kind}: {unlocked:?}"
        );
    }
    assert_eq!(
        permits.ok(format!("{pool}.tryRelease({permit})")).await,
        "false"
    );
    let end = Instant::now() + 2 * ms(LEASE);
    while Instant::now() < end {
        assert!(held.are_held());
        for kind in KINDS {
            let lock = against(&name, kind);
            assert!(!permits.says(format!("{lock}.tryLock()")).await, "{lock}");
        }
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(permits.ok(format!("{pool}.availablePermits()")).await, "0");
    drop(held);
    locks.shutdown().await.unwrap();
}

/// The same the other way round: a process of ours that was away too long.
#[tokio::test]
async fn a_hold_of_ours_that_ran_out_does_not_end_that_of_java() {
    everywhere(async |stage: &Stage| {
        let name = stage.name("late");
        let java = stage.java[0].thread();
        let mutex = stage.locks.mutex(&name);
        let guard = mutex.lock().lease(ms(300)).await.unwrap();
        java.ok(format!("lock({name}).lock()")).await;
        assert_eq!(within("the loss", guard.lost()).await, LostReason::Expired);
        drop(guard);
        let held = format!("lock({name}).isHeldByCurrentThread()");
        tokio::time::sleep(ms(50)).await;
        assert!(java.says(&held).await);
        assert!(mutex.try_lock().await.unwrap().is_none());
        java.ok(format!("lock({name}).unlock()")).await;
    })
    .await;
}

/// [`jvm::another`] is really another.
#[tokio::test]
async fn a_frozen_jvm_answers_when_it_is_thawed() {
    let Some(jvm) = jvm::another() else { return };
    let client = jvm.client(&server().await.url(), &[]).await;
    let thread = client.thread();
    let id = thread.id().await;
    assert!(id.starts_with(client.id()), "{id}; {}", Jvm::log(&jvm));
    jvm.freeze();
    let mut pending = thread.begin("thread");
    pending.is_blocked_for(ms(200)).await;
    jvm.thaw();
    assert_eq!(pending.answer().await.ok(), id);
}
