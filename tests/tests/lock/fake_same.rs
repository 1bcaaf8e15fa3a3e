//! The fake does what a server does: one list of behaviours on both, and random commands with the same replies.

use std::time::Duration;

use leasehold::testing::Fake;
use leasehold::{ErrorKind, Locks, LostReason, Release};
use leasehold_testkit::chance::Chance;
use leasehold_testkit::{Raw, RawValue, Server};
use tokio::net::TcpListener;

use crate::support::{connect, until, within};

/// A listener whose connections are of `fake`, for clients that take an address.
pub(crate) async fn listen(fake: &Fake) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let fake = fake.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut session = fake.connect();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut socket, &mut session).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn a_server_and_the_fake_behave_alike() {
    let server = Server::start().await;
    let fake = Fake::new();
    let of_fake = (fake.locks().await.unwrap(), fake.locks().await.unwrap());
    let of_server = (connect(server.url()).await, connect(server.url()).await);
    for (here, there) in [&of_server, &of_fake] {
        mutexes(here, there).await;
        lines(here, there).await;
        readers_and_writers(here, there).await;
        several_at_once(here, there).await;
        permits(here, there).await;
        latches_and_barriers(here, there).await;
        plain(here, there).await;
        owners(here, there).await;
        wrong_types(here).await;
    }
}

async fn mutexes(here: &Locks, there: &Locks) {
    let (mine, theirs) = (here.mutex("a"), there.mutex("a"));
    let first = mine.lock().await.unwrap();
    assert!(theirs.try_lock().await.unwrap().is_none());
    assert!(mine.try_lock().await.unwrap().is_none());
    let holder = theirs.holder().await.unwrap().unwrap();
    assert_eq!(holder.client(), here.client_id());
    let left = theirs.remaining().await.unwrap().unwrap();
    assert!(left > Duration::from_secs(25) && left <= Duration::from_secs(30));
    let waiting = tokio::spawn(theirs.lock().into_future());
    until("the waiter", async || {
        mine.inspect().await.unwrap().waiting() == 1
    })
    .await;
    let token = first.token();
    assert_eq!(first.release().await.unwrap(), Release::Released);
    let second = within("the lock", waiting).await.unwrap().unwrap();
    assert!(second.token() > token);
    assert!(mine.force_unlock().await.unwrap());
    assert!(!mine.force_unlock().await.unwrap());
    assert_eq!(second.release().await.unwrap(), Release::AlreadyGone);
    assert!(mine.holder().await.unwrap().is_none());
}

/// The order of arrival, over processes, with a fair mutex.
async fn lines(here: &Locks, there: &Locks) {
    let first = here.fair_mutex("line").lock().await.unwrap();
    let mut waiting = Vec::new();
    for n in 0..6_u64 {
        let locks = if n % 2 == 0 { here } else { there };
        waiting.push(tokio::spawn(locks.fair_mutex("line").lock().into_future()));
        until("the next in line", async || {
            here.fair_mutex("line").inspect().await.unwrap().waiting() == n + 1
        })
        .await;
    }
    let mut token = first.token();
    first.release().await.unwrap();
    for (n, next) in waiting.into_iter().enumerate() {
        let guard = within("the next", next).await.unwrap().unwrap();
        assert!(guard.token() > token, "{n}");
        token = guard.token();
        guard.release().await.unwrap();
    }
    assert!(here.fair_mutex("line").force_unlock().await.is_ok());
}

async fn readers_and_writers(here: &Locks, there: &Locks) {
    let (mine, theirs) = (here.rw_lock("rw"), there.rw_lock("rw"));
    let read = mine.read().await.unwrap();
    let other = theirs.try_read().await.unwrap().unwrap();
    assert!(theirs.try_write().await.unwrap().is_none());
    let read = read.try_upgrade().await.unwrap().unwrap_err();
    other.release().await.unwrap();
    let write = read.try_upgrade().await.unwrap().unwrap();
    assert!(theirs.try_read().await.unwrap().is_none());
    let read = write.downgrade().await.unwrap();
    let waiting = tokio::spawn(theirs.write().into_future());
    until("the writer", async || {
        mine.inspect().await.unwrap().waiting() == 1
    })
    .await;
    read.release().await.unwrap();
    let write = within("the writer", waiting).await.unwrap().unwrap();
    assert!(mine.force_unlock().await.unwrap());
    assert_eq!(write.release().await.unwrap(), Release::AlreadyGone);
}

