//! Read-write locks under faults: operations that are dropped or cut, scripts that are forgotten, keys that vanish or are something
//! else. Leases are longer than any wait unless a test says otherwise: what is gone was released and has not expired.

use std::time::Duration;

use leasehold::{ErrorKind, Locks, LostReason, ReadGuard, Release, RwLock, WriteGuard};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::{Cut, Fault, Proxy, Raw, RawValue, Server};

use crate::rw_lock::{read, reader, turn, write, writer};
use crate::support::{
    assert_everything_expires, exists, fields, locks, ms, pttl, short_locks, tickets, until, within,
};

const LINE: &str = "leasehold_line:{a}";
const COUNTER: &str = "redisson_lock_token:{a}";

/// More awaits than any of these operations has.
const MANY: usize = 1_000;

/// No key, no ticket, and the lock can be taken in either way.
async fn nothing_is_left(raw: &mut Raw, lock: &RwLock, when: &str) {
    until(&format!("{when}: the release"), async || {
        !exists(raw, "a").await && tickets(raw, "a").await == 0
    })
    .await;
    until(&format!("{when}: a place in the queue"), async || {
        lock.try_write().await.unwrap().is_some()
    })
    .await;
    let next = within(&format!("{when}: the next"), lock.read().into_future()).await;
    let released = within("its release", next.unwrap().release()).await;
    assert_eq!(released.unwrap(), Release::Released, "{when}");
    let timeout_keys = raw.cmd(&["KEYS", "*rwlock_timeout*"]).await;
    assert_eq!(timeout_keys.array(), [], "{when}");
    assert_everything_expires(raw).await;
}

/// Makes the operation anew and drops it at its first await, its second, and so on until it completes.
async fn sweep<P, F: Future>(
    raw: &mut Raw,
    lock: &RwLock,
    prepare: impl AsyncFn() -> P,
    make: impl Fn(P) -> F,
) -> usize {
    for n in 0..MANY {
        let completed = cancel_at(make(prepare().await), n).await.is_some();
        nothing_is_left(raw, lock, &format!("dropped at await {n}")).await;
        if completed {
            return n;
        }
    }
    panic!("it never completes");
}

/// Keeps what was taken for a moment longer.
fn for_a_moment<G: Send + 'static>(guard: G) {
    tokio::spawn(async move {
        tokio::time::sleep(ms(20)).await;
        drop(guard);
    });
}

#[tokio::test]
async fn dropped_at_any_await_nothing_is_left() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let (lock, other) = (&ours.rw_lock("a"), &theirs.rw_lock("a"));
    let raw = &mut raw;

    let free = async || ();
    assert!(sweep(raw, lock, free, |()| lock.read().into_future()).await >= 1);
    assert!(sweep(raw, lock, free, |()| lock.write().into_future()).await >= 1);
    let written = async || for_a_moment(write(other).await);
    assert!(sweep(raw, lock, written, |()| lock.read().into_future()).await >= 1);
    assert!(sweep(raw, lock, written, |()| lock.write().into_future()).await >= 1);
    let read_there = async || for_a_moment(read(other).await);
    assert!(sweep(raw, lock, read_there, |()| lock.write().into_future()).await >= 1);
    let read_here = async || for_a_moment(read(lock).await);
    sweep(raw, lock, read_here, |()| lock.read().into_future()).await;
    assert!(sweep(raw, lock, read_here, |()| lock.write().into_future()).await >= 1);
    let writes = async || write(lock).await;
    assert!(sweep(raw, lock, writes, WriteGuard::downgrade).await >= 1);
    let reads = async || read(lock).await;
    assert!(sweep(raw, lock, reads, ReadGuard::try_upgrade).await >= 1);
    let beside = async || {
        for_a_moment(read(other).await);
        read(lock).await
    };
    assert!(sweep(raw, lock, beside, ReadGuard::try_upgrade).await >= 1);
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(900)).await;
    let lock = locks.rw_lock("a");
    for _ in 0..3 {
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        let reading = read(&lock).await;
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        let writing = reading.try_upgrade().await.unwrap().unwrap();
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        let reading = writing.downgrade().await.unwrap();
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        tokio::time::sleep(ms(1_000)).await;
        assert!(reading.is_held(), "its renewal");
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(reading.release().await.unwrap(), Release::Released);
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        write(&lock).await.release().await.unwrap();
    }
}

