//! The read-write lock beside Redisson's, on the same keys: what each sees of the other. Its client here plays the steps that were
//! recorded of one.

use std::time::Duration;

use leasehold::{Interop, Locks, Release};
use leasehold_testkit::{Raw, Server};

use crate::rw_lock::{read, write};
use crate::support::{exists, fields, ms, pttl, tickets, until, within};

const CHANNEL: &str = "redisson_rwlock:{W}";

/// Redisson's client, whose threads hold locks.
struct Java {
    commands: Raw,
    messages: Raw,
}

impl Java {
    async fn new(server: &Server) -> Self {
        let mut messages = server.raw().await;
        messages.hello3().await;
        messages.send(&["SUBSCRIBE", CHANNEL]).await.unwrap();
        messages.push().await;
        Self {
            commands: server.raw().await,
            messages,
        }
    }

    async fn run(&mut self, script: &str, holder: &str, lease: &str) -> Option<i64> {
        let args = ["EVAL", script, "1", "W", holder, lease];
        let reply = self.commands.cmd(&args).await;
        (!reply.is_null()).then(|| reply.int())
    }

    /// The lease that is left to others; `None` if it reads now.
    async fn read(&mut self, holder: &str, lease: &str) -> Option<i64> {
        let script = "local mode = redis.call('HGET', KEYS[1], 'mode') \
            local key = '{' .. KEYS[1] .. '}:' .. ARGV[1] .. ':rwlock_timeout:' \
            if not mode then \
              redis.call('HSET', KEYS[1], 'mode', 'read') redis.call('HSET', KEYS[1], ARGV[1], 1) \
              redis.call('SET', key .. 1, 1) redis.call('PEXPIRE', key .. 1, ARGV[2]) \
              redis.call('PEXPIRE', KEYS[1], ARGV[2]) return nil end \
            if mode == 'read' or redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':write') == 1 then \
              local count = redis.call('HINCRBY', KEYS[1], ARGV[1], 1) \
              redis.call('SET', key .. count, 1) redis.call('PEXPIRE', key .. count, ARGV[2]) \
              redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2])) return nil end \
            return redis.call('PTTL', KEYS[1])";
        self.run(script, holder, lease).await
    }

    /// The lease that is left to others; `None` if it writes now.
    async fn write(&mut self, holder: &str, lease: &str) -> Option<i64> {
        let script = "local mode = redis.call('HGET', KEYS[1], 'mode') \
            if not mode then \
              redis.call('HSET', KEYS[1], 'mode', 'write') redis.call('HSET', KEYS[1], ARGV[1] .. ':write', 1) \
              redis.call('PEXPIRE', KEYS[1], ARGV[2]) return nil end \
            return redis.call('PTTL', KEYS[1])";
        self.run(script, holder, lease).await
    }

    /// 1 if the lock is free now, 0 if others read; `None` if it did not read.
    async fn stop_reading(&mut self, holder: &str) -> Option<i64> {
        let script = "local mode = redis.call('HGET', KEYS[1], 'mode') \
            if not mode then redis.call('PUBLISH', 'redisson_rwlock:{' .. KEYS[1] .. '}', 0) return nil end \
            if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end \
            local prefix = '{' .. KEYS[1] .. '}:' \
            local count = redis.call('HINCRBY', KEYS[1], ARGV[1], -1) \
            if count == 0 then redis.call('HDEL', KEYS[1], ARGV[1]) end \
            redis.call('DEL', prefix .. ARGV[1] .. ':rwlock_timeout:' .. (count + 1)) \
            if redis.call('HLEN', KEYS[1]) > 1 then \
              local most = -3 \
              for _, key in ipairs(redis.call('HKEYS', KEYS[1])) do \
                local held = tonumber(redis.call('HGET', KEYS[1], key)) \
                for i = held or 0, 1, -1 do \
                  most = math.max(redis.call('PTTL', prefix .. key .. ':rwlock_timeout:' .. i), most) end end \
              if most > 0 then redis.call('PEXPIRE', KEYS[1], most) return 0 end \
              if mode == 'write' then return 0 end end \
            redis.call('DEL', KEYS[1]) redis.call('PUBLISH', 'redisson_rwlock:{' .. KEYS[1] .. '}', 0) return 1";
        self.run(script, holder, "").await
    }

    async fn stop_writing(&mut self, holder: &str) {
        let field = format!("{holder}:write");
        let removed = self.commands.cmd(&["HDEL", "W", &field]).await;
        assert_eq!(removed.int(), 1, "it writes");
        self.commands.cmd(&["DEL", "W"]).await;
        self.commands.cmd(&["PUBLISH", CHANNEL, "1"]).await;
    }

