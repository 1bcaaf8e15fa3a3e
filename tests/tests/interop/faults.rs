//! Faults of Redisson's that a live one shows on demand: rows of the table in `leasehold::guides::beside_others`.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks, Release};
use leasehold_testkit::{Cluster, Raw};

use crate::jvm::{self, Client};
use crate::stage::{Stage, beside_redisson, leased, server};
use crate::support::{beside, exists, fields, ms, until, within};

/// A cluster with a client of Redisson's that soon sends a request again.
struct Impatient {
    cluster: Cluster,
    client: Client,
    ours: Locks,
}

impl Impatient {
    async fn start() -> Option<Self> {
        let jvm = jvm::shared()?;
        let cluster = Cluster::builder().masters(3).replicas(0);
        // None is to be taken for dead.
        let cluster = cluster.node_timeout(Duration::from_secs(60)).start().await;
        let options = ["timeout=600", "retryAttempts=3", "watchdog=3000"];
        Some(Self {
            client: jvm.client(&cluster.url(), &options).await,
            ours: beside_redisson(&cluster.url()).await,
            cluster,
        })
    }

    /// Makes `call`, a second time by itself, because the server of `name` does not answer in time.
    async fn twice(&self, name: &str, thread: &jvm::Thread, call: String) -> Raw {
        let node = self.cluster.master_of(name).await.unwrap();
        self.cluster.freeze(node);
        let pending = thread.begin(call);
        tokio::time::sleep(ms(2_300)).await;
        self.cluster.thaw(node);
        pending.answer().await.ok();
        self.cluster.raw(node).await
    }
}

