//! The semaphore without owners: Redisson's `RSemaphore`.

use leasehold::{CountingSemaphore, ErrorKind, Interop, Locks};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::{Cut, Fault, Proxy, Raw, Server};
use tokio::task::JoinHandle;

use crate::scripts::Ears;
use crate::support::{line, locks, ms, nobody_in_line, tickets, until, within};

async fn counting(locks: &Locks, permits: u32) -> CountingSemaphore {
    locks.semaphore("a", permits).counting()
}

async fn value(raw: &mut Raw) -> String {
    raw.cmd(&["GET", "a"]).await.str().into()
}

async fn in_line(
    raw: &mut Raw,
    locks: &Locks,
    semaphore: &CountingSemaphore,
    permits: u32,
) -> JoinHandle<()> {
    let taking = semaphore.clone();
    let waiter = tokio::spawn(async move { taking.acquire(permits).await.unwrap() });
    until("a ticket in line", async || {
        let line = line(raw, "a").await;
        line.iter()
            .any(|ticket| ticket.starts_with(locks.client_id()))
    })
    .await;
    waiter
}

async fn done<T>(waiter: JoinHandle<T>) -> T {
    within("its turn", waiter).await.unwrap()
}

#[tokio::test]
async fn permits_are_counted_and_nobodys() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let (semaphore, other) = (counting(&ours, 5).await, counting(&theirs, 5).await);
    assert_eq!(semaphore.available().await.unwrap(), 5);
    semaphore.acquire(2).await.unwrap();
    assert_eq!(value(&mut raw).await, "3");
    assert!(!other.try_acquire(4).await.unwrap());
    assert!(other.try_acquire(3).await.unwrap());
    assert!(!semaphore.try_acquire_for(1, ms(50)).await.unwrap());
    assert_eq!(other.available().await.unwrap(), 0);
    // Whoever took them.
    other.release(4).await.unwrap();
    assert_eq!(value(&mut raw).await, "4");
    other.release(2).await.unwrap();
    assert_eq!(value(&mut raw).await, "6", "also more than ever were");
    drop((ours, semaphore));
    assert_eq!(other.available().await.unwrap(), 6);
    // Redisson's key has no expiry, ours have one.
    for key in raw.cmd(&["KEYS", "*"]).await.array() {
        let ttl = raw.cmd(&["PTTL", key.str()]).await.int();
        assert_eq!(ttl == -1, key.str() == "a", "{key:?}: {ttl}");
    }
}

#[tokio::test]
async fn the_number_can_be_set_once_or_anew() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    let semaphore = counting(&ours, 5).await;
    assert!(semaphore.try_set_permits(3).await.unwrap());
    assert!(!semaphore.try_set_permits(7).await.unwrap());
    assert_eq!(value(&mut raw).await, "3");
    let waiter = {
        semaphore.acquire(3).await.unwrap();
        in_line(&mut raw, &ours, &semaphore, 2).await
    };
    semaphore.set_permits(8).await.unwrap();
    done(waiter).await;
    until("it is confirmed", async || value(&mut raw).await == "6").await;
    assert_eq!(semaphore.available().await.unwrap(), 6);
    assert!(semaphore.try_acquire(6).await.unwrap());
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    let semaphore = counting(&ours, 5).await;
    for error in [
        semaphore.acquire(0).await.unwrap_err(),
        semaphore.acquire(6).await.unwrap_err(),
        semaphore.try_acquire(6).await.unwrap_err(),
        semaphore.release(0).await.unwrap_err(),
        semaphore.set_permits(0).await.unwrap_err(),
        counting(&ours, 0).await.acquire(1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::BadCount, "{error}");
    }
    let nameless = ours.semaphore("", 5).counting();
    let error = nameless.acquire(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadName);
    assert_eq!(raw.cmd(&["DBSIZE"]).await.int(), 0);
    raw.cmd(&["HSET", "a", "field", "1"]).await;
    for error in [
        semaphore.acquire(1).await.unwrap_err(),
        semaphore.release(1).await.unwrap_err(),
        semaphore.available().await.unwrap_err(),
        semaphore.try_set_permits(1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    }
}

