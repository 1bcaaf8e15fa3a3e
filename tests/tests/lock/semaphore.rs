//! The semaphore as its users see it.
//!
//! Each `Locks` is a process to the server. Leases are 30 s and waits are shorter, unless a test says otherwise.

use std::collections::HashSet;
use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Holder, Interop, Locks, LostReason, Permit, Release, Semaphore};
use leasehold_testkit::{Raw, Server, calls};
use tokio::task::JoinHandle;

use crate::support::{
    assert_everything_expires, exists, line, locks, ms, nobody_in_line, pttl, scripts_run,
    short_locks, tickets, until, within,
};

async fn taken(raw: &mut Raw, name: &str) -> i64 {
    raw.cmd(&["ZCARD", &format!("{{{name}}}:timeout")])
        .await
        .int()
}

async fn available(semaphore: &Semaphore) -> u32 {
    semaphore.available().await.unwrap()
}

async fn acquired(semaphore: &Semaphore, permits: u32) -> Permit {
    within("permits", semaphore.acquire_many(permits).into_future())
        .await
        .unwrap()
}

/// A task that waits for permits with a ticket at the end of the line.
async fn in_line(
    raw: &mut Raw,
    locks: &Locks,
    semaphore: &Semaphore,
    permits: u32,
) -> JoinHandle<Permit> {
    let acquire = semaphore.acquire_many(permits).into_future();
    let waiter = tokio::spawn(async move { acquire.await.unwrap() });
    until("a ticket in line", async || {
        let line = line(raw, semaphore.key()).await;
        let own = |ticket: &String| ticket.starts_with(locks.client_id());
        line.iter().any(own)
    })
    .await;
    waiter
}

async fn its_turn(waiter: JoinHandle<Permit>) -> Permit {
    within("its turn", waiter).await.unwrap()
}

#[tokio::test]
async fn permits_are_held_and_given_back() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let (semaphore, other) = (ours.semaphore("a", 5), theirs.semaphore("a", 5));
    assert_eq!(available(&semaphore).await, 5);
    assert_eq!(semaphore.capacity().await.unwrap(), 5);
    assert!(!exists(&mut raw, "a").await, "asking changes nothing");

    let one = semaphore.acquire().await.unwrap();
    let three = other.acquire_many(3).await.unwrap();
    assert_eq!((one.num_permits(), three.num_permits()), (1, 3));
    assert!(one.is_held() && three.valid_for() > Duration::from_secs(20));
    assert_eq!((one.key(), three.acknowledged()), ("a", 0));
    assert_eq!(available(&semaphore).await, 1);
    assert!(semaphore.try_acquire_many(2).await.unwrap().is_none());
    let last = semaphore.try_acquire().await.unwrap().unwrap();
    assert!(other.try_acquire().await.unwrap().is_none());
    assert!(other.try_acquire_for(ms(50)).await.unwrap().is_none());
    assert!(
        other
            .try_acquire_many_for(2, ms(50))
            .await
            .unwrap()
            .is_none()
    );
    nobody_in_line(&mut raw, "a").await;

    assert_eq!(three.release().await.unwrap(), Release::Released);
    assert_eq!(available(&other).await, 3);
    drop((one, last));
    until("all are free", async || available(&other).await == 5).await;
    assert_eq!(taken(&mut raw, "a").await, 0);
    assert_everything_expires(&mut raw).await;
}

#[tokio::test]
async fn many_tries_at_once_get_all_there_are() {
    let server = Server::start().await;
    let ours = locks(&server).await;
    let semaphore = ours.semaphore("a", 8);
    let tries: Vec<_> = (0..20)
        .map(|_| tokio::spawn(semaphore.try_acquire().into_future()))
        .collect();
    let mut got = Vec::new();
    for one in tries {
        got.extend(one.await.unwrap().unwrap());
    }
    assert_eq!(got.len(), 8);
    assert_eq!(available(&semaphore).await, 0);
}

