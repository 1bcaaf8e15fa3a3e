//! The fair mutex beside Redisson's fair locks: one order for the waiters of both, on its queue.
//!
//! Redisson's side plays the steps that were recorded of `RedissonFairLock`, with its default time
//! of five minutes after which a waiter counts as dead.

use std::future::IntoFuture;

use leasehold::{Error, Guard, Interop, Locks, Release};
use leasehold_testkit::{Raw, RawValue, Server};
use tokio::task::JoinHandle;

use crate::support::{
    calls, exists, fields, its_turn, keys, locks, ms, pttl, scripts_run, tickets, until, within,
};

const QUEUE: &str = "redisson_lock_queue:{a}";
const TIMES: &str = "redisson_lock_timeout:{a}";
const LINE: &str = "leasehold_line:{a}";
const KEYS: [&str; 3] = ["a", QUEUE, TIMES];

/// Its steps before all others: the first waiters whose time is over go.
const PRUNE: &str = "local now = tonumber(ARGV[1]) \
    while true do \
      local head = redis.call('LINDEX', KEYS[2], 0) \
      if not head then break end \
      local due = redis.call('ZSCORE', KEYS[3], head) \
      if not due or tonumber(due) > now then break end \
      redis.call('ZREM', KEYS[3], head) redis.call('LPOP', KEYS[2]) \
    end ";
const ACQUIRE: &str = "local id, lease, wait = ARGV[2], ARGV[3], ARGV[4] \
    if redis.call('EXISTS', KEYS[1]) == 0 and (redis.call('EXISTS', KEYS[2]) == 0 \
        or redis.call('LINDEX', KEYS[2], 0) == id) then \
      redis.call('LPOP', KEYS[2]) redis.call('ZREM', KEYS[3], id) \
      for _, other in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do \
        redis.call('ZINCRBY', KEYS[3], -tonumber(wait), other) \
      end \
      redis.call('HSET', KEYS[1], id, 1) redis.call('PEXPIRE', KEYS[1], lease) return false \
    end \
    if redis.call('HEXISTS', KEYS[1], id) == 1 then \
      redis.call('HINCRBY', KEYS[1], id, 1) redis.call('PEXPIRE', KEYS[1], lease) return false \
    end \
    if redis.call('ZSCORE', KEYS[3], id) then \
      return math.max(0, redis.call('PTTL', KEYS[1])) \
    end \
    local last, base = redis.call('LINDEX', KEYS[2], -1), nil \
    local due = last and last ~= id and redis.call('ZSCORE', KEYS[3], last) \
    if due then base = tonumber(due) - now else base = redis.call('PTTL', KEYS[1]) end \
    if redis.call('ZADD', KEYS[3], base + tonumber(wait) + now, id) == 1 then \
      redis.call('RPUSH', KEYS[2], id) \
    end \
    return base";
const ACQUIRE_ONCE: &str = "local id, lease, wait = ARGV[2], ARGV[3], ARGV[4] \
    if redis.call('EXISTS', KEYS[1]) == 0 and (redis.call('EXISTS', KEYS[2]) == 0 \
        or redis.call('LINDEX', KEYS[2], 0) == id) then \
      redis.call('HSET', KEYS[1], id, 1) redis.call('PEXPIRE', KEYS[1], lease) return false \
    end \
    return 1";
const RELEASE: &str = "local id, channel = ARGV[2], ARGV[3] \
    if redis.call('EXISTS', KEYS[1]) == 1 then \
      if redis.call('HEXISTS', KEYS[1], id) == 0 then return false end \
      redis.call('DEL', KEYS[1]) \
    end \
    local head = redis.call('LINDEX', KEYS[2], 0) \
    if head then redis.call('PUBLISH', channel .. ':' .. head, '0') end \
    return 1";
