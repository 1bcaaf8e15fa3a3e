//! Clients that take two locks at once, beside one that takes a single one.

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
    /// It goes on if it has got the first.
    TakesSomeForAll,
    /// It does not give back the first when the second is held by others.
    LeavesTheFirst,
    /// It renews the first alone.
    RenewsTheFirst,
}

impl Kind for Flaw {
    const ALL: &[Self] = &[
        Self::None,
        Self::TakesSomeForAll,
        Self::LeavesTheFirst,
        Self::RenewsTheFirst,
    ];

    fn rule(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            _ => Some("I18"),
        }
    }

    async fn run(self, servers: &[Server], dir: &Path) {
        workload(self, servers[0].addr(), dir).await;
    }
}

const TIME: Duration = Duration::from_millis(2_500);
const WORK: Duration = Duration::from_millis(15);

const TAKES: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
    redis.call('HSET', KEYS[1], ARGV[1], '1') redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
    return redis.call('INCR', KEYS[2])";
const RENEWS: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end \
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const RELEASES: &str = "return redis.call('HDEL', KEYS[1], ARGV[1])";
const LOOK: &str = "return {redis.call('HKEYS', KEYS[1]), redis.call('PTTL', KEYS[1])}";

async fn workload(flaw: Flaw, addr: SocketAddr, dir: &Path) {
    let run = Run::begin("together", flaw, flaw == Flaw::None, dir);
    let recorder = &run.recorder;
    let keys = ["a", "b"].map(|part| format!("{}:{part}", run.key));
    let mut clients = JoinSet::new();
    for n in 0..3 {
        let client = Client::new(addr, recorder, n, TIME).await;
        let user = User {
            client,
            // The last one takes the second alone.
            keys: keys[usize::from(n == 2)..].to_vec(),
            flaw,
        };
        clients.spawn(user.run(n == 0));
    }
    let observers = keys.map(|key| observe(addr, recorder, key, LOOK));
    clients.join_all().await;
    // Leftovers are seen for longer than they may stay.
    sleep(super::LIMITS.cleanup + Duration::from_millis(50)).await;
    observers.iter().for_each(|observer| observer.abort());
}

struct User {
    client: Client,
    keys: Vec<String>,
    flaw: Flaw,
}

impl User {
    async fn run(mut self, works_long: bool) {
        while !self.client.is_over() {
            let holds: Vec<_> = self.keys.iter().map(|_| self.client.next_hold()).collect();
            let claims: Vec<_> = self
                .keys
                .iter()
                .map(String::as_str)
                .zip(holds.clone())
                .collect();
            let parts = self.client.asks_for(&claims, Mode::Exclusive, false);
            let (sent, tokens) = self.takes(&holds).await;
            let enough = if self.flaw == Flaw::TakesSomeForAll {
                1
            } else {
                holds.len()
            };
            if tokens.len() < enough {
                let kept = usize::from(self.flaw == Flaw::LeavesTheFirst);
                let taken = holds.iter().enumerate().take(tokens.len());
                for (at, hold) in taken.skip(kept) {
                    self.ask(RELEASES, at, hold).await;
                }
                for part in parts {
                    self.client.refused(part.call);
                }
                sleep(Duration::from_millis(7)).await;
                continue;
            }
            for (at, part) in parts.iter().enumerate() {
                // A lock that it does not have has no token.
                let token = tokens.get(at).copied().unwrap_or(0);
                self.client.granted(part.call, &part.hold, token, sent);
            }
            self.works(&holds, works_long && self.client.asked.is_multiple_of(3))
                .await;
            for hold in &holds {
                self.client.releases(hold);
            }
            for (at, hold) in holds.iter().enumerate() {
                let was_there = self.ask(RELEASES, at, hold).await;
                self.client.released(hold, was_there == 1);
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Takes one after the other until one is held by others. Returns when it began, and the tokens.
    async fn takes(&mut self, holds: &[String]) -> (u64, Vec<u64>) {
        let (sent, mut tokens) = (now(), Vec::new());
        for (at, hold) in holds.iter().enumerate() {
            match self.ask(TAKES, at, hold).await {
                0 => break,
                token => tokens.push(token.unsigned_abs()),
            }
        }
        (sent, tokens)
    }

    /// Works for a while, or for longer than its lease.
    async fn works(&mut self, holds: &[String], is_long: bool) {
        if !is_long {
            return sleep(WORK).await;
        }
        for _ in 0..4 {
            sleep(super::LEASE / 3).await;
            let sent = now();
            for (at, hold) in holds.iter().enumerate() {
                if at == 0 || self.flaw != Flaw::RenewsTheFirst {
                    self.ask(RENEWS, at, hold).await;
                }
                self.client.renewed(hold, sent);
            }
        }
    }

    async fn ask(&mut self, script: &str, at: usize, hold: &str) -> i64 {
        let key = &self.keys[at];
        let (counter, lease) = (format!("{key}:token"), super::LEASE.as_millis().to_string());
        let (keys, args) = ([key.as_str(), &counter], [hold, lease.as_str()]);
        self.client.eval(script, &keys, &args).await.int()
    }
}
