//! Faults of Redisson's locks, and what of them a fleet of both is spared: the rows of the table in `leasehold::guides`. Redisson's
//! clients play the steps that were recorded of them, faults included.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Interop, Locks, LostReason, Release};
use leasehold_testkit::{Cluster, Raw, RawValue, Server};

use crate::redlock::{having, over, servers, taken};
use crate::scripts::Ears;
use crate::support::{exists, fields, in_line, its_turn, ms, pttl, until, within};

const CHANNEL: &str = "redisson_lock__channel:{a}";
const TOKEN: &str = "redisson_lock_token:{a}";
const CLIENT: &str = "00000000-0000-4000-8000-000000000001";
const THREAD: &str = "00000000-0000-4000-8000-000000000001:1";
/// Redisson's, unless it is changed there.
const LEASE: &str = "30000";

/// Of `RLock`.
const ACQUIRE: &str = "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then \
       redis.call('HINCRBY', KEYS[1], ARGV[2], 1) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return false end \
     return redis.call('PTTL', KEYS[1])";
/// Of `RFencedLock`: the token or -1.
const ACQUIRE_FENCED: &str = "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then \
       local token = redis.call('INCR', KEYS[2]) \
       redis.call('HINCRBY', KEYS[1], ARGV[2], 1) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return token end \
     return -1";
const RELEASE: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return false end \
     if redis.call('HINCRBY', KEYS[1], ARGV[2], -1) > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) return 0 end \
     redis.call('DEL', KEYS[1]) \
     if ARGV[3] ~= '' then redis.call('PUBLISH', ARGV[3], '0') end return 1";
/// Of its watchdog.
const RENEW: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then \
       redis.call('PEXPIRE', KEYS[1], ARGV[1]) return 1 end return 0";

/// A thread of Redisson's, and its lock `a`.
struct Java(Raw);

impl Java {
    async fn new(server: &Server) -> Self {
        Self(server.raw().await)
    }

    /// The lease that is left to another holder; `None` if it has the lock.
    async fn try_lock(&mut self, lease: &str) -> Option<i64> {
        let tried = self
            .0
            .cmd(&["EVAL", ACQUIRE, "1", "a", lease, THREAD])
            .await;
        (!tried.is_null()).then(|| tried.int())
    }

    /// Its token, if it has the lock.
    async fn try_lock_and_get_token(&mut self, lease: &str) -> Option<u64> {
        let args = ["EVAL", ACQUIRE_FENCED, "2", "a", TOKEN, lease, THREAD];
        u64::try_from(self.0.cmd(&args).await.int()).ok()
    }

    /// 1 if the lock is free now, 0 if it is still held; `None` if it was not the holder.
    async fn unlock(&mut self) -> Option<i64> {
        self.unlock_and_tell(CHANNEL).await
    }

    async fn unlock_and_tell(&mut self, channel: &str) -> Option<i64> {
        let args = ["EVAL", RELEASE, "1", "a", "600", THREAD, channel];
        let released = self.0.cmd(&args).await;
        (!released.is_null()).then(|| released.int())
    }

