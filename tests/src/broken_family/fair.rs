//! Clients that take a lock in the order of their requests.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Client, Kind, Run};
use crate::checker::Limits;
use crate::history::{Mode, now};
use crate::server::Server;

/// The flaw of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// Its release grants the last in line.
    LastFirst,
    /// With its release it takes the lock again, whoever is in line.
    PushesIn,
    /// Each look of one that waits puts it at the end of the line.
    LosesItsPlace,
}

impl Kind for Flaw {
    const ALL: &[Self] = &[
        Self::None,
        Self::LastFirst,
        Self::PushesIn,
        Self::LosesItsPlace,
    ];

    const LIMITS: Limits = LIMITS;

    fn rule(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            _ => Some("I7"),
        }
    }

    async fn run(self, servers: &[Server], dir: &Path) {
        workload(self, servers[0].addr(), dir).await;
    }
}

const CLIENTS: usize = 4;
const TIME: Duration = Duration::from_millis(2_600);
/// Time a client holds the lock.
const WORK: Duration = Duration::from_millis(25);
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// The bounds of a sound client: a grant that its client did not hear of costs its lease.
const LIMITS: Limits = Limits {
    handoff: Duration::from_secs(5),
    ..super::LIMITS
};

/// Grants the lock to the next in line.
const GRANT: &str = "local function grant() \
      local pop = ARGV[3] == 'last first' and 'ZPOPMAX' or 'ZPOPMIN' \
      local next = redis.call(pop, KEYS[2])[1] if not next then return end \
      redis.call('HSET', KEYS[1], next, '1') redis.call('PEXPIRE', KEYS[1], ARGV[2]) redis.call('INCR', KEYS[3]) end ";
/// Joins the line, or takes a lock that is free and has none. Replies with the token of a hold that is granted by now.
const ASK: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return tonumber(redis.call('GET', KEYS[3])) end \
    local free = redis.call('EXISTS', KEYS[1]) == 0 \
    if free and redis.call('EXISTS', KEYS[2]) == 0 then \
      redis.call('HSET', KEYS[1], ARGV[1], '1') redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
      return redis.call('INCR', KEYS[3]) end \
    local place = redis.call('INCR', KEYS[2] .. ':places') \
    if ARGV[3] == 'loses its place' then redis.call('ZADD', KEYS[2], place, ARGV[1]) \
    else redis.call('ZADD', KEYS[2], 'NX', place, ARGV[1]) end \
    if free then grant() end return 0";
/// Releases, and takes it again.
const TAKES_AGAIN: &str = "if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end \
    redis.call('HSET', KEYS[1], ARGV[3], '1') redis.call('PEXPIRE', KEYS[1], ARGV[2]) return redis.call('INCR', KEYS[3])";
/// Releases.
const RELEASE: &str =
    "if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end grant() return 1";

async fn workload(flaw: Flaw, addr: SocketAddr, dir: &Path) {
    let run = Run::begin("fair", flaw, flaw == Flaw::None, dir);
    let recorder = &run.recorder;
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let client = Client::new(addr, recorder, n, TIME).await;
        let how = match flaw {
            Flaw::None => "",
            Flaw::LastFirst => "last first",
            Flaw::PushesIn => "pushes in",
            // One of them is enough: the others are before it.
            Flaw::LosesItsPlace => ["loses its place", ""][n.min(1)],
        };
        clients.spawn(contend(client, run.key.clone(), how));
    }
    clients.join_all().await;
}

async fn contend(mut client: Client, key: String, how: &str) {
    let (line, counter) = (format!("{key}:line"), format!("{key}:token"));
    let keys = [key.as_str(), &line, &counter];
    let lease = super::LEASE.as_millis().to_string();
    let (ask, release) = (format!("{GRANT}{ASK}"), format!("{GRANT}{RELEASE}"));
    let invoke = |client: &Client| client.recorder.invoke(&key, Mode::Ordered, true, None);
    // The grant that came with the release of the hold before.
    let mut taken = None;
    while !client.is_over() {
        let hold = match taken.take() {
            Some(hold) => hold,
            None => {
                let (hold, call) = (client.next_hold(), invoke(&client));
                let (sent, token) = loop {
                    let sent = now();
                    let token = client.eval(&ask, &keys, &[&hold, &lease, how]).await.int();
                    if token > 0 {
                        break (sent, token.unsigned_abs());
                    }
                    sleep(PAUSE).await;
                };
                // The grant was before the question that told of it: less than half a lease, as it asks often.
                client.granted(call, &hold, token, sent - 100_000);
                hold
            }
        };
        sleep(WORK).await;
        client.releases(&hold);
        if how != "pushes in" {
            let was_there = client.eval(&release, &keys, &[&hold, &lease, how]).await;
            client.released(&hold, was_there.int() == 1);
            continue;
        }
        let (next, call, sent) = (client.next_hold(), invoke(&client), now());
        let args = [hold.as_str(), &lease, &next];
        let token = client.eval(TAKES_AGAIN, &keys, &args).await.int();
        client.released(&hold, token > 0);
        if token > 0 {
            client.granted(call, &next, token.unsigned_abs(), sent);
            taken = Some(next);
        } else {
            client.refused(call);
        }
    }
}
