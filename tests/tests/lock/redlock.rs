//! Locks that a majority of five servers grants: what they write, who they exclude, and what is left.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, LostReason, Redlock, RedlockGuard, Release};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::{Cut, Fault, Proxy, Raw, RawValue, Replicas, Server, calls, ms};

use crate::support::{assert_everything_expires, exists, fields, locks, pttl, until, within};

/// More awaits than an acquisition has.
const MANY: usize = 1_000;

pub(crate) async fn servers(count: usize) -> Vec<Server> {
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(Server::start().await);
    }
    servers
}

/// Locks at servers that were just started: they have nothing to forget.
pub(crate) async fn over(servers: &[Server], lease: Duration) -> Redlock {
    let urls = servers.iter().map(Server::url);
    let red = Redlock::builder(urls).lease(lease).durable().connect();
    within("a connect", red).await.unwrap()
}

pub(crate) async fn taken(red: &Redlock, name: &str) -> RedlockGuard {
    within("the lock", red.mutex(name).lock().into_future())
        .await
        .unwrap()
}

/// Number of these servers that have a key called `name`.
pub(crate) async fn having(servers: &[Server], name: &str) -> usize {
    let mut having = 0;
    for server in servers.iter().filter(|server| server.is_awake()) {
        having += usize::from(exists(&mut server.raw().await, name).await);
    }
    having
}

/// No lock is left, and everything else has an expiry.
pub(crate) async fn nothing_is_left(servers: &[Server], name: &str) {
    until("nothing is left", async || having(servers, name).await == 0).await;
    for server in servers.iter().filter(|server| server.is_awake()) {
        assert_everything_expires(&mut server.raw().await).await;
    }
}

