//! Faults of Redisson's on a host whose clock is ahead of the server's: rows of the table in `leasehold::guides::beside_others`.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{LostReason, Release};
use tokio::sync::OnceCell;

use crate::jvm::{self, Client, Jvm};
use crate::stage::{Stage, leased, server, unique};
use crate::support::{queue, until, within};

/// Longer than a waiter of Redisson's may stand in a queue.
const AHEAD: Duration = Duration::from_secs(3_600);

/// A client on such a host.
async fn client_ahead() -> Option<Client> {
    static JVM: OnceCell<Option<Arc<Jvm>>> = OnceCell::const_new();
    let jvm = JVM.get_or_init(async || jvm::ahead(AHEAD)).await;
    let url = server().await.url();
    Some(jvm.as_ref()?.client(&url, &[]).await)
}

/// Whoever stands first is dead by that clock. Redisson's waiters lose their places, ours come back to theirs.
#[tokio::test]
async fn a_clock_that_is_ahead_removes_waiters_of_a_fair_lock_and_ours_come_back_in_front() {
    let Some(ahead) = client_ahead().await else {
        return;
    };
    let Some(jvm) = jvm::shared() else { return };
    let stage = Stage::with(&jvm, "ahead", &server().await.url(), &[]).await;
    let name = stage.name("ahead");
    let lock = format!("fair({name})");
    let [holder, first, last] = [&stage.java[0], &stage.java[1], &ahead].map(Client::thread);
    let mut raw = stage.raw(&name).await;
    holder.ok(format!("{lock}.lock()")).await;
    let loses = first.begin(format!("{lock}.lockInterruptibly()"));
    first.sleeps().await;
    let ours = tokio::spawn(stage.locks.fair_mutex(&name).lock().into_future());
    until("our marker", async || {
        queue(&mut raw, &name).await.len() == 2
    })
    .await;
    let waits = last.begin(format!("{lock}.lock()"));
    last.sleeps().await;
    let their_id = last.id().await;
    // It has asked for the last time until the lease ends that it saw.
    until("ours is back, in front", async || {
        let queue = queue(&mut raw, &name).await;
        let is_back = queue.len() == 2 && queue[0].starts_with("leasehold:");
        let is_so = is_back && queue[1] == their_id;
        if is_so {
            Ok(())
        } else {
            Err(format!("{queue:?}"))
        }
    })
    .await;
    assert!(
        loses.is_blocked(),
        "its place is gone, and it does not know"
    );

    holder.ok(format!("{lock}.unlock()")).await;
    let guard = within("our turn", ours).await.unwrap().unwrap();
    assert!(waits.is_blocked());
    guard.release().await.unwrap();
    waits.answer().await.ok();
    last.ok(format!("{lock}.unlock()")).await;
    assert!(loses.is_blocked(), "nobody tells it");
    first.begin("interrupt").answer().await.ok();
    assert!(loses.answer().await.threw("InterruptedException"));
    stage.locks.shutdown().await.unwrap();
}

/// A permit is over by that clock which is not by the server's: two have it, until ours hears of it.
#[tokio::test]
async fn a_clock_that_is_ahead_frees_a_permit_of_ours_which_is_lost_and_told() {
    let Some(ahead) = client_ahead().await else {
        return;
    };
    let name = unique("ahead");
    let (java, pool) = (ahead.thread(), format!("pes({name})"));
    assert!(java.says(format!("{pool}.trySetPermits(1)")).await);
    let ours = leased(&server().await.url(), Duration::from_secs(6)).await;
    let permit = ours.semaphore(&name, 1).acquire().await.unwrap();
    let id = java.ok(format!("{pool}.tryAcquire()")).await;
    assert_ne!(id, "null", "it is had twice");
    let lost = within("the news", permit.lost()).await;
    assert_eq!(lost, LostReason::Stolen);
    assert_eq!(permit.release().await.unwrap(), Release::AlreadyGone);
    assert!(java.says(format!("{pool}.tryRelease({id})")).await);
    ours.shutdown().await.unwrap();
}
