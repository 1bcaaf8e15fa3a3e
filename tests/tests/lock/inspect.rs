//! What can be seen of a lock without changing it.

use std::time::{Duration, SystemTime};

use leasehold::ErrorKind;
use leasehold_testkit::{Server, calls};

use crate::scripts::{self, A, B, LINE, TOKEN, sources};
use crate::support::{locks, until, within};

#[tokio::test]
async fn inspecting_tells_the_holder_and_the_waiters_in_their_order() {
    let server = Server::start().await;
    let (holder, first, second) = (
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
    );
    let mutex = holder.mutex("a");
    let free = mutex.inspect().await.unwrap();
    assert_eq!((free.holders().len(), free.waiting()), (0, 0));

    let before = SystemTime::now() - Duration::from_secs(1);
    let guard = mutex.lock().await.unwrap();
    let mut waiting = Vec::new();
    for (place, waiter) in [&first, &second].into_iter().enumerate() {
        let waiter = waiter.mutex("a");
        waiting.push(tokio::spawn(async move { waiter.lock().await }));
        until("a place in line", async || {
            mutex.inspect().await.unwrap().waiting() == place as u64 + 1
        })
        .await;
    }

    let seen = first.mutex("a").inspect().await.unwrap();
    let [held] = seen.holders() else {
        panic!("{seen:?}");
    };
    assert_eq!((held.client(), held.count()), (holder.client_id(), 1));
    assert_eq!(held.token(), Some(guard.token()));
    assert!(held.remaining().unwrap() <= Duration::from_secs(30));
    assert!(held.since().unwrap() >= before && held.since().unwrap() <= SystemTime::now());
    let clients: Vec<_> = seen.waiters().iter().map(|one| one.client()).collect();
    assert_eq!(clients, [first.client_id(), second.client_id()]);
    assert!(seen.waiters()[0].since() < seen.waiters()[1].since());
    assert_eq!(seen.waiters()[0].permits(), 0);

    drop(guard);
    for waiter in waiting {
        drop(within("its turn", waiter).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn inspecting_is_one_round_trip_that_writes_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    // A fixed lease, so that no renewal is counted.
    let mutex = locks.mutex("a");
    let guard = mutex.lock().lease(Duration::from_secs(60)).await.unwrap();
    mutex.inspect().await.unwrap();
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    mutex.inspect().await.unwrap();
    assert_eq!(calls(&mut raw, "evalsha").await, 1);
    for write in ["hset", "set", "zadd", "pexpire", "hdel", "del", "zrem"] {
        assert_eq!(calls(&mut raw, write).await, 0, "{write}");
    }
    drop(guard);
}

#[tokio::test]
async fn a_damaged_line_or_counter_hides_no_holder() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    raw.cmd(&["SET", "leasehold_line:{a}", "x", "PX", "60000"])
        .await;
    raw.cmd(&["DEL", "redisson_lock_token:{a}"]).await;
    raw.cmd(&["HSET", "redisson_lock_token:{a}", "f", "v"])
        .await;
    let seen = locks.mutex("a").inspect().await.unwrap();
    assert_eq!((seen.holders().len(), seen.waiting()), (1, 0));
    assert_eq!(
        (seen.holders()[0].token(), seen.holders()[0].since()),
        (None, None)
    );
    drop(guard);

    raw.cmd(&["HSET", "user", "name", "Ann"]).await;
    let error = locks.mutex("user").inspect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType);
    raw.cmd(&["HSET", "b", "4c0e:77", "3"]).await;
    let seen = locks.mutex("b").inspect().await.unwrap();
    assert_eq!(seen.holders()[0].remaining(), None, "it has no expiry");
    assert_eq!(
        (seen.holders()[0].client(), seen.holders()[0].count()),
        ("4c0e", 3)
    );
}

#[tokio::test]
async fn the_script_tells_every_holder_and_a_hundred_tickets() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let inspect = [sources::INSPECT_ALL, "L", TOKEN, LINE];
    let [text, keys @ ..] = inspect;
    let free = scripts::run(&mut raw, text, &keys, &[]).await;
    assert_eq!((free.array()[0].int(), free.array()[4].int()), (-2, 0));

    raw.cmd(&[
        "HSET",
        "L",
        "mode",
        "read",
        &format!("{A}:1"),
        "2",
        &format!("{B}:1"),
        "1",
    ])
    .await;
    raw.cmd(&["PEXPIRE", "L", "30000"]).await;
    for place in 0..150 {
        let (score, ticket) = (place.to_string(), format!("{A}:{place}"));
        raw.cmd(&["ZADD", LINE, &score, &ticket]).await;
    }
    let held = scripts::run(&mut raw, text, &keys, &[]).await;
    let parts = held.array();
    assert!(parts[0].int() > 20_000);
    assert_eq!(parts[1].array().len(), 4, "two holders with their counts");
    assert_eq!(parts[2].str(), "");
    assert_eq!((parts[3].array().len(), parts[4].int()), (200, 150));
}
