//! Dropped at any of its awaits, with or without its runtime, no operation leaves anything behind.
//!
//! The leases here are longer than any wait, unless a test says otherwise: a lock that is gone was
//! released and has not expired.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use leasehold::{Guard, Locks, Release};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::{Accept, Proxy, Raw, RawValue, Server};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::support::{
    assert_everything_expires, exists, locks, ms, short_locks, tickets, until, within,
};

/// More awaits than any of these operations has, and more attempts at them than even a busy machine
/// needs.
const MANY: usize = 1_000;

/// Time for which another client keeps the wanted lock.
const BUSY: Duration = ms(25);

/// A server, two clients, and the test's own connection to the server.
struct Stage {
    server: Server,
    ours: Locks,
    theirs: Locks,
}

impl Stage {
    async fn new() -> Self {
        let server = Server::start().await;
        let (ours, theirs) = (locks(&server).await, locks(&server).await);
        Self {
            server,
            ours,
            theirs,
        }
    }

    /// Makes the operation anew for n = 0, 1, 2, … and drops it at its n-th await, until it
    /// completes; each time nothing may be left. It has `least` awaits at least.
    async fn sweep<P, F: Future>(
        &self,
        locks: &Locks,
        least: usize,
        prepare: impl AsyncFn() -> P,
        make: impl Fn(P) -> F,
    ) {
        let mut raw = self.server.raw().await;
        let mut awaits = Awaits::new(least);
        loop {
            let operation = make(prepare().await);
            let n = awaits.n;
            let completed = cancel_at(operation, n).await.is_some();
            nothing_is_left(&mut raw, locks, &format!("dropped at await {n}")).await;
            if awaits.all_seen(completed) {
                return;
            }
        }
    }
}

/// The next await at which an operation is dropped.
struct Awaits {
    n: usize,
    least: usize,
    tries: usize,
}

impl Awaits {
    const fn new(least: usize) -> Self {
        Self {
            n: 0,
            least,
            tries: 0,
        }
    }

    /// Goes on to the next one, unless the operation completed before it came to the present one.
    ///
    /// On a busy machine an operation may find its event already there and wait less often. It is
    /// made again then, until it has waited the usual number of times.
    fn all_seen(&mut self, completed: bool) -> bool {
        self.tries += 1;
        assert!(self.tries < MANY, "{} awaits, not {}", self.n, self.least);
        self.n += usize::from(!completed);
        completed && self.n >= self.least
    }
}

/// No key on the server, no waiter in the queue, no ticket in line; and the lock can be taken again.
async fn nothing_is_left(raw: &mut Raw, locks: &Locks, when: &str) {
    until(&format!("{when}: the release"), async || {
        !exists(raw, "a").await
    })
    .await;
    until(
        &format!("{when}: a place in the line is left"),
        async || {
            within("an answer", locks.mutex("a").try_lock().into_future())
                .await
                .unwrap()
                .is_some()
        },
    )
    .await;
    let next = within(
        &format!("{when}: the next lock"),
        locks.mutex("a").lock().into_future(),
    )
    .await;
    assert_eq!(
        within("its release", next.unwrap().release())
            .await
            .unwrap(),
        Release::Released,
        "{when}"
    );
    assert_eq!(tickets(raw, "a").await, 0, "{when}");
    // A process that has waited once goes on hearing of its grants.
    let channels = raw.cmd(&["PUBSUB", "CHANNELS"]).await;
    let own = |channel: &RawValue| channel.str().starts_with("leasehold:");
    assert!(channels.array().iter().all(own), "{when}: {channels:?}");
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
    stage
        .sweep(
            ours,
            1,
            async || (),
            |()| ours.mutex("a").lock().into_future(),
        )
        .await;
    stage
        .sweep(
            ours,
            1,
            async || (),
            |()| ours.mutex("a").try_lock().into_future(),
        )
        .await;
    stage
        .sweep(
            ours,
            1,
            async || (),
            |()| ours.mutex("a").try_lock_for(ms(50)).into_future(),
        )
        .await;
}

#[tokio::test]
async fn a_lock_that_this_process_holds() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let held = async || keep_for_a_moment(ours.mutex("a").lock().await.unwrap());
    // One for the local guard, one for the server.
    stage
        .sweep(ours, 2, held, |()| ours.mutex("a").lock().into_future())
        .await;
    stage
        .sweep(ours, 1, held, |()| {
            ours.mutex("a").try_lock_for(BUSY / 2).into_future()
        })
        .await;
}

#[tokio::test]
async fn a_lock_that_another_client_holds() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let held = async || keep_for_a_moment(stage.theirs.mutex("a").lock().await.unwrap());
    // A place in line, the message; and an attempt before them at the first time.
    stage
        .sweep(ours, 2, held, |()| ours.mutex("a").lock().into_future())
        .await;
    for time in [BUSY / 2, BUSY * 40] {
        stage
            .sweep(ours, 2, held, |()| {
                ours.mutex("a").try_lock_for(time).into_future()
            })
            .await;
    }
}

