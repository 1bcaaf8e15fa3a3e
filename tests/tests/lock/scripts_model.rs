//! Random requests to the mutex's scripts on a real server, against a reference.
//!
//! Each request is followed by a look at the whole state of its lock, both in long pipelines. 20,000 requests, or a million
//! with `LEASEHOLD_LONG=1`. `LEASEHOLD_SEED` repeats the choice.

mod listeners;
mod reference;
mod requests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use leasehold_testkit::chance::Chance;
use leasehold_testkit::raw::encode;
use leasehold_testkit::{Raw, RawValue, Server};

use listeners::{Ear, Heard, Mode, client_channel, redisson_channel};
use reference::{Reference, Seen, Sent, Span};
use requests::{CLIENTS, Event, Form, NAMES, Op, Redisson, STATE, Scripts, keys};

/// Connections that listen as Redisson does.
const JAVA: usize = 3;
/// Holds of one lock that requests are made for at a time.
const HOLDS: usize = 4;
/// Requests in a pipeline; who listens changes between two of them.
const BATCH: usize = 250;
const REDISSON: [Redisson; 4] = [
    Redisson::Off,
    Redisson::Told,
    Redisson::Open { own: 0 },
    Redisson::Open { own: 1 },
];
/// Members of a line that are no tickets of ours.
const STRANGE: [&str; 6] = [
    "",
    "x",
    "u-0:",
    "u-1:3|r",
    "u-2:4|0",
    "u-3:5|99999999999999999999",
];
/// Suffixes of tickets, with grant leases that no test outlives.
const SUFFIXES: [&str; 4] = ["|30000", "|60000", "|30000+", "|60000+"];
/// Leases that no test outlives.
const LEASES: [i64; 2] = [30_000, 60_000];

#[tokio::test]
async fn random_requests_have_the_replies_of_the_reference() {
    let requests = if std::env::var_os("LEASEHOLD_LONG").is_some() {
        1_000_000
    } else {
        20_000
    };
    let seed = Chance::seed();
    println!("LEASEHOLD_SEED={seed}");
    let server = Server::start().await;
    let has_shards = server.knows("SPUBLISH").await;
    run(server.addr(), has_shards, requests, Chance::new(seed)).await;
}

/// The fake of `leasehold::testing` runs the same scripts, on keys of its own.
#[cfg(feature = "testing")]
#[tokio::test]
async fn the_fake_replies_as_the_reference_too() {
    let seed = Chance::seed();
    println!("LEASEHOLD_SEED={seed}");
    let fake = leasehold::testing::Fake::new();
    let address = crate::fake_same::listen(&fake).await;
    run(address, true, 5_000, Chance::new(seed)).await;
}

async fn run(address: SocketAddr, has_shards: bool, requests: usize, chance: Chance) {
    let mut model = Model::start(address, has_shards, chance).await;
    for _ in 0..requests / BATCH {
        model.batch().await;
    }
    println!("{:?}", model.counts);
    for (kind, count) in &model.counts {
        assert!(*count >= requests as u64 / 1_000, "{kind}: {count} times");
    }
}

/// The server, everybody who asks and listens, and the reference of each lock.
struct Model {
    chance: Chance,
    raw: Raw,
    scripts: Scripts,
    clients: Vec<Ear>,
    java: Vec<Ear>,
    locks: Vec<Reference>,
    /// The holds of each lock that requests are made for, each by several.
    holds: Vec<Vec<String>>,
    next: u64,
    /// Scores that tickets once had.
    scores: BTreeMap<String, i64>,
    modes: Vec<Mode>,
    /// The server's time behind the last batch.
    time: i64,
    counts: BTreeMap<&'static str, u64>,
}

impl Model {
    async fn start(address: SocketAddr, has_shards: bool, chance: Chance) -> Self {
        let mut raw = Raw::connect(address).await.expect("the server is up");
        let scripts = Scripts::load(&mut raw).await;
        let mut modes = vec![Mode::Plain, Mode::Cluster];
        if has_shards {
            modes.push(Mode::Sharded);
        }
        let time = micros(&raw.cmd(&["TIME"]).await);
        let (mut clients, mut java) = (Vec::new(), Vec::new());
        for client in CLIENTS {
            clients.push(Ear::open(address, client).await);
        }
        for n in 0..JAVA {
            java.push(Ear::open(address, &format!("java {n}")).await);
        }
        Self {
            chance,
            raw,
            scripts,
            clients,
            java,
            locks: NAMES.map(|_| Reference::default()).into(),
            holds: vec![vec![String::new(); HOLDS]; NAMES.len()],
            next: 0,
            scores: BTreeMap::new(),
            modes,
            time,
            counts: BTreeMap::new(),
        }
    }