    /// What it hears next.
    async fn hears(&mut self) -> String {
        within("a message", self.messages.push()).await[2]
            .str()
            .to_owned()
    }

    /// Asserts that it has heard nothing until now.
    async fn has_heard_nothing(&mut self) {
        self.commands.cmd(&["PUBLISH", CHANNEL, "end"]).await;
        assert_eq!(self.hears().await, "end");
    }
}

async fn beside_redisson(server: &Server) -> Locks {
    Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap()
}

/// The id of our only holder, as the server has it.
async fn our_id(raw: &mut Raw, locks: &Locks) -> String {
    let fields = fields(raw, "W").await;
    let ours = fields
        .split(' ')
        .find(|field| field.starts_with(locks.client_id()));
    let (id, count) = ours.expect("a hold").rsplit_once('=').unwrap();
    assert_eq!(count, "1");
    id.to_owned()
}

#[tokio::test]
async fn readers_of_both_share_and_the_last_one_tells_it() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = beside_redisson(&server).await;
    let lock = locks.rw_lock("W");
    let mut java = Java::new(&server).await;

    let ours = read(&lock).await;
    let id = our_id(&mut raw, &locks).await;
    assert_eq!(fields(&mut raw, "W").await, format!("{id}=1 mode=read"));
    let timeout_key = format!("{{W}}:{id}:rwlock_timeout:1");
    assert_eq!(raw.cmd(&["GET", &timeout_key]).await.str(), "1");
    assert!((20_000..=30_000).contains(&pttl(&mut raw, &timeout_key).await));
    assert!((20_000..=30_000).contains(&pttl(&mut raw, "W").await));
    let left = java.write("u:1", "30000").await.expect("we read");
    assert!((20_000..=30_000).contains(&left));
    assert_eq!(java.read("u:2", "5000").await, None);
    assert_eq!(java.read("u:2", "60000").await, None);
    assert!(pttl(&mut raw, "W").await > 55_000);

    // Without our timeout key this would have removed the lock.
    assert_eq!(java.stop_reading("u:2").await, Some(0));
    assert_eq!(java.stop_reading("u:2").await, Some(0));
    assert!((20_000..=30_000).contains(&pttl(&mut raw, "W").await));
    assert!(ours.is_held());
    assert_eq!(java.read("u:2", "30000").await, None);
    assert_eq!(ours.release().await.unwrap(), Release::Released);
    assert!(!exists(&mut raw, &timeout_key).await);
    assert_eq!(fields(&mut raw, "W").await, "mode=read u:2=1");
    java.has_heard_nothing().await;
    let ours = read(&lock).await;
    assert_eq!(java.stop_reading("u:2").await, Some(0));
    assert_eq!(ours.release().await.unwrap(), Release::Released);
    assert!(!exists(&mut raw, "W").await);
    assert_eq!(java.hears().await, "0");
}