#[tokio::test]
async fn a_fair_lock() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let lock = |()| ours.fair_mutex("a").lock().into_future();
    stage.sweep(ours, 1, async || (), lock).await;
    let try_lock = |()| ours.fair_mutex("a").try_lock().into_future();
    stage.sweep(ours, 1, async || (), try_lock).await;
    // A place in line, the message; and an attempt before them at the first time. Those of this
    // process wait in the same line.
    for holder in [&stage.theirs, ours] {
        let held = async || keep_for_a_moment(holder.fair_mutex("a").lock().await.unwrap());
        stage.sweep(ours, 2, held, lock).await;
        for time in [BUSY / 2, BUSY * 40] {
            stage
                .sweep(ours, 2, held, |()| {
                    ours.fair_mutex("a").try_lock_for(time).into_future()
                })
                .await;
        }
    }
    let release = async || ours.fair_mutex("a").lock().await.unwrap();
    stage.sweep(ours, 1, release, |guard| guard.release()).await;
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
    // The connection, and an attempt.
    stage.sweep(ours, 2, async || away(), lock).await;
    let held = async || {
        let guard = ours.mutex("a").lock().await.unwrap();
        away();
        guard
    };
    // The connection, and an attempt.
    stage.sweep(ours, 2, held, |guard| guard.release()).await;
}

#[tokio::test]
async fn a_lock_whose_script_was_flushed() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let flush = async || stage.server.raw().await.cmd(&["SCRIPT", "FLUSH"]).await;
    // The name of the script, and its text.
    stage
        .sweep(ours, 2, flush, |_| ours.mutex("a").lock().into_future())
        .await;
    let held = async || {
        let guard = ours.mutex("a").lock().await.unwrap();
        flush().await;
        guard
    };
    // The name of the script, and its text.
    stage.sweep(ours, 2, held, |guard| guard.release()).await;
}

#[tokio::test]
async fn a_release() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    let held = async || ours.mutex("a").lock().await.unwrap();
    stage.sweep(ours, 1, held, |guard| guard.release()).await;
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
    stage.sweep(ours, 3, async || (), work).await;
    let run = |()| async {
        let guard = ours.mutex("a").lock().await.unwrap();
        let pause = async {
            yield_now().await;
            tokio::time::sleep(ms(2)).await;
        };
        guard.run(pause).await.unwrap();
    };
    stage.sweep(ours, 3, async || (), run).await;
}

#[tokio::test]
async fn nested_locks() {
    let stage = Stage::new().await;
    let ours = &stage.ours;
    // The lock, the work, the release.
    stage.sweep(ours, 3, async || (), |()| nested(ours)).await;
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
    let held = async || ours.mutex("a").lock().lease(ms(400)).await.unwrap();
    let lost = |guard: Guard| async move { guard.lost().await };
    stage.sweep(ours, 1, held, lost).await;
}

/// An operation on a lock, to be driven on a runtime that will end under it.
type Operation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the operation until its n-th await, for n = 0, 1, 2, …, ends the runtime there with all
/// that runs on it, and checks the rest: nothing is left after the lease, and the same `Locks` work
/// in another runtime.
fn with_the_runtime(least: usize, plant: bool, make: impl Fn(Locks) -> Operation) {
    let server = Server::builder().start_blocking();
    let outer = runtime();
    let mut raw = outer.block_on(server.raw());
    let mut awaits = Awaits::new(least);
    loop {
        let inner = runtime();
        let locks = inner.block_on(short_locks(&server, ms(1_500)));
        if plant {
            outer.block_on(raw.cmd(&["HSET", "a", "somebody:1", "1"]));
            outer.block_on(raw.cmd(&["PEXPIRE", "a", "25"]));
        }
        let n = awaits.n;
        let completed = inner.block_on(reach(make(locks.clone()), n));
        drop(inner);
        let when = format!("the runtime was dropped at await {n}");
        outer.block_on(nothing_is_left(&mut raw, &locks, &when));
        if awaits.all_seen(completed) {
            return;
        }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Spawns the operation and returns when it is at its n-th await, where it stays, or when it has
/// completed.
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
    within("the await", reached)
        .await
        .expect("the operation does not panic")
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
    with_the_runtime(2, false, lock);
}

#[test]
fn a_runtime_that_ends_during_a_contended_lock() {
    let lock = |locks: Locks| -> Operation {
        Box::pin(async move { drop(locks.mutex("a").lock().await.unwrap()) })
    };
    with_the_runtime(3, true, lock);
}

#[test]
fn a_runtime_that_ends_during_a_release() {
    let release = |locks: Locks| -> Operation {
        Box::pin(async move {
            let guard = locks.mutex("a").lock().await.unwrap();
            guard.release().await.unwrap();
        })
    };
    with_the_runtime(2, false, release);
}

#[test]
fn a_runtime_that_ends_during_nested_work() {
    let work = |locks: Locks| -> Operation { Box::pin(async move { nested(&locks).await }) };
    with_the_runtime(3, false, work);
}