const GIVE_UP: &str = "local id, wait, found = ARGV[2], tonumber(ARGV[3]), false \
    for _, other in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do \
      if found then redis.call('ZINCRBY', KEYS[3], -wait, other) end \
      found = found or other == id \
    end \
    redis.call('ZREM', KEYS[3], id) redis.call('LREM', KEYS[2], 0, id) return 1";

/// How long it waits, in milliseconds.
const WAIT: &str = "300000";
const LEASE: &str = "30000";
const CHANNEL: &str = "redisson_lock__channel:{a}";

type Waiter = JoinHandle<Result<Guard, Error>>;

async fn beside_redisson(server: &Server) -> Locks {
    Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap()
}

async fn run(raw: &mut Raw, text: &str, args: &[&str]) -> RawValue {
    let now = (now(raw).await / 1000).to_string();
    let text = [PRUNE, text].concat();
    let request = [&["EVAL", &text, "3"], &KEYS[..], &[&now], args].concat();
    let reply = raw.cmd(&request).await;
    assert!(reply.error().is_none(), "{reply:?}");
    reply
}

/// The server's time in microseconds.
async fn now(raw: &mut Raw) -> i64 {
    let time = raw.cmd(&["TIME"]).await;
    time.array()[0].int() * 1_000_000 + time.array()[1].int()
}

/// A thread of Redisson's.
struct Java {
    commands: Raw,
    messages: Raw,
    id: String,
}

impl Java {
    async fn new(server: &Server, thread: u32) -> Self {
        let mut messages = server.raw().await;
        messages.hello3().await;
        Self {
            commands: server.raw().await,
            messages,
            id: format!("00000000-0000-4000-8000-000000000001:{thread}"),
        }
    }

    /// Whether it has the lock; if not, it stands in the queue.
    async fn acquire(&mut self) -> bool {
        let args = [&self.id, LEASE, WAIT];
        run(&mut self.commands, ACQUIRE, &args).await.is_null()
    }

    async fn try_lock(&mut self) -> bool {
        let args = [&self.id, LEASE, WAIT];
        run(&mut self.commands, ACQUIRE_ONCE, &args).await.is_null()
    }

    /// Waits in the queue, and hears when it is first.
    async fn stand(&mut self) {
        assert!(!self.acquire().await, "the lock is held");
        let channel = format!("{CHANNEL}:{}", self.id);
        self.messages.send(&["SUBSCRIBE", &channel]).await.unwrap();
        self.messages.push().await;
        assert!(!self.acquire().await, "the lock is held");
    }

    /// Takes the lock when it is told to.
    async fn turn(&mut self) {
        loop {
            let push = within("a message for Redisson", self.messages.push()).await;
            assert_eq!(push[2].str(), "0");
            if self.acquire().await {
                return;
            }
        }
    }

    async fn unlock(&mut self) {
        let released = run(&mut self.commands, RELEASE, &[&self.id, CHANNEL]).await;
        assert_eq!(released.int(), 1, "it has held the lock");
    }

    async fn give_up(&mut self) {
        run(&mut self.commands, GIVE_UP, &[&self.id, WAIT]).await;
    }
}

/// A task that waits with a ticket of its own behind those that are in line.
async fn in_line(raw: &mut Raw, locks: &Locks) -> Waiter {
    let before = tickets_alone(raw).await;
    let waiter = tokio::spawn(locks.fair_mutex("a").lock().into_future());
    until("a ticket more", async || tickets_alone(raw).await > before).await;
    waiter
}

/// The number of tickets, without the fences.
async fn tickets_alone(raw: &mut Raw) -> usize {
    let line = raw.cmd(&["ZRANGE", LINE, "0", "-1"]).await;
    let tickets = line.array().iter();
    tickets
        .filter(|ticket| !ticket.str().starts_with('#'))
        .count()
}

/// The queue, with the threads of Redisson's by their numbers.
async fn queue(raw: &mut Raw) -> String {
    let all = raw.cmd(&["LRANGE", QUEUE, "0", "-1"]).await;
    let all: Vec<_> = all.array().iter().map(RawValue::str).collect();
    all.join(" ")
        .replace("00000000-0000-4000-8000-000000000001:", "j")
        .replace("leasehold:", "#")
}