/// What is read or written is given up or given back, whichever byte of the answer the connection ends at.
#[tokio::test]
async fn cut_at_any_byte_of_an_answer_nothing_is_left() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let ours = Locks::builder(proxy.url())
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let lock = ours.rw_lock("a");
    let healthy = async || {
        until("a write", async || match lock.try_write().await {
            Ok(Some(guard)) => Ok(guard),
            other => Err(format!("{other:?}")),
        })
        .await
    };
    let mut said = [0; 2];
    for after in 0..26 {
        for operation in 0..6 {
            let writing = healthy().await;
            let (mut reads, mut writes) = (None, None);
            match operation {
                0 | 1 => drop(writing.release().await),
                2 | 3 => writes = Some(writing),
                _ => reads = writing.downgrade().await.ok(),
            }
            let how = Cut::Rst;
            proxy.to_client(Fault::Cut { after, how });
            let is_known = match operation {
                0 => lock.try_read().await.map(drop).is_ok(),
                1 => lock.try_write().await.map(drop).is_ok(),
                2 => writes.unwrap().downgrade().await.is_ok(),
                3 => writes.unwrap().release().await.is_ok(),
                4 => reads.unwrap().try_upgrade().await.is_ok(),
                _ => reads.unwrap().release().await.is_ok(),
            };
            said[usize::from(is_known)] += 1;
            proxy.heal();
            until(
                &format!("operation {operation} at byte {after}"),
                async || !exists(&mut raw, "a").await,
            )
            .await;
        }
    }
    // Most are asked again over the next connection, and answered.
    println!("{} without an answer, {} with one", said[0], said[1]);
    assert!(proxy.accepts() > 50, "{} connections", proxy.accepts());
}

/// The loss of each key in each state costs at most the holds of the lock, and they are told.
#[tokio::test]
async fn any_key_may_vanish() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (
        short_locks(&server, ms(900)).await,
        short_locks(&server, ms(900)).await,
    );
    let lock = ours.rw_lock("a");
    for key in ["a", LINE, COUNTER, "timeout"] {
        for writes in [true, false] {
            let (mut reading, mut writing) = (None, None);
            let (mut next_read, mut next_write) = (None, None);
            if writes {
                writing = Some(write(&lock).await);
                next_read = Some(reader(&mut raw, &theirs, "a").await);
            } else {
                reading = Some(read(&lock).await);
                next_write = Some(writer(&mut raw, &theirs, "a").await);
            }
            if key == "timeout" {
                for key in raw.cmd(&["KEYS", "*rwlock_timeout*"]).await.array() {
                    raw.cmd(&["DEL", key.str()]).await;
                }
            } else {
                raw.cmd(&["DEL", key]).await;
            }
            tokio::time::sleep(ms(1_500)).await;
            let is_held = match (&reading, &writing) {
                (Some(guard), _) => guard.is_held(),
                (_, Some(guard)) => guard.is_held(),
                _ => false,
            };
            // A writer that waits may find a reader without its timeout key gone before that is renewed.
            if key == LINE || key == COUNTER || key == "timeout" && writes {
                assert!(is_held, "{key} {writes}");
            } else if key == "a" {
                assert!(!is_held, "{key} {writes}");
            }
            drop((reading, writing));
            if let Some(next) = next_read {
                drop(turn(next).await);
            }
            if let Some(next) = next_write {
                drop(turn(next).await);
            }
            until("the end", async || !exists(&mut raw, "a").await).await;
        }
    }
}

#[tokio::test]
async fn a_line_or_a_counter_of_another_type_hides_no_end() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let lock = ours.rw_lock("a");
    raw.cmd(&["SET", LINE, "mine", "PX", "600000"]).await;
    let (reading, beside) = (read(&lock).await, read(&theirs.rw_lock("a")).await);
    drop(beside);
    assert_eq!(reading.release().await.unwrap(), Release::Released);
    let writing = write(&lock).await;
    assert!(theirs.rw_lock("a").try_read().await.unwrap().is_none());
    let reading = writing.downgrade().await.unwrap();
    assert_eq!(reading.release().await.unwrap(), Release::Released);
    assert_eq!(raw.cmd(&["GET", LINE]).await.str(), "mine");
    raw.cmd(&["DEL", LINE, COUNTER]).await;

    raw.cmd(&["HSET", COUNTER, "x", "y"]).await;
    let reading = read(&lock).await;
    assert!(reading.token().as_u64() > 0, "the time");
    let error = reading.try_upgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    until("it is released", async || !exists(&mut raw, "a").await).await;
    let error = lock.write().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert!(!exists(&mut raw, "a").await);
}