async fn several_at_once(here: &Locks, there: &Locks) {
    let taken = here.multi(["m1", "m2", "m3"]).lock().await.unwrap();
    assert!(there.mutex("m2").try_lock().await.unwrap().is_none());
    assert!(
        there
            .multi(["m3", "m4"])
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert!(there.mutex("m4").try_lock().await.unwrap().is_some());
    taken.release().await.unwrap();
    let _all = within("all", there.multi(["m3", "m1"]).lock().into_future())
        .await
        .unwrap();
}

async fn permits(here: &Locks, there: &Locks) {
    let (mine, theirs) = (here.semaphore("s", 3), there.semaphore("s", 3));
    let mut two = mine.acquire_many(2).await.unwrap();
    assert_eq!(theirs.available().await.unwrap(), 1);
    assert!(theirs.try_acquire_many(2).await.unwrap().is_none());
    let one = two.split(1).unwrap();
    one.release().await.unwrap();
    let waiting = tokio::spawn(theirs.acquire_many(3).into_future());
    until("the waiter", async || {
        mine.inspect().await.unwrap().waiting() == 1
    })
    .await;
    two.release().await.unwrap();
    within("all of them", waiting)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    let other = there.semaphore("s", 4).try_acquire().await.unwrap_err();
    assert_eq!(
        other.kind(),
        ErrorKind::CapacityDisagrees {
            server: 3,
            yours: 4
        }
    );

    let (mine, theirs) = (
        here.semaphore("c", 2).counting(),
        there.semaphore("c", 2).counting(),
    );
    mine.acquire(2).await.unwrap();
    assert!(!theirs.try_acquire(1).await.unwrap());
    let waiting = tokio::spawn(theirs.acquire(1));
    mine.release(2).await.unwrap();
    within("a permit", waiting).await.unwrap().unwrap();
    assert_eq!(mine.available().await.unwrap(), 1);
}

async fn latches_and_barriers(here: &Locks, there: &Locks) {
    let (mine, theirs) = (here.latch("l"), there.latch("l"));
    assert!(mine.try_set_count(2).await.unwrap());
    assert!(!theirs.try_set_count(3).await.unwrap());
    let waiting = tokio::spawn(theirs.wait());
    assert_eq!(mine.count_down().await.unwrap(), 1);
    assert_eq!(theirs.count_down_as("worker").await.unwrap(), 0);
    within("the latch", waiting).await.unwrap().unwrap();
    assert_eq!(mine.count().await.unwrap(), 0);

    let waiting = tokio::spawn(here.barrier("b", 2).wait());
    until("the first party", async || {
        there
            .barrier("b", 2)
            .inspect()
            .await
            .unwrap()
            .holders()
            .len()
            == 1
    })
    .await;
    let last = within("the barrier", there.barrier("b", 2).wait())
        .await
        .unwrap();
    let first = within("the barrier", waiting).await.unwrap().unwrap();
    assert!(first.is_leader() != last.is_leader());
    assert_eq!(first.generation(), last.generation());
}

async fn plain(here: &Locks, there: &Locks) {
    let guard = here.plain_mutex("p").lock().await.unwrap();
    assert!(there.plain_mutex("p").try_lock().await.unwrap().is_none());
    let mutex = there.plain_mutex("p");
    let waiting = tokio::spawn(mutex.lock().into_future());
    until("the waiter", async || {
        here.plain_mutex("p").inspect().await.unwrap().waiting() == 1
    })
    .await;
    guard.release().await.unwrap();
    let _next = within("the lock", waiting).await.unwrap().unwrap();
}

async fn owners(here: &Locks, there: &Locks) {
    let owner = here.owner();
    let outer = owner.mutex("o").lock().await.unwrap();
    let inner = owner.mutex("o").lock().await.unwrap();
    assert_eq!(inner.release().await.unwrap(), Release::StillHeld);
    assert!(there.mutex("o").try_lock().await.unwrap().is_none());
    let taken_over = there
        .owner_from(owner.id())
        .mutex("o")
        .lock()
        .await
        .unwrap();
    assert!(taken_over.token() > outer.token());
    assert_eq!(outer.release().await.unwrap(), Release::AlreadyGone);
    taken_over.release().await.unwrap();
}

async fn wrong_types(here: &Locks) {
    let _latch = here.latch("t").try_set_count(1).await.unwrap();
    let error = here.mutex("t").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType);
    let error = here.semaphore("l2", 0).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadCount);
    let guard = here
        .mutex("gone")
        .lock()
        .lease(Duration::from_millis(300))
        .await
        .unwrap();
    assert_eq!(within("the end", guard.lost()).await, LostReason::Expired);
}

