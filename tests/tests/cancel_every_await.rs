//! Dropped at any of its awaits, with or without its runtime, no operation leaves anything behind.
//!
//! The leases here are longer than anybody waits, unless a test says otherwise: what is gone was released and has not
//! run out.

mod lock_support;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use leasehold::{Guard, Locks, Release};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::{Accept, Proxy, Raw, Server};
use lock_support::{assert_everything_expires, exists, locks, ms, short_locks, until, within};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// More awaits than any of these operations has.
const MANY: usize = 1_000;

/// For how long somebody else keeps the lock that is wanted.
const BUSY: Duration = ms(25);

/// A server, two clients, and what the test asks the server with.
struct Stage {
    server: Server,
    ours: Locks,
    theirs: Locks,
}

impl Stage {
    async fn new() -> Self {
        let server = Server::start().await;
        let (ours, theirs) = (locks(&server).await, locks(&server).await);
        Self { server, ours, theirs }
    }

    /// Makes the operation anew for n = 0, 1, 2, … and drops it at its n-th await, until it completes; each time nothing
    /// may be left. Returns at how many awaits it was dropped.
    async fn sweep<P, F: Future>(&self, locks: &Locks, prepare: impl AsyncFn() -> P, make: impl Fn(P) -> F) -> usize {
        let mut raw = self.server.raw().await;
        for n in 0..MANY {
            let operation = make(prepare().await);
            let completed = cancel_at(operation, n).await.is_some();
            nothing_is_left(&mut raw, locks, &format!("dropped at await {n}")).await;
            if completed {
                return n;
            }
        }
        panic!("not completed with {MANY} awaits")
    }
}

/// Nothing on the server, nobody in the line, nobody listening; and the next lock is to be had.
async fn nothing_is_left(raw: &mut Raw, locks: &Locks, when: &str) {
    until(&format!("{when}: the release"), async || !exists(raw, "a").await).await;
    until(&format!("{when}: a place in the line is left"), async || {
        within("an answer", locks.mutex("a").try_lock().into_future()).await.unwrap().is_some()
    })
    .await;
    let next = within(&format!("{when}: the next lock"), locks.mutex("a").lock().into_future()).await;
    assert_eq!(within("its release", next.unwrap().release()).await.unwrap(), Release::Released, "{when}");
    until(&format!("{when}: unsubscribing"), async || raw.cmd(&["PUBSUB", "CHANNELS"]).await.array().is_empty()).await;
    assert_everything_expires(raw).await;
}

/// Keeps a lock that was taken for a moment longer.
fn keep_for_a_moment(guard: Guard) {
    tokio::spawn(async move {
        tokio::time::sleep(BUSY).await;
        drop(guard);
    });
}

#[tokio::test]
async fn a_free_lock() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let awaits = stage.sweep(ours, async || (), |()| ours.mutex("a").lock().into_future()).await;
    assert!(awaits >= 1);
    let awaits = stage.sweep(ours, async || (), |()| ours.mutex("a").try_lock().into_future()).await;
    assert!(awaits >= 1);
    let awaits = stage.sweep(ours, async || (), |()| ours.mutex("a").try_lock_for(ms(50)).into_future()).await;
    assert!(awaits >= 1);
}

#[tokio::test]
async fn a_lock_that_this_process_holds() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let held = async || keep_for_a_moment(ours.mutex("a").lock().await.unwrap());
    let awaits = stage.sweep(ours, held, |()| ours.mutex("a").lock().into_future()).await;
    assert!(awaits >= 2, "one for the guard here, one for the server: {awaits}");
    let awaits = stage.sweep(ours, held, |()| ours.mutex("a").try_lock_for(BUSY / 2).into_future()).await;
    assert!(awaits >= 1);
}

#[tokio::test]
async fn a_lock_that_another_client_holds() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let held = async || keep_for_a_moment(stage.theirs.mutex("a").lock().await.unwrap());
    let awaits = stage.sweep(ours, held, |()| ours.mutex("a").lock().into_future()).await;
    assert!(awaits >= 3, "an attempt, the message, another attempt: {awaits}");
    for time in [BUSY / 2, BUSY * 40] {
        let awaits = stage.sweep(ours, held, |()| ours.mutex("a").try_lock_for(time).into_future()).await;
        assert!(awaits >= 2);
    }
}

#[tokio::test]
async fn a_lock_while_reconnecting() {
    let stage = Stage::new().await;
    let proxy = Proxy::start(stage.server.addr());
    let ours = &Locks::connect(proxy.url()).await.unwrap();
    let away = || {
        proxy.accept(Accept::Refuse);
        proxy.reset_all();
        proxy.accept(Accept::Forward);
    };
    let lock = |()| ours.mutex("a").lock().into_future();
    let awaits = stage.sweep(ours, async || away(), lock).await;
    assert!(awaits >= 2, "the connection, and an attempt: {awaits}");
    let held = async || {
        let guard = ours.mutex("a").lock().await.unwrap();
        away();
        guard
    };
    let awaits = stage.sweep(ours, held, |guard| guard.release()).await;
    assert!(awaits >= 2, "the connection, and an attempt: {awaits}");
}