#[tokio::test]
async fn requests_that_can_never_be_granted_are_refused_at_once() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    for (capacity, permits, what) in [
        (0, 1, "1 to 2147483647 permits, not 0"),
        (5, 0, "at least one permit"),
        (5, 6, "6 permits were asked for, and there are 5"),
        (20_000, 10_001, "at most 10000 permits"),
        (u32::MAX, 1, "not 4294967295"),
    ] {
        let semaphore = ours.semaphore("a", capacity);
        for error in [
            semaphore.acquire_many(permits).await.unwrap_err(),
            semaphore.try_acquire_many(permits).await.unwrap_err(),
            semaphore
                .try_acquire_many_for(permits, ms(9_999))
                .await
                .unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::BadCount, "{error}");
            assert!(error.to_string().contains(what), "{error}");
            assert_eq!(error.key(), "a");
        }
    }
    let error = ours.semaphore("a", 5).set_permits(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadCount);
    for error in [
        ours.semaphore("a{", 5).acquire().await.unwrap_err(),
        ours.semaphore("", 5).available().await.unwrap_err(),
        ours.semaphore("a}b", 5).set_permits(3).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::BadName, "{error}");
    }
    assert_eq!(raw.cmd(&["DBSIZE"]).await.int(), 0);
}

#[tokio::test]
async fn a_disagreement_over_the_number_is_an_error_until_somebody_sets_it() {
    let server = Server::start().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let (five, three) = (ours.semaphore("a", 5), theirs.semaphore("a", 3));
    let held = five.acquire_many(2).await.unwrap();
    let disagrees = ErrorKind::CapacityDisagrees {
        server: 5,
        yours: 3,
    };
    for error in [
        three.acquire().await.unwrap_err(),
        three.try_acquire().await.unwrap_err(),
        three.try_acquire_for(ms(9_999)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), disagrees);
        let text = error.to_string();
        assert!(
            text.contains("5 in all there, 3 here (") || text.contains("5 in all there, 3 here;"),
            "{text}"
        );
        assert!(text.contains("set_permits()"), "{text}");
    }
    assert_eq!(three.capacity().await.unwrap(), 5);

    // Its clones know as well.
    let clone = three.clone();
    three.set_permits(3).await.unwrap();
    let more = clone.try_acquire().await.unwrap().unwrap();
    assert!(clone.try_acquire().await.unwrap().is_none());
    let error = five.acquire().await.unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::CapacityDisagrees {
            server: 3,
            yours: 5
        }
    ));
    // What was held before is held, and given back, all the same.
    assert_eq!(held.release().await.unwrap(), Release::Released);
    assert_eq!(available(&three).await, 2);

    // One that waits learns of it as well.
    let full = three.acquire_many(2).await.unwrap();
    let mut raw = server.raw().await;
    let acquire = three.acquire_many(3).into_future();
    let waiter = tokio::spawn(acquire);
    until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
    ours.semaphore("a", 2).set_permits(2).await.unwrap();
    drop((full, more));
    let error = within("the news", waiter).await.unwrap().unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::CapacityDisagrees {
            server: 2,
            yours: 3
        }
    ));
    nobody_in_line(&mut raw, "a").await;
    until("all are free", async || available(&three).await == 2).await;
}

#[tokio::test]
async fn permits_are_renewed_and_those_of_the_dead_come_back() {
    let server = Server::start().await;
    let (dying, ours) = (
        short_locks(&server, ms(900)).await,
        short_locks(&server, ms(900)).await,
    );
    let semaphore = ours.semaphore("a", 4);
    let held = semaphore.acquire_many(2).await.unwrap();
    let dead = dying.semaphore("a", 4).acquire().await.unwrap();
    // It is never renewed.
    let fixed = dying
        .semaphore("a", 4)
        .acquire()
        .lease(ms(700))
        .await
        .unwrap();
    assert_eq!(fixed.lost().await, LostReason::Expired);
    assert!(dead.is_held() && held.is_held());
    until("the fixed one is free", async || {
        available(&semaphore).await == 1
    })
    .await;
    // What forgets does as a crash would.
    dead.forget();
    drop(fixed);
    until("that of the dead is free", async || {
        available(&semaphore).await == 2
    })
    .await;
    for _ in 0..3 {
        tokio::time::sleep(ms(600)).await;
        assert!(held.is_held(), "it is renewed");
        assert_eq!(available(&semaphore).await, 2);
    }
}

#[tokio::test]
async fn a_longest_hold_ends() {
    let server = Server::start().await;
    let ours = short_locks(&server, ms(900)).await;
    let semaphore = ours.semaphore("a", 1);
    let held = semaphore.acquire().max_hold(ms(1_300)).await.unwrap();
    assert_eq!(within("its end", held.lost()).await, LostReason::MaxHold);
    let next = within("the next", semaphore.acquire().into_future())
        .await
        .unwrap();
    assert!(next.is_held() && !held.is_held());
}

