//! Clients that hand a lock over by tickets, with a flaw each, to show that the checker sees it in
//! the record of the line.
//!
//! They share the key layout and the form of messages with the library, and no line of its code.
//! One of them has no flaw: the checker must call that one clean.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::checker::Limits;
use crate::history::{Mode, Outcome, Recorder, What, micros, now};
use crate::line_watch::LineWatch;
use crate::raw::Raw;
use crate::server::Server;

/// The flaw of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFlaw {
    /// Nothing.
    None,
    /// Its release grants the last in line.
    LastFirst,
    /// It takes a lock that it releases at once again, also while others wait.
    PushesIn,
    /// It does not listen to some of the messages of its grants.
    DeafNowAndThen,
    /// It grants with the token of the grant before.
    OldToken,
}

/// The lock that all clients contend for.
const KEY: &str = "broken:line";
const LEASE: Duration = Duration::from_millis(1_000);
/// Time a client holds the lock.
const WORK: Duration = Duration::from_millis(4);
const CLIENTS: u64 = 4;
/// Duration of the workload.
const TIME: Duration = Duration::from_secs(4);
/// A client with [`LineFlaw::DeafNowAndThen`] misses one of so many grants.
const DEAF: u64 = 20;

/// Joins the line, or takes a lock that is free and has none. A lock that is free goes to the first
/// in line.
const ASK: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then \
      return tonumber(redis.call('GET', KEYS[2])) end \
    if redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then return enter(ARGV[1]) end \
    local time = redis.call('TIME') \
    redis.call('ZADD', KEYS[3], 'NX', time[1] * 1000000 + time[2], ARGV[1]) \
    redis.call('PEXPIRE', KEYS[3], 60000) \
    if redis.call('EXISTS', KEYS[1]) == 0 then grant() end return 0";

/// Releases, and grants the lock to the first in line.
const RELEASE: &str = "if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end \
    if ARGV[3] ~= '' then enter(ARGV[3]) return 2 end grant() return 1";

/// Tokens are times, in text.
const STEPS: &str = "local function token() local time = redis.call('TIME') \
      local token = time[1] .. string.format('%06d', time[2]) \
      redis.call('SET', KEYS[2], token, 'PX', 600000) return token end \
    local function enter(hold) local token = token() redis.call('HSET', KEYS[1], hold, '1') \
      redis.call('PEXPIRE', KEYS[1], ARGV[2]) return tonumber(token) end \
    local function grant() local first = redis.call('POP', KEYS[3])[1] \
      if not first then return end \
      local token = TOKEN local client, number = string.match(first, '^(.+):(%d+)$') \
      local message = 'G ' .. number .. ' ' .. token .. ' 0 1000 ' .. KEYS[1] \
      redis.call('HSET', KEYS[1], first, '1') redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
      redis.call('PUBLISH', 'leasehold:' .. client, message) end ";

/// The bounds a sound client keeps in this workload, with much to spare.
pub const LIMITS: Limits = Limits {
    lease: LEASE,
    loss_notice: Duration::from_secs(10),
    handoff: Duration::from_secs(10),
    overrun: Duration::from_secs(10),
    cleanup: Duration::from_secs(10),
};

/// Runs clients with the flaw for some seconds, and writes their history into `dir`.
///
/// # Panics
///
/// When the server fails.
pub async fn workload(flaw: LineFlaw, server: &Server, dir: &Path) {
    let recorder = Recorder::open(dir, "workload");
    let _watch = LineWatch::start(server.addr(), vec![KEY.into()], recorder.client("line"));
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let client = Client {
            addr: server.addr(),
            name: format!("client-{n}"),
            recorder: recorder.client(&format!("client-{n}")),
            flaw,
        };
        clients.spawn(client.run());
    }
    while clients.join_next().await.is_some() {}
    // Everything that the server has told by then is recorded.
    sleep(Duration::from_millis(500)).await;
}

struct Client {
    addr: SocketAddr,
    /// The beginning of its holds' ids.
    name: String,
    recorder: Recorder,
    flaw: LineFlaw,
}