#[tokio::test]
async fn writers_of_both_exclude_everybody_and_wake_all() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = beside_redisson(&server).await;
    let lock = locks.rw_lock("W");
    let mut java = Java::new(&server).await;

    let ours = write(&lock).await;
    let id = our_id(&mut raw, &locks).await;
    assert!(id.ends_with(":write"));
    assert_eq!(fields(&mut raw, "W").await, format!("{id}=1 mode=write"));
    assert!(java.write("u:1", "30000").await.is_some());
    assert!(java.read("u:1", "30000").await.is_some());
    assert_eq!(ours.release().await.unwrap(), Release::Released);
    assert_eq!(java.hears().await, "1");

    assert_eq!(java.write("u:1", "30000").await, None);
    assert!(lock.try_read().await.unwrap().is_none());
    assert!(lock.try_write().await.unwrap().is_none());
    let (reading, writing) = (
        tokio::spawn(lock.read().into_future()),
        tokio::spawn(lock.write().into_future()),
    );
    until("a ticket", async || tickets(&mut raw, "W").await == 1).await;
    java.stop_writing("u:1").await;
    drop(within("a read", reading).await.unwrap().unwrap());
    drop(within("a write", writing).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_writer_of_ours_hears_that_redissons_last_reader_has_gone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = beside_redisson(&server).await;
    let mut java = Java::new(&server).await;
    assert_eq!(java.read("u:1", "30000").await, None);
    let writing = tokio::spawn(locks.rw_lock("W").write().into_future());
    until("a ticket", async || tickets(&mut raw, "W").await == 1).await;
    // It has no gate: its readers go on to join.
    assert_eq!(java.read("u:2", "30000").await, None);
    assert_eq!(java.stop_reading("u:1").await, Some(0));
    assert!(!writing.is_finished());
    assert_eq!(java.stop_reading("u:2").await, Some(1));
    drop(within("a write", writing).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_reader_of_redissons_that_died_keeps_no_writer_out_while_others_read() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = beside_redisson(&server).await;
    let lock = locks.rw_lock("W");
    let mut java = Java::new(&server).await;
    assert_eq!(java.read("u:1", "300").await, None);
    assert_eq!(java.read("u:1", "400").await, None);
    let reading = read(&lock).await;
    until("its leases end", async || {
        raw.cmd(&["KEYS", "*u:1*"]).await.array().is_empty()
    })
    .await;
    assert!(fields(&mut raw, "W").await.contains("u:1=2"));
    let writing = reading.try_upgrade().await.unwrap().unwrap();
    assert!(!fields(&mut raw, "W").await.contains("u:1"));
    drop(writing);
}

/// Its renewals set the expiry of the lock to that of its own lease, also downwards.
#[tokio::test]
async fn a_lease_that_redisson_cuts_is_extended_and_none_is_longer_than_its_own() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = Locks::builder(server.url())
        .interop(Interop::Redisson)
        .lease(ms(900))
        .connect()
        .await
        .unwrap();
    let reading = read(&locks.rw_lock("W")).await;
    for _ in 0..10 {
        raw.cmd(&["PEXPIRE", "W", "400"]).await;
        tokio::time::sleep(ms(300)).await;
        assert!(reading.is_held());
    }
    reading.release().await.unwrap();

    let wish = Duration::from_secs(90);
    let fixed = locks.rw_lock("W").read().lease(wish).await.unwrap();
    let longest = pttl(&mut raw, "W").await;
    assert!((20_000..=30_000).contains(&longest), "{longest}");
    assert!(fixed.valid_for() <= Duration::from_secs(30));
    drop(fixed);
    let writing = locks.rw_lock("V").write().lease(wish).await.unwrap();
    assert!(pttl(&mut raw, "V").await > 80_000, "a writer's may be");
    let reading = writing.downgrade().await.unwrap();
    assert!(reading.valid_for() <= Duration::from_secs(30));
    let timeout_keys = raw.cmd(&["KEYS", "{V}*"]).await;
    let left = pttl(&mut raw, timeout_keys.array()[0].str()).await;
    assert!((20_000..=30_000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_downgrade_wakes_redissons_readers() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = beside_redisson(&server).await;
    let lock = locks.rw_lock("W");
    let mut java = Java::new(&server).await;
    let writing = write(&lock).await;
    assert!(java.read("u:1", "30000").await.is_some());
    let reading = writing.downgrade().await.unwrap();
    assert_eq!(java.hears().await, "1");
    assert_eq!(java.read("u:1", "30000").await, None);
    assert!(java.write("u:2", "30000").await.is_some());
    let upgraded = reading.try_upgrade().await.unwrap();
    assert!(upgraded.is_err(), "Redisson reads");
    assert_eq!(java.stop_reading("u:1").await, Some(0));
    drop(upgraded);
    until("the end", async || !exists(&mut raw, "W").await).await;
    assert_eq!(java.hears().await, "0");
}

/// Readers of ours that a writer let in are not the only ones who may enter then.
#[tokio::test]
async fn readers_that_are_let_in_from_the_line_let_redissons_in() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b) = (
        beside_redisson(&server).await,
        beside_redisson(&server).await,
    );
    let mut java = Java::new(&server).await;
    let writing = write(&a.rw_lock("W")).await;
    let reading = tokio::spawn(b.rw_lock("W").read().into_future());
    until("a ticket", async || tickets(&mut raw, "W").await == 1).await;
    drop(writing);
    let reading = within("a read", reading).await.unwrap().unwrap();
    assert_eq!(java.hears().await, "1");
    drop(reading);
}

/// Redisson goes from writing to reading without telling its readers or ours.
#[tokio::test]
async fn a_downgrade_that_redisson_does_not_tell_is_found_by_a_look() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = beside_redisson(&server).await;
    let mut java = Java::new(&server).await;
    assert_eq!(java.write("u:1", "30000").await, None);
    assert_eq!(java.read("u:1", "30000").await, None, "its own");
    let reading = tokio::spawn(locks.rw_lock("W").read().into_future());
    until("a ticket", async || tickets(&mut raw, "W").await == 1).await;
    // The release of its write, which has read holds left.
    raw.cmd(&["HDEL", "W", "u:1:write"]).await;
    raw.cmd(&["HSET", "W", "mode", "read"]).await;
    java.has_heard_nothing().await;
    // Long before its lease would end.
    let reading = within("a read", reading).await.unwrap().unwrap();
    assert_eq!(java.stop_reading("u:1").await, Some(0));
    assert!(reading.is_held());
}
