//! The keys on the servers after a storm of the whole family.

use std::time::Duration;

use leasehold::{Locks, Redlock};
use leasehold_testkit::storm::{BARRIER, FAIR, PARTIES, PARTS, PERMITS, PLAIN, POOL, RED, RW};
use leasehold_testkit::{Raw, Server};
use tokio::time::timeout;

use crate::roles::Stage;

/// Upper bound on the time in which everything is free again.
const FREE: Duration = Duration::from_secs(60);

/// Keys that outlive the last hold, with an expiry: counters of tokens, capacities, and what latches and barriers remember.
const MEMORIES: [&str; 6] = [
    "redisson_lock_token:",
    "leasehold_token:",
    "leasehold_cap:",
    "leasehold_latch:",
    "leasehold_barrier:",
    "family:latch:",
];

/// How long the entry of a process outlives it, in milliseconds.
const PROCESS: i64 = 90_000;

/// Greater than each time in milliseconds, and less than those in microseconds.
const LATEST: &str = "100000000000000";

/// Takes everything that the workers had, at once, and gives it back.
pub(crate) async fn everything_is_free(url: &str, beside: &[Server]) {
    let locks = Locks::connect(url).await.expect("the servers are up");
    let red = Redlock::connect(beside.iter().map(Server::url));
    let red = red.await.expect("the servers beside are up");
    let taken = timeout(FREE, async {
        let pool = locks.semaphore(POOL, PERMITS);
        (
            locks.fair_mutex(FAIR).lock().await.expect("the fair mutex"),
            locks.rw_lock(RW).write().await.expect("the write lock"),
            pool.acquire_many(PERMITS).await.expect("all permits"),
            locks.multi(PARTS).lock().await.expect("all parts"),
            locks
                .plain_mutex(PLAIN)
                .lock()
                .await
                .expect("the plain mutex"),
            red.mutex(RED).lock().await.expect("the lock beside"),
        )
    });
    let (fair, write, permits, parts, plain, majority) = taken.await.expect("everything is free");
    majority.release().await.expect("it is released");
    drop((fair, write, permits, parts, plain));
    let barrier = locks.barrier(BARRIER, PARTIES);
    let party = async || {
        // A party that was killed may still break the generation of the first that arrive.
        loop {
            if let Ok(passed) = barrier.wait().await {
                return passed;
            }
        }
    };
    let parties = timeout(FREE, async { tokio::join!(party(), party(), party()) });
    let (a, b, c) = parties.await.expect("the barrier works");
    let parties = [a, b, c];
    let leaders = parties.iter().filter(|passed| passed.is_leader());
    assert_eq!(leaders.count(), 1, "{parties:?}");
    locks.shutdown().await.expect("everything is released");
}

/// The keys of a master that nobody needs any more, or that would stay for ever.
pub(crate) async fn keys_left(server: &Server) -> Vec<String> {
    let mut raw = server.raw().await;
    let mut left = Vec::new();
    if raw.cmd(&["ROLE"]).await.array()[0].str() != "master" {
        return left;
    }
    for key in raw.cmd(&["KEYS", "*"]).await.array() {
        let key = key.str();
        let ttl = raw.cmd(&["PTTL", key]).await.int();
        // It may have run out by now.
        if ttl != -2 && (ttl == -1 || !may_stay(&mut raw, key).await) {
            left.push(format!("{key} ({ttl} ms)"));
        }
    }
    left
}

/// Whether a key may outlive the last hold.
async fn may_stay(raw: &mut Raw, key: &str) -> bool {
    if key == POOL {
        // The number of free permits: that nobody has one is seen by taking them all.
        return raw.cmd(&["TYPE", key]).await.str() == "string";
    }
    if key.starts_with("leasehold_arrived:") {
        // What became of parties is remembered. One that waits has a score of its own: the end of its lease, in milliseconds.
        let seconds = raw.cmd(&["TIME"]).await.array()[0].str().to_owned();
        let waiting = ["ZCOUNT", key, &format!("{seconds}000"), LATEST];
        return raw.cmd(&waiting).await.int() == 0;
    }
    if key.starts_with("lockp:") {
        // Of a process that was killed.
        return raw.cmd(&["PTTL", key]).await.int() <= PROCESS;
    }
    // Of the kit, which asks where it can write.
    let is_probe = key == "probe" || key.ends_with(":probe");
    is_probe || MEMORIES.iter().any(|memory| key.starts_with(memory))
}

/// The keys of all masters with what they hold.
pub(crate) async fn data<S: Stage>(stage: &S) -> String {
    let mut lines = Vec::new();
    for server in stage.nodes() {
        let mut raw = server.raw().await;
        for key in raw.cmd(&["KEYS", "family*"]).await.array() {
            let hash = raw.cmd(&["HGETALL", key.str()]).await;
            let ttl = raw.cmd(&["PTTL", key.str()]).await;
            lines.push(format!("{} {ttl:?} {hash:?}", key.str()));
        }
        for key in raw.cmd(&["KEYS", "*{*"]).await.array() {
            let line = raw
                .cmd(&["ZRANGE", key.str(), "0", "-1", "WITHSCORES"])
                .await;
            lines.push(format!("{} {line:?}", key.str()));
        }
    }
    lines.join("\n")
}
