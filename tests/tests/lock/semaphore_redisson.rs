//! Semaphores beside Redisson's, whose client plays the recorded steps.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Interop, Locks, LostReason, Release};
use leasehold_testkit::{Raw, RawValue, Server};

use crate::scripts::{Ears, now};
use crate::support::{ms, pttl, until, within};

const TAKEN: &str = "{E}:timeout";
const CHANNEL: &str = "redisson_sc:{E}";
/// Redisson's time for a permit without a lease.
const FOR_EVER: &str = "922337203685477";

/// What each of Redisson's scripts for this semaphore begins with.
const RECLAIM: &str = "
local expired = redis.call('zrangebyscore', KEYS[2], 0, ARGV[1], 'limit', 0, ARGV[2])
if #expired > 0 then
  redis.call('zrem', KEYS[2], unpack(expired))
  local value = redis.call('incrby', KEYS[1], #expired)
  if tonumber(value) > 0 then
    redis.call('publish', KEYS[3], value)
  end
end
";
const TRY_ACQUIRE: &str = "
local value = redis.call('get', KEYS[1])
if value ~= false and tonumber(value) >= 1 then
  redis.call('decrby', KEYS[1], 1)
  redis.call('zadd', KEYS[2], ARGV[3], ARGV[4])
  return 'OK'
end
local first = redis.call('zrange', KEYS[2], 0, 0, 'WITHSCORES')
return first[1] and ':' .. first[2] or false
";
const RELEASE: &str = "
local score = redis.call('zscore', KEYS[2], ARGV[4])
if redis.call('zrem', KEYS[2], ARGV[4]) == 0 then
  return 0
end
redis.call('publish', KEYS[3], redis.call('incrby', KEYS[1], 1))
return tonumber(score) <= tonumber(ARGV[1]) and 0 or 1
";

/// A thread of a Redisson client.
struct Java {
    raw: Raw,
    ears: Ears,
    permits: u64,
    name: &'static str,
}

impl Java {
    async fn new(server: &Server, name: &'static str) -> Self {
        Self {
            raw: server.raw().await,
            ears: Ears::plain(server, CHANNEL).await,
            permits: 0,
            name,
        }
    }

    async fn run(&mut self, script: &str, limit: &str, more: &[&str]) -> RawValue {
        let time = (now(&mut self.raw).await / 1000).to_string();
        let begin = ["EVAL", script, "3", "E", TAKEN, CHANNEL, &time, limit];
        self.raw.cmd(&[&begin[..], more].concat()).await
    }

    /// `tryAcquire(lease)`: the id of the permit, or what it is told of the next one to expire.
    async fn try_acquire(&mut self, lease: Option<i64>) -> Result<String, RawValue> {
        self.permits += 1;
        let id = format!("{}{:015}", self.name, self.permits);
        let until = match lease {
            Some(lease) => (now(&mut self.raw).await / 1000 + lease).to_string(),
            None => FOR_EVER.into(),
        };
        let script = [RECLAIM, TRY_ACQUIRE].concat();
        let reply = self.run(&script, "1", &[&until, &id]).await;
        match reply {
            RawValue::Bulk(ok) if &*ok == b"OK" => Ok(id),
            other => Err(other),
        }
    }

    /// `tryRelease(id)`
    async fn try_release(&mut self, id: &str) -> bool {
        self.run(RELEASE, "1", &["", id]).await.int() == 1
    }

    /// `availablePermits()` and `acquiredPermits()`
    async fn counts(&mut self) -> (i64, i64) {
        let script = [
            RECLAIM,
            "return {tonumber(redis.call('get', KEYS[1]) or 0), redis.call('zcount', KEYS[2], 0, '+inf')}",
        ];
        let reply = self.run(&script.concat(), "-1", &[]).await;
        (reply.array()[0].int(), reply.array()[1].int())
    }
}

async fn beside_redisson(server: &Server, lease: Duration) -> Locks {
    Locks::builder(server.url())
        .interop(Interop::Redisson)
        .lease(lease)
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn both_take_from_the_same_permits_and_tell_each_other() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Java::new(&server, "j").await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let semaphore = ours.semaphore("E", 3);
    // `trySetPermits(3)`
    raw.cmd(&["SET", "E", "3"]).await;
    let first = java.try_acquire(None).await.unwrap();
    let fixed = semaphore.acquire().lease(ms(700)).await.unwrap();
    let renewed = semaphore.acquire().lease(ms(5_000)).await.unwrap();
    assert_eq!(java.counts().await, (0, 3));
    for key in ["E", TAKEN] {
        assert_eq!(pttl(&mut raw, key).await, -1, "{key}");
    }

    // It is told when the next of ours expires, in milliseconds, and takes it then.
    let told = java.try_acquire(Some(9_000)).await.unwrap_err();
    let told: i64 = told.str().strip_prefix(':').unwrap().parse().unwrap();
    let left = told - now(&mut raw).await / 1000;
    assert!((1..=700).contains(&left), "{left}");
    let second = until("ours expires", async || {
        java.try_acquire(Some(9_000))
            .await
            .map_err(|told| format!("{told:?}"))
    })
    .await;
    assert_eq!(fixed.release().await.unwrap(), Release::AlreadyGone);
    assert_eq!(java.ears.heard().await, ["1"]);
    assert!(semaphore.try_acquire().await.unwrap().is_none());

    // A release of ours tells it how many are free.
    assert_eq!(renewed.release().await.unwrap(), Release::Released);
    assert_eq!(java.ears.heard().await, ["1"]);
    let third = java.try_acquire(None).await.unwrap();
    let waiter = tokio::spawn(semaphore.acquire_many(2).into_future());
    until("we listen", async || {
        let counts = raw.cmd(&["PUBSUB", "NUMSUB", CHANNEL]).await;
        counts.array()[1].int() == 2
    })
    .await;
    for id in [&first, &second] {
        assert!(java.try_release(id).await);
    }
    let two = within("its turn", waiter).await.unwrap().unwrap();
    assert_eq!(java.counts().await, (0, 3));
    assert!(java.try_release(&third).await);
    assert!(!java.try_release(&third).await);
    drop(two);
    until("all are free", async || java.counts().await == (3, 0)).await;
}

#[tokio::test]
async fn a_permit_of_ours_that_redisson_releases_is_lost() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Java::new(&server, "j").await;
    let ours = beside_redisson(&server, ms(900)).await;
    let semaphore = ours.semaphore("E", 2);
    let held = semaphore.acquire().await.unwrap();
    let members = raw.cmd(&["ZRANGE", TAKEN, "0", "-1"]).await;
    let RawValue::Bulk(id) = &members.array()[0] else {
        panic!("{members:?}");
    };
    assert_eq!(id.len(), 16);
    raw.cmd(&[&b"ZREM"[..], TAKEN.as_bytes(), id]).await;
    raw.cmd(&["INCRBY", "E", "1"]).await;
    assert_eq!(within("the news", held.lost()).await, LostReason::Stolen);
    assert_eq!(java.counts().await, (2, 0));
}

