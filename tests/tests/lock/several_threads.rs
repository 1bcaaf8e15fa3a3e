//! Many tasks on the threads of one runtime that want one lock all the time: a waiter acts while the holder's thread is in the
//! middle of its release.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use leasehold::{Backoff, Locks, Owner};
use leasehold_testkit::{Server, wait};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::support::{connect, leased, ms};

const TASKS: usize = 32;
/// Upper bound on all turns of a kind. A turn that is lost costs a lease, which is twice as long.
const BOUND: Duration = Duration::from_secs(60);
/// Of all tasks.
const TURNS: usize = 2_000;
/// The same where most turns are passed on inside the process.
const PASSED: usize = 30_000;

fn threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(4).enable_all();
    builder.build().expect("a runtime")
}

/// Takes the lock and gives it back, by a release or a drop.
macro_rules! take_turn {
    ($acquire:expr, $released:expr) => {{
        let guard = $acquire.await.expect("the lock");
        if $released {
            guard.release().await.expect("an answer");
        }
    }};
}

/// One turn of the task with this number.
async fn turn(kind: &str, (locks, owner): (&Locks, &Owner), task: usize) {
    let (name, released) = (kind, !task.is_multiple_of(3));
    let is_odd = !task.is_multiple_of(2);
    match kind {
        "mutex" => take_turn!(locks.mutex(name).lock(), released),
        "mutex, with tries and timeouts" => {
            let mutex = locks.mutex(name);
            let guard = match task % 4 {
                0 => mutex.try_lock().await.expect("an answer"),
                1 => mutex.try_lock_for(ms(1)).await.expect("an answer"),
                _ => Some(mutex.lock().await.expect("the lock")),
            };
            drop(guard);
            tokio::task::yield_now().await;
        }
        "mutex, some of an owner" if is_odd => take_turn!(owner.mutex(name).lock(), released),
        "mutex, some of an owner" => take_turn!(locks.mutex(name).lock(), released),
        "mutex, polled" => {
            let backoff = Backoff::new(ms(1), ms(20));
            take_turn!(locks.mutex(name).lock().polling(backoff), released);
        }
        "fair" => take_turn!(locks.fair_mutex(name).lock(), released),
        "plain" => take_turn!(locks.plain_mutex(name).lock(), released),
        "read-write" if is_odd => take_turn!(locks.rw_lock(name).read(), released),
        "read-write" => take_turn!(locks.rw_lock(name).write(), released),
        "semaphore" => {
            let permits = 1 + (task % 3) as u32;
            take_turn!(locks.semaphore(name, 4).acquire_many(permits), released);
        }
        "several" => {
            let names = if is_odd { ["a", "b"] } else { ["b", "a"] };
            take_turn!(locks.multi(names).lock(), released);
        }
        other => panic!("no kind {other}"),
    }
}

/// Tasks that take turns until so many were taken in all.
fn turns(kind: &'static str, locks: &Locks, until: usize) -> (JoinSet<()>, Arc<AtomicUsize>) {
    let taken = Arc::<AtomicUsize>::default();
    let owner = locks.owner();
    let tasks = (0..TASKS).map(|task| {
        let (locks, owner, taken) = (locks.clone(), owner.clone(), Arc::clone(&taken));
        async move {
            while taken.fetch_add(1, Relaxed) < until {
                turn(kind, (&locks, &owner), task).await;
            }
        }
    });
    (tasks.collect(), taken)
}

#[test]
fn no_turn_is_lost() {
    threads().block_on(async {
        let server = Server::start().await;
        let locks = leased(server.url(), BOUND * 2).await;
        for (kind, count) in [
            ("mutex", PASSED),
            ("mutex, with tries and timeouts", PASSED),
            ("mutex, some of an owner", PASSED),
            ("mutex, polled", PASSED),
            ("plain", PASSED),
            ("fair", TURNS),
            ("read-write", TURNS),
            ("semaphore", TURNS),
            ("several", TURNS),
        ] {
            let (tasks, _) = turns(kind, &locks, count);
            wait::within(BOUND, kind, tasks.join_all()).await;
        }
        locks.shutdown().await.expect("an answer");
    });
}

/// Each driver of a connection that is spawned then is dropped at once.
#[test]
fn a_runtime_that_ends_meanwhile_waits_for_nobody() {
    let server = threads().block_on(Server::start());
    for round in 0..20 {
        let (ended, end) = mpsc::channel();
        let url = server.url();
        std::thread::spawn(move || {
            let runtime = threads();
            runtime.block_on(async {
                let locks = connect(url).await;
                let (mut tasks, taken) = turns("mutex", &locks, usize::MAX);
                while taken.load(Relaxed) < 10 * TASKS {
                    tokio::time::sleep(ms(1)).await;
                }
                tasks.detach_all();
            });
            drop(runtime);
            ended.send(()).expect("somebody waits");
        });
        assert!(end.recv_timeout(BOUND).is_ok(), "round {round} goes on");
    }
}
