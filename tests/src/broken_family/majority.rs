//! Clients that take a lock at the majority of three servers, of which some freeze now and then.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Kind, LEASE, Run, once_each};
use crate::chance::Chance;
use crate::history::{Effect, Holder, Mode, Outcome, Part, Recorder, What, micros, now};
use crate::raw::Raw;
use crate::server::Server;

/// The flaw of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It takes half of the servers, rounded down, for a majority, and asks no more than these.
    HalfIsEnough,
    /// It takes a server without an answer for one that granted.
    SilenceIsConsent,
    /// Its lease counts from the last answer, and not from the request.
    CountsFromTheAnswer,
    /// It does not give back what a minority granted.
    LeavesAMinority,
}

impl Kind for Flaw {
    const ALL: &[Self] = &[
        Self::None,
        Self::HalfIsEnough,
        Self::SilenceIsConsent,
        Self::CountsFromTheAnswer,
        Self::LeavesAMinority,
    ];

    const SERVERS: usize = 3;

    /// They freeze.
    const SHARES: bool = false;

    fn rule(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            _ => Some("I19"),
        }
    }

    async fn run(self, servers: &[Server], dir: &Path) {
        workload(self, servers, dir).await;
    }
}

const CLIENTS: usize = 3;
const TIME: Duration = Duration::from_millis(3_000);
/// Time a client waits for a server.
const PATIENCE: Duration = Duration::from_millis(120);
/// Duration of a freeze.
const FREEZE: Duration = Duration::from_millis(200);

const TAKES: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
    redis.call('HSET', KEYS[1], ARGV[1], '1') return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const RELEASES: &str = "return redis.call('HDEL', KEYS[1], ARGV[1])";

async fn workload(flaw: Flaw, servers: &[Server], dir: &Path) {
    let run = Run::begin("majority", flaw, flaw == Flaw::None, dir);
    let recorder = &run.recorder;
    let key = run.key.clone();
    let addrs: Vec<_> = servers.iter().map(Server::addr).collect();
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let name = format!("client-{n}");
        let client = Client {
            addrs: addrs.clone(),
            recorder: recorder.client(&name),
            name,
            key: key.clone(),
            asked: 0,
            flaw,
            chance: Chance::new(n as u64),
        };
        clients.spawn(client.run());
    }
    let observer = observe(addrs, recorder, key);
    let end = Instant::now() + TIME;
    let mut id = 0;
    while Instant::now() < end {
        sleep(match flaw {
            // Holds that are left are seen when no server was frozen for a while.
            Flaw::LeavesAMinority => FREEZE * 4,
            // Answers are late while one is. Not in step with the leases, which are as long as two freezes.
            Flaw::CountsFromTheAnswer => FREEZE * 2 / 3,
            _ => FREEZE * 2,
        })
        .await;
        let kind = "freeze a server".into();
        let effect = Effect::Delays;
        recorder.record(What::FaultStart { id, kind, effect });
        // One is a minority, which nobody's silence makes a majority.
        let frozen = 1 + u64::from(flaw == Flaw::SilenceIsConsent);
        let frozen = (id..id + frozen).map(|n| &servers[n as usize % servers.len()]);
        frozen.clone().for_each(Server::pause);
        sleep(FREEZE).await;
        frozen.for_each(Server::resume);
        recorder.record(What::FaultEnd { id });
        id += 1;
    }
    clients.join_all().await;
    sleep(super::LIMITS.cleanup + Duration::from_millis(50)).await;
    observer.abort();
}

struct Client {
    addrs: Vec<SocketAddr>,
    recorder: Recorder,
    name: String,
    key: String,
    asked: u64,
    flaw: Flaw,
    chance: Chance,
}

impl Client {
    async fn run(mut self) {
        let end = Instant::now() + TIME;
        while Instant::now() < end {
            self.asked += 1;
            let hold = format!("{}:{}", self.name, self.asked);
            let call = self.recorder.number();
            let parts = vec![Part {
                call,
                hold: hold.clone(),
            }];
            self.recorder.record(What::Together { parts });
            let (mode, key) = (Mode::Majority, self.key.clone());
            self.recorder.invokes(call, &key, mode, false, None);
            let sent = now();
            let mut nodes = Vec::new();
            let asks = if self.flaw == Flaw::HalfIsEnough {
                self.chance.shuffle(&mut self.addrs);
                self.addrs.len() / 2
            } else {
                self.addrs.len()
            };
            for addr in &self.addrs[..asks] {
                nodes.push(Node::new(*addr).await);
            }
            let votes = self.ask_all(&mut nodes, TAKES, &hold).await;
            let silent = usize::from(self.flaw == Flaw::SilenceIsConsent);
            let yes = |vote: &Option<i64>| vote.map_or(silent, |vote| usize::from(vote == 1));
            let enough = asks.min(self.addrs.len() / 2 + 1);
            let from = if self.flaw == Flaw::CountsFromTheAnswer {
                now()
            } else {
                sent
            };
            let valid_until = super::validity(from);
            if votes.iter().map(yes).sum::<usize>() < enough || valid_until < now() {
                self.refused(call, &hold, nodes).await;
                continue;
            }
            // No tokens are asked for: the counter of one server does not tell of the others.
            let token = now();
            self.recorder.record(What::Ok {
                call,
                hold: hold.clone(),
                token,
                valid_until,
            });
            self.works(&hold, valid_until, nodes).await;
        }
    }