#[tokio::test]
async fn a_number_that_redisson_changed_is_told_or_undone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Java::new(&server, "j").await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let (three, five) = (ours.semaphore("E", 3), ours.semaphore("E", 5));
    let held = three.acquire().await.unwrap();
    // `addPermits(2)`
    raw.cmd(&["SET", "E", "4"]).await;
    let error = three.acquire().await.unwrap_err();
    let disagrees = ErrorKind::CapacityDisagrees {
        server: 5,
        yours: 3,
    };
    assert_eq!(error.kind(), disagrees, "{error}");
    assert_eq!(java.counts().await, (4, 1));
    let more = five.acquire_many(4).await.unwrap();
    assert_eq!(
        (five.capacity().await.unwrap(), java.counts().await),
        (5, (0, 5))
    );
    drop((held, more));
    until("all are free", async || java.counts().await == (5, 0)).await;
    // `addPermits(-2)`
    raw.cmd(&["SET", "E", "3"]).await;
    drop(five.acquire().await.unwrap());
    until("it is taken for a leak", async || {
        java.counts().await == (5, 0)
    })
    .await;
    five.set_permits(3).await.unwrap();
    assert_eq!(java.counts().await, (3, 0));
}

/// Redisson's threads take whatever is free the moment they hear of it. A large request of ours keeps what it finds.
#[tokio::test]
async fn a_large_request_is_served_beside_threads_of_redisson_in_loops() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["SET", "E", "5"]).await;
    let mut threads = Vec::new();
    for name in ["a", "b", "c"] {
        let mut java = Java::new(&server, name).await;
        let thread = async move {
            loop {
                let Ok(id) = java.try_acquire(Some(20_000)).await else {
                    tokio::time::sleep(ms(1)).await;
                    continue;
                };
                tokio::time::sleep(ms(3)).await;
                assert!(java.try_release(&id).await, "it was given out twice");
            }
        };
        let thread: tokio::task::JoinHandle<()> = tokio::spawn(thread);
        threads.push(thread);
    }
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let semaphore = ours.semaphore("E", 5);
    let mut longest = Duration::ZERO;
    for _ in 0..15 {
        let begin = Instant::now();
        let all = within("all of them", semaphore.acquire_many(5).into_future());
        let all = all.await.unwrap();
        longest = longest.max(begin.elapsed());
        assert_eq!(raw.cmd(&["ZCARD", TAKEN]).await.int(), 5);
        assert_eq!(raw.cmd(&["GET", "E"]).await.str(), "0");
        assert!(all.is_held());
        assert_eq!(all.release().await.unwrap(), Release::Released);
        tokio::time::sleep(ms(10)).await;
        let free = raw.cmd(&["GET", "E"]).await;
        assert!(free.str().parse::<i64>().unwrap() >= 0);
    }
    println!("the longest wait: {longest:?}");
    assert!(threads.iter().all(|thread| !thread.is_finished()));
    threads.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Its script takes two permits and keeps one member if its acquire is sent again: one permit is nobody's, until a script of ours