async fn holds(raw: &mut Raw, locks: &Locks) -> bool {
    fields(raw, "a").await.starts_with(locks.client_id())
}

/// Nothing but the counter of tokens.
async fn nothing_is_left(raw: &mut Raw) {
    until("the last release", async || !exists(raw, "a").await).await;
    until("an empty line", async || tickets(raw, "a").await == 0).await;
    let kept = keys(raw).await;
    let times = raw.cmd(&["ZRANGE", TIMES, "0", "-1", "WITHSCORES"]).await;
    assert_eq!(kept, ["redisson_lock_token:{a}"], "{times:?}");
}

#[tokio::test]
async fn waiters_of_both_have_their_turns_in_the_order_of_their_calls() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (
        beside_redisson(&server).await,
        beside_redisson(&server).await,
    );
    let mut java = Vec::new();
    for thread in 1..=3 {
        java.push(Java::new(&server, thread).await);
    }
    let held = ours.fair_mutex("a").lock().await.unwrap();
    assert_eq!(queue(&mut raw).await, "", "a holder is not in the queue");
    java[0].stand().await;
    let first = in_line(&mut raw, &ours).await;
    let second = in_line(&mut raw, &theirs).await;
    java[1].stand().await;
    let third = in_line(&mut raw, &theirs).await;
    java[2].stand().await;
    let fourth = in_line(&mut raw, &ours).await;
    assert_eq!(queue(&mut raw).await, "j1 #0 j2 #1 j3 #2");
    for who in [QUEUE, TIMES] {
        assert_eq!(pttl(&mut raw, who).await, -1, "as Redisson leaves it");
    }
    let due = raw.cmd(&["ZRANGE", TIMES, "0", "-1", "WITHSCORES"]).await;
    assert_eq!(due.array().len(), 12, "each has a time: {due:?}");

    held.release().await.unwrap();
    java[0].turn().await;
    assert_eq!(queue(&mut raw).await, "#0 j2 #1 j3 #2");
    java[0].unlock().await;
    let guard = its_turn(first).await;
    assert_eq!(queue(&mut raw).await, "#0 j2 #1 j3 #2");
    guard.release().await.unwrap();
    let guard = its_turn(second).await;
    assert_eq!(queue(&mut raw).await, "j2 #1 j3 #2", "a run is over");
    assert!(!java[2].try_lock().await);
    guard.release().await.unwrap();
    java[1].turn().await;
    java[1].unlock().await;
    its_turn(third).await.release().await.unwrap();
    java[2].turn().await;
    java[2].unlock().await;
    its_turn(fourth).await.release().await.unwrap();
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn all_who_wait_are_told_in_the_order_of_both() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (
        beside_redisson(&server).await,
        beside_redisson(&server).await,
    );
    let mut java = Vec::new();
    for thread in 1..=2 {
        java.push(Java::new(&server, thread).await);
    }
    let held = ours.fair_mutex("a").lock().await.unwrap();
    java[0].stand().await;
    let first = in_line(&mut raw, &ours).await;
    let second = in_line(&mut raw, &theirs).await;
    java[1].stand().await;
    let third = in_line(&mut raw, &theirs).await;
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    let seen = theirs.fair_mutex("a").inspect().await.unwrap();
    for write in ["hset", "zadd", "pexpire", "lrem", "zrem", "rpush", "lpush"] {
        assert_eq!(calls(&mut raw, write).await, 0, "{write}");
    }
    assert_eq!(seen.holders()[0].client(), ours.client_id());
    assert_eq!(seen.holders()[0].token(), Some(held.token()));
    let ids: Vec<_> = seen.waiters().iter().map(|one| one.id()).collect();
    assert_eq!((ids[0], ids[3]), (&*java[0].id, &*java[1].id));
    let clients = [1, 2, 4].map(|place| seen.waiters()[place].client());
    let expected = [ours.client_id(), theirs.client_id(), theirs.client_id()];
    assert_eq!(clients, expected);
    assert_eq!((ids.len(), seen.waiting()), (5, 5));
    let mut since = seen.waiters().windows(2);
    assert!(since.all(|two| two[0].since() <= two[1].since()));
    for waiter in [first, second, third] {
        waiter.abort();
    }
    drop(held);
    for mut thread in java {
        thread.turn().await;
        thread.unlock().await;
    }
    nothing_is_left(&mut raw).await;
}

