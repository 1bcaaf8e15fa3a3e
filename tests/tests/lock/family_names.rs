//! Every call of the family, once, as users write it: the names are a contract.

use std::future::IntoFuture;
use std::time::Duration;

use leasehold::{Backoff, Guard, Permit, ReadGuard, Redlock, WriteGuard};
use leasehold_testkit::Server;

use crate::support::{locks, within};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[tokio::test]
async fn locks_are_taken_by_their_names() {
    let server = Server::start().await;
    let locks = locks(&server).await;

    let g: Guard = locks.fair_mutex("fair").lock().await.unwrap();
    assert!(g.is_held() && g.token().as_u64() > 0);
    assert!(locks.fair_mutex("fair").try_lock().await.unwrap().is_none());

    let rw = locks.rw_lock("rw");
    let r: ReadGuard = rw.read().await.unwrap();
    assert!(
        rw.try_write_for(Duration::from_millis(50))
            .await
            .unwrap()
            .is_none()
    );
    r.release().await.unwrap();
    let w: Option<WriteGuard> = rw.try_write_for(secs(2)).await.unwrap();
    let w = w.expect("nobody reads");
    assert!(w.token().as_u64() > 0);
    let r = w.downgrade().await.unwrap();
    let up: Result<WriteGuard, ReadGuard> = r.try_upgrade().await.unwrap();
    let who = locks.rw_lock("rw").inspect().await.unwrap();
    assert_eq!(who.holders().len(), 1);
    drop(up.expect("the only reader"));

    let m = locks.multi(["a", "b"]).lock().await.unwrap();
    assert_eq!(m.tokens().len(), 2);
    assert!(m.is_held());
    m.release().await.unwrap();
    let who = locks.multi(["a", "b"]).inspect().await.unwrap();
    assert!(who["a"].holders().is_empty());

    let g: Guard = locks
        .plain_mutex("plain")
        .try_lock()
        .await
        .unwrap()
        .expect("it is free");
    assert!(g.token().as_u64() > 0);
    let g: Guard = locks
        .mutex("polled")
        .lock()
        .polling(Backoff::default())
        .await
        .unwrap();
    drop(g);
}

#[tokio::test]
async fn synchronizers_are_used_by_their_names() {
    let server = Server::start().await;
    let locks = locks(&server).await;

    let sem = locks.semaphore("sem", 5);
    let p: Permit = sem.acquire().await.unwrap();
    let q: Permit = sem.acquire_many(2).await.unwrap();
    assert_eq!(sem.available().await.unwrap(), 2);
    drop((p, q));

    let c = locks.semaphore("counting", 5).counting();
    c.acquire(2).await.unwrap();
    c.release(2).await.unwrap();

    let l = locks.latch("latch");
    assert!(l.try_set_count(3).await.unwrap());
    l.count_down().await.unwrap();
    l.count_down_as("me").await.unwrap();
    l.count_down_as("me").await.unwrap();
    assert_eq!(l.count().await.unwrap(), 1);
    assert!(!l.wait_for(Duration::from_millis(20)).await.unwrap());
    l.count_down().await.unwrap();
    within("the latch", async { l.wait().await }).await.unwrap();
    let done: bool = l.wait_for(secs(2)).await.unwrap();
    assert!(done);
    l.reset(2).await.unwrap();

    let barrier = locks.barrier("barrier", 3);
    let arrivals: Vec<_> = (0..3)
        .map(|_| {
            let barrier = barrier.clone();
            tokio::spawn(async move { barrier.wait().await.map(|passed| passed.is_leader()) })
        })
        .collect();
    let mut leaders = 0;
    for arrival in arrivals {
        leaders += u32::from(within("all parties", arrival).await.unwrap().unwrap());
    }
    assert_eq!(leaders, 1);
}

/// What waits belongs to whatever task it is given to.
#[tokio::test]
async fn waits_move_to_other_tasks() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let waiting = (
        tokio::spawn(locks.latch("latch").wait()),
        tokio::spawn(locks.latch("latch").wait_for(secs(2))),
        tokio::spawn(locks.semaphore("counting", 5).counting().acquire(2)),
        tokio::spawn(locks.rw_lock("rw").read().into_future()),
        tokio::spawn(locks.multi(["a", "b"]).lock().into_future()),
    );
    let (latch, open, permits, read, both) = within("all", async {
        tokio::join!(waiting.0, waiting.1, waiting.2, waiting.3, waiting.4)
    })
    .await;
    latch.unwrap().unwrap();
    assert!(open.unwrap().unwrap());
    permits.unwrap().unwrap();
    drop((read.unwrap().unwrap(), both.unwrap().unwrap()));
    let (one, other) = within("both parties", async {
        tokio::join!(
            locks.barrier("barrier", 2).wait(),
            locks.barrier("barrier", 2).wait_for(secs(20))
        )
    })
    .await;
    let (one, other) = (one.unwrap(), other.unwrap().expect("it is in time"));
    assert_ne!(one.is_leader(), other.is_leader());
    assert_eq!(one.generation(), other.generation());
}

#[tokio::test]
async fn a_majority_is_locked_by_its_names() {
    let servers = [
        Server::start().await,
        Server::start().await,
        Server::start().await,
    ];
    let urls = servers.each_ref().map(|server| server.url());
    let red = Redlock::connect(urls).await.unwrap();
    let g = red.mutex("k").lock().fenced().await.unwrap();
    assert!(g.is_held() && g.token().is_some());
    assert!(red.mutex("k").try_lock().await.unwrap().is_none());
    g.release().await.unwrap();
}

#[tokio::test]
async fn owners_nest_whatever_they_lock() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let me = locks.owner();
    let _mutex = (
        me.mutex("a").lock().await.unwrap(),
        me.mutex("a").lock().await.unwrap(),
    );
    let _fair = (
        me.fair_mutex("b").lock().await.unwrap(),
        me.fair_mutex("b").lock().await.unwrap(),
    );
    let write = me.rw_lock("c").write().await.unwrap();
    let read = me.rw_lock("c").read().await.unwrap();
    let again = me.rw_lock("c").read().await.unwrap();
    drop((write, read, again));
    let other = locks.owner_from(me.id());
    assert_eq!(other.id(), me.id(), "of the same locks");
}
