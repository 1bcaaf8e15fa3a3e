//! Clients that wait for each other at a barrier.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Client, Kind, LIMITS, Run};
use crate::history::What;
use crate::server::Server;

/// The flaw of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It goes on with one party too few.
    OneTooFew,
    /// It arrives, and counts in another step: the last two may both see that all are there.
    CountsThenLeads,
    /// The generation ends in another step than its last arrival: others still join it.
    EndsLate,
    /// It waits for the others in a generation that is over.
    WaitsInThePast,
}

impl Kind for Flaw {
    const ALL: &[Self] = &[
        Self::None,
        Self::OneTooFew,
        Self::CountsThenLeads,
        Self::EndsLate,
        Self::WaitsInThePast,
    ];

    fn rule(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            _ => Some("I14"),
        }
    }

    async fn run(self, servers: &[Server], dir: &Path) {
        workload(self, servers[0].addr(), dir).await;
    }
}

const PARTIES: u32 = 3;
/// More than one generation needs.
const CLIENTS: usize = 5;
const TIME: Duration = Duration::from_millis(1_800);
/// Time between the steps of a client that does in two what must be one.
const GAP: Duration = Duration::from_millis(4);

/// KEYS: the generation and who has arrived in it. Replies with the generation, and whether this was the last of it.
const ARRIVES: &str = "local gen = tonumber(redis.call('GET', KEYS[1]) or '1') \
    redis.call('SADD', KEYS[2] .. gen, ARGV[1]) \
    local last = redis.call('SCARD', KEYS[2] .. gen) >= tonumber(ARGV[2]) \
    if last and ARGV[3] ~= 'later' then redis.call('SET', KEYS[1], gen + 1) end return {gen, last and 1 or 0}";
const COUNTS: &str = "return redis.call('SCARD', KEYS[2] .. ARGV[1])";
/// Ends a generation that is complete.
const ENDS: &str = "if redis.call('SCARD', KEYS[2] .. ARGV[1]) >= tonumber(ARGV[2]) then \
    redis.call('SET', KEYS[1], ARGV[1] + 1) end return 1";
const LOOKS: &str = "return tonumber(redis.call('GET', KEYS[1]) or '1')";

async fn workload(flaw: Flaw, addr: SocketAddr, dir: &Path) {
    let run = Run::begin("barrier", flaw, flaw == Flaw::None, dir);
    let recorder = &run.recorder;
    let key = run.key.clone();
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let party = Party {
            client: Client::new(addr, recorder, n, TIME).await,
            key: key.clone(),
            flaw,
        };
        clients.spawn(party.run(Duration::from_millis(3 * n as u64)));
    }
    clients.join_all().await;
    recorder.record(What::Quiesced { keys: Vec::new() });
}

struct Party {
    client: Client,
    key: String,
    flaw: Flaw,
}

impl Party {
    async fn run(mut self, pause: Duration) {
        while !self.client.is_over() {
            sleep(pause).await;
            let id = self.client.next_hold();
            let (key, parties) = (self.key.clone(), PARTIES);
            self.client.recorder.record(What::Arrive { key, parties });
            let passed = self.waits(&id).await;
            let key = self.key.clone();
            self.client.recorder.record(match passed {
                Some((generation, leader)) => What::Passed {
                    key,
                    generation,
                    leader,
                },
                None => What::Withdrawn { key },
            });
        }
    }

    /// The generation, and whether it leads it; `None` if it gave up.
    async fn waits(&mut self, id: &str) -> Option<(u64, bool)> {
        let parties = PARTIES - u32::from(self.flaw == Flaw::OneTooFew);
        let parties = parties.to_string();
        let in_steps = matches!(self.flaw, Flaw::CountsThenLeads | Flaw::EndsLate);
        let how = if in_steps { "later" } else { "" };
        let arrived = self.ask(ARRIVES, &[id, &parties, how]).await;
        let (generation, mut leads) = (arrived.0, arrived.1);
        let text = generation.to_string();
        if in_steps {
            sleep(GAP).await;
            if self.flaw == Flaw::CountsThenLeads {
                leads = self.ask(COUNTS, &[&text]).await.0 >= u64::from(PARTIES);
            }
            self.ask(ENDS, &[&text, &parties]).await;
        }
        // One that looks for the generation before its own to end finds it so at once; one that looks for its own to begin
        // anew never does.
        let past = self.flaw == Flaw::WaitsInThePast && generation.is_multiple_of(7);
        let give_up = Instant::now() + LIMITS.handoff * 3 / 2;
        loop {
            let now = self.ask(LOOKS, &[]).await.0;
            if now > generation && !past {
                return Some((generation, leads));
            }
            if Instant::now() > give_up {
                return None;
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// A number, and the flag that may stand beside it.
    async fn ask(&mut self, script: &str, args: &[&str]) -> (u64, bool) {
        let arrived = format!("{}:arrived:", self.key);
        let reply = self.client.eval(script, &[&self.key, &arrived], args).await;
        match reply {
            crate::raw::RawValue::Array(values) => {
                (values[0].int().unsigned_abs(), values[1].int() == 1)
            }
            number => (number.int().unsigned_abs(), false),
        }
    }
}
