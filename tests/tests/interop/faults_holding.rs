//! Faults of Redisson's in holding, taking and counting, on demand: more rows of the table in `leasehold::guides::beside_others`.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, LostReason, Release};
use leasehold_testkit::{Fault, Proxy, Server};

use crate::jvm;
use crate::stage::{Stage, beside_redisson, leased, server};
use crate::support::{fields, ms, until, within};

/// The reply is late, so Java gets an error; the server has granted the lock.
#[tokio::test]
async fn a_lock_that_redisson_has_without_knowing_is_had_when_its_lease_ends() {
    let Some(jvm) = jvm::shared() else { return };
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let options = ["timeout=500", "retryAttempts=1", "watchdog=3000"];
    let client = jvm.client(&proxy.url(), &options).await;
    let java = client.thread();
    // Its scripts are known there then.
    java.ok("lock(k).lock()").await;
    java.ok("lock(k).unlock()").await;
    proxy.to_client(Fault::Stall);
    let pending = java.begin("lock(k).lock()");
    tokio::time::sleep(ms(900)).await;
    proxy.to_client(Fault::None);
    let answer = pending.answer().await;
    assert!(answer.threw("RedisResponseTimeoutException"), "{answer:?}");

    let ours = beside_redisson(&server.url()).await;
    let mutex = ours.mutex("k");
    let holder = mutex.holder().await.unwrap().expect("it is held");
    assert_eq!(holder.client(), client.id());
    let since = Instant::now();
    // Nobody renews it.
    let guard = within("the end of its lease", mutex.lock().into_future()).await;
    println!("ours {:?} after Java's error", since.elapsed());
    assert_eq!(guard.unwrap().release().await.unwrap(), Release::Released);
    ours.shutdown().await.unwrap();
}

/// When it has all of them it sets the expiry of each, also of the one that was forced open and taken meanwhile.
#[tokio::test]
async fn a_lease_that_a_lock_of_several_cuts_is_lost_and_its_token_is_older() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let stage = Stage::with(&jvm, "cut", &url, &[]).await;
    let (a, b) = (stage.name("cut"), stage.name("cut"));
    let ours = leased(&url, Duration::from_secs(9)).await;
    let second = ours.mutex(&b).lock().await.unwrap();
    let client = &stage.java[0];
    let (java, part) = (client.thread(), |name| {
        format!("{}/lock/{name}", client.name())
    });
    let several = format!("multi({},{})", part(&a), part(&b));
    // In one round of its own: in another it would find that it has lost the first.
    let waits = java.begin(format!("{several}.tryLock(15000, 300, ms)"));
    let mut raw = stage.raw(&a).await;
    until("Java has the first", async || {
        fields(&mut raw, &a).await.starts_with(client.id())
    })
    .await;
    assert!(ours.mutex(&a).force_unlock().await.unwrap());
    let first = ours.mutex(&a).lock().await.unwrap();
    assert_eq!(second.release().await.unwrap(), Release::Released);
    assert_eq!(waits.answer().await.ok(), "true");
    let other = until("the lease was cut", async || {
        let tried = stage.locks.mutex(&a).try_lock().await.unwrap();
        tried.ok_or_else(|| String::from("it is held"))
    })
    .await;
    assert!(other.token() > first.token());
    let lost = within("the news", first.lost()).await;
    assert_eq!(lost, LostReason::Stolen, "told by its next renewal");
    assert_eq!(other.release().await.unwrap(), Release::Released);
    ours.shutdown().await.unwrap();
    stage.locks.shutdown().await.unwrap();
}

/// Two threads of Java's that are never both out.
#[tokio::test]
async fn readers_of_redissons_that_overlap_keep_our_writer_out_and_ours_do_not() {
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "overlap", &server().await.url(), &[]).await;
    let name = stage.name("overlap");
    let [one, two] = [0, 1].map(|n| stage.java[n].thread());
    let (read, rw) = (format!("read({name})"), stage.locks.rw_lock(&name));
    one.ok(format!("{read}.lock()")).await;
    let waits = tokio::spawn(rw.write().into_future());
    let end = Instant::now() + ms(1_500);
    while Instant::now() < end {
        two.ok(format!("{read}.lock()")).await;
        one.ok(format!("{read}.unlock()")).await;
        one.ok(format!("{read}.lock()")).await;
        two.ok(format!("{read}.unlock()")).await;
        assert!(!waits.is_finished());
    }
    // A reader of ours that comes now stands behind the writer.
    assert!(rw.try_read().await.unwrap().is_none());
    one.ok(format!("{read}.unlock()")).await;
    drop(within("our turn", waits).await.unwrap().unwrap());
    stage.locks.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_thread_that_reads_and_asks_to_write_waits_for_itself_and_ours_does_not() {
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "upgrade", &server().await.url(), &[]).await;
    let name = stage.name("upgrade");
    let java = stage.java[0].thread();
    java.ok(format!("read({name}).lock()")).await;
    assert!(!java.says(format!("write({name}).tryLock(500, ms)")).await);
    java.ok(format!("read({name}).unlock()")).await;
    let reading = stage.locks.rw_lock(&name).read().await.unwrap();
    let writing = reading.try_upgrade().await.unwrap();
    drop(writing.expect("it reads alone"));
    stage.locks.shutdown().await.unwrap();
}

#[tokio::test]
async fn more_expired_permits_than_redisson_can_count_are_reclaimed_by_ours() {
    const FILL: &str = "for i = 1, 9000 do \
        redis.call('ZADD', KEYS[1], 1000, string.format('k%015d', i)) end";
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "expired", &server().await.url(), &[]).await;
    let name = stage.name("expired");
    let (java, pool) = (stage.java[0].thread(), format!("pes({name})"));
    assert!(java.says(format!("{pool}.trySetPermits(1)")).await);
    let mut raw = stage.raw(&name).await;
    let taken = format!("{{{name}}}:timeout");
    raw.cmd(&["EVAL", FILL, "1", &taken]).await;
    let counted = java.call(format!("{pool}.availablePermits()")).await;
    assert!(counted.threw("RedisException"), "{counted:?}");
    assert!(counted.result.contains("unpack"), "{counted:?}");
    let permit = stage.locks.semaphore(&name, 9_001).acquire().await.unwrap();
    assert_eq!(java.ok(format!("{pool}.availablePermits()")).await, "9000");
    permit.release().await.unwrap();
    stage.locks.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_number_of_permits_that_redisson_changed_is_told_or_undone() {
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "number", &server().await.url(), &[]).await;
    let name = stage.name("number");
    let (java, pool) = (stage.java[0].thread(), format!("pes({name})"));
    assert!(java.says(format!("{pool}.trySetPermits(3)")).await);
    let three = stage.locks.semaphore(&name, 3);
    drop(three.acquire().await.unwrap());
    java.ok(format!("{pool}.addPermits(2)")).await;
    let error = three.acquire().await.unwrap_err();
    let disagrees = ErrorKind::CapacityDisagrees {
        server: 5,
        yours: 3,
    };
    assert_eq!(error.kind(), disagrees, "{error}");
    let five = stage.locks.semaphore(&name, 5);
    drop(five.acquire_many(5).await.unwrap());
    java.ok(format!("{pool}.addPermits(-2)")).await;
    drop(five.acquire().await.unwrap());
    until("it is taken for a leak", async || {
        java.ok(format!("{pool}.availablePermits()")).await == "5"
    })
    .await;
    stage.locks.shutdown().await.unwrap();
}
