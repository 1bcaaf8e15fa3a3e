//! The read-write lock and Redisson's.

use leasehold::{LostReason, Release};

use crate::handing_over::hand_over;
use crate::stage::{everywhere, leased};
use crate::support::{beside, fields, ms, until, within};

#[tokio::test]
async fn readers_share_and_writers_exclude_whoever_they_are() {
    everywhere(async |stage| {
        let name = stage.name("rw");
        let [java, other] = [0, 1].map(|n| stage.java[n].thread());
        let (read, write) = (format!("read({name})"), format!("write({name})"));
        let rw = stage.locks.rw_lock(&name);

        java.ok(format!("{read}.lock()")).await;
        let ours = rw.try_read().await.unwrap().expect("both read");
        assert!(other.says(format!("{read}.tryLock()")).await, "all read");
        assert!(rw.try_write().await.unwrap().is_none());
        assert!(!other.says(format!("{write}.tryLock()")).await);
        other.ok(format!("{read}.unlock()")).await;
        java.ok(format!("{read}.unlock()")).await;
        assert!(ours.is_held());
        assert!(!java.says(format!("{write}.tryLock(30, ms)")).await);
        assert_eq!(ours.release().await.unwrap(), Release::Released);

        java.ok(format!("{write}.lock()")).await;
        assert!(rw.try_read().await.unwrap().is_none());
        assert!(rw.try_write_for(ms(30)).await.unwrap().is_none());
        java.ok(format!("{write}.unlock()")).await;

        let ours = rw.try_write().await.unwrap().expect("it is free");
        for lock in [&read, &write] {
            assert!(!java.says(format!("{lock}.tryLock(30, ms)")).await);
            let unlocked = java.call(format!("{lock}.unlock()")).await;
            assert!(
                unlocked.threw("IllegalMonitorStateException"),
                "{unlocked:?}"
            );
        }
        assert_eq!(ours.release().await.unwrap(), Release::Released);
        assert!(java.says(format!("{write}.tryLock()")).await);
        java.ok(format!("{write}.unlock()")).await;
    })
    .await;
}

#[tokio::test]
async fn a_release_wakes_readers_and_writers_of_the_other() {
    everywhere(async |stage| {
        let name = stage.name("rw");
        let (read, write) = (format!("read({name})"), format!("write({name})"));
        let rw = stage.locks.rw_lock(&name);
        // A reader waits for a writer, and all others for whatever there is.
        hand_over(stage, &name, &write, 3, || rw.write()).await;
        hand_over(stage, &name, &write, 3, || rw.read()).await;
        hand_over(stage, &name, &read, 3, || rw.write()).await;
    })
    .await;
}

#[tokio::test]
async fn re_entrant_reads_and_writes_stay_as_java_left_them() {
    everywhere(async |stage| {
        let name = stage.name("rw");
        let java = stage.java[0].thread();
        let id = java.id().await;
        let (read, write) = (format!("read({name})"), format!("write({name})"));
        let rw = stage.locks.rw_lock(&name);
        let mut raw = stage.raw(&name).await;

        java.ok(format!("{read}.lock()")).await;
        java.ok(format!("{read}.lock()")).await;
        let ours = rw.read().await.unwrap();
        let again = rw.read().await.unwrap();
        let held = fields(&mut raw, &name).await;
        assert!(
            held.contains(&format!("{id}=2")) && held.ends_with("mode=read"),
            "{held}"
        );
        // They may share a hold.
        ours.release().await.unwrap();
        assert_eq!(again.release().await.unwrap(), Release::Released);
        assert_eq!(fields(&mut raw, &name).await, format!("{id}=2 mode=read"));
        java.ok(format!("{read}.unlock()")).await;
        let waits = tokio::spawn(rw.write().into_future());
        until("a ticket", async || stage.tickets(&name).await == 1).await;
        assert_eq!(fields(&mut raw, &name).await, format!("{id}=1 mode=read"));
        java.ok(format!("{read}.unlock()")).await;
        drop(within("our turn", waits).await.unwrap().unwrap());

        java.ok(format!("{write}.lock()")).await;
        java.ok(format!("{write}.lock()")).await;
        assert!(rw.try_read().await.unwrap().is_none());
        assert_eq!(
            fields(&mut raw, &name).await,
            format!("{id}:write=2 mode=write")
        );
        java.ok(format!("{write}.unlock()")).await;
        assert!(rw.try_read_for(ms(30)).await.unwrap().is_none());
        assert_eq!(
            fields(&mut raw, &name).await,
            format!("{id}:write=1 mode=write")
        );
        java.ok(format!("{write}.unlock()")).await;
        assert_eq!(fields(&mut raw, &name).await, "");
    })
    .await;
}

