//! Clients that read and write under one lock.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Client, Kind, Run};
use crate::history::{Mode, What, now};
use crate::server::Server;

/// The flaw of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// Readers are a number: one whose lease is over takes another one off it when it releases.
    CountsReaders,
    /// A reader becomes a writer beside other readers.
    UpgradesBesideOthers,
    /// A writer looks for readers, and writes in another step.
    LooksThenTakes,
    /// Readers pass a writer that waits.
    KnowsNoGate,
}

impl Kind for Flaw {
    const ALL: &[Self] = &[
        Self::None,
        Self::CountsReaders,
        Self::UpgradesBesideOthers,
        Self::LooksThenTakes,
        Self::KnowsNoGate,
    ];

    fn rule(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::KnowsNoGate => Some("I15"),
            _ => Some("I1"),
        }
    }

    async fn run(self, servers: &[Server], dir: &Path) {
        workload(self, servers[0].addr(), dir).await;
    }
}

const READERS: usize = 3;
const TIME: Duration = Duration::from_millis(3_200);
const READ: Duration = Duration::from_millis(40);
const WRITE: Duration = Duration::from_millis(10);

/// KEYS: the leases of the readers, the writer, a writer that waits, the number of readers.
/// Readers whose lease is over go.
const SETTLE: &str = "local time = redis.call('TIME') local ms = time[1] * 1000 + math.floor(time[2] / 1000) \
    local gone = redis.call('ZREMRANGEBYSCORE', KEYS[1], '0', ms) redis.call('DECRBY', KEYS[4], gone) ";
const READS: &str = "if redis.call('EXISTS', KEYS[2]) == 1 or (ARGV[3] ~= 'no gate' and redis.call('EXISTS', KEYS[3]) == 1) \
    then return 0 end redis.call('ZADD', KEYS[1], ms + ARGV[2], ARGV[1]) redis.call('INCR', KEYS[4]) return 1";
const ENDS_READ: &str = "local was = redis.call('ZREM', KEYS[1], ARGV[1]) \
    if was == 1 or ARGV[3] == 'counts' then redis.call('DECR', KEYS[4]) end return was";
const LOOKS: &str = "local readers = redis.call('ZCARD', KEYS[1]) \
    if ARGV[3] == 'counts' then readers = math.max(0, tonumber(redis.call('GET', KEYS[4]) or '0')) end \
    if readers > 0 or redis.call('EXISTS', KEYS[2]) == 1 then \
      redis.call('SET', KEYS[3], ARGV[1], 'PX', '200') return 0 end ";
const OPENS: &str = "redis.call('DEL', KEYS[3]) return 1";
const TAKES: &str = "redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2]) redis.call('DEL', KEYS[3]) \
    return redis.call('INCR', KEYS[2] .. ':token')";
const UPGRADES: &str = "if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end ";
const ENDS_WRITE: &str =
    "if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[2])";

async fn workload(flaw: Flaw, addr: SocketAddr, dir: &Path) {
    let run = Run::begin("rw", flaw, flaw == Flaw::None, dir);
    let recorder = &run.recorder;
    let mut clients = JoinSet::new();
    for n in 0..=READERS {
        let client = User {
            client: Client::new(addr, recorder, n, TIME).await,
            key: run.key.clone(),
            flaw,
        };
        if n < READERS {
            clients.spawn(client.reads(n == 0));
        } else {
            clients.spawn(client.writes());
        }
    }
    clients.join_all().await;
}

struct User {
    client: Client,
    key: String,
    flaw: Flaw,
}

impl User {
    /// One that oversleeps stays longer than its lease now and then.
    async fn reads(mut self, oversleeps: bool) {
        // Readers that know no gate come before those that go, so there is always one.
        let mut leaves: Option<String> = None;
        while !self.client.is_over() {
            let hold = self.read().await;
            if let Some(before) = leaves.take() {
                self.ends_read(&before).await;
            }
            let sleeps = oversleeps && self.client.asked.is_multiple_of(3);
            sleep(if sleeps { super::LEASE * 5 / 4 } else { READ }).await;
            match self.flaw {
                Flaw::KnowsNoGate => leaves = Some(hold),
                Flaw::UpgradesBesideOthers if self.client.asked.is_multiple_of(5) => {
                    self.upgrades(&hold).await;
                }
                _ => self.ends_read(&hold).await,
            }
        }
        if let Some(last) = leaves {
            self.ends_read(&last).await;
        }
    }

    async fn read(&mut self) -> String {
        let hold = self.client.next_hold();
        let call = self
            .client
            .recorder
            .invoke(&self.key, Mode::Shared, true, None);
        loop {
            let sent = now();
            if self.ask(&[SETTLE, READS], &hold).await > 0 {
                self.client.granted(call, &hold, 0, sent);
                return hold;
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    async fn ends_read(&mut self, hold: &str) {
        self.client.releases(hold);
        let was_there = self.ask(&[SETTLE, ENDS_READ], hold).await;
        self.client.released(hold, was_there == 1);
    }

    async fn upgrades(&mut self, read: &str) {
        let hold = self.client.next_hold();
        let call = self
            .client
            .recorder
            .invoke(&self.key, Mode::Exclusive, false, None);
        self.client
            .recorder
            .record(What::Drop { hold: read.into() });
        let sent = now();
        self.ask(&[SETTLE, ENDS_READ], read).await;
        match self.ask(&[UPGRADES, TAKES], &hold).await {
            0 => self.client.refused(call),
            token => self.wrote(call, &hold, token, sent).await,
        }
    }

    async fn writes(mut self) {
        while !self.client.is_over() {
            sleep(Duration::from_millis(20)).await;
            let hold = self.client.next_hold();
            let call = self
                .client
                .recorder
                .invoke(&self.key, Mode::Exclusive, true, None);
            let (sent, token) = loop {
                let sent = now();
                let token = if self.flaw == Flaw::LooksThenTakes {
                    match self.ask(&[SETTLE, LOOKS, OPENS], &hold).await {
                        0 => 0,
                        _ => {
                            sleep(Duration::from_millis(3)).await;
                            self.ask(&[TAKES], &hold).await
                        }
                    }
                } else {
                    self.ask(&[SETTLE, LOOKS, TAKES], &hold).await
                };
                if token > 0 {
                    break (sent, token);
                }
                sleep(Duration::from_millis(2)).await;
                if self.client.is_over() {
                    return;
                }
            };
            self.wrote(call, &hold, token, sent).await;
        }
    }

    async fn wrote(&mut self, call: u64, hold: &str, token: i64, sent: u64) {
        self.client.granted(call, hold, token.unsigned_abs(), sent);
        sleep(WRITE).await;
        self.client.releases(hold);
        let was_there = self.ask(&[ENDS_WRITE], hold).await;
        self.client.released(hold, was_there == 1);
    }

    async fn ask(&mut self, steps: &[&str], hold: &str) -> i64 {
        let key = &self.key;
        let keys = [
            key.as_str(),
            &format!("{key}:writer"),
            &format!("{key}:gate"),
            &format!("{key}:readers"),
        ];
        let lease = super::LEASE.as_millis().to_string();
        let how = match self.flaw {
            Flaw::CountsReaders => "counts",
            Flaw::KnowsNoGate => "no gate",
            _ => "",
        };
        let script = steps.concat();
        self.client
            .eval(&script, &keys, &[hold, &lease, how])
            .await
            .int()
    }
}