    async fn renew(&mut self, lease: &str) -> bool {
        let renewed = self.0.cmd(&["EVAL", RENEW, "1", "a", lease, THREAD]).await;
        renewed.int() == 1
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

/// A reply that comes late makes it send an acquire again, which it counts as the thread's second one.
#[tokio::test]
async fn a_lock_that_redisson_counted_twice_is_had_when_its_lease_ends() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = Ears::plain(&server, CHANNEL).await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let mut java = Java::new(&server).await;
    for _ in 0..2 {
        assert_eq!(java.try_lock(LEASE).await, None);
    }
    let holders = ours.mutex("a").inspect().await.unwrap();
    assert_eq!(holders.holders()[0].count(), 2);
    assert_eq!(holders.holders()[0].client(), CLIENT);
    let waiter = in_line(&mut raw, &ours, "a").await;
    assert_eq!(java.unlock().await, Some(0), "it has one left, unknowingly");
    assert_eq!(heard.heard().await, [""; 0]);
    assert_eq!(fields(&mut raw, "a").await, format!("{THREAD}=1"));
    // Its watchdog has stopped.
    let guard = its_turn(waiter).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// A renewal that came too late, a lease that a nested lock cut, or an unlock that was executed twice: the lock is gone while
/// a thread works under it.
#[tokio::test]
async fn what_redisson_lost_unknowingly_has_an_older_token_and_frees_nothing_of_ours() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let mut java = Java::new(&server).await;
    for is_unlocked_twice in [false, true] {
        let theirs = java.try_lock_and_get_token("100").await.unwrap();
        if is_unlocked_twice {
            assert_eq!(java.unlock().await, Some(1));
        } else {
            until("its lease ends", async || !exists(&mut raw, "a").await).await;
        }
        let guard = ours.mutex("a").try_lock().await.unwrap().unwrap();
        assert!(guard.token().as_u64() > theirs, "the storage refuses it");
        // It wakes up.
        assert!(!java.renew(LEASE).await);
        assert_eq!(java.unlock().await, None);
        let holder = ours.mutex("a").holder().await.unwrap().unwrap();
        assert_eq!(holder.client(), ours.client_id());
        let token = guard.token().as_u64();
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        let theirs = java.try_lock_and_get_token(LEASE).await.unwrap();
        assert!(theirs > token);
        assert_eq!(java.unlock().await, Some(1));
    }
}

/// Its renewals may go on after the thread has died, or has unlocked.
#[tokio::test]
async fn a_renewal_of_redissons_without_an_end_is_told_and_ended_by_force() {
    let server = Server::start().await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let mut java = Java::new(&server).await;
    assert_eq!(java.try_lock("600").await, None);
    let watchdog = tokio::spawn(async move {
        while java.renew("600").await {
            tokio::time::sleep(ms(100)).await;
        }
        java
    });
    let mutex = ours.mutex("a");
    let begin = Instant::now();
    assert!(mutex.try_lock_for(ms(1_500)).await.unwrap().is_none());
    assert!(begin.elapsed() > ms(1_500));
    let holder = mutex.holder().await.unwrap().unwrap();
    assert_eq!(holder.client(), CLIENT);
    assert!(mutex.force_unlock().await.unwrap());
    let guard = within("the lock", mutex.lock().into_future())
        .await
        .unwrap();
    let mut java = within("its next renewal", watchdog).await.unwrap();
    assert!(!java.renew("600").await);
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// Its spin locks publish nothing. What its other locks publish may be lost as well.
#[tokio::test]
async fn a_release_that_redisson_does_not_tell_is_found_by_a_look() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let mut java = Java::new(&server).await;
    for _ in 0..2 {
        assert_eq!(java.try_lock(LEASE).await, None);
        let waiter = in_line(&mut raw, &ours, "a").await;
        assert_eq!(java.unlock_and_tell("").await, Some(1));
        // Long before its lease would end.
        let guard = its_turn(waiter).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

/// A waiter of Redisson's that misses a message sleeps for as long as the lock had left when it looked.
#[tokio::test]
async fn redisson_is_never_told_to_wait_longer_than_our_lease() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server, ms(900)).await;
    let mut java = Java::new(&server).await;
    let guard = ours.mutex("a").lock().await.unwrap();
    let begin = Instant::now();
    while begin.elapsed() < ms(1_500) {
        let left = java.try_lock(LEASE).await.expect("we hold it");
        assert!((1..=900).contains(&left), "{left}");
        // One without an expiry would be taken for its own by a fenced lock, and never be waited for to the end.
        assert!((1..=900).contains(&pttl(&mut raw, "a").await));
        tokio::time::sleep(ms(20)).await;
    }
    assert!(guard.is_held());
}

#[tokio::test]
async fn tokens_that_redisson_begins_again_do_not_go_back_with_us() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let mut java = Java::new(&server).await;
    assert_eq!(java.try_lock_and_get_token(LEASE).await, Some(1));
    java.unlock().await;
    let guard = ours.mutex("a").lock().await.unwrap();
    let first = guard.token().as_u64();
    guard.release().await.unwrap();
    let theirs = java.try_lock_and_get_token(LEASE).await.unwrap();
    assert!(theirs > first);
    // `delete()`, or an eviction of the counter.
    raw.cmd(&["DEL", "a", TOKEN]).await;
    assert_eq!(java.try_lock_and_get_token(LEASE).await, Some(1));
    java.unlock().await;
    let guard = ours.mutex("a").lock().await.unwrap();
    assert!(guard.token().as_u64() > theirs);
}

/// A lock of several of Redisson's sets the expiry of each at the end, without asking whether it still has it.
#[tokio::test]
async fn a_lease_that_redissons_multi_lock_cuts_is_lost_and_its_token_is_older() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (
        beside_redisson(&server, Duration::from_secs(6)).await,
        beside_redisson(&server, Duration::from_secs(6)).await,
    );
    let first = ours.mutex("a").lock().await.unwrap();
    // Its renewal thread has begun with a first one.
    tokio::time::sleep(ms(400)).await;
    raw.cmd(&["PEXPIRE", "a", "20"]).await;
    let second = until("the lock is free", async || {
        let tried = theirs.mutex("a").try_lock().await.unwrap();
        tried.ok_or_else(|| String::from("it is held"))
    })
    .await;
    assert!(second.token() > first.token());
    let lost = within("the news", first.lost()).await;
    assert_eq!(lost, LostReason::Stolen, "told by its next renewal");
    assert!(second.is_held());
    // One that was extended so ends with its release as ever.
    raw.cmd(&["PEXPIRE", "a", "600000"]).await;
    assert_eq!(second.release().await.unwrap(), Release::Released);
    assert!(!exists(&mut raw, "a").await);
}

