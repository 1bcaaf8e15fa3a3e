//! The semaphore under faults: operations that are cut, lost or cancelled leave no permit behind, and none is given out twice.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use leasehold::{ErrorKind, Locks, LostReason, Permit, Release, Semaphore};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::{Cut, Fault, Proxy, Raw, Server};

use crate::support::{
    assert_everything_expires, line, locks, ms, short_locks, tickets, until, within,
};

const KEYS: [&str; 4] = [
    "a",
    "{a}:timeout",
    "leasehold_cap:{a}",
    "leasehold_line:{a}",
];

/// No permit is taken on the server, and nobody stands in line.
async fn nothing_is_left(raw: &mut Raw, semaphore: &Semaphore, when: &str) {
    until(&format!("{when}: all are free"), async || {
        raw.cmd(&["ZCARD", "{a}:timeout"]).await.int() == 0 && tickets(raw, "a").await == 0
    })
    .await;
    let all = semaphore.capacity().await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), all, "{when}");
    assert_everything_expires(raw).await;
}

/// Drops the acquisition of `make` at each of its awaits.
async fn sweep<P>(
    server: &Server,
    semaphore: &Semaphore,
    least: usize,
    prepare: impl AsyncFn() -> P,
    make: impl Fn() -> leasehold::Acquire<Permit>,
) {
    let mut raw = server.raw().await;
    let (mut n, mut tries) = (0, 0);
    loop {
        let prepared = prepare().await;
        let completed = cancel_at(make().into_future(), n).await.is_some();
        drop(prepared);
        nothing_is_left(&mut raw, semaphore, &format!("dropped at await {n}")).await;
        n += usize::from(!completed);
        tries += 1;
        assert!(tries < 1_000, "{n} awaits, not {least}");
        if completed && n >= least {
            return;
        }
    }
}

#[tokio::test]
async fn an_acquisition_that_is_dropped_at_any_await_leaves_nothing() {
    let server = Server::start().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let (semaphore, other) = (ours.semaphore("a", 3), theirs.semaphore("a", 3));
    sweep(
        &server,
        &semaphore,
        1,
        async || (),
        || semaphore.acquire_many(2),
    )
    .await;
    // One of another process, which gives them up one after the other: the waiter keeps the first.
    let busy = async || {
        let mut held = other.acquire_many(3).await.unwrap();
        tokio::spawn(async move {
            while held.num_permits() > 0 {
                tokio::time::sleep(ms(5)).await;
                let _ = held.split(1).unwrap().release().await;
            }
        });
    };
    sweep(&server, &semaphore, 2, busy, || semaphore.acquire_many(3)).await;
}

#[tokio::test]
async fn a_release_that_is_dropped_at_any_await_is_done() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    let semaphore = ours.semaphore("a", 5);
    for n in 0..3 {
        let mut held = semaphore.acquire_many(5).await.unwrap();
        let part = held.split(2).unwrap();
        cancel_at(part.release(), n).await;
        cancel_at(held.release(), n).await;
        nothing_is_left(&mut raw, &semaphore, &format!("await {n}")).await;
    }
}

#[tokio::test]
async fn a_lost_reply_takes_and_gives_nothing_twice() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let ours = Locks::connect(proxy.url()).await.unwrap();
    let semaphore = ours.semaphore("a", 5);
    for how in [Cut::Rst, Cut::Fin] {
        let lost = || proxy.to_client(Fault::LoseReply { nth: 1, how });
        lost();
        let mut held = within("permits", semaphore.acquire_many(4).into_future())
            .await
            .unwrap();
        assert_eq!(raw.cmd(&["GET", "a"]).await.str(), "1");
        lost();
        let part = held.split(1).unwrap();
        // It may have been the first one that did it.
        match within("a part", part.release()).await {
            Ok(released) => assert_eq!(released, Release::Released),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown),
        }
        assert_eq!(raw.cmd(&["GET", "a"]).await.str(), "2");
        lost();
        match within("the rest", held.release()).await {
            Ok(released) => assert_eq!(released, Release::Released),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown),
        }
        nothing_is_left(&mut raw, &semaphore, "released").await;
    }
}

#[tokio::test]
async fn flushed_scripts_are_sent_again() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = short_locks(&server, ms(900)).await;
    let semaphore = ours.semaphore("a", 5);
    for _ in 0..2 {
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        let mut held = semaphore.acquire_many(2).await.unwrap();
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(semaphore.available().await.unwrap(), 3);
        tokio::time::sleep(ms(1_200)).await;
        assert!(held.is_held(), "it is renewed");
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(
            held.split(1).unwrap().release().await.unwrap(),
            Release::Released
        );
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(held.release().await.unwrap(), Release::Released);
    }
    nothing_is_left(&mut raw, &semaphore, "flushed").await;
}