#[tokio::test]
async fn a_writer_becomes_a_reader_on_either_side() {
    everywhere(async |stage| {
        let name = stage.name("rw");
        let [java, other] = [0, 1].map(|n| stage.java[n].thread());
        let (read, write) = (format!("read({name})"), format!("write({name})"));
        let rw = stage.locks.rw_lock(&name);

        // Ours tells Redisson's readers at once.
        let writing = rw.write().await.unwrap();
        let reads = java.begin(format!("{read}.lock()"));
        java.sleeps().await;
        let reading = writing.downgrade().await.unwrap();
        reads.answer().await.ok();
        assert!(!other.says(format!("{write}.tryLock()")).await);
        assert!(reading.is_held());
        java.ok(format!("{read}.unlock()")).await;
        // Alone again, it may go up; beside a reader of Redisson's it may not.
        let writing = reading.try_upgrade().await.unwrap().expect("it is alone");
        assert!(!other.says(format!("{read}.tryLock()")).await);
        let reading = writing.downgrade().await.unwrap();
        assert!(other.says(format!("{read}.tryLock()")).await);
        let reading = reading.try_upgrade().await.unwrap().expect_err("two read");
        other.ok(format!("{read}.unlock()")).await;
        reading.release().await.unwrap();

        // Redisson's wakes nobody; our reader finds it by its next look, long before a lease ends.
        java.ok(format!("{write}.lock()")).await;
        let ours = tokio::spawn(rw.read().into_future());
        until("a ticket", async || stage.tickets(&name).await == 1).await;
        java.ok(format!("{read}.lock()")).await;
        java.ok(format!("{write}.unlock()")).await;
        let ours = within("our turn", ours).await.unwrap().unwrap();
        assert!(rw.try_write().await.unwrap().is_none());
        java.ok(format!("{read}.unlock()")).await;
        assert_eq!(ours.release().await.unwrap(), Release::Released);
    })
    .await;
}

#[tokio::test]
async fn forced_out_readers_and_writers_notice_it() {
    everywhere(async |stage| {
        let name = stage.name("rw");
        let java = stage.java[0].thread();
        let (read, write) = (format!("read({name})"), format!("write({name})"));
        let rw = stage.locks.rw_lock(&name);
        for lock in [&read, &write] {
            java.ok(format!("{lock}.lock()")).await;
            assert!(rw.force_unlock().await.unwrap());
            let unlocked = java.call(format!("{lock}.unlock()")).await;
            assert!(
                unlocked.threw("IllegalMonitorStateException"),
                "{unlocked:?}"
            );
        }
        let short = leased(&stage.url, ms(1_500)).await;
        let guard = short.rw_lock(&name).write().await.unwrap();
        assert!(java.says(format!("{write}.forceUnlock()")).await);
        let why = within("the loss", guard.lost()).await;
        let known = matches!(why, LostReason::Stolen | LostReason::NodeGone);
        assert!(known, "{}: {why}", stage.label);
        short.shutdown().await.unwrap();
    })
    .await;
}

/// Readers of both kinds come and go while writers of both wait: all of them get through, and the key is left to nobody.
#[tokio::test]
async fn mixed_readers_and_writers_all_get_through() {
    everywhere(async |stage| {
        let name = stage.name("rw");
        let rw = stage.locks.rw_lock(&name);
        let threads: Vec<_> = (0..4).map(|n| stage.java[n % 2].thread()).collect();
        let theirs = async {
            for round in 0..10 {
                for (n, thread) in threads.iter().enumerate() {
                    let kind = if (round + n) % 4 == 0 {
                        "write"
                    } else {
                        "read"
                    };
                    thread.ok(format!("{kind}({name}).lock()")).await;
                    thread.ok(format!("{kind}({name}).unlock()")).await;
                }
            }
        };
        let ours = async {
            for round in 0..40 {
                if round % 4 == 0 {
                    rw.write().await.unwrap().release().await.unwrap();
                } else {
                    rw.read().await.unwrap().release().await.unwrap();
                }
            }
        };
        within("all rounds", async { tokio::join!(theirs, ours) }).await;
        let mut raw = stage.raw(&name).await;
        assert_eq!(fields(&mut raw, &name).await, "");
        let pattern = format!("{}*", beside("", &name).trim_start_matches(':'));
        let timeouts = raw.cmd(&["KEYS", &pattern.replace(['{', '}'], "?")]).await;
        assert_eq!(timeouts.array().len(), 0, "{timeouts:?}");
    })
    .await;
}