/// It takes the hash of another kind of lock for a free one.
#[tokio::test]
async fn a_read_lock_of_redissons_on_the_name_of_a_mutex_is_let_in_and_ours_is_not() {
    const READ: &str = "if not redis.call('HGET', KEYS[1], 'mode') then \
        redis.call('HSET', KEYS[1], 'mode', 'read') redis.call('HSET', KEYS[1], ARGV[2], 1) \
        redis.call('PEXPIRE', KEYS[1], ARGV[1]) return false end \
        return redis.call('PTTL', KEYS[1])";
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let guard = ours.mutex("a").lock().await.unwrap();
    assert!(ours.rw_lock("a").try_read().await.unwrap().is_none());
    assert!(ours.rw_lock("a").try_write().await.unwrap().is_none());
    let read = ["EVAL", READ, "1", "a", LEASE, THREAD];
    assert!(raw.cmd(&read).await.is_null(), "both have it");
    let seen = ours.mutex("a").inspect().await.unwrap();
    assert_eq!(seen.holders().len(), 2, "{seen:?}");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert!(ours.mutex("a").try_lock().await.unwrap().is_none());
}

/// Its locks of a group have fields of their own in a hash of the group's name.
#[tokio::test]
async fn a_group_of_redissons_is_refused_as_no_lock_and_left_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server, Duration::from_secs(30)).await;
    let value = "kHvXFBPKZXCW0xzQPOKAkA";
    let (expires, count) = (
        format!("{value}:{THREAD}:expire_time"),
        format!("{value}:{THREAD}:lock_count"),
    );
    let set = [
        "HSET",
        "a",
        value,
        THREAD,
        &expires,
        "1795170087344",
        &count,
        "1",
    ];
    raw.cmd(&set).await;
    raw.cmd(&["PEXPIRE", "a", LEASE]).await;
    let error = ours.mutex("a").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    let error = ours.mutex("a").force_unlock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert_eq!(raw.cmd(&["HLEN", "a"]).await, RawValue::Int(3));
}

/// One acknowledgement is enough for it, from whichever replica.
#[tokio::test]
async fn a_lock_that_one_replica_of_two_has_is_lost_with_the_other_and_its_token_is_older() {
    let (master, follows, lags) = (
        Server::start().await,
        Server::start().await,
        Server::start().await,
    );
    let port = master.port().to_string();
    let mut replicas = [follows.raw().await, lags.raw().await];
    for replica in &mut replicas {
        replica.cmd(&["REPLICAOF", "127.0.0.1", &port]).await;
    }
    let mut java = Java::new(&master).await;
    until("both follow", async || {
        java.0.cmd(&["SET", "k", "v"]).await;
        java.0.cmd(&["WAIT", "2", "100"]).await.int() == 2
    })
    .await;
    // It takes over later, and has heard nothing since.
    replicas[1].cmd(&["REPLICAOF", "NO", "ONE"]).await;
    let theirs = java.try_lock_and_get_token(LEASE).await.unwrap();
    assert_eq!(java.0.cmd(&["WAIT", "2", "100"]).await.int(), 1);
    let ours = beside_redisson(&lags, Duration::from_secs(30)).await;
    let guard = ours.mutex("a").try_lock().await.unwrap();
    let guard = guard.expect("nobody has it here");
    assert!(guard.token().as_u64() > theirs);
}

/// Its lock of several servers asks one after another, and does not look at the time that took.
#[tokio::test]
async fn a_majority_that_redisson_lost_while_it_asked_is_ours_and_its_unlock_frees_nothing() {
    let servers = servers(3).await;
    let red = over(&servers, Duration::from_secs(30)).await;
    let mutex = red.mutex("a");
    let mut nodes = Vec::new();
    for server in &servers {
        nodes.push(Java::new(server).await);
    }
    for node in &mut nodes[..2] {
        assert_eq!(node.try_lock("2000").await, None);
    }
    assert!(mutex.try_lock().await.unwrap().is_none());
    until("two are over", async || having(&servers, "a").await == 0).await;
    assert_eq!(nodes[2].try_lock(LEASE).await, None, "the third of three");
    let guard = taken(&red, "a").await;
    for (node, freed) in nodes.iter_mut().zip([None, None, Some(1)]) {
        assert_eq!(node.unlock().await, freed);
    }
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// Clients with `shardedSubscriptionMode` OFF publish and listen where the others, and ours, do not.
#[tokio::test]
async fn a_fleet_without_sharded_channels_is_not_heard_and_found_by_looks() {
    let cluster = Cluster::builder().replicas(0).start().await;
    if !cluster.node(0).knows("SPUBLISH").await {
        println!("skipped: the server has no sharded channels");
        return;
    }
    let ours = Locks::builder(cluster.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap();
    let node = cluster.master_of("a").await.unwrap();
    let mut raw = cluster.raw(node).await;
    let mut plain = Ears::plain(cluster.node(node), CHANNEL).await;
    let mut sharded = Ears::sharded(cluster.node(node), CHANNEL).await;
    let mut java = Java(cluster.raw(node).await);
    assert_eq!(java.try_lock(LEASE).await, None);
    let waiter = in_line(&mut raw, &ours, "a").await;
    assert_eq!(java.unlock().await, Some(1), "told to nobody who listens");
    assert_eq!(plain.heard().await, ["0"]);
    let guard = its_turn(waiter).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(sharded.heard().await, ["0"]);
    assert_eq!(plain.heard().await, [""; 0], "they wait for the lease");
}