#[tokio::test]
async fn a_lock_that_redisson_counted_twice_is_had_when_its_lease_ends() {
    let Some(stage) = Impatient::start().await else {
        return;
    };
    let (java, mutex) = (stage.client.thread(), stage.ours.mutex("k"));
    // Its scripts are known there then.
    java.ok("lock(k).lock()").await;
    java.ok("lock(k).unlock()").await;
    let mut raw = stage.twice("k", &java, "lock(k).lock()".into()).await;
    let held = fields(&mut raw, "k").await;
    println!("after one lock(): {held}");
    assert!(!held.ends_with("=1"), "{held}");
    let waits = tokio::spawn(mutex.lock().into_future());
    java.ok("lock(k).unlock()").await;
    let holder = mutex.holder().await.unwrap().expect("it is not free");
    assert_eq!(holder.client(), stage.client.id());
    let since = Instant::now();
    let guard = within("our turn", waits).await.unwrap().unwrap();
    println!("ours {:?} after its unlock()", since.elapsed());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn permits_that_redisson_took_twice_come_back_where_they_have_holders() {
    let Some(stage) = Impatient::start().await else {
        return;
    };
    let java = stage.client.thread();
    for semaphore in ["pes(p)", "sem(c)"] {
        java.ok(format!("{semaphore}.trySetPermits(7)")).await;
        let release = async |id: &str| java.ok(format!("{semaphore}.release({id})")).await;
        let first = java.ok(format!("{semaphore}.acquire()")).await;
        release(if semaphore == "sem(c)" { "1" } else { &first }).await;
    }
    // From now on the number is known, and what is missing is a leak.
    let ours = stage.ours.semaphore("p", 7);
    drop(ours.acquire().await.unwrap());
    let acquire = |semaphore| format!("{semaphore}.acquire()");
    let mut raw = stage.twice("p", &java, acquire("pes(p)")).await;
    let taken = raw.cmd(&["ZCARD", "{p}:timeout"]).await.int();
    let left = java.ok("pes(p).availablePermits()").await;
    println!("expirable: {left} of 7 are left, {taken} are held");
    assert!(left.parse::<i64>().unwrap() + taken < 7);
    let rest = within("the rest", ours.acquire_many(6).into_future()).await;
    drop(rest.unwrap());

    stage.twice("c", &java, acquire("sem(c)")).await;
    java.ok("sem(c).release(1)").await;
    let ours = stage.ours.semaphore("c", 7).counting();
    let left = ours.available().await.unwrap();
    println!("without holders: {left} of 7 are left when all were given back");
    assert!(left < 7);
    ours.set_permits(7).await.unwrap();
    assert_eq!(java.ok("sem(c).availablePermits()").await, "7");
}

/// The lease of a nested lock is that of the outer one from then on; that of an earlier lock, of the next one of its object.
#[tokio::test]
async fn a_nested_lease_ends_the_outer_lock_and_our_token_is_greater() {
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "nested", &server().await.url(), &[]).await;
    let name = stage.name("nested");
    let (java, lock) = (stage.java[0].thread(), format!("fenced({name})"));
    for is_nested in [true, false] {
        if !is_nested {
            java.ok(format!("{lock}.lock(200, ms)")).await;
            let mut raw = stage.raw(&name).await;
            until("its lease is over", async || !exists(&mut raw, &name).await).await;
        }
        // Renewed after ten seconds for the first time.
        let theirs = java.ok(format!("{lock}.lockAndGetToken()")).await;
        if is_nested {
            java.ok(format!("{lock}.lock(200, ms)")).await;
        }
        let mutex = stage.locks.mutex(&name);
        let guard = until("that lease is over", async || {
            let tried = mutex.try_lock().await.unwrap();
            tried.ok_or_else(|| String::from("it is held"))
        })
        .await;
        assert!(guard.token().as_u64() > theirs.parse().unwrap());
        // It has unlocked neither.
        let unlocked = java.call(format!("{lock}.unlock()")).await;
        assert!(
            unlocked.threw("IllegalMonitorStateException"),
            "{unlocked:?}"
        );
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    stage.locks.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_is_never_unlocked_is_renewed_until_somebody_forces_it() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let stage = Stage::with(&jvm, "forgotten", &url, &["watchdog=900"]).await;
    let name = stage.name("forgotten");
    stage.java[0]
        .thread()
        .ok(format!("lock({name}).lock()"))
        .await;
    let mutex = stage.locks.mutex(&name);
    assert!(mutex.try_lock_for(ms(2_700)).await.unwrap().is_none());
    let holder = mutex.holder().await.unwrap().expect("it is renewed");
    assert_eq!(holder.client(), stage.java[0].id());
    assert!(mutex.force_unlock().await.unwrap());
    let guard = mutex.try_lock().await.unwrap().expect("it is free");
    tokio::time::sleep(ms(1_000)).await;
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    stage.locks.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_spin_lock_tells_nobody_and_is_found_by_a_look() {
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "spin", &server().await.url(), &[]).await;
    let name = stage.name("spin");
    let (java, lock) = (stage.java[0].thread(), format!("spin({name})"));
    java.ok(format!("{lock}.lock()")).await;
    let mutex = stage.locks.mutex(&name);
    let waits = tokio::spawn(mutex.lock().into_future());
    until("a ticket", async || stage.tickets(&name).await == 1).await;
    java.ok(format!("{lock}.unlock()")).await;
    let since = Instant::now();
    let guard = within("our turn", waits).await.unwrap().unwrap();
    println!("found after {:?}", since.elapsed());
    drop(guard);
    stage.locks.shutdown().await.unwrap();
}

/// Redisson does not subscribe again at the new master; ours does.
#[tokio::test]
async fn a_waiter_of_redissons_is_deaf_after_its_slot_moved_and_ours_is_not() {
    let Some(jvm) = jvm::shared() else { return };
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    if !cluster.node(0).knows("SPUBLISH").await {
        println!("skipped: the servers have no sharded channels");
        return;
    }
    let tag = cluster.key_at(0, "k").await;
    let (theirs, ours) = (format!("{{{tag}}}theirs"), format!("{{{tag}}}ours"));
    let client = jvm.client(&cluster.url(), &[]).await;
    let lease = Duration::from_secs(6);
    let (holder, waiter) = (
        leased(&cluster.url(), lease).await,
        leased(&cluster.url(), lease).await,
    );
    let guards = [
        holder.mutex(&theirs).lock().await.unwrap(),
        holder.mutex(&ours).lock().await.unwrap(),
    ];
    let java = client.thread();
    let mut their_turn = java.begin(format!("lock({theirs}).lock()"));
    let our_turn = tokio::spawn(waiter.mutex(&ours).lock().into_future());
    let mut raw = cluster.raw(0).await;
    let channel = beside("redisson_lock__channel", &theirs);
    until("Redisson listens", async || {
        let heard = raw.cmd(&["PUBSUB", "SHARDNUMSUB", &channel]).await;
        heard.array()[1].int() > 0
    })
    .await;
    until("a ticket", async || {
        let line = beside("leasehold_line", &ours);
        raw.cmd(&["ZCARD", &line]).await.int() == 1
    })
    .await;
    let migration = cluster.migration(cluster.slot_of(&tag).await, 1).await;
    migration.begin().await;
    migration.move_all_keys().await;
    migration.finish().await;
    migration.tell_everybody().await;
    // Subscriptions at the new master need a moment.
    tokio::time::sleep(ms(1_000)).await;

    let since = Instant::now();
    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    let guard = within("our turn", our_turn).await.unwrap().unwrap();
    println!("ours after {:?}", since.elapsed());
    drop(guard);
    their_turn.is_blocked_for(ms(700)).await;
    their_turn.answer().await.ok();
    println!("Redisson after {:?}", since.elapsed());
}

#[tokio::test]
async fn a_latch_that_redisson_deletes_opens_for_ours_alone() {
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "deleted", &server().await.url(), &[]).await;
    let name = stage.name("deleted");
    let (java, other) = (stage.java[0].thread(), stage.java[1].thread());
    assert!(java.says(format!("latch({name}).trySetCount(2)")).await);
    let latch = stage.locks.latch(&name);
    let ours = tokio::spawn(async move { latch.wait().await });
    let mut theirs = other.begin(format!("latch({name}).await()"));
    other.sleeps().await;
    assert!(java.says(format!("latch({name}).delete()")).await);
    within("ours", ours).await.unwrap().unwrap();
    theirs.is_blocked_for(ms(1_000)).await;
    stage.locks.shutdown().await.unwrap();
}

