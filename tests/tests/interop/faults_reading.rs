//! Faults of Redisson's readers, on demand: rows of the table in `leasehold::guides::beside_others`.

use std::time::Duration;

use leasehold::Release;
use leasehold_testkit::Raw;

use crate::jvm;
use crate::stage::{Stage, leased, server};
use crate::support::{fields, until};

/// The keys with the times of a reader's holds.
async fn times(raw: &mut Raw, name: &str, reader: &str) -> Vec<String> {
    let keys = raw.cmd(&["KEYS", &format!("{{{name}}}:{reader}*")]).await;
    let keys = keys.array().iter().map(|key| key.str().to_owned());
    keys.collect()
}

/// Its entry stays for as long as others read. Ours remove it when they ask.
#[tokio::test]
async fn a_reader_of_redissons_that_died_stays_while_others_read_and_ours_remove_it() {
    let Some(jvm) = jvm::another() else { return };
    let url = server().await.url();
    let watchdog = &["watchdog=3000"];
    let stage = Stage::with(&jvm::shared().unwrap(), "died", &url, watchdog).await;
    let name = stage.name("died");
    let (read, write) = (format!("read({name})"), format!("write({name})"));
    let mut raw = stage.raw(&name).await;
    let dies = jvm.client(&url, watchdog).await.thread();
    let [reads, other] = [0, 1].map(|n| stage.java[n].thread());
    dies.ok(format!("{read}.lock()")).await;
    reads.ok(format!("{read}.lock()")).await;
    let dead = dies.id().await;
    jvm.kill();
    until("its lease is over", async || {
        times(&mut raw, &name, &dead).await.is_empty()
    })
    .await;
    let held = fields(&mut raw, &name).await;
    assert!(held.contains(&format!("{dead}=1")), "{held}");

    let ours = stage.locks.rw_lock(&name).read().await.unwrap();
    reads.ok(format!("{read}.unlock()")).await;
    let held = fields(&mut raw, &name).await;
    assert!(held.contains(&dead), "it still reads: {held}");
    assert!(!other.says(format!("{write}.tryLock()")).await);
    // Ours reads alone.
    let writing = ours
        .try_upgrade()
        .await
        .unwrap()
        .expect("nobody else lives");
    let held = fields(&mut raw, &name).await;
    assert!(!held.contains(&dead), "{held}");
    assert_eq!(writing.release().await.unwrap(), Release::Released);
    assert!(other.says(format!("{write}.tryLock()")).await);
    other.ok(format!("{write}.unlock()")).await;
    stage.locks.shutdown().await.unwrap();
}

/// A release of a read goes by the times of the other readers, whose keys may be lost: they have a TTL, as what is evicted first.
#[tokio::test]
async fn a_read_that_redisson_releases_ends_one_without_a_time_and_none_of_ours() {
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "times", &server().await.url(), &[]).await;
    let [stays, leaves] = [0, 1].map(|n| stage.java[n].thread());
    for ours_reads in [true, false] {
        let name = stage.name("times");
        let read = format!("read({name})");
        let mut raw = stage.raw(&name).await;
        stays.ok(format!("{read}.lock()")).await;
        leaves.ok(format!("{read}.lock()")).await;
        let rw = stage.locks.rw_lock(&name);
        let ours = if ours_reads {
            Some(rw.read().await.unwrap())
        } else {
            None
        };
        let theirs = times(&mut raw, &name, &stays.id().await).await;
        assert_eq!(theirs.len(), 1, "{theirs:?}");
        raw.cmd(&["DEL", &theirs[0]]).await;
        leaves.ok(format!("{read}.unlock()")).await;
        let Some(ours) = ours else {
            // The other one works on, under a lock that is ours.
            let writing = rw.try_write().await.unwrap().expect("it was removed");
            let unlocked = stays.call(format!("{read}.unlock()")).await;
            assert!(
                unlocked.threw("IllegalMonitorStateException"),
                "{unlocked:?}"
            );
            assert_eq!(writing.release().await.unwrap(), Release::Released);
            continue;
        };
        let write = format!("write({name})");
        assert!(!leaves.says(format!("{write}.tryLock()")).await);
        stays.ok(format!("{read}.unlock()")).await;
        assert!(!leaves.says(format!("{write}.tryLock()")).await);
        assert_eq!(ours.release().await.unwrap(), Release::Released);
    }
    stage.locks.shutdown().await.unwrap();
}

/// Its renewals set the expiry of the lock to its own lease, also downwards. Ours sets it up again when it is renewed.
#[tokio::test]
async fn a_lease_of_ours_that_redissons_renewal_of_a_read_cuts_is_extended() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let stage = Stage::with(&jvm, "renewal", &url, &["watchdog=6000"]).await;
    let name = stage.name("renewal");
    let read = format!("read({name})");
    let mut raw = stage.raw(&name).await;
    // Renewed after 4 s each time, so 8 s are left at least.
    let ours = leased(&url, Duration::from_secs(12)).await;
    let reading = ours.rw_lock(&name).read().await.unwrap();
    let java = stage.java[0].thread();
    java.ok(format!("{read}.lock()")).await;
    let mut left = async || raw.cmd(&["PTTL", &name]).await.int();
    assert!(left().await > 6_000, "its acquire cuts nothing");
    until("its renewal", async || left().await <= 6_000).await;
    // As a process that died: nobody else extends it from now on.
    stage.java[0].end();
    until("our renewal", async || left().await > 6_000).await;
    assert!(reading.is_held());
    assert_eq!(reading.release().await.unwrap(), Release::Released);
    ours.shutdown().await.unwrap();
    stage.locks.shutdown().await.unwrap();
}