#[tokio::test]
async fn a_lock_without_an_expiry_is_an_error() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let lock = locks.rw_lock("a");
    raw.cmd(&["HSET", "a", "mode", "read", "u:1", "1"]).await;
    for error in [
        lock.read().await.unwrap_err(),
        lock.write().await.unwrap_err(),
        lock.remaining().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NoExpiry, "{error}");
    }
    assert!(lock.force_unlock().await.unwrap());
    drop(read(&lock).await);
}

/// The notice of the writer that waits is lost: the next renewal tells it.
#[tokio::test]
async fn a_lost_notice_is_made_up_for_by_the_next_renewal() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let ours = Locks::builder(proxy.url())
        .lease(ms(1_500))
        .connect()
        .await
        .unwrap();
    let theirs = locks(&server).await;
    let lock = ours.rw_lock("a");
    let reads = (read(&lock).await, read(&lock).await, read(&lock).await);
    proxy.to_client(Fault::DropMessages);
    let waiting = writer(&mut raw, &theirs, "a").await;
    let mut more = Vec::new();
    until("the gate is closed", async || {
        match lock.try_read().await.unwrap() {
            Some(read) => {
                more.push(read);
                false
            }
            None => true,
        }
    })
    .await;
    proxy.heal();
    println!("{} reads after the notice", more.len());
    drop((reads, more));
    drop(turn(waiting).await);
}

/// A reader that died keeps a writer out for what is left of its lease, and no longer, whoever reads beside it.
#[tokio::test]
async fn a_reader_that_died_ends_with_its_lease() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let died = "00000000-0000-4000-8000-000000000001:7";
    let timeout_key = format!("{{a}}:{died}:rwlock_timeout:1");
    raw.cmd(&["HSET", "a", "mode", "read", died, "1"]).await;
    raw.cmd(&["PEXPIRE", "a", "60000"]).await;
    raw.cmd(&["SET", &timeout_key, "1", "PX", "1200"]).await;
    let beside = read(&ours.rw_lock("a")).await;
    let waiting = writer(&mut raw, &theirs, "a").await;
    drop(beside);
    tokio::time::sleep(ms(100)).await;
    assert!(!waiting.is_finished());
    let start = std::time::Instant::now();
    let writing = turn(waiting).await;
    println!("{:?} after the last live reader", start.elapsed());
    assert!(pttl(&mut raw, "a").await <= 30_000);
    assert!(!fields(&mut raw, "a").await.contains(died));
    drop(writing);
}

/// The ticket of a writer that died is skipped.
#[tokio::test]
async fn a_writer_that_died_in_line_keeps_nobody_back() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let reading = read(&ours.rw_lock("a")).await;
    let died = "00000000-0000-4000-8000-000000000001:7w";
    raw.cmd(&["ZADD", LINE, "1", died]).await;
    raw.cmd(&["PEXPIRE", LINE, "60000"]).await;
    let behind = reader(&mut raw, &theirs, "a").await;
    assert!(!behind.is_finished());
    drop(reading);
    let read_there = turn(behind).await;
    assert_eq!(tickets(&mut raw, "a").await, 0);
    drop(read_there);
    raw.cmd(&["ZADD", LINE, "1", died]).await;
    raw.cmd(&["PEXPIRE", LINE, "60000"]).await;
    until("one that only tries", async || {
        theirs.rw_lock("a").try_write().await.unwrap().is_some()
    })
    .await;
}

#[tokio::test]
async fn a_hold_ends_with_its_process_or_its_locks() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let (lock, other) = (ours.rw_lock("a"), theirs.rw_lock("a"));
    let reading = read(&lock).await;
    let beside = read(&lock).await;
    let waiting = tokio::spawn(lock.write().into_future());
    until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
    within("a shutdown", ours.shutdown()).await.unwrap();
    assert_eq!(reading.lost().await, LostReason::Closed);
    assert_eq!(beside.lost().await, LostReason::Closed);
    let error = waiting.await.unwrap().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    let error = reading.try_upgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let writing = within("a write", other.write().into_future())
        .await
        .unwrap();
    assert_eq!(tickets(&mut raw, "a").await, 0);
    drop(writing);

    let short = theirs.rw_lock("b").write().max_hold(ms(400));
    let writing = short.await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    let end = within("the longest hold", reading.lost()).await;
    assert_eq!(end, LostReason::MaxHold);
    let channels = raw.cmd(&["PUBSUB", "CHANNELS"]).await;
    let own = |channel: &RawValue| channel.str().starts_with("leasehold:");
    assert!(channels.array().iter().all(own), "{channels:?}");
    assert!(reading.valid_for() == Duration::ZERO);
}