#[tokio::test]
async fn tokens_of_a_fenced_lock_that_redisson_deletes_begin_again_and_ours_do_not() {
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "tokens", &server().await.url(), &[]).await;
    let name = stage.name("tokens");
    let (java, lock) = (stage.java[0].thread(), format!("fenced({name})"));
    let ours = stage.locks.mutex(&name).lock().await.unwrap();
    let first = ours.token();
    ours.release().await.unwrap();
    let token = java.ok(format!("{lock}.lockAndGetToken()")).await;
    assert!(token.parse::<u64>().unwrap() > first.as_u64());
    java.ok(format!("{lock}.unlock()")).await;
    java.ok(format!("{lock}.delete()")).await;
    let again = java.ok(format!("{lock}.lockAndGetToken()")).await;
    assert_eq!(again, "1");
    java.ok(format!("{lock}.unlock()")).await;
    let ours = stage.locks.mutex(&name).lock().await.unwrap();
    assert!(ours.token().as_u64() > token.parse().unwrap());
    drop(ours);
    stage.locks.shutdown().await.unwrap();
}

#[tokio::test]
async fn kinds_that_are_mixed_on_a_name_let_redisson_in_and_not_ours() {
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "mixed", &server().await.url(), &[]).await;
    let java = stage.java[0].thread();
    // A read lock where a mutex is held.
    let name = stage.name("mixed");
    let guard = stage.locks.mutex(&name).lock().await.unwrap();
    assert!(java.says(format!("read({name}).tryLock()")).await);
    let rw = stage.locks.rw_lock(&name);
    assert!(rw.try_write().await.unwrap().is_none());
    drop(guard);
    // A lock without an expiry, which is no lock of Redisson's or ours.
    let name = stage.name("mixed");
    let mut raw = stage.raw(&name).await;
    raw.cmd(&["HSET", &name, "somebody:1", "1"]).await;
    let token = format!("fenced({name}).tryLockAndGetToken(10, ms)");
    assert_eq!(java.ok(token).await, "-1", "taken for a token");
    let error = stage.locks.mutex(&name).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoExpiry, "{error}");
    stage.locks.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_lock_of_several_that_lost_one_keeps_the_rest_until_somebody_forces_it() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let stage = Stage::with(&jvm, "several", &url, &["watchdog=900"]).await;
    let names: Vec<_> = (0..3).map(|_| stage.name("several")).collect();
    let client = &stage.java[0];
    let part = |name: &String| format!("{}/lock/{name}", client.name());
    let parts: Vec<_> = names.iter().map(part).collect();
    let (java, several) = (client.thread(), format!("multi({})", parts.join(",")));
    java.ok(format!("{several}.lock()")).await;
    let [first, second, third] = [0, 1, 2].map(|i| stage.locks.mutex(&names[i]));
    assert!(second.force_unlock().await.unwrap());
    let unlocked = java.call(format!("{several}.unlock()")).await;
    assert!(
        unlocked.threw("IllegalMonitorStateException"),
        "{unlocked:?}"
    );
    assert!(first.try_lock().await.unwrap().is_some());
    let tried = third.try_lock_for(ms(2_000)).await.unwrap();
    assert!(tried.is_none(), "it is renewed");
    assert!(third.force_unlock().await.unwrap());
    assert!(third.try_lock().await.unwrap().is_some());
    stage.locks.shutdown().await.unwrap();
}