/// Random commands of those that scripts call, with the same replies.
#[tokio::test]
async fn random_commands_have_the_replies_of_a_server() {
    let seed = Chance::seed();
    println!("LEASEHOLD_SEED={seed}");
    let mut chance = Chance::new(seed);
    let server = Server::start().await;
    let fake = Fake::new();
    let mut real = server.raw().await;
    let mut faked = Raw::connect(listen(&fake).await).await.unwrap();
    if real
        .cmd(&["PEXPIRE", "k1", "1", "GT"])
        .await
        .error()
        .is_some()
    {
        println!("skipped: the server does not know PEXPIRE … GT, and the fake does");
        return;
    }
    for turn in 0..6_000 {
        let command = command(&mut chance, turn);
        let expected = real.cmd(&command).await;
        let reply = faked.cmd(&command).await;
        assert!(
            alike(&expected, &reply),
            "{command:?}: {expected:?}, not {reply:?}"
        );
    }
}

const MEMBERS: [&str; 5] = ["a", "b", "c", "d:1", "d:1|5"];
const SCORES: [&str; 7] = ["0", "1", "1.5", "-7", "1700000000000001", "3e2", "x"];
const BOUNDS: [&str; 7] = ["-inf", "+inf", "(1", "1", "0", "-7", "y"];

/// A command on one of few keys, so that many are of another type than the command is for.
fn command(chance: &mut Chance, turn: u32) -> Vec<String> {
    let key = format!("k{}", chance.below(5));
    let (name, args) = match chance.below(4) {
        0 => of_keys(chance, turn),
        1 => of_hashes(chance),
        2 => of_sorted_sets(chance),
        _ => of_lists(chance),
    };
    let first = [name.to_owned(), key];
    first.into_iter().chain(args).collect()
}

fn of_keys(chance: &mut Chance, turn: u32) -> (&'static str, Vec<String>) {
    match chance.below(8) {
        0 => ("GET", vec![]),
        1 | 2 => {
            let options: [&[&str]; 5] = [&[], &["PX", "100000"], &["KEEPTTL"], &["GET"], &["NX"]];
            let (value, options) = (pick(chance, &["1", "x", "007"]), *chance.pick(&options));
            let options = options.iter().map(|option| (*option).to_owned());
            ("SET", [value].into_iter().chain(options).collect())
        }
        3 => ("INCRBY", vec![number(chance)]),
        4 => ("DEL", vec![]),
        5 => ("EXISTS", vec!["k0".to_owned()]),
        6 => {
            if chance.percent(40) {
                // Longer each time, and never as long as without GT: that decides, and not how many
                // milliseconds have passed at the one and at the other.
                let longer = (60_000 + 5 * turn).to_string();
                ("PEXPIRE", vec![longer, "GT".to_owned()])
            } else {
                (
                    "PEXPIRE",
                    vec![pick(chance, &["100000", "50000", "0", "z"])],
                )
            }
        }
        _ => ("PTTL", vec![]),
    }
}