    /// One pipeline: random requests, each with a look at its lock, then the time.
    async fn batch(&mut self) {
        self.change_ears().await;
        let requests: Vec<_> = (0..BATCH).map(|_| self.choose()).collect();
        let mut bytes = Vec::new();
        for (name, op) in &requests {
            bytes.extend(encode(&self.scripts.request(NAMES[*name], op)));
            bytes.extend(encode(&self.scripts.call(STATE, &keys(NAMES[*name]), &[])));
        }
        bytes.extend(encode(&["TIME"]));
        let since = Instant::now();
        self.raw.send_bytes(&bytes).await.expect("connected");
        let mut replies = Vec::new();
        for _ in 0..=2 * BATCH {
            replies.push(self.raw.read().await.expect("connected"));
        }
        let end = micros(&replies.pop().expect("the time"));
        let span = Span { since, end };
        let mut sent = Vec::new();
        for ((name, op), replies) in requests.iter().zip(replies.chunks(2)) {
            let hearing = Heard::new(*name, &self.clients, &self.java);
            let lock = &mut self.locks[*name];
            let seen = seen(&replies[1]);
            let before = format!("{lock:?}");
            let follow = AssertUnwindSafe(|| lock.follow(op, &replies[0], &seen, &hearing, span));
            if let Err(panic) = catch_unwind(follow) {
                let (reply, name) = (&replies[0], NAMES[*name]);
                eprintln!("{name}: {op:?}\nreply: {reply:?}\nleft: {seen:?}\nbefore: {before}");
                std::panic::resume_unwind(panic);
            }
            let messages = lock.take_sent();
            self.count(op, &replies[0], &messages);
            sent.extend(messages.into_iter().map(|message| (*name, message)));
            if let Op::Join { ticket, .. } | Op::Look { ticket, .. } = op
                && let Some(score) = self.locks[*name].score(ticket)
            {
                self.scores.insert(ticket.clone(), score);
            }
        }
        self.time = end;
        self.check_messages(&sent, end).await;
    }

    fn count(&mut self, op: &Op, reply: &RawValue, messages: &[Sent]) {
        let is_grant = |message: &Sent| matches!(message, Sent::Grant { .. });
        let release = matches!(op, Op::Release { .. });
        let look = matches!(op, Op::Look { .. });
        for (kind, is) in [
            ("grants that were told", messages.iter().any(is_grant)),
            (
                "messages to Redisson",
                messages.iter().any(|message| !is_grant(message)),
            ),
            (
                "holds found or taken at a look",
                look && matches!(reply, RawValue::Array(fields) if fields.len() == 2),
            ),
            (
                "places told at a look",
                look && matches!(reply, RawValue::Bulk(_)),
            ),
            (
                "releases that left the lock free",
                release && *reply == RawValue::Int(1),
            ),
            (
                "releases that granted",
                release && *reply == RawValue::Int(2),
            ),
        ] {
            *self.counts.entry(kind).or_default() += u64::from(is);
        }
    }

    /// Everybody heard what was sent to them, in order, and nothing else.
    async fn check_messages(&mut self, sent: &[(usize, Sent)], end: i64) {
        for (client, ear) in CLIENTS.iter().zip(&mut self.clients) {
            let mut heard = ear.heard().await.into_iter();
            for (name, message) in sent {
                let Sent::Grant {
                    client: to,
                    number,
                    token,
                    after,
                    lease,
                    mode,
                } = message
                else {
                    continue;
                };
                if to != client {
                    continue;
                }
                let (channel, text) = heard.next().unwrap_or_else(|| panic!("lost: {message:?}"));
                assert_eq!(channel, client_channel(NAMES[*name], client, *mode));
                let words: Vec<_> = text.splitn(6, ' ').collect();
                let expected = ["G", number, &token.to_string()];
                assert_eq!(words[..3], expected, "{message:?}");
                assert_eq!(
                    words[4..],
                    [&lease.to_string(), NAMES[*name]],
                    "{message:?}"
                );
                let time: i64 = words[3].parse().expect("a time");
                assert!((*after..=end).contains(&time), "{text}: {message:?}");
            }
            assert_eq!(heard.next(), None);
        }
        for ear in &mut self.java {
            let expected: Vec<_> = sent
                .iter()
                .filter_map(|(name, message)| match message {
                    Sent::Redisson { mode } => Some((redisson_channel(NAMES[*name]), *mode)),
                    Sent::Grant { .. } => None,
                })
                .filter(|(channel, mode)| ear.listens(channel, *mode))
                .map(|(channel, _)| (channel, "0".to_owned()))
                .collect();
            assert_eq!(ear.heard().await, expected);
        }
    }

    /// Who listens in the next batch.
    async fn change_ears(&mut self) {
        for (client, ear) in CLIENTS.iter().zip(&mut self.clients) {
            for mode in &self.modes {
                for name in NAMES {
                    let channel = client_channel(name, client, *mode);
                    // One in three does not listen: its tickets are dead.
                    let listens = self.chance.percent(66);
                    ear.listen(&channel, *mode, listens).await;
                }
            }
        }
        for ear in &mut self.java {
            for mode in &self.modes {
                for name in NAMES {
                    let listens = self.chance.percent(40);
                    ear.listen(&redisson_channel(name), *mode, listens).await;
                }
            }
        }
        for ear in self.clients.iter_mut().chain(&mut self.java) {
            assert_eq!(ear.heard().await, []);
        }
    }