#[tokio::test]
async fn a_large_request_is_not_starved_by_small_ones() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let large = locks(&server).await;
    let mut small = Vec::new();
    for _ in 0..3 {
        let locks = locks(&server).await;
        for _ in 0..3 {
            let semaphore = locks.semaphore("a", 5);
            small.push(tokio::spawn(async move {
                loop {
                    let one = semaphore.acquire().await.unwrap();
                    tokio::time::sleep(ms(1)).await;
                    drop(one);
                }
            }));
        }
    }
    let semaphore = large.semaphore("a", 5);
    until("the small ones are busy", async || {
        calls(&mut raw, "evalsha").await > 200
    })
    .await;
    for _ in 0..20 {
        let all = acquired(&semaphore, 5).await;
        assert_eq!(taken(&mut raw, "a").await, 5);
        assert_eq!(all.release().await.unwrap(), Release::Released);
    }
    for one in small {
        let one: JoinHandle<()> = one;
        one.abort();
    }
}

#[tokio::test]
async fn processes_are_served_in_the_order_of_their_requests() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let holder = locks(&server).await;
    let all = holder.semaphore("a", 3).acquire_many(3).await.unwrap();
    let mut waiters = Vec::new();
    for permits in [2, 3, 1, 1] {
        let locks = locks(&server).await;
        let semaphore = locks.semaphore("a", 3);
        waiters.push((in_line(&mut raw, &locks, &semaphore, permits).await, locks));
    }
    drop(all);
    let mut waiters = waiters.into_iter().map(|(waiter, _)| waiter);
    let two = its_turn(waiters.next().unwrap()).await;
    assert_eq!(two.num_permits(), 2);
    until("the next keeps the rest", async || {
        taken(&mut raw, "a").await == 3
    })
    .await;
    assert_eq!(tickets(&mut raw, "a").await, 3);
    drop(two);
    let three = its_turn(waiters.next().unwrap()).await;
    let (one, another) = (waiters.next().unwrap(), waiters.next().unwrap());
    assert!(!one.is_finished() && !another.is_finished());
    drop(three);
    let both = (its_turn(one).await, its_turn(another).await);
    assert_eq!(taken(&mut raw, "a").await, 2);
    drop(both);
}

/// Of a process only one stands in line, and only that one costs the server anything.
#[tokio::test]
async fn a_thousand_waiters_of_a_process_cost_what_one_does() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, holder) = (locks(&server).await, locks(&server).await);
    let semaphore = ours.semaphore("a", 2);
    let held = holder.semaphore("a", 2).acquire_many(2).await.unwrap();
    let waiters: Vec<_> = (0..1_000)
        .map(|_| {
            let acquire = semaphore.acquire().into_future();
            tokio::spawn(async move { acquire.await.unwrap() })
        })
        .collect();
    until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
    let (before, since) = (scripts_run(&mut raw).await, Instant::now());
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!(tickets(&mut raw, "a").await, 1);
    let looks = scripts_run(&mut raw).await - before;
    let most = 2 + since.elapsed().as_secs();
    assert!(looks <= most, "{looks} looks in {:?}", since.elapsed());
    drop(held);
    for waiter in waiters {
        drop(its_turn(waiter).await);
    }
    until("all are free", async || available(&semaphore).await == 2).await;
}

