//! The plain mutex: a string that other libraries write as well.

use std::time::Duration;

use leasehold::{ErrorKind, Guard, Interop, Locks, PlainMutex, Release};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::{Cut, Fault, Proxy, Raw, RawValue, Server};

use crate::support::{
    assert_everything_expires, connect, exists, locks, ms, nobody_in_line, pttl, renewed,
    short_locks, tickets, until, within,
};

async fn take(mutex: &PlainMutex) -> Guard {
    within("a lock", mutex.lock().into_future()).await.unwrap()
}

/// What redis-py and redsync do to take a lock and to give it back.
async fn set_nx(raw: &mut Raw, value: &str, ttl: &str) -> bool {
    raw.cmd(&["SET", "a", value, "NX", "PX", ttl]).await.is_ok()
}

async fn compare_and_delete(raw: &mut Raw, value: &str) -> bool {
    const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                           return redis.call('DEL', KEYS[1]) else return 0 end";
    raw.cmd(&["EVAL", RELEASE, "1", "a", value]).await.int() == 1
}

#[tokio::test]
async fn it_is_held_by_one_and_renewed_and_its_tokens_grow() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (short_locks(&server, ms(900)).await, locks(&server).await);
    let mutex = ours.plain_mutex("a");
    let first = take(&mutex).await;
    assert!(first.is_held() && first.token().as_u64() > 0);
    assert!(
        raw.cmd(&["GET", "a"])
            .await
            .str()
            .starts_with(ours.client_id())
    );
    assert!((1..=900).contains(&pttl(&mut raw, "a").await));
    assert_everything_expires(&mut raw).await;
    assert!(theirs.plain_mutex("a").try_lock().await.unwrap().is_none());
    assert!(mutex.try_lock().await.unwrap().is_none());
    renewed([&first]).await;
    assert!(
        theirs
            .plain_mutex("a")
            .try_lock_for(ms(100))
            .await
            .unwrap()
            .is_none()
    );
    let token = first.token();
    assert_eq!(first.release().await.unwrap(), Release::Released);
    assert!(!exists(&mut raw, "a").await);
    let second = take(&theirs.plain_mutex("a")).await;
    assert!(second.token() > token);
    drop(second);
    until("a free lock", async || !exists(&mut raw, "a").await).await;
    let fixed = mutex.lock().lease(ms(300)).await.unwrap();
    tokio::time::sleep(ms(350)).await;
    assert!(!fixed.is_held());
    assert_eq!(fixed.release().await.unwrap(), Release::AlreadyGone);
}

#[tokio::test]
async fn a_release_hands_it_to_the_next_process_in_line() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for interop in [Interop::Off, Interop::Redisson] {
        let mut clients = Vec::new();
        for _ in 0..3 {
            let builder = Locks::builder(server.url()).interop(interop);
            clients.push(builder.connect().await.unwrap());
        }
        let guard = take(&clients[0].plain_mutex("a")).await;
        let mut waiters = Vec::new();
        for (n, client) in clients[1..].iter().enumerate() {
            waiters.push(tokio::spawn(client.plain_mutex("a").lock().into_future()));
            until("a ticket", async || {
                tickets(&mut raw, "a").await == n as i64 + 1
            })
            .await;
        }
        let mut token = guard.token();
        drop(guard);
        // Leases are 30 s: it is the message that wakes.
        for waiter in waiters {
            let guard = within("its turn", waiter).await.unwrap().unwrap();
            assert!(guard.token() > token);
            token = guard.token();
        }
        nobody_in_line(&mut raw, "a").await;
        until("a free lock", async || !exists(&mut raw, "a").await).await;
        assert_everything_expires(&mut raw).await;
    }
}

#[tokio::test]
async fn many_waiters_of_one_process_pass_it_on() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let mutex = locks.plain_mutex("a");
    let guard = take(&mutex).await;
    let waiters: Vec<_> = (0..100)
        .map(|_| tokio::spawn(mutex.lock().into_future()))
        .collect();
    tokio::time::sleep(ms(50)).await;
    let mut token = guard.token();
    drop(guard);
    for waiter in waiters {
        let guard = within("its turn", waiter).await.unwrap().unwrap();
        assert!(guard.token() > token);
        token = guard.token();
    }
}

