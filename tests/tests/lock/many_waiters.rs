//! A thousand waiters of one process cost the server what one does, whatever they wait for.

use std::fmt::Debug;
use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use leasehold::{Backoff, Interop, Locks, Redlock};
use leasehold_testkit::{Raw, Server};
use tokio::task::JoinSet;

use crate::support::{line, locks, ms, scripts_run, tickets, until, within};

const WAITERS: usize = 1_000;
/// How long requests are counted.
const COUNTED: Duration = Duration::from_secs(6);
/// Time-outs: so many waiters keep a busy machine from answering in the usual time.
const PATIENCE: Duration = Duration::from_secs(30);

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The clients of one process.
struct Clients {
    locks: Locks,
    redlock: Redlock,
}

/// The future of a wait that is not to end.
fn waits<T: Debug>(acquire: impl IntoFuture<Output = T, IntoFuture: Send + 'static>) -> Wait {
    let acquire = acquire.into_future();
    Box::pin(async move { panic!("the wait ended: {:?}", acquire.await) })
}

/// A wait for what another process has.
fn wait(what: &str, Clients { locks, redlock }: &Clients) -> Wait {
    let backoff = Backoff::new(ms(200), ms(200));
    match what {
        "mutex" => waits(locks.mutex("a").lock()),
        "mutex, polled" => waits(locks.mutex("a").lock().polling(backoff)),
        "fair" => waits(locks.fair_mutex("a").lock()),
        "fair, polled" => waits(locks.fair_mutex("a").lock().polling(backoff)),
        "plain" => waits(locks.plain_mutex("plain").lock()),
        "read" => waits(locks.rw_lock("written").read()),
        "write behind a read" => waits(locks.rw_lock("read").write()),
        "write behind a write" => waits(locks.rw_lock("written").write()),
        "semaphore" => waits(locks.semaphore("permits", 5).acquire_many(2)),
        "counting" => {
            let counting = locks.semaphore("counted", 5).counting();
            waits(async move { counting.acquire(1).await })
        }
        "multi" => waits(locks.multi(["b", "a", "c"]).lock()),
        "latch" => {
            let latch = locks.latch("latch");
            waits(async move { latch.wait().await })
        }
        "barrier" => {
            let barrier = locks.barrier("barrier", 2 * WAITERS as u32);
            waits(async move { barrier.wait().await })
        }
        "Redlock" => waits(redlock.mutex("a").lock()),
        other => panic!("{other}"),
    }
}

async fn connect(server: &Server, interop: Interop) -> Locks {
    let locks = Locks::builder(server.url())
        .interop(interop)
        .connect_timeout(PATIENCE)
        .command_timeout(PATIENCE);
    locks.connect().await.expect("the server is up")
}

/// Requests while so many wait, once all of them have asked.
async fn asked(what: &str, interop: Interop, waiters: usize) -> u64 {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let theirs = connect(&server, interop).await;
    let _mutex = theirs.mutex("a").lock().await.unwrap();
    let _plain = theirs.plain_mutex("plain").lock().await.unwrap();
    let _read = theirs.rw_lock("read").read().await.unwrap();
    let _write = theirs.rw_lock("written").write().await.unwrap();
    let permits = theirs.semaphore("permits", 5).acquire_many(5).await;
    let _permits = permits.unwrap();
    let counting = theirs.semaphore("counted", 5).counting();
    counting.acquire(5).await.unwrap();
    theirs.latch("latch").try_set_count(1).await.unwrap();
    let ours = Clients {
        locks: connect(&server, interop).await,
        redlock: Redlock::builder([server.url()])
            .connect_timeout(PATIENCE)
            .command_timeout(PATIENCE)
            .connect()
            .await
            .unwrap(),
    };
    let mut waiting = JoinSet::new();
    for _ in 0..waiters {
        waiting.spawn(wait(what, &ours));
    }
    // Each asks when it comes.
    tokio::time::sleep(ms(1_000)).await;
    let mut calm = 0;
    for _ in 0..60 {
        raw.cmd(&["CONFIG", "RESETSTAT"]).await;
        tokio::time::sleep(ms(500)).await;
        calm = if scripts_run(&mut raw).await < 20 {
            calm + 1
        } else {
            0
        };
        if calm == 3 {
            break;
        }
    }
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    tokio::time::sleep(COUNTED).await;
    let asked = scripts_run(&mut raw).await;
    assert!(waiting.try_join_next().is_none(), "a wait ended");
    asked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_of_a_process_ask_as_often_as_one() {
    let mut measured = JoinSet::new();
    for (what, interop) in [
        ("mutex", Interop::Off),
        ("mutex", Interop::Redisson),
        ("mutex, polled", Interop::Off),
        ("fair", Interop::Off),
        ("fair", Interop::Redisson),
        ("fair, polled", Interop::Off),
        ("plain", Interop::Off),
        ("read", Interop::Off),
        ("read", Interop::Redisson),
        ("write behind a read", Interop::Off),
        ("write behind a write", Interop::Off),
        ("semaphore", Interop::Off),
        ("semaphore", Interop::Redisson),
        ("counting", Interop::Off),
        ("multi", Interop::Off),
        ("latch", Interop::Off),
        ("barrier", Interop::Off),
        ("Redlock", Interop::Off),
    ] {
        measured.spawn(async move {
            let (one, many) = tokio::join!(asked(what, interop, 1), asked(what, interop, WAITERS));
            (what, interop, one, many)
        });
    }
    for (what, interop, one, many) in measured.join_all().await {
        println!("{what}, {interop:?}: {one} requests for one waiter, {many} for {WAITERS}");
        // Renewals, or a look of who was the first before, may fall into the time of one of both. If each asked, even
        // seldom, it would be hundreds.
        assert!(
            many <= 2 * one + 100,
            "{what}, {interop:?}: {many} requests, and {one}"
        );
    }
}

/// A task of `locks` that waits for its turn, which begins and ends at once.
fn turn(locks: &Locks) -> impl Future<Output = ()> + Send + 'static {
    let acquire = locks.fair_mutex("a").lock();
    async move {
        let guard = acquire.await.unwrap();
        guard.release().await.unwrap();
    }
}