    async fn refused(&mut self, call: u64, hold: &str, mut nodes: Vec<Node>) {
        if self.flaw != Flaw::LeavesAMinority {
            self.ask_all(&mut nodes, RELEASES, hold).await;
        }
        let why = "no majority".into();
        self.recorder.record(What::Fail { call, why });
        let pause = self.chance.millis(5, 60);
        sleep(pause).await;
    }

    /// Works for as long as the lease may be trusted, or not so long.
    async fn works(&mut self, hold: &str, valid_until: u64, mut nodes: Vec<Node>) {
        let left = Duration::from_micros(valid_until.saturating_sub(now()));
        let is_long = self.flaw == Flaw::CountsFromTheAnswer || self.chance.percent(50);
        let time = if is_long { left } else { left / 8 };
        sleep(time).await;
        let hold_of = || hold.to_owned();
        self.recorder
            .record(What::ReleaseInvoke { hold: hold_of() });
        self.ask_all(&mut nodes, RELEASES, hold).await;
        // A server may be silent.
        let outcome = Outcome::Unknown;
        self.recorder.record(What::ReleaseOk {
            hold: hold_of(),
            outcome,
        });
        let pause = self.chance.millis(5, 60);
        sleep(pause).await;
    }

    /// Asks all servers at once.
    async fn ask_all(&self, nodes: &mut [Node], script: &str, hold: &str) -> Vec<Option<i64>> {
        let lease = LEASE.as_millis().to_string();
        let command = ["EVAL", script, "1", &self.key, hold, &lease];
        for node in nodes.iter_mut() {
            node.raw.send(&command).await.expect("the server lives");
            node.owes += 1;
        }
        let give_up = Instant::now() + PATIENCE;
        let mut answers = Vec::new();
        for node in nodes {
            answers.push(timeout_at(give_up, node.last_answer()).await.ok());
        }
        answers
    }
}

/// A connection for the requests of one hold: a release runs behind what it ends, however late.
struct Node {
    raw: Raw,
    /// Number of answers that it did not give yet.
    owes: usize,
}

impl Node {
    async fn new(addr: SocketAddr) -> Self {
        let raw = Raw::connect(addr).await.expect("a frozen server accepts");
        Self { raw, owes: 0 }
    }

    /// The answer to the last request. A server that froze gives those before it first.
    async fn last_answer(&mut self) -> i64 {
        loop {
            let answer = self.raw.read().await.expect("the server lives");
            self.owes -= 1;
            if self.owes == 0 {
                return answer.int();
            }
        }
    }
}

/// Writes down what the servers show.
fn observe(addrs: Vec<SocketAddr>, recorder: &Recorder, key: String) -> JoinHandle<()> {
    let recorder = recorder.client("observer");
    tokio::spawn(async move {
        let mut raws = Vec::new();
        for addr in addrs {
            raws.push((addr, Raw::connect(addr).await.expect("the server is up")));
        }
        loop {
            let (key, asked) = (key.clone(), now());
            let mut nodes = Vec::new();
            for (addr, raw) in &mut raws {
                nodes.push(shown(*addr, raw, &key).await);
            }
            // One that froze in between was not seen at the same time as the others.
            if now() - asked < micros(Duration::from_millis(100)) {
                recorder.record(What::Nodes { key, asked, nodes });
            }
            sleep(Duration::from_millis(5)).await;
        }
    })
}

async fn shown(addr: SocketAddr, raw: &mut Raw, key: &str) -> Option<Vec<Holder>> {
    let command = ["HKEYS", key];
    let Ok(reply) = timeout(Duration::from_millis(20), raw.cmd(&command)).await else {
        // The reply is still owed on that connection.
        *raw = Raw::connect(addr).await.expect("a frozen server accepts");
        return None;
    };
    Some(once_each(&reply))
}
