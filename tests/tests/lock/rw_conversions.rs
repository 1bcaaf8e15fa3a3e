//! Holds of the read-write lock that go on in the other way: a writer that reads on, and a reader that goes on to write.

use leasehold::{LostReason, Release};
use leasehold_testkit::Server;

use crate::rw_lock::{read, reader, settled_locks, turn, write, writer};
use crate::support::{exists, fields, locks, scripts_run, until, within};

#[tokio::test]
async fn a_downgrade_lets_readers_in_at_once_and_keeps_writers_out() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b, c) = (
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
    );
    let lock = a.rw_lock("a");
    let writing = write(&lock).await;
    let token = writing.token();
    let elsewhere = reader(&mut raw, &b, "a").await;
    let next = writer(&mut raw, &c, "a").await;
    let here = tokio::spawn(lock.read().into_future());
    tokio::task::yield_now().await;
    let watch = writing.lost();

    let reading = within("a downgrade", writing.downgrade()).await.unwrap();
    assert_eq!(
        watch.await,
        LostReason::Released,
        "it does not write any more"
    );
    assert!(reading.is_held());
    assert_eq!(reading.token(), token);
    let elsewhere = turn(elsewhere).await;
    assert_eq!(elsewhere.token(), token);
    assert!(!next.is_finished());
    assert!(fields(&mut raw, "a").await.contains("mode=read"));
    drop((reading, elsewhere));
    drop(turn(next).await);
    drop(turn(here).await);
    until("the end", async || !exists(&mut raw, "a").await).await;
}

#[tokio::test]
async fn reads_of_the_process_share_a_hold_that_was_downgraded() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = settled_locks(&server, &mut raw).await;
    let lock = locks.rw_lock("a");
    drop((read(&lock).await, read(&lock).await));
    let writing = write(&lock).await;
    let here = tokio::spawn(lock.read().into_future());
    tokio::task::yield_now().await;
    let before = scripts_run(&mut raw).await;
    let reading = writing.downgrade().await.unwrap();
    let beside = turn(here).await;
    assert_eq!(scripts_run(&mut raw).await, before + 1, "the downgrade");
    assert_eq!(beside.release().await.unwrap(), Release::StillHeld);
    assert_eq!(reading.release().await.unwrap(), Release::Released);
    assert!(!exists(&mut raw, "a").await);
}

#[tokio::test]
async fn an_upgrade_says_no_while_others_read_and_never_waits() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let lock = a.rw_lock("a");
    let (ours, theirs) = (read(&lock).await, read(&b.rw_lock("a")).await);
    let ours = ours.try_upgrade().await.unwrap().unwrap_err();
    let theirs = theirs.try_upgrade().await.unwrap().unwrap_err();
    assert!(ours.is_held() && theirs.is_held());
    drop(theirs);
    until("one reads", async || {
        fields(&mut raw, "a").await.matches('=').count() == 2
    })
    .await;
    let before = ours.token();
    let writing = ours.try_upgrade().await.unwrap().unwrap();
    assert!(writing.token() > before);
    assert!(fields(&mut raw, "a").await.contains(":write=1"));
    assert_eq!(b.rw_lock("a").try_read().await.unwrap().map(drop), None);
    assert_eq!(writing.release().await.unwrap(), Release::Released);
    let keys = raw.cmd(&["KEYS", "*rwlock*"]).await;
    assert_eq!(keys.array().len(), 0);
}

#[tokio::test]
async fn an_upgrade_beside_local_reads_is_refused_without_a_command() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = settled_locks(&server, &mut raw).await;
    let lock = locks.rw_lock("a");
    drop((read(&lock).await, read(&lock).await));
    until("the end", async || !exists(&mut raw, "a").await).await;
    let (one, two) = (read(&lock).await, read(&lock).await);
    let before = scripts_run(&mut raw).await;
    let one = one.try_upgrade().await.unwrap().unwrap_err();
    assert_eq!(scripts_run(&mut raw).await, before);
    let three = read(&lock).await;
    assert_eq!(scripts_run(&mut raw).await, before, "it is shared still");
    drop((two, three));
    let writing = one.try_upgrade().await.unwrap().unwrap();
    assert!(writing.is_held());
}

#[tokio::test]
async fn an_upgrade_may_pass_a_writer_that_waits_for_it() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let reading = read(&a.rw_lock("a")).await;
    let waiting = writer(&mut raw, &b, "a").await;
    let writing = reading.try_upgrade().await.unwrap().unwrap();
    assert!(!waiting.is_finished());
    let token = writing.token();
    drop(writing);
    assert!(turn(waiting).await.token() > token);
}