/// So many turns of `locks` that wait in line.
async fn turns_in_line(raw: &mut Raw, locks: &Locks, turns: usize) -> JoinSet<()> {
    let before = tickets(raw, "a").await;
    let mut waiting = JoinSet::new();
    for _ in 0..turns {
        waiting.spawn(turn(locks));
    }
    until("they are in line", async || {
        tickets(raw, "a").await == before + turns as i64
    })
    .await;
    waiting
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_fair_waiters_of_a_process_come_back_when_their_line_is_lost() {
    const KEY: &str = "leasehold_line:{a}";
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (connect(&server, Interop::Off).await, locks(&server).await);
    let held = theirs.fair_mutex("a").lock().await.unwrap();
    let waiting = turns_in_line(&mut raw, &ours, WAITERS).await;
    let before = line(&mut raw, "a").await;
    // One of the middle alone is missed when it is the first.
    raw.cmd(&["ZREM", KEY, &before[500]]).await;
    tokio::time::sleep(ms(2_500)).await;
    raw.cmd(&["DEL", KEY]).await;
    let since = Instant::now();
    leasehold_testkit::until("they are back", async || {
        line(&mut raw, "a").await == before
    })
    .await;
    println!("{WAITERS} are back after {:?}", since.elapsed());
    raw.cmd(&["ZREM", KEY, &before[400]]).await;
    held.release().await.unwrap();
    within("their turns", waiting.join_all()).await;

    // And when everything is.
    let held = theirs.fair_mutex("a").lock().await.unwrap();
    let waiting = turns_in_line(&mut raw, &ours, WAITERS).await;
    raw.cmd(&["FLUSHALL"]).await;
    let since = Instant::now();
    within("their turns", waiting.join_all()).await;
    println!(
        "{WAITERS} turns {:?} after everything was lost",
        since.elapsed()
    );
    drop(held);
}

#[tokio::test]
async fn a_fair_waiter_that_nobody_polls_keeps_those_behind_it_for_a_grant_and_a_look() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    for asleep_for in [ms(0), ms(4_000)] {
        let held = theirs.fair_mutex("a").lock().await.unwrap();
        let mut asleep = pin!(ours.fair_mutex("a").lock().into_future());
        let polled = tokio::time::timeout(ms(300), &mut asleep).await;
        assert!(polled.is_err(), "it is held");
        let waiting = turns_in_line(&mut raw, &ours, 20).await;
        tokio::time::sleep(asleep_for).await;
        let since = Instant::now();
        held.release().await.unwrap();
        within("their turns", waiting.join_all()).await;
        let waited = since.elapsed();
        println!("{waited:?}");
        // One second each, and time for a busy machine. A second for each of the 20 would be too much.
        assert!(waited < ms(10_000), "{waited:?}");
        // It is back for its turn when it is polled again.
        drop(within("its turn", &mut asleep).await.unwrap());
    }
}