/// has counted.
#[tokio::test]
async fn a_permit_that_redisson_took_twice_comes_back() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Java::new(&server, "j").await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let semaphore = ours.semaphore("E", 3);
    drop(semaphore.acquire_many(3).await.unwrap());
    until("all are free", async || java.counts().await == (3, 0)).await;
    let id = java.try_acquire(None).await.unwrap();
    raw.cmd(&["DECRBY", "E", "1"]).await;
    assert_eq!(java.counts().await, (1, 1));
    let two = within("two permits", semaphore.acquire_many(2).into_future());
    let two = two.await.unwrap();
    assert_eq!(java.counts().await, (0, 3));
    assert!(java.try_release(&id).await);
    drop(two);
    until("all are free", async || java.counts().await == (3, 0)).await;
}

/// Redisson goes by its client's clock.
#[tokio::test]
async fn a_permit_that_redissons_clock_frees_early_is_lost_and_told() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Java::new(&server, "j").await;
    let ours = beside_redisson(&server, Duration::from_secs(6)).await;
    let permit = ours.semaphore("E", 1).acquire().await.unwrap();
    let ahead = (now(&mut raw).await / 1000 + 10_000).to_string();
    let script = [RECLAIM, "return redis.call('get', KEYS[1])"].concat();
    let args = ["EVAL", &script, "3", "E", TAKEN, CHANNEL, &ahead, "1"];
    assert_eq!(raw.cmd(&args).await.str(), "1", "it was freed");
    let id = java.try_acquire(None).await.expect("it is had twice");
    assert_eq!(within("the news", permit.lost()).await, LostReason::Stolen);
    assert_eq!(permit.release().await.unwrap(), Release::AlreadyGone);
    assert!(java.try_release(&id).await, "ours took nothing of it");
}

/// Redisson's scripts unpack all that has expired at once, which fails beyond about 8,000: then they fail for ever.
#[tokio::test]
async fn more_expired_permits_than_redisson_can_count_are_reclaimed_and_it_goes_on() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Java::new(&server, "j").await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    const FILL: &str = "for i = 1, 9000 do \
        redis.call('ZADD', KEYS[1], 1000, string.format('k%015d', i)) end";
    raw.cmd(&["EVAL", FILL, "1", TAKEN]).await;
    // Of `trySetPermits(9001)`.
    raw.cmd(&["SET", "E", "1"]).await;
    let count = [RECLAIM, "return 1"].concat();
    let time = (now(&mut raw).await / 1000).to_string();
    let args = ["EVAL", &count, "3", "E", TAKEN, CHANNEL, &time, "-1"];
    let refused = raw.cmd(&args).await;
    assert!(
        refused
            .error()
            .is_some_and(|error| error.contains("unpack")),
        "{refused:?}"
    );
    let permit = ours.semaphore("E", 9_001).acquire().await.unwrap();
    assert_eq!(java.counts().await, (9_000, 1));
    drop(permit);
    until("all are free", async || java.counts().await == (9_001, 0)).await;
}