/// Each waiter that comes is given a time behind the last one's, so each that goes has to take its own off again.
#[tokio::test]
async fn times_do_not_run_ahead_of_a_queue_that_is_never_empty() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server).await;
    let mut java = [Java::new(&server, 1).await, Java::new(&server, 2).await];
    let held = ours.fair_mutex("a").lock().await.unwrap();
    let mut waiter = in_line(&mut raw, &ours).await;
    java[0].stand().await;
    held.release().await.unwrap();
    for round in 0..10 {
        let guard = its_turn(waiter).await;
        waiter = in_line(&mut raw, &ours).await;
        java[(round + 1) % 2].stand().await;
        guard.release().await.unwrap();
        java[round % 2].turn().await;
        java[round % 2].unlock().await;
    }
    let due = raw.cmd(&["ZSCORE", TIMES, &java[0].id]).await.int();
    let ahead = due - now(&mut raw).await / 1000 - WAIT.parse::<i64>().unwrap();
    println!("{ahead} ms beyond its own time");
    assert!(ahead < 20_000, "{ahead}");
    its_turn(waiter).await.release().await.unwrap();
    java[0].turn().await;
    java[0].unlock().await;
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn a_queue_of_redisson_is_not_passed() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server).await;
    let (mut first, mut second) = (Java::new(&server, 1).await, Java::new(&server, 2).await);
    assert!(first.acquire().await);
    second.stand().await;
    // Free, and its first was not told.
    raw.cmd(&["DEL", "a"]).await;
    assert!(ours.fair_mutex("a").try_lock().await.unwrap().is_none());
    let waiter = in_line(&mut raw, &ours).await;
    // Who finds it free tells the first.
    second.turn().await;
    second.unlock().await;
    its_turn(waiter).await.release().await.unwrap();
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn a_run_of_ours_is_not_passed_by_redisson() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server).await;
    let mut java = Java::new(&server, 1).await;
    let held = ours.fair_mutex("a").lock().await.unwrap();
    let waiter = in_line(&mut raw, &ours).await;
    raw.cmd(&["DEL", "a"]).await;
    assert!(!java.try_lock().await);
    java.stand().await;
    let guard = its_turn(waiter).await;
    drop(held);
    guard.release().await.unwrap();
    java.turn().await;
    java.unlock().await;
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn waiters_of_redisson_that_died_are_passed_when_their_time_is_over() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server).await;
    let held = ours.fair_mutex("a").lock().await.unwrap();
    for thread in 1..=3 {
        Java::new(&server, thread).await.stand().await;
    }
    let waiter = in_line(&mut raw, &ours).await;
    // Two are overdue. The third lost its time: Redisson would wait for it without end.
    for thread in 1..=2 {
        let id = format!("00000000-0000-4000-8000-000000000001:{thread}");
        raw.cmd(&["ZADD", TIMES, "1", &id]).await;
    }
    let third = "00000000-0000-4000-8000-000000000001:3";
    raw.cmd(&["ZREM", TIMES, third]).await;
    held.release().await.unwrap();
    until("they are passed", async || queue(&mut raw).await == "j3 #0").await;
    assert!(!raw.cmd(&["ZSCORE", TIMES, third]).await.is_null());
    let guard = its_turn(waiter).await;
    guard.release().await.unwrap();
    nothing_is_left(&mut raw).await;
}