#[tokio::test]
async fn a_lock_whose_script_was_flushed() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let flush = async || stage.server.raw().await.cmd(&["SCRIPT", "FLUSH"]).await;
    let awaits = stage.sweep(ours, flush, |_| ours.mutex("a").lock().into_future()).await;
    assert!(awaits >= 2, "the name of the script, and its text: {awaits}");
    let held = async || {
        let guard = ours.mutex("a").lock().await.unwrap();
        flush().await;
        guard
    };
    let awaits = stage.sweep(ours, held, |guard| guard.release()).await;
    assert!(awaits >= 2, "the name of the script, and its text: {awaits}");
}

#[tokio::test]
async fn a_release() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let held = async || ours.mutex("a").lock().await.unwrap();
    let awaits = stage.sweep(ours, held, |guard| guard.release()).await;
    assert!(awaits >= 1);
}

/// Dropping a future drops the guards in it.
#[tokio::test]
async fn work_under_a_lock() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let work = |()| async {
        let _guard = ours.mutex("a").lock().await.unwrap();
        yield_now().await;
        yield_now().await;
    };
    assert!(stage.sweep(ours, async || (), work).await >= 3);
    let run = |()| async {
        let guard = ours.mutex("a").lock().await.unwrap();
        let pause = async {
            yield_now().await;
            tokio::time::sleep(ms(2)).await;
        };
        guard.run(pause).await.unwrap();
    };
    assert!(stage.sweep(ours, async || (), run).await >= 3);
}

#[tokio::test]
async fn nested_locks() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let awaits = stage.sweep(ours, async || (), |()| nested(ours)).await;
    assert!(awaits >= 3, "the lock, the work, the release: {awaits}");
}

async fn nested(locks: &Locks) {
    let owner = locks.owner();
    let outer = owner.mutex("a").lock().await.unwrap();
    let inner = owner.mutex("a").lock().await.unwrap();
    yield_now().await;
    assert_eq!(outer.release().await.unwrap(), Release::StillHeld);
    assert_eq!(inner.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn the_news_of_a_loss() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let held = async || ours.mutex("a").lock().lease(BUSY * 2).await.unwrap();
    let lost = |guard: Guard| async move { guard.lost().await };
    assert!(stage.sweep(ours, held, lost).await >= 1);
}

/// An operation on a lock, to be driven on a runtime that will end under it.
type Operation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the operation until its n-th await, ends the runtime there with all that runs on it, and looks at what is left:
/// nothing after the lease, and the same `Locks` go on in another runtime. Returns at how many awaits that was done.
fn with_the_runtime(lease: Duration, plant: bool, make: impl Fn(Locks) -> Operation) -> usize {
    let server = Server::builder().start_blocking();
    let outer = runtime();
    let mut raw = outer.block_on(server.raw());
    for n in 0..MANY {
        let inner = runtime();
        let locks = inner.block_on(short_locks(&server, lease));
        if plant {
            outer.block_on(raw.cmd(&["HSET", "a", "somebody:1", "1"]));
            outer.block_on(raw.cmd(&["PEXPIRE", "a", "25"]));
        }
        let completed = inner.block_on(reach(make(locks.clone()), n));
        drop(inner);
        let when = format!("the runtime was dropped at await {n}");
        outer.block_on(nothing_is_left(&mut raw, &locks, &when));
        if completed {
            return n;
        }
    }
    panic!("not completed with {MANY} awaits")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Spawns the operation and returns when it is at its n-th await, where it stays, or when it has completed.
async fn reach(mut operation: Operation, n: usize) -> bool {
    let (there, reached) = oneshot::channel();
    let mut there = Some(there);
    let mut pendings = 0;
    tokio::spawn(poll_fn(move |context| {
        let done = operation.as_mut().poll(context).is_ready();
        if (done || pendings == n)
            && let Some(there) = there.take()
        {
            there.send(done).expect("the test waits");
        }
        pendings += 1;
        if done { Poll::Ready(()) } else { Poll::Pending }
    }));
    within("the await", reached).await.expect("the operation does not panic")
}

#[test]
fn a_runtime_that_ends_during_a_free_lock() {
    let lock = |locks: Locks| -> Operation {
        Box::pin(async move {
            let guard = locks.mutex("a").lock().await.unwrap();
            yield_now().await;
            drop(guard);
        })
    };
    assert!(with_the_runtime(ms(1_500), false, lock) >= 2);
}

#[test]
fn a_runtime_that_ends_during_a_contended_lock() {
    let lock = |locks: Locks| -> Operation { Box::pin(async move { drop(locks.mutex("a").lock().await.unwrap()) }) };
    assert!(with_the_runtime(ms(1_500), true, lock) >= 3);
}

#[test]
fn a_runtime_that_ends_during_a_release() {
    let release = |locks: Locks| -> Operation {
        Box::pin(async move {
            let guard = locks.mutex("a").lock().await.unwrap();
            guard.release().await.unwrap();
        })
    };
    assert!(with_the_runtime(ms(1_500), false, release) >= 2);
}

#[test]
fn a_runtime_that_ends_during_nested_work() {
    let work = |locks: Locks| -> Operation { Box::pin(async move { nested(&locks).await }) };
    assert!(with_the_runtime(ms(1_500), false, work) >= 3);
}