#[tokio::test]
async fn those_who_wait_are_served_in_their_order_also_the_large() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let holder = locks(&server).await;
    let all = counting(&holder, 4).await;
    all.acquire(4).await.unwrap();
    let (large, small) = (locks(&server).await, locks(&server).await);
    let (large_one, small_one) = (counting(&large, 4).await, counting(&small, 4).await);
    let first = in_line(&mut raw, &large, &large_one, 3).await;
    let second = in_line(&mut raw, &small, &small_one, 1).await;
    for _ in 0..2 {
        all.release(1).await.unwrap();
        // It comes back to the line, and keeps what is free.
        until("the first keeps it", async || {
            tickets(&mut raw, "a").await == 2
        })
        .await;
        assert!(!first.is_finished() && !second.is_finished());
        assert_eq!(value(&mut raw).await, "0");
        assert_eq!(all.available().await.unwrap(), 0);
        assert!(!all.try_acquire(1).await.unwrap());
    }
    all.release(1).await.unwrap();
    done(first).await;
    assert!(!second.is_finished());
    all.release(1).await.unwrap();
    done(second).await;
    large_one.release(4).await.unwrap();
    assert_eq!(all.available().await.unwrap(), 4);
}

#[tokio::test]
async fn a_grant_that_nobody_confirms_comes_back() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let (holder, ours) = (
        locks(&server).await,
        Locks::connect(proxy.url()).await.unwrap(),
    );
    let (all, semaphore) = (counting(&holder, 4).await, counting(&ours, 4).await);
    all.acquire(4).await.unwrap();
    let _waiter = in_line(&mut raw, &ours, &semaphore, 2).await;
    // It hears the grant no more, and the server does not know that.
    proxy.blackhole();
    all.release(2).await.unwrap();
    assert_eq!(value(&mut raw).await, "0");
    until("the reservation is over", async || {
        all.available().await.unwrap() == 2
    })
    .await;
    assert!(
        within("what came back", all.try_acquire_for(2, ms(9_000)))
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn dropped_at_any_await_it_takes_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let (semaphore, other) = (counting(&ours, 2).await, counting(&theirs, 2).await);
    for contended in [false, true] {
        for n in 0..1_000 {
            if contended {
                other.acquire(2).await.unwrap();
                let other = other.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(ms(5)).await;
                    other.release(2).await.unwrap();
                });
            }
            let taken = cancel_at(semaphore.acquire(2), n).await;
            if taken.is_some() {
                semaphore.release(2).await.unwrap();
            }
            until("all are free", async || value(&mut raw).await == "2").await;
            nobody_in_line(&mut raw, "a").await;
            if taken.is_some() && n > 2 {
                break;
            }
        }
    }
}

/// A reply that is lost is asked for again, and nothing happens twice.
#[tokio::test]
async fn a_lost_reply_takes_and_gives_nothing_twice() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let ours = Locks::connect(proxy.url()).await.unwrap();
    let semaphore = counting(&ours, 9).await;
    let lose_reply = || {
        proxy.to_client(Fault::LoseReply {
            nth: 1,
            how: Cut::Rst,
        });
    };
    for round in 0..3 {
        lose_reply();
        within("permits", semaphore.acquire(3)).await.unwrap();
        assert_eq!(value(&mut raw).await, "6", "round {round}");
        lose_reply();
        within("the release", semaphore.release(3)).await.unwrap();
        assert_eq!(value(&mut raw).await, "9", "round {round}");
    }
}

#[tokio::test]
async fn beside_redisson_both_hear_of_releases() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap();
    let semaphore = counting(&ours, 3).await;
    let mut java = Ears::plain(&server, "redisson_sc:{a}").await;
    // `trySetPermits(3)`, `acquire(3)`
    raw.cmd(&["SET", "a", "3"]).await;
    raw.cmd(&["DECRBY", "a", "3"]).await;
    let waiter = in_line(&mut raw, &ours, &semaphore, 2).await;
    // `release(2)`
    raw.cmd(&["INCRBY", "a", "2"]).await;
    raw.cmd(&["PUBLISH", "redisson_sc:{a}", "2"]).await;
    done(waiter).await;
    assert_eq!(java.heard().await, ["2"]);
    semaphore.release(1).await.unwrap();
    assert_eq!(java.heard().await, ["1"]);
    assert_eq!(value(&mut raw).await, "1");
}

/// Redisson's acquire has no name: sent again, it takes again, and nobody gives that back.
#[tokio::test]
async fn permits_that_redisson_took_twice_are_gone_until_somebody_sets_them() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap();
    let semaphore = counting(&ours, 3).await;
    // `trySetPermits(3)`, `acquire()` twice, and one `release()`
    raw.cmd(&["SET", "a", "3"]).await;
    for change in ["DECR", "DECR", "INCR"] {
        raw.cmd(&[change, "a"]).await;
    }
    assert!(!semaphore.try_acquire_for(3, ms(300)).await.unwrap());
    assert_eq!(semaphore.available().await.unwrap(), 2);
    semaphore.set_permits(3).await.unwrap();
    within("all three", semaphore.acquire(3)).await.unwrap();
    assert_eq!(value(&mut raw).await, "0");
}