#[tokio::test]
async fn all_nodes_have_the_same_hold_and_all_are_released() {
    let servers = servers(5).await;
    let (ours, theirs) = (
        over(&servers, Duration::from_secs(10)).await,
        over(&servers, Duration::from_secs(10)).await,
    );
    let guard = taken(&ours, "a").await;
    assert!(guard.is_held() && guard.token().is_none());
    assert!(guard.valid_for() > Duration::from_secs(8));
    until("the others have joined", async || {
        having(&servers, "a").await == 5
    })
    .await;
    let mut holders = BTreeSet::new();
    for server in &servers {
        let mut raw = server.raw().await;
        holders.insert(fields(&mut raw, "a").await);
        assert!(pttl(&mut raw, "a").await > 8_000);
    }
    assert_eq!(holders.len(), 1, "{holders:?}");
    assert!(theirs.mutex("a").try_lock().await.unwrap().is_none());
    assert!(ours.mutex("a").try_lock().await.unwrap().is_none());
    let waited = theirs.mutex("a").try_lock_for(ms(80)).await;
    assert!(waited.unwrap().is_none());
    // The mutex of a single node is excluded too.
    let single = locks(&servers[0]).await;
    assert!(single.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    nothing_is_left(&servers, "a").await;
    drop(taken(&theirs, "a").await);
    nothing_is_left(&servers, "a").await;
}

#[tokio::test]
async fn tokens_grow_from_holder_to_holder_whichever_nodes_they_had() {
    let servers = servers(5).await;
    let (ours, theirs) = (
        over(&servers, Duration::from_secs(4)).await,
        over(&servers, Duration::from_secs(4)).await,
    );
    let mut last = 0;
    for round in 0..10 {
        // Two nodes are out, others each time; and one counter is ahead of all the others.
        let out = [round % 5, (round + 2) % 5];
        let ahead = servers[(round + 1) % 5]
            .raw()
            .await
            .cmd(&["INCRBY", "redisson_lock_token:{a}", "1000"])
            .await;
        assert!(ahead.int() > 0);
        for &at in &out {
            servers[at].pause();
        }
        let red = if round % 2 == 0 { &ours } else { &theirs };
        let guard = within("the lock", red.mutex("a").lock().fenced().into_future()).await;
        let guard = guard.unwrap();
        let token = guard.token().expect("it is fenced").as_u64();
        assert!(token > last, "round {round}: {token} after {last}");
        last = token;
        let mut written = 0;
        for server in servers.iter().filter(|server| server.is_awake()) {
            let counter = server
                .raw()
                .await
                .cmd(&["GET", "redisson_lock_token:{a}"])
                .await;
            written += usize::from(counter.str().parse::<u64>().unwrap() >= token);
        }
        assert!(written >= 3, "at a majority");
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        for &at in &out {
            servers[at].resume();
        }
        nothing_is_left(&servers, "a").await;
    }
}

#[tokio::test]
async fn what_others_have_of_a_majority_is_no_lock_and_the_rest_is_given_back() {
    let servers = servers(5).await;
    let red = over(&servers, Duration::from_secs(10)).await;
    for server in &servers[..3] {
        let mut raw = server.raw().await;
        raw.cmd(&["HSET", "a", "somebody:1", "1"]).await;
        raw.cmd(&["PEXPIRE", "a", "20000"]).await;
    }
    for round in 1..=4 {
        assert!(red.mutex("a").try_lock().await.unwrap().is_none());
        until("it is given back", async || {
            having(&servers[3..], "a").await == 0
        })
        .await;
        for server in &servers[3..] {
            let mut raw = server.raw().await;
            assert_eq!(calls(&mut raw, "hset").await, round, "granted once a try");
            assert_eq!(
                calls(&mut raw, "hdel").await,
                round,
                "and released as often"
            );
        }
    }
    // A minority of others is none of our concern.
    servers[0].raw().await.cmd(&["DEL", "a"]).await;
    let guard = red
        .mutex("a")
        .try_lock()
        .await
        .unwrap()
        .expect("three of five");
    assert_eq!(having(&servers, "a").await, 5);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(having(&servers[1..3], "a").await, 2, "theirs are untouched");
}

/// What an attempt takes of the rest and gives back is a message there. It wakes nobody.
#[tokio::test]
async fn waiters_behind_a_bare_majority_wake_neither_themselves_nor_each_other() {
    let servers = servers(5).await;
    let clients = [
        over(&servers, Duration::from_secs(10)).await,
        over(&servers, Duration::from_secs(10)).await,
    ];
    for server in &servers[..3] {
        let mut raw = server.raw().await;
        raw.cmd(&["HSET", "a", "somebody:1", "1"]).await;
        raw.cmd(&["PEXPIRE", "a", "60000"]).await;
    }
    let began = Instant::now();
    let waiters = clients.each_ref().map(|red| {
        let acquire = red.mutex("a").lock().into_future();
        tokio::spawn(async { acquire.await.unwrap().release().await.unwrap() })
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    let taken = calls(&mut servers[4].raw().await, "hset").await;
    // Ten times in quick succession at first, then four times a second; one message for another it would be thousands.
    let most = 2 * (20 + began.elapsed().as_millis() as u64 / 100);
    assert!(taken <= most, "taken {taken} times, of {most}");
    for server in &servers[..3] {
        let mut raw = server.raw().await;
        raw.cmd(&["DEL", "a"]).await;
        raw.cmd(&["PUBLISH", "redisson_lock__channel:{a}", "0"])
            .await;
    }
    for waiter in waiters {
        let released = within("its turn", waiter).await.unwrap();
        assert_eq!(released, Release::Released);
    }
    nothing_is_left(&servers, "a").await;
}

#[tokio::test]
async fn clients_that_contend_hold_it_one_at_a_time_and_all_get_it() {
    let servers = servers(5).await;
    let held = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for client in 0..4 {
        let red = over(&servers, Duration::from_secs(10)).await;
        let held = Arc::clone(&held);
        tasks.push(tokio::spawn(async move {
            for round in 0..8 {
                let lock = red.mutex("a").lock();
                let what = format!("client {client}, round {round}");
                let guard = if round % 2 == 0 {
                    within(&what, lock.fenced().into_future()).await
                } else {
                    within(&what, lock.into_future()).await
                };
                let guard = guard.unwrap();
                assert!(!held.swap(true, Ordering::SeqCst), "{what}: two holders");
                tokio::time::sleep(ms(3)).await;
                assert!(guard.is_held());
                held.store(false, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    nothing_is_left(&servers, "a").await;
}

/// A release is heard, so a wait for a long hold asks rarely, and ends with it all the same.
#[tokio::test]
async fn those_who_wait_ask_rarely_and_hear_of_a_release() {
    let servers = servers(3).await;
    let (ours, theirs) = (
        over(&servers, Duration::from_secs(10)).await,
        over(&servers, Duration::from_secs(10)).await,
    );
    let held = taken(&ours, "a").await;
    let waiter = tokio::spawn(theirs.mutex("a").lock().into_future());
    tokio::time::sleep(ms(1_000)).await;
    let mut raw = servers[0].raw().await;
    let scripts = async |raw: &mut Raw| calls(raw, "evalsha").await + calls(raw, "eval").await;
    let (before, since) = (scripts(&mut raw).await, Instant::now());
    tokio::time::sleep(ms(2_000)).await;
    let asked = scripts(&mut raw).await - before;
    let most = 10 * since.elapsed().as_secs();
    assert!(asked <= most, "{asked} scripts in {:?}", since.elapsed());
    assert_eq!(held.release().await.unwrap(), Release::Released);
    drop(within("its turn", waiter).await.unwrap().unwrap());
    let channel = "redisson_lock__channel:{a}";
    for server in &servers {
        let mut raw = server.raw().await;
        until("nobody listens any more", async || {
            let listening = raw.cmd(&["PUBSUB", "NUMSUB", channel]).await;
            listening.get(channel).unwrap().int() == 0
        })
        .await;
    }
    nothing_is_left(&servers, "a").await;
}

#[tokio::test]
async fn tasks_of_one_process_take_turns() {
    let servers = servers(3).await;
    let red = over(&servers, Duration::from_secs(10)).await;
    let held = taken(&red, "a").await;
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let lock = red.mutex("a").lock();
            tokio::spawn(async move { drop(lock.await.unwrap()) })
        })
        .collect();
    tokio::time::sleep(ms(200)).await;
    let mut raw = servers[0].raw().await;
    let asked = calls(&mut raw, "evalsha").await + calls(&mut raw, "eval").await;
    assert!(asked <= 4, "{asked} scripts while this process holds it");
    drop(held);
    for waiter in waiters {
        within("its turn", waiter).await.unwrap();
    }
    nothing_is_left(&servers, "a").await;
}

#[tokio::test]
async fn each_node_tells_who_holds_it_there() {
    let servers = servers(3).await;
    let red = over(&servers, Duration::from_secs(10)).await;
    let mutex = red.mutex("a");
    let guard = mutex.lock().fenced().await.unwrap();
    until("all have it", async || having(&servers, "a").await == 3).await;
    servers[2].kill();
    let told = mutex.inspect().await;
    assert_eq!(told.len(), 3);
    let id = |at: usize| told[at].as_ref().unwrap().holders()[0].id();
    assert_eq!(id(0), id(1));
    assert!(told[0].as_ref().unwrap().holders()[0].token() >= guard.token());
    let error = told[2].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.node(), servers[2].addr().to_string());
}

/// The replies of one node end anywhere; the others are a majority.
#[tokio::test]
async fn replies_that_are_cut_anywhere_leave_nothing_behind() {
    let servers = servers(3).await;
    let proxy = Proxy::start(servers[0].addr());
    let urls = [proxy.url(), servers[1].url(), servers[2].url()];
    let red = Redlock::builder(urls).durable().connect().await.unwrap();
    drop(taken(&red, "a").await);
    nothing_is_left(&servers, "a").await;
    for after in 0..40 {
        proxy.to_client(Fault::Cut {
            after,
            how: Cut::Rst,
        });
        let guard = within("the lock", red.mutex("a").lock().fenced().into_future()).await;
        let guard = guard.unwrap();
        assert!(guard.is_held());
        assert_eq!(
            guard.release().await.unwrap(),
            Release::Released,
            "cut after {after}"
        );
        proxy.heal();
        nothing_is_left(&servers, "a").await;
    }
}

/// The lease counts from before the request, and the answers were slow.
#[tokio::test]
async fn the_time_that_answers_took_is_not_trusted() {
    let servers = servers(3).await;
    let proxies: Vec<_> = servers
        .iter()
        .map(|server| Proxy::start(server.addr()))
        .collect();
    let lease = Duration::from_secs(10);
    let red = Redlock::builder(proxies.iter().map(Proxy::url))
        .lease(lease)
        .durable()
        .connect()
        .await
        .unwrap();
    let late = ms(300);
    for proxy in &proxies {
        proxy.to_client(Fault::Delay(late));
    }
    let asked = Instant::now();
    let guard = red.mutex("a").lock().lease(lease).await.unwrap();
    let left = guard.valid_for();
    let trusted = lease - lease / 100 - ms(2);
    assert!(left <= trusted - late, "{left:?}");
    assert!(left >= trusted - asked.elapsed(), "{left:?}");
    // Two of three were quick: the last one does not matter.
    drop(guard);
    for proxy in &proxies[..2] {
        proxy.heal();
    }
    nothing_is_left(&servers, "a").await;
    let guard = red.mutex("a").lock().lease(lease).await.unwrap();
    assert!(
        guard.valid_for() > trusted - late,
        "{:?}",
        guard.valid_for()
    );
}

#[tokio::test]
async fn leases_end_and_bodies_that_hang_do() {
    let servers = servers(3).await;
    let red = over(&servers, ms(900)).await;
    let renewed = taken(&red, "a").await;
    let fixed = red.mutex("b").lock().lease(ms(500)).await.unwrap();
    let bounded = red.mutex("c").lock().max_hold(ms(1_400)).await.unwrap();
    let token = fixed.cancellation();
    assert_eq!(within("its end", fixed.lost()).await, LostReason::Expired);
    assert!(token.is_cancelled() && !fixed.is_held());
    assert_eq!(within("its end", bounded.lost()).await, LostReason::MaxHold);
    let body = bounded.run(async {}).await;
    assert_eq!(body.unwrap_err().reason(), LostReason::MaxHold);
    tokio::time::sleep(ms(600)).await;
    assert!(renewed.is_held());
    assert_eq!(fixed.release().await.unwrap(), Release::AlreadyGone);
    assert_eq!(renewed.release().await.unwrap(), Release::Released);
    for name in ["a", "b", "c"] {
        nothing_is_left(&servers, name).await;
    }
}

/// The runtime of the caller is blocked for several leases.
#[tokio::test]
async fn renewals_need_no_runtime_of_the_caller() {
    let servers = servers(3).await;
    let red = over(&servers, ms(800)).await;
    let guard = taken(&red, "a").await;
    std::thread::sleep(Duration::from_secs(3));
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn dropped_at_any_await_it_leaves_nothing_behind() {
    let servers = servers(3).await;
    let (ours, theirs) = (
        over(&servers, Duration::from_secs(30)).await,
        over(&servers, Duration::from_secs(30)).await,
    );
    for is_busy in [false, true] {
        let mut n = 0;
        loop {
            if is_busy {
                let guard = taken(&theirs, "a").await;
                tokio::spawn(async move {
                    tokio::time::sleep(ms(10)).await;
                    drop(guard);
                });
            }
            let operation = ours.mutex("a").lock().fenced().into_future();
            let completed = cancel_at(operation, n).await;
            let is_done = completed.is_some();
            drop(completed);
            nothing_is_left(&servers, "a").await;
            let next = taken(&ours, "a").await;
            assert_eq!(next.release().await.unwrap(), Release::Released);
            nothing_is_left(&servers, "a").await;
            if is_done {
                break;
            }
            n += 1;
            assert!(n < MANY);
        }
        assert!(n >= 1, "{n} awaits");
    }
}

#[tokio::test]
async fn what_is_no_set_of_independent_nodes_is_refused() {
    let servers = servers(2).await;
    let none: [String; 0] = [];
    let error = Redlock::connect(none).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let twice = [servers[0].url(), servers[1].url(), servers[0].url()];
    let error = Redlock::builder(twice)
        .durable()
        .connect()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("the same server"), "{error}");
    let error = Redlock::connect(["redis://:secret@%"]).await.unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
    let bad = Redlock::builder([servers[0].url()])
        .lease(ms(1))
        .connect()
        .await;
    assert_eq!(bad.unwrap_err().kind(), ErrorKind::BadLease);

    let deployment = Replicas::start().await;
    let urls = [
        deployment.node(0).url(),
        deployment.node(1).url(),
        servers[0].url(),
    ];
    let error = Redlock::builder(urls)
        .durable()
        .connect()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("replica"), "{error}");

    let red = over(&servers, Duration::from_secs(10)).await;
    let error = red.mutex("").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadName);
    for server in &servers {
        server.raw().await.cmd(&["SET", "b", "x"]).await;
    }
    let error = red.mutex("b").lock().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.key()),
        (ErrorKind::WrongType, "b"),
        "{error}"
    );
}

const FENCE: &str = include_str!("../../../lock/src/protocol/redlock/fence.lua");

async fn fence(raw: &mut Raw, hold: &str, token: &str) -> RawValue {
    let keys = ["a", "redisson_lock_token:{a}"];
    raw.cmd(&["EVAL", FENCE, "2", keys[0], keys[1], hold, token, "600000"])
        .await
}

/// A late copy of the second phase, behind the next holder's first one, must change nothing.
#[tokio::test]
async fn a_token_is_written_only_where_its_hold_is() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["HSET", "a", "u:1", "1"]).await;
    raw.cmd(&["SET", "redisson_lock_token:{a}", "100"]).await;
    assert_eq!(fence(&mut raw, "u:1", "200").await.int(), 1);
    assert_eq!(
        fence(&mut raw, "u:1", "150").await.int(),
        1,
        "again, and older"
    );
    let counter = async |raw: &mut Raw| raw.cmd(&["GET", "redisson_lock_token:{a}"]).await;
    assert_eq!(counter(&mut raw).await.str(), "200");
    assert!(pttl(&mut raw, "redisson_lock_token:{a}").await > 0);
    assert_eq!(fence(&mut raw, "v:1", "300").await.int(), 0);
    assert_eq!(counter(&mut raw).await.str(), "200");
    raw.cmd(&["SET", "redisson_lock_token:{a}", "x"]).await;
    assert!(
        fence(&mut raw, "u:1", "300")
            .await
            .error()
            .unwrap()
            .contains("BADTOKEN")
    );
}