/// Those of Redisson's behind a dead one ask without a pause until its time is over.
#[tokio::test]
async fn a_dead_waiter_of_redissons_makes_ours_ask_no_more_than_about_once_a_second() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server).await;
    let held = ours.fair_mutex("a").lock().await.unwrap();
    Java::new(&server, 1).await.stand().await;
    let waiter = in_line(&mut raw, &ours).await;
    held.release().await.unwrap();
    until("it is free", async || !exists(&mut raw, "a").await).await;
    let asked = scripts_run(&mut raw).await;
    tokio::time::sleep(ms(3_000)).await;
    let asked = scripts_run(&mut raw).await - asked;
    assert!((1..=9).contains(&asked), "{asked} in three seconds");
    assert!(!waiter.is_finished(), "it is not passed before its time");
    let dead = "00000000-0000-4000-8000-000000000001:1";
    raw.cmd(&["ZADD", TIMES, "1", dead]).await;
    its_turn(waiter).await.release().await.unwrap();
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn a_waiter_that_gives_up_leaves_the_queue_and_the_next_one_is_told() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server).await;
    let mut java = Java::new(&server, 1).await;
    let held = ours.fair_mutex("a").lock().await.unwrap();
    let waiters = [
        in_line(&mut raw, &ours).await,
        in_line(&mut raw, &ours).await,
    ];
    java.stand().await;
    let tried = ours.fair_mutex("a").try_lock_for(ms(30)).await;
    assert!(tried.unwrap().is_none());
    until("its run is over", async || queue(&mut raw).await == "#0 j1").await;
    // With the lock free at that moment.
    raw.cmd(&["DEL", "a"]).await;
    for waiter in waiters {
        waiter.abort();
    }
    java.turn().await;
    assert_eq!(queue(&mut raw).await, "");
    java.unlock().await;
    drop(held);
    until("it is free", async || !exists(&mut raw, "a").await).await;
    // And Redisson's: those behind it stay.
    let held = ours.fair_mutex("a").lock().await.unwrap();
    java.stand().await;
    let waiter = in_line(&mut raw, &ours).await;
    java.give_up().await;
    assert_eq!(queue(&mut raw).await, "#0");
    held.release().await.unwrap();
    its_turn(waiter).await.release().await.unwrap();
    nothing_is_left(&mut raw).await;
}

/// Redisson removes a first whose time is over by its clock, alive or not.
#[tokio::test]
async fn a_run_that_redisson_took_for_dead_comes_back_in_front() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server).await;
    let mut java = [Java::new(&server, 1).await, Java::new(&server, 2).await];
    assert!(java[0].acquire().await);
    let waiter = in_line(&mut raw, &ours).await;
    java[1].stand().await;
    raw.cmd(&["ZADD", TIMES, "1", "leasehold:0"]).await;
    assert!(!java[1].acquire().await);
    assert_eq!(queue(&mut raw).await, "j2", "it was removed");
    until("it is back", async || queue(&mut raw).await == "#0 j2").await;
    java[0].unlock().await;
    its_turn(waiter).await.release().await.unwrap();
    java[1].turn().await;
    java[1].unlock().await;
    nothing_is_left(&mut raw).await;
}

#[tokio::test]
async fn what_dead_processes_of_ours_left_holds_up_nobody() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server).await;
    let mut java = Java::new(&server, 1).await;
    let held = ours.fair_mutex("a").lock().await.unwrap();
    raw.cmd(&["ZADD", LINE, "1", "#0"]).await;
    let dead = "0190c0de-0000-7000-8000-00000000000a:1";
    raw.cmd(&["ZADD", LINE, "2", dead]).await;
    raw.cmd(&["RPUSH", QUEUE, "leasehold:0"]).await;
    raw.cmd(&["ZADD", TIMES, "9999999999999", "leasehold:0"])
        .await;
    java.stand().await;
    held.release().await.unwrap();
    java.turn().await;
    assert_eq!(queue(&mut raw).await, "");
    java.unlock().await;
    // A marker without a line, and none of Redisson's: the next one finds the lock free.
    raw.cmd(&["RPUSH", QUEUE, "leasehold:7"]).await;
    raw.cmd(&["ZADD", TIMES, "9999999999999", "leasehold:7"])
        .await;
    let guard = ours.fair_mutex("a").try_lock().await.unwrap().unwrap();
    guard.release().await.unwrap();
    nothing_is_left(&mut raw).await;
}