impl Client {
    async fn run(self) {
        let mut raw = Raw::connect(self.addr).await.expect("the server is up");
        let mut hears = Raw::connect(self.addr).await.expect("the server is up");
        hears.hello3().await;
        let channel = format!("leasehold:{}", self.name);
        hears.send(&["SUBSCRIBE", &channel]).await.expect("up");
        hears.push().await;
        let end = Instant::now() + TIME;
        for attempt in 1.. {
            let hold = format!("{}:{attempt}", self.name);
            let call = self.recorder.invoke(KEY, Mode::Exclusive, true, None);
            let sent = now();
            let mut token = self.ask(&mut raw, ASK, &hold, "").await;
            let is_deaf = self.flaw == LineFlaw::DeafNowAndThen && attempt % DEAF == 0;
            while token == 0 {
                token = if is_deaf {
                    sleep(LEASE * 2).await;
                    self.ask(&mut raw, ASK, &hold, "").await
                } else {
                    self.grant_of(&mut hears, &mut raw, &hold, attempt).await
                };
            }
            self.holds(call, &hold, token, sent).await;
            let next = format!("{}:{}", self.name, 1_000_000 + attempt);
            if self.flaw == LineFlaw::PushesIn && attempt % DEAF == 0 {
                self.releases(&mut raw, &hold, &next).await;
                self.ask(&mut raw, RELEASE, &next, "").await;
            } else {
                self.releases(&mut raw, &hold, "").await;
            }
            if Instant::now() > end {
                return;
            }
        }
    }

    async fn holds(&self, call: u64, hold: &str, token: i64, sent: u64) {
        self.recorder.record(What::Ok {
            call,
            hold: hold.into(),
            token: token.unsigned_abs(),
            // A grant lease counts from the grant, which came after the request.
            valid_until: sent + micros(LEASE) * 99 / 100 - 2_000,
        });
        sleep(WORK).await;
    }

    async fn releases(&self, raw: &mut Raw, hold: &str, next: &str) {
        self.recorder
            .record(What::ReleaseInvoke { hold: hold.into() });
        let outcome = match self.ask(raw, RELEASE, hold, next).await {
            0 => Outcome::AlreadyGone,
            _ => Outcome::Released,
        };
        self.recorder.record(What::ReleaseOk {
            hold: hold.into(),
            outcome,
        });
    }

    /// The token of the grant, by its message or by another question; 0 if it is not there yet.
    async fn grant_of(&self, hears: &mut Raw, raw: &mut Raw, hold: &str, attempt: u64) -> i64 {
        let Ok(push) = timeout(LEASE, hears.push()).await else {
            return self.ask(raw, ASK, hold, "").await;
        };
        let mut words = push[2].str().split(' ');
        let (number, token) = (words.nth(1), words.next());
        match (number.map(str::parse), token.map(str::parse)) {
            (Some(Ok::<u64, _>(number)), Some(Ok(token))) if number == attempt => token,
            _ => 0,
        }
    }

    async fn ask(&self, raw: &mut Raw, script: &str, hold: &str, next: &str) -> i64 {
        let steps = STEPS.replace(
            "'POP'",
            if self.flaw == LineFlaw::LastFirst {
                "'ZPOPMAX'"
            } else {
                "'ZPOPMIN'"
            },
        );
        let steps = steps.replace(
            "TOKEN",
            if self.flaw == LineFlaw::OldToken {
                "redis.call('GET', KEYS[2])"
            } else {
                "token()"
            },
        );
        let (script, lease) = (format!("{steps}{script}"), LEASE.as_millis().to_string());
        let (counter, line) = (format!("{KEY}:token"), format!("leasehold_line:{{{KEY}}}"));
        let command = [
            "EVAL", &script, "3", KEY, &counter, &line, hold, &lease, next,
        ];
        let reply = raw.cmd(&command).await;
        assert!(reply.error().is_none(), "{reply:?}");
        reply.int()
    }
}
