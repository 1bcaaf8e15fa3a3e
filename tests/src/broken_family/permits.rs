//! Clients that take permits of a semaphore.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Client, Kind, Run, observe};
use crate::history::{Mode, now};
use crate::server::Server;

/// The flaw of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It gives a permit back that it had lost, and that had come back by itself.
    GivesBackTwice,
    /// It counts what is free, and takes it in another step.
    LooksThenTakes,
    /// It sets the number of free permits when it connects, whatever is out.
    SetsAnew,
}

impl Kind for Flaw {
    const ALL: &[Self] = &[
        Self::None,
        Self::GivesBackTwice,
        Self::LooksThenTakes,
        Self::SetsAnew,
    ];

    fn rule(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            _ => Some("I17"),
        }
    }

    async fn run(self, servers: &[Server], dir: &Path) {
        workload(self, servers[0].addr(), dir).await;
    }
}

const PERMITS: u32 = 3;
const CLIENTS: usize = 5;
const TIME: Duration = Duration::from_millis(2_500);
const WORK: Duration = Duration::from_millis(30);

/// KEYS: the leases of permits, the number of free ones. Permits whose lease is over come back.
const SETTLE: &str = "local time = redis.call('TIME') local ms = time[1] * 1000 + math.floor(time[2] / 1000) \
    local back = redis.call('ZREMRANGEBYSCORE', KEYS[1], '0', ms) redis.call('INCRBY', KEYS[2], back) ";
const LOOKS: &str = "if tonumber(redis.call('GET', KEYS[2])) < 1 then return 0 end ";
const TAKES: &str =
    "redis.call('DECR', KEYS[2]) redis.call('ZADD', KEYS[1], ms + ARGV[2], ARGV[1]) return 1";
const GIVES_BACK: &str = "local was = redis.call('ZREM', KEYS[1], ARGV[1]) \
    if was == 1 or ARGV[3] == 'twice' then redis.call('INCR', KEYS[2]) end return was";
const LOOK: &str = "local time = redis.call('TIME') local ms = time[1] * 1000 + math.floor(time[2] / 1000) \
    local first = redis.call('ZRANGEBYSCORE', KEYS[1], ms + 1, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] \
    return {redis.call('ZRANGEBYSCORE', KEYS[1], ms + 1, '+inf'), first and first - ms or -2}";

async fn workload(flaw: Flaw, addr: SocketAddr, dir: &Path) {
    let run = Run::begin("permits", flaw, flaw == Flaw::None, dir);
    let recorder = &run.recorder;
    let key = run.key.clone();
    let free = format!("{key}:free");
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let mut client = Client::new(addr, recorder, n, TIME).await;
        if n == 0 {
            client.raw.cmd(&["SET", &free, &PERMITS.to_string()]).await;
        }
        let user = User {
            client,
            key: key.clone(),
            free: free.clone(),
            flaw,
        };
        clients.spawn(user.run(n == 0));
    }
    let observer = observe(addr, recorder, key, LOOK);
    clients.join_all().await;
    observer.abort();
}

struct User {
    client: Client,
    key: String,
    free: String,
    flaw: Flaw,
}

impl User {
    /// One that oversleeps keeps a permit for longer than its lease now and then.
    async fn run(mut self, oversleeps: bool) {
        while !self.client.is_over() {
            if self.flaw == Flaw::SetsAnew && self.client.asked % 10 == 9 {
                let set = ["SET", &self.free, &PERMITS.to_string()];
                self.client.raw.cmd(&set).await;
            }
            let hold = self.client.next_hold();
            let mode = Mode::Permit(PERMITS);
            let call = self.client.recorder.invoke(&self.key, mode, true, None);
            let mut sent = now();
            while !self.takes(&hold).await {
                sleep(Duration::from_millis(3)).await;
                sent = now();
            }
            self.client.granted(call, &hold, 0, sent);
            let sleeps = oversleeps && self.client.asked.is_multiple_of(2);
            sleep(if sleeps { super::LEASE * 5 / 4 } else { WORK }).await;
            self.client.releases(&hold);
            let was_there = self.ask(&[SETTLE, GIVES_BACK], &hold).await;
            self.client.released(&hold, was_there == 1);
        }
    }

    async fn takes(&mut self, hold: &str) -> bool {
        if self.flaw != Flaw::LooksThenTakes {
            return self.ask(&[SETTLE, LOOKS, TAKES], hold).await == 1;
        }
        if self.ask(&[SETTLE, LOOKS, "return 1"], hold).await == 0 {
            return false;
        }
        sleep(Duration::from_millis(2)).await;
        self.ask(&[SETTLE, TAKES], hold).await == 1
    }

    async fn ask(&mut self, steps: &[&str], hold: &str) -> i64 {
        let lease = super::LEASE.as_millis().to_string();
        let how = if self.flaw == Flaw::GivesBackTwice {
            "twice"
        } else {
            ""
        };
        let (script, keys) = (steps.concat(), [self.key.as_str(), &self.free]);
        self.client
            .eval(&script, &keys, &[hold, &lease, how])
            .await
            .int()
    }
}