fn of_hashes(chance: &mut Chance) -> (&'static str, Vec<String>) {
    match chance.below(9) {
        0..3 => ("HSET", vec![member(chance), number(chance)]),
        3 => ("HMGET", vec![member(chance), member(chance)]),
        4 => ("HEXISTS", vec![member(chance)]),
        5 => ("HDEL", vec![member(chance), member(chance)]),
        6 => ("HSCAN", vec!["0".to_owned()]),
        7 => (*chance.pick(&["HLEN", "HKEYS"]), vec![]),
        _ => ("HINCRBY", vec![member(chance), number(chance)]),
    }
}

fn of_sorted_sets(chance: &mut Chance) -> (&'static str, Vec<String>) {
    match chance.below(11) {
        0..4 => {
            let option = chance.percent(40).then(|| pick(chance, &["NX", "XX"]));
            let mut args: Vec<_> = option.into_iter().collect();
            for _ in 0..2 {
                args.extend([pick(chance, &SCORES), member(chance)]);
            }
            ("ZADD", args)
        }
        4 => ("ZREM", vec![member(chance)]),
        5 => (*chance.pick(&["ZSCORE", "ZRANK"]), vec![member(chance)]),
        6 => (*chance.pick(&["ZCARD", "ZPOPMIN"]), vec![]),
        7 | 8 => {
            let mut args = vec![number(chance), number(chance)];
            args.extend(chance.percent(50).then(|| "WITHSCORES".to_owned()));
            (*chance.pick(&["ZRANGE", "ZREVRANGE"]), args)
        }
        9 => {
            let mut args = vec![pick(chance, &BOUNDS), pick(chance, &BOUNDS)];
            args.extend(chance.percent(50).then(|| "WITHSCORES".to_owned()));
            if chance.percent(50) {
                args.extend(["LIMIT", "0", "2"].map(str::to_owned));
            }
            ("ZRANGEBYSCORE", args)
        }
        _ => {
            let args = vec![pick(chance, &BOUNDS), pick(chance, &BOUNDS)];
            (*chance.pick(&["ZCOUNT", "ZREMRANGEBYSCORE"]), args)
        }
    }
}

fn of_lists(chance: &mut Chance) -> (&'static str, Vec<String>) {
    match chance.below(6) {
        0 | 1 => (*chance.pick(&["RPUSH", "LPUSH"]), vec![member(chance)]),
        2 => (*chance.pick(&["LLEN", "LPOP"]), vec![]),
        3 => ("LINDEX", vec![number(chance)]),
        4 => ("LPOS", vec![member(chance)]),
        _ => ("LRANGE", vec![number(chance), number(chance)]),
    }
}

fn pick(chance: &mut Chance, from: &[&str]) -> String {
    (*chance.pick(from)).to_owned()
}

fn member(chance: &mut Chance) -> String {
    pick(chance, &MEMBERS)
}

fn number(chance: &mut Chance) -> String {
    (chance.below(9) as i64 - 4).to_string()
}

/// Whether the replies say the same. Of errors that is the first word; of times it is about the same.
fn alike(expected: &RawValue, reply: &RawValue) -> bool {
    match (expected, reply) {
        (RawValue::Error(expected), RawValue::Error(reply)) => {
            expected.split(' ').next() == reply.split(' ').next()
        }
        (RawValue::Int(expected), RawValue::Int(reply)) => {
            expected == reply || *expected > 10_000 && (expected - reply).abs() < 5_000
        }
        (RawValue::Array(expected), RawValue::Array(reply)) => {
            let mut pairs = expected.iter().zip(reply);
            expected.len() == reply.len() && pairs.all(|(expected, reply)| alike(expected, reply))
        }
        (expected, reply) => expected == reply,
    }
}