#[tokio::test]
async fn a_hold_can_be_split_and_merged() {
    let server = Server::start().await;
    let ours = short_locks(&server, ms(900)).await;
    let semaphore = ours.semaphore("a", 10);
    let mut all = semaphore.acquire_many(6).await.unwrap();
    assert!(all.split(7).is_none());
    let four = all.split(4).unwrap();
    assert_eq!((all.num_permits(), four.num_permits()), (2, 4));
    assert_eq!(available(&semaphore).await, 4, "nothing was sent");
    assert_eq!(four.release().await.unwrap(), Release::Released);
    assert_eq!(available(&semaphore).await, 8);
    // The rest is renewed.
    tokio::time::sleep(ms(1_500)).await;
    assert!(all.is_held());
    assert_eq!(available(&semaphore).await, 8);

    // Of one hold again, and of several.
    let part = all.split(1).unwrap();
    all.merge(part);
    let mut more = semaphore.acquire_many(3).await.unwrap();
    let one = more.split(1).unwrap();
    all.merge(one);
    all.merge(more);
    assert_eq!((all.num_permits(), available(&semaphore).await), (5, 5));
    let cancelled = all.cancellation();
    tokio::time::sleep(ms(1_200)).await;
    assert!(all.is_held() && !cancelled.is_cancelled());
    let some = all.split(4).unwrap();
    assert_eq!((all.num_permits(), some.num_permits()), (1, 4));
    drop(all);
    until("one more is free", async || {
        available(&semaphore).await == 6
    })
    .await;
    assert_eq!(some.release().await.unwrap(), Release::Released);
    assert_eq!(available(&semaphore).await, 10);
    assert!(cancelled.is_cancelled());

    // None, and all.
    let mut two = semaphore.acquire_many(2).await.unwrap();
    let none = two.split(0).unwrap();
    let both = two.split(2).unwrap();
    assert_eq!((none.num_permits(), two.num_permits()), (0, 0));
    drop((none, two));
    assert_eq!(available(&semaphore).await, 8);
    assert_eq!(both.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn merged_permits_are_lost_when_one_of_them_is() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = short_locks(&server, ms(900)).await;
    let semaphore = ours.semaphore("a", 10);
    let mut kept = semaphore.acquire_many(2).await.unwrap();
    let fixed = semaphore.acquire().lease(ms(600)).await.unwrap();
    kept.merge(fixed);
    let cancelled = kept.cancellation();
    let error = kept.run(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(error.reason(), LostReason::Expired);
    within("the token", cancelled.cancelled()).await;
    assert!(!kept.is_held());
    assert_eq!(kept.valid_for(), Duration::ZERO);
    drop(kept);
    until("all are free", async || taken(&mut raw, "a").await == 0).await;
}

#[tokio::test]
#[should_panic(expected = "cannot be merged")]
async fn permits_of_different_semaphores_cannot_be_merged() {
    let server = Server::start().await;
    let ours = locks(&server).await;
    let mut a = ours.semaphore("a", 1).acquire().await.unwrap();
    a.merge(ours.semaphore("b", 1).acquire().await.unwrap());
}

#[tokio::test]
async fn what_is_forgotten_stays_taken_until_its_lease_ends() {
    let server = Server::start().await;
    let ours = short_locks(&server, ms(1_200)).await;
    let semaphore = ours.semaphore("a", 5);
    let mut held = semaphore.acquire_many(3).await.unwrap();
    held.split(2).unwrap().forget();
    assert_eq!((held.num_permits(), available(&semaphore).await), (1, 2));
    until("they come back", async || available(&semaphore).await == 4).await;
    assert!(held.is_held());
    let lost = held.lost();
    held.forget();
    assert_eq!(within("its end here", lost).await, LostReason::Released);
    assert_eq!(available(&semaphore).await, 4);
    until("it comes back", async || available(&semaphore).await == 5).await;
}

#[tokio::test]
async fn holders_learn_that_the_server_lost_them() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let lease = Duration::from_secs(9);
    let ours = short_locks(&server, lease).await;
    let semaphore = ours.semaphore("a", 5);
    let begin = Instant::now();
    let held = semaphore.acquire_many(3).await.unwrap();
    // One of the three is enough, and the others come back with the release.
    let permit = raw.cmd(&["ZRANGE", "{a}:timeout", "1", "1"]).await;
    let leasehold_testkit::RawValue::Bulk(id) = &permit.array()[0] else {
        panic!("{permit:?}");
    };
    raw.cmd(&[&b"ZREM"[..], b"{a}:timeout", id]).await;
    assert_eq!(within("the news", held.lost()).await, LostReason::Stolen);
    assert_eq!(available(&semaphore).await, 3);
    assert_eq!(held.release().await.unwrap(), Release::AlreadyGone);
    assert_eq!(available(&semaphore).await, 5);
    assert!(begin.elapsed() < lease, "not by their expiry");
}

#[tokio::test]
async fn ten_thousand_holds_of_one_process() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    let semaphore = ours.semaphore("a", 10_000);
    let mut held = Vec::new();
    for _ in 0..100 {
        let tries: Vec<_> = (0..100)
            .map(|_| tokio::spawn(semaphore.try_acquire().into_future()))
            .collect();
        for one in tries {
            held.push(one.await.unwrap().unwrap().expect("one is free"));
        }
    }
    assert_eq!(available(&semaphore).await, 0);
    let members = raw.cmd(&["ZRANGE", "{a}:timeout", "0", "-1"]).await;
    let different: HashSet<_> = members.array().iter().map(|id| format!("{id:?}")).collect();
    assert_eq!(different.len(), 10_000);
    drop(held);
    until("all are free", async || {
        available(&semaphore).await == 10_000
    })
    .await;
}