/// Any of the keys may vanish, at any time.
#[tokio::test]
async fn waiters_go_on_when_any_of_the_keys_is_lost() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (
        beside_redisson(&server).await,
        beside_redisson(&server).await,
    );
    for lost in 1..8 {
        let keys: Vec<_> = [QUEUE, TIMES, LINE]
            .into_iter()
            .enumerate()
            .filter_map(|(i, key)| (lost >> i & 1 == 1).then_some(key))
            .collect();
        let mut java = Java::new(&server, lost).await;
        let held = ours.fair_mutex("a").lock().await.unwrap();
        let first = in_line(&mut raw, &theirs).await;
        java.stand().await;
        let second = in_line(&mut raw, &ours).await;
        raw.cmd(&[&["DEL"], &keys[..]].concat()).await;
        held.release().await.unwrap();
        // Where the queue is lost, Redisson stands in it no more.
        let waits = async {
            loop {
                if java.acquire().await {
                    return java.unlock().await;
                }
                tokio::time::sleep(ms(20)).await;
            }
        };
        let turns = async {
            let first = async { its_turn(first).await.release().await };
            let second = async { its_turn(second).await.release().await };
            let (first, second) = tokio::join!(first, second);
            assert_eq!(
                (first.unwrap(), second.unwrap()),
                (Release::Released, Release::Released)
            );
        };
        println!("without {keys:?}");
        within("all turns", async { tokio::join!(waits, turns) }).await;
        java.give_up().await;
        nothing_is_left(&mut raw).await;
    }
}

#[tokio::test]
async fn more_runs_than_there_are_markers_join_the_last_one() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = beside_redisson(&server).await;
    let held = ours.fair_mutex("a").lock().await.unwrap();
    let (mut java, mut waiters) = (Vec::new(), Vec::new());
    for thread in 0..18 {
        waiters.push(in_line(&mut raw, &ours).await);
        let mut thread = Java::new(&server, thread).await;
        thread.stand().await;
        java.push(thread);
    }
    let queued = queue(&mut raw).await;
    assert_eq!(queued.matches('#').count(), 16, "{queued}");
    held.release().await.unwrap();
    let mut java = java.into_iter();
    for (i, waiter) in waiters.into_iter().enumerate() {
        its_turn(waiter).await.release().await.unwrap();
        if i == 15 || i == 16 {
            // Their runs are the sixteenth.
            continue;
        }
        if let Some(mut thread) = java.next() {
            thread.turn().await;
            thread.unlock().await;
        }
    }
    for mut thread in java {
        thread.turn().await;
        thread.unlock().await;
    }
    nothing_is_left(&mut raw).await;
}

/// The names are the same locks for all: they exclude each other whatever is set.
#[tokio::test]
async fn a_process_without_interop_holds_it_up_and_is_held_up() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, alone) = (beside_redisson(&server).await, locks(&server).await);
    let mut java = Java::new(&server, 1).await;
    assert!(java.acquire().await);
    assert!(alone.fair_mutex("a").try_lock().await.unwrap().is_none());
    java.unlock().await;
    let held = alone.fair_mutex("a").lock().await.unwrap();
    assert!(ours.fair_mutex("a").try_lock().await.unwrap().is_none());
    let waiter = in_line(&mut raw, &ours).await;
    held.release().await.unwrap();
    let guard = its_turn(waiter).await;
    assert!(holds(&mut raw, &ours).await);
    guard.release().await.unwrap();
}