#[tokio::test]
async fn each_key_may_be_evicted_while_permits_are_held_and_waited_for() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for key in KEYS {
        let ours = short_locks(&server, ms(900)).await;
        let theirs = short_locks(&server, ms(900)).await;
        let semaphore = ours.semaphore("a", 3);
        let held = semaphore.acquire_many(2).await.unwrap();
        let acquire = theirs.semaphore("a", 3).acquire_many(3).into_future();
        let waiter = tokio::spawn(acquire);
        until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
        raw.cmd(&["DEL", key]).await;
        if key == "{a}:timeout" {
            assert_eq!(within("the loss", held.lost()).await, LostReason::Stolen);
        } else {
            tokio::time::sleep(ms(1_200)).await;
            assert!(held.is_held(), "{key}");
            assert!(!waiter.is_finished(), "{key}");
            assert_eq!(line(&mut raw, "a").await.len(), 1, "{key}: it is back");
            assert_eq!(held.release().await.unwrap(), Release::Released, "{key}");
        }
        let three = within(key, waiter).await.unwrap().unwrap();
        assert_eq!(three.num_permits(), 3);
        drop(three);
        nothing_is_left(&mut raw, &semaphore, key).await;
        raw.cmd(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_is_left_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    let semaphore = ours.semaphore("a", 3);
    for key in &KEYS[..2] {
        raw.cmd(&["LPUSH", key, "of others"]).await;
        for error in [
            semaphore.acquire().await.unwrap_err(),
            semaphore.try_acquire().await.unwrap_err(),
            semaphore.try_acquire_for(ms(9_999)).await.unwrap_err(),
            semaphore.available().await.unwrap_err(),
            semaphore.set_permits(2).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        }
        assert_eq!(raw.cmd(&["LLEN", key]).await.int(), 1);
        raw.cmd(&["FLUSHALL"]).await;
    }
    // Keys of ours hide nothing.
    for key in &KEYS[2..] {
        raw.cmd(&["LPUSH", key, "of others"]).await;
        let held = semaphore.acquire_many(3).await.unwrap();
        let acquire = semaphore.acquire().into_future();
        let waiter = tokio::spawn(acquire);
        tokio::time::sleep(ms(50)).await;
        assert_eq!(held.release().await.unwrap(), Release::Released);
        drop(
            within("it asks again and again", waiter)
                .await
                .unwrap()
                .unwrap(),
        );
        assert_eq!(raw.cmd(&["LLEN", key]).await.int(), 1);
        raw.cmd(&["DEL", key]).await;
        nothing_is_left(&mut raw, &semaphore, key).await;
    }
}

/// A message that is lost costs a look, a process that is gone nothing.
#[tokio::test]
async fn lost_messages_and_dead_processes_in_line_cost_no_permit() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let (deaf, dying, holder) = (
        Locks::connect(proxy.url()).await.unwrap(),
        locks(&server).await,
        locks(&server).await,
    );
    let semaphore = holder.semaphore("a", 4);
    let mut held = semaphore.acquire_many(4).await.unwrap();
    let waiter = tokio::spawn(dying.semaphore("a", 4).acquire_many(4).into_future());
    until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
    let other = tokio::spawn(deaf.semaphore("a", 4).acquire_many(2).into_future());
    until("another ticket", async || tickets(&mut raw, "a").await == 2).await;
    proxy.to_client(Fault::DropMessages);
    // As if it was killed: its ticket is still there, and nobody listens.
    let clients = raw.cmd(&["PUBSUB", "CHANNELS", "leasehold:*"]).await;
    assert_eq!(clients.array().len(), 2);
    let channel = format!("leasehold:{}", dying.client_id());
    let killed = raw.cmd(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    for client in killed.str().lines() {
        let id = client.split(' ').next().unwrap().trim_start_matches("id=");
        raw.cmd(&["CLIENT", "KILL", "ID", id]).await;
    }
    waiter.abort();
    drop((channel, held.split(2)));
    let two = within("the deaf one", other).await.unwrap().unwrap();
    drop((two, held));
    nothing_is_left(&mut raw, &semaphore, "at the end").await;
}

/// Renewals and releases of parts are sent over two connections, and overtake each other.
#[tokio::test]
async fn parts_that_are_given_back_under_renewals_lose_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    // A busy machine may keep this process from a short lease: then again with a longer one.
    for lease in [300, 1_500, 7_500] {
        let ours = short_locks(&server, ms(lease)).await;
        let semaphore = ours.semaphore("a", 200);
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(semaphore.acquire_many(25).await.unwrap());
        }
        for _ in 0..24 {
            for permits in &mut held {
                drop(permits.split(1));
            }
            tokio::time::sleep(ms(lease / 8)).await;
        }
        let lost = held.iter().find(|permits| !permits.is_held());
        let reason = match lost {
            Some(permits) => Some(permits.lost().await),
            None => None,
        };
        if reason.is_none() {
            assert_eq!(semaphore.available().await.unwrap(), 192);
        }
        drop(held);
        nothing_is_left(&mut raw, &semaphore, "at the end").await;
        if reason.is_none() {
            return;
        }
        assert_eq!(reason, Some(LostReason::Expired), "{lease}");
    }
    panic!("the longest lease has expired, too");
}

/// A request that is told to look again, while the answer to its latest one is on its way, looks
/// again: otherwise what it keeps lies idle until its grant is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_requests_among_small_ones_wait_for_no_grant_to_end() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let semaphore = locks.semaphore("a", 5);
    let stop = Arc::new(AtomicBool::new(false));
    let mut small = Vec::new();
    for _ in 0..20 {
        let (semaphore, stop) = (semaphore.clone(), Arc::clone(&stop));
        small.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let permit = semaphore.acquire().await.unwrap();
                tokio::time::sleep(ms(3)).await;
                drop(permit);
            }
        }));
    }
    // The end of a grant takes a second.
    let mut slow = Vec::new();
    for _ in 0..150 {
        let since = Instant::now();
        let all = within("all permits", semaphore.acquire_many(5).into_future()).await;
        slow.extend(Some(since.elapsed()).filter(|waited| *waited >= ms(950)));
        drop(all.unwrap());
        tokio::time::sleep(ms(20)).await;
    }
    stop.store(true, Ordering::SeqCst);
    for small in small {
        within("a small one", small).await.unwrap();
    }
    // One of them may be the machine's.
    assert!(slow.len() <= 1, "{slow:?}");
}