    /// A hold of an earlier request of this lock, or a new one.
    fn hold(&mut self, name: usize) -> String {
        let slot = self.chance.below(HOLDS as u64) as usize;
        let hold = &mut self.holds[name][slot];
        if hold.is_empty() || self.chance.percent(10) {
            self.next += 1;
            *hold = format!("{}:{}", self.chance.pick(&CLIENTS), self.next);
        }
        hold.clone()
    }

    /// A request, often for a hold or ticket of an earlier one.
    fn choose(&mut self) -> (usize, Op) {
        let name = self.chance.below(NAMES.len() as u64) as usize;
        let hold = self.hold(name);
        // A ticket is named alike in each request.
        let suffix = SUFFIXES[hold.bytes().map(usize::from).sum::<usize>() % SUFFIXES.len()];
        let ticket = format!("{hold}{suffix}");
        let block = self.chance.percent(20).then_some(64);
        let lease = *self.chance.pick(&LEASES);
        let mode = *self.chance.pick(&self.modes);
        let redisson = self.chance.percent(50);
        let highest = *self.chance.pick(&[0, self.time + 1_000_000_000_000]);
        let op = match self.chance.below(100) {
            0..5 => Op::Acquire { hold, lease, block },
            5..25 => Op::Join {
                ticket,
                lease,
                block,
            },
            25..40 => {
                let score = match self.chance.below(4) {
                    0 => None,
                    1 => Some(self.time + self.chance.below(1_000_000) as i64),
                    _ => self.scores.get(&ticket).copied(),
                };
                Op::Look {
                    ticket,
                    score,
                    lease,
                    mode,
                }
            }
            40..75 => Op::Release {
                hold,
                ticket: self.chance.percent(50).then_some(ticket),
                mode,
                redisson: *self.chance.pick(&REDISSON),
            },
            75..78 => Op::Confirm { hold, lease },
            78..82 => {
                let form = *self.chance.pick(&[Form::Many, Form::One, Form::Replicated]);
                Op::Renew { hold, lease, form }
            }
            82..84 => Op::ForceUnlock { mode, redisson },
            84..86 => Op::Event(Event::Expire),
            86 => Op::AcquireAlone {
                hold,
                lease,
                highest,
            },
            87 => Op::ConfirmAlone {
                hold,
                lease,
                highest,
            },
            88 => Op::ReleaseAlone {
                hold,
                mode,
                redisson,
            },
            _ => Op::Event(self.event(ticket)),
        };
        (name, op)
    }

    /// Losses, clocks that were ahead, and tickets of others.
    fn event(&mut self, ticket: String) -> Event {
        match self.chance.below(7) {
            2 => Event::LoseLine,
            3 => Event::LoseCounter,
            4 if self.chance.percent(10) => Event::Counter {
                value: self.time + self.chance.below(2_000_000) as i64 - 1_000_000,
            },
            // More dead tickets than one request skips.
            4 if self.chance.percent(20) => {
                let count = 60 + self.chance.below(8);
                let dead = |n| (n as i64, format!("nobody:{n}|30000"));
                Event::Tickets {
                    places: (0..count).map(dead).collect(),
                }
            }
            5 => {
                let place = |ticket: &&str| (self.chance.below(9) as i64, (*ticket).to_owned());
                Event::Tickets {
                    places: STRANGE.iter().map(place).collect(),
                }
            }
            6 => Event::Tickets {
                places: vec![(self.time + 3_000_000, "u-2:98|30000".to_owned())],
            },
            _ => Event::LoseTicket { ticket },
        }
    }
}

/// The state that a reply of `STATE` tells.
fn seen(reply: &RawValue) -> Seen {
    let [holders, line, counter, ttls @ ..] = reply.array() else {
        panic!("{reply:?}")
    };
    let pairs = |flat: &RawValue| -> Vec<(String, String)> {
        let pairs = flat.array().chunks(2);
        pairs
            .map(|pair| (pair[0].str().to_owned(), pair[1].str().to_owned()))
            .collect()
    };
    let place =
        |(ticket, score): (String, String)| (score.parse::<f64>().expect("a score") as i64, ticket);
    Seen {
        holders: pairs(holders),
        line: pairs(line).into_iter().map(place).collect(),
        counter: counter.str().parse().ok(),
        ttls: [ttls[0].int(), ttls[1].int(), ttls[2].int()],
    }
}

/// The server's time.
fn micros(time: &RawValue) -> i64 {
    time.array()[0].int() * 1_000_000 + time.array()[1].int()
}