#[tokio::test]
async fn other_libraries_exclude_it_and_are_excluded() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let mutex = locks.plain_mutex("a");
    let guard = take(&mutex).await;
    assert!(!set_nx(&mut raw, "theirs", "30000").await);
    assert!(!compare_and_delete(&mut raw, "theirs").await);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    // With a lease, and with none, as redis-py's are by default.
    for ttl in ["30000", ""] {
        if ttl.is_empty() {
            assert!(raw.cmd(&["SET", "a", "theirs", "NX"]).await.is_ok());
        } else {
            assert!(set_nx(&mut raw, "theirs", ttl).await);
        }
        assert!(mutex.try_lock().await.unwrap().is_none());
        assert!(mutex.try_lock_for(ms(150)).await.unwrap().is_none());
        let waiter = tokio::spawn(mutex.lock().into_future());
        until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
        let seen = mutex.inspect().await.unwrap();
        assert_eq!(seen.holders()[0].id(), "theirs");
        assert_eq!((seen.waiters().len(), seen.waiting()), (1, 1));
        assert_eq!(raw.cmd(&["GET", "a"]).await.str(), "theirs");
        assert!(compare_and_delete(&mut raw, "theirs").await);
        // Long before any lease ends.
        let guard = within("a look", waiter).await.unwrap().unwrap();
        assert_eq!(
            mutex.inspect().await.unwrap().holders()[0].client(),
            locks.client_id()
        );
        assert!(!set_nx(&mut raw, "theirs", "30000").await);
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    assert!(mutex.inspect().await.unwrap().holders().is_empty());
    // One that is taken away by force is lost, and nothing of theirs is removed.
    let lost = short_locks(&server, ms(900)).await.plain_mutex("a");
    let guard = take(&lost).await;
    raw.cmd(&["SET", "a", "theirs", "PX", "30000"]).await;
    within("the loss", guard.lost()).await;
    drop(guard);
    tokio::time::sleep(ms(100)).await;
    assert_eq!(raw.cmd(&["GET", "a"]).await.str(), "theirs");
}

#[tokio::test]
async fn a_lost_reply_or_a_lost_key_harms_nobody() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let cut_off = connect(proxy.url()).await;
    let mutex = cut_off.plain_mutex("a");
    drop(take(&mutex).await);
    until("a free lock", async || !exists(&mut raw, "a").await).await;
    for how in [Cut::Rst, Cut::Fin] {
        proxy.to_client(Fault::LoseReply { nth: 1, how });
        let guard = take(&mutex).await;
        assert!(guard.is_held());
        proxy.to_client(Fault::LoseReply { nth: 1, how });
        let released = within("a release", guard.release()).await;
        if let Err(error) = released {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        }
        until("a free lock", async || !exists(&mut raw, "a").await).await;
    }
    // The counter, the line and the lock itself.
    let locks = locks(&server).await;
    let guard = take(&mutex).await;
    let waiter = tokio::spawn(locks.plain_mutex("a").lock().into_future());
    until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
    raw.cmd(&["DEL", "leasehold_token:{a}", "leasehold_line:{a}"])
        .await;
    let before = guard.token();
    drop(guard);
    let guard = within("a look", waiter).await.unwrap().unwrap();
    assert!(guard.token() > before);
    raw.cmd(&["DEL", "a"]).await;
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
}

#[tokio::test]
async fn a_key_of_another_type_is_refused_and_left_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let mutex = locks.plain_mutex("a");
    for error in [
        mutex.try_lock().await.unwrap_err(),
        mutex.lock().await.unwrap_err(),
        mutex.inspect().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    }
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let guard = take(&mutex).await;
    let error = locks.mutex("a").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    raw.cmd(&["SET", "leasehold_token:{a}", "x"]).await;
    let error = mutex.try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server, "{error}");
    assert!(!exists(&mut raw, "a").await);
    let counter = raw.cmd(&["GET", "leasehold_token:{a}"]).await;
    assert_eq!(counter, RawValue::Bulk("x".into()));
}

#[tokio::test]
async fn a_lock_that_is_dropped_at_any_await_leaves_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let mutex = ours.plain_mutex("a");
    let mut completed = 0;
    for n in 0..8 {
        // Of a free lock, and of one that is held and then released.
        drop(cancel_at(mutex.lock().into_future(), n).await);
        until("nothing is left", async || {
            !exists(&mut raw, "a").await && tickets(&mut raw, "a").await == 0
        })
        .await;
        let guard = take(&theirs.plain_mutex("a")).await;
        let both = async {
            let release = async {
                tokio::time::sleep(ms(5)).await;
                drop(guard);
            };
            tokio::join!(mutex.lock().into_future(), release).0
        };
        completed += usize::from(cancel_at(both, n * 2).await.is_some());
        until("nothing is left", async || {
            !exists(&mut raw, "a").await && tickets(&mut raw, "a").await == 0
        })
        .await;
    }
    assert!(completed < 8, "at least the first was dropped");
}

#[tokio::test]
async fn its_operations_cost_so_many_commands() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let mutex = locks.plain_mutex("a");
    // A fixed lease: nothing else asks the server meanwhile.
    let lease = Duration::from_secs(30);
    drop(mutex.lock().lease(lease).await.unwrap());
    until("a free lock", async || !exists(&mut raw, "a").await).await;
    let total = async |raw: &mut Raw| {
        let statistics = raw.cmd(&["INFO", "commandstats"]).await;
        let counts = statistics.str().lines().filter_map(|line| {
            let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let count = fields.strip_prefix("calls=")?.split(',').next()?;
            (name != "info").then(|| count.parse::<u64>().expect("a count"))
        });
        counts.sum::<u64>()
    };
    let before = total(&mut raw).await;
    let guard = mutex.lock().lease(lease).await.unwrap();
    let taken = total(&mut raw).await;
    guard.release().await.unwrap();
    let released = total(&mut raw).await;
    // EVALSHA, GET, TIME, SET of the counter, SET; and EVALSHA, GET, DEL, EXISTS.
    assert_eq!((taken - before, released - taken), (5, 4));
}