#[tokio::test]
async fn beside_redisson_the_first_in_line_hears_its_releases() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let beside = Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap();
    raw.cmd(&["SET", "a", "3"]).await;
    let semaphore = beside.semaphore("a", 3);
    let mine = semaphore.acquire().await.unwrap();
    assert_eq!(
        (
            pttl(&mut raw, "a").await,
            pttl(&mut raw, "{a}:timeout").await
        ),
        (-1, -1)
    );
    for id in ["java-permit-0001", "java-permit-0002"] {
        raw.cmd(&["DECRBY", "a", "1"]).await;
        raw.cmd(&["ZADD", "{a}:timeout", "922337203685477", id])
            .await;
    }
    let waiter = in_line(&mut raw, &beside, &semaphore, 2).await;
    // `release(id)`, one by one; each time another Java thread is quick to take what is free.
    for id in ["java-permit-0001", "java-permit-0002"] {
        raw.cmd(&["ZREM", "{a}:timeout", id]).await;
        raw.cmd(&["INCRBY", "a", "1"]).await;
        raw.cmd(&["PUBLISH", "redisson_sc:{a}", "1"]).await;
        until("it is kept or taken", async || {
            raw.cmd(&["GET", "a"]).await.str() == "0"
        })
        .await;
    }
    let two = its_turn(waiter).await;
    assert_eq!(two.num_permits(), 2);
    drop((mine, two));
    until("all are free", async || {
        raw.cmd(&["GET", "a"]).await.str() == "3"
    })
    .await;
}

#[tokio::test]
async fn inspection_tells_who_holds_and_who_waits() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let (semaphore, other) = (ours.semaphore("a", 6), theirs.semaphore("a", 6));
    assert_eq!(semaphore.inspect().await.unwrap().holders(), []);
    let _two = semaphore.acquire_many(2).await.unwrap();
    let _three = other.acquire_many(3).await.unwrap();
    let id = [0xab_u8; 16];
    raw.cmd(&[b"ZADD", &b"{a}:timeout"[..], b"922337203685477", &id])
        .await;
    raw.cmd(&["DECRBY", "a", "1"]).await;
    let before = calls(&mut raw, "zrangebyscore").await;
    let seen = semaphore.inspect().await.unwrap();
    let after = calls(&mut raw, "zrangebyscore").await;
    assert_eq!(after - before, 1, "one round trip");
    // They come by their expiry, which a renewal moves.
    let mut holders: Vec<_> = seen.holders().iter().collect();
    holders.sort_by_key(|holder| (holder.remaining().is_none(), holder.count()));
    let [first, second, java] = holders[..] else {
        panic!("{seen:?}");
    };
    assert_eq!((first.client(), first.count()), (ours.client_id(), 2));
    assert!(first.remaining().unwrap() > Duration::from_secs(20));
    // The server knows a part of the id, by which it can be told.
    let (start, end) = second.client().split_once('…').unwrap();
    let known = theirs.client_id();
    assert!(
        known.starts_with(start) && known.ends_with(end),
        "{known} {start} {end}"
    );
    assert_eq!(second.count(), 3);
    assert_eq!((java.id(), java.count()), ("ab".repeat(16).as_str(), 1));
    assert_eq!(java.remaining(), None);

    let waiter = in_line(&mut raw, &theirs, &other, 4).await;
    let seen = semaphore.inspect().await.unwrap();
    assert_eq!((seen.waiting(), seen.waiters()[0].permits()), (1, 4));
    assert_eq!(seen.waiters()[0].client(), known);
    let is_known = |holder: &Holder| holder.client() == known;
    assert!(seen.holders().iter().any(is_known), "now it is known");
    waiter.abort();
}
