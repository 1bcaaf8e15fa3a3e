//! The requests of the model, as the library sends them.

use std::collections::BTreeMap;

use leasehold_testkit::Raw;

use super::listeners::{Mode, redisson_channel};
use crate::scripts::{KEPT, hold_of, sources};

pub(super) const NAMES: [&str; 4] = ["one", "two", "{three} of us", "four: %d"];
pub(super) const CLIENTS: [&str; 4] = ["u-0", "u-1", "u-2", "u-3"];

/// The state of a lock: holders, line, counter, remaining time of each key.
pub(super) const STATE: &str = "
    return {
        redis.call('HGETALL', KEYS[1]),
        redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'),
        redis.call('GET', KEYS[2]) or '',
        redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2]), redis.call('PTTL', KEYS[3]),
    }";

/// A request, or an event.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Acquire {
        hold: String,
        lease: i64,
        /// Number of tokens to reserve.
        block: Option<i64>,
    },
    AcquireAlone {
        hold: String,
        lease: i64,
        highest: i64,
    },
    Join {
        ticket: String,
        lease: i64,
        block: Option<i64>,
    },
    Look {
        ticket: String,
        score: Option<i64>,
        lease: i64,
        mode: Mode,
    },
    Confirm {
        hold: String,
        lease: i64,
    },
    ConfirmAlone {
        hold: String,
        lease: i64,
        highest: i64,
    },
    Renew {
        hold: String,
        lease: i64,
        form: Form,
    },
    Release {
        hold: String,
        ticket: Option<String>,
        mode: Mode,
        redisson: Redisson,
    },
    ReleaseAlone {
        hold: String,
        mode: Mode,
        redisson: bool,
    },
    ForceUnlock {
        mode: Mode,
        redisson: bool,
    },
    Event(Event),
}

/// An event that is no request of a client.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The lock expires.
    Expire,
    /// A ticket is lost, as in a failover.
    LoseTicket {
        ticket: String,
    },
    LoseLine,
    LoseCounter,
    /// The counter is so far ahead, as after a clock that was set back.
    Counter {
        value: i64,
    },
    /// Tickets of others, alive or not, at these places.
    Tickets {
        places: Vec<(i64, String)>,
    },
}

/// The script of a renewal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Many,
    One,
    Replicated,
}

/// The arguments of a release for Redisson.
#[derive(Clone, Copy, Debug)]
pub(super) enum Redisson {
    Off,
    Told,
    /// An open release: so many of ours listen on its channel without a ticket.
    Open {
        own: i64,
    },
}

const TEXTS: [&str; 12] = [
    sources::ACQUIRE,
    sources::ACQUIRE_ALONE,
    sources::LOOK,
    sources::CONFIRM,
    sources::CONFIRM_ALONE,
    sources::RELEASE,
    sources::RELEASE_ALONE,
    sources::RENEW,
    sources::RENEW_ONE,
    sources::RENEW_REPLICATED,
    sources::FORCE_UNLOCK,
    STATE,
];

/// The scripts, known to the server.
pub(super) struct Scripts(BTreeMap<&'static str, String>);

impl Scripts {
    pub(super) async fn load(raw: &mut Raw) -> Self {
        let mut scripts = BTreeMap::new();
        for text in TEXTS {
            let sha = raw.cmd(&["SCRIPT", "LOAD", text]).await;
            scripts.insert(text, sha.str().to_owned());
        }
        Self(scripts)
    }

    /// A call.
    pub(super) fn call(&self, text: &str, keys: &[String], args: &[&str]) -> Vec<String> {
        let mut request = vec![
            "EVALSHA".to_owned(),
            self.0[text].clone(),
            keys.len().to_string(),
        ];
        request.extend(keys.iter().cloned());
        request.extend(args.iter().map(|arg| (*arg).to_owned()));
        request
    }

    /// The request of an operation.
    pub(super) fn request(&self, name: &str, op: &Op) -> Vec<String> {
        let keys = keys(name);
        let text = |n: &i64| n.to_string();
        let own = &keys[..1];
        let alone = |source, hold: &String, lease, highest| {
            self.call(source, own, &[hold, &text(lease), &text(highest)])
        };
        match op {
            Op::Acquire { hold, lease, block } => {
                let (lease, block) = (text(lease), block.map(|block| block.to_string()));
                let mut args = vec![hold, &lease, KEPT];
                args.extend(block.iter().flat_map(|block| ["", block]));
                self.call(sources::ACQUIRE, &keys[..2], &args)
            }
            Op::AcquireAlone {
                hold,
                lease,
                highest,
            } => alone(sources::ACQUIRE_ALONE, hold, lease, highest),
            Op::Join {
                ticket,
                lease,
                block,
            } => {
                let (lease, block) = (text(lease), block.map(|block| block.to_string()));
                let mut args = vec![hold_of(ticket), &lease];
                // One that is the hold as it is may be left out, as the library does.
                if hold_of(ticket) != ticket || block.is_some() {
                    args.extend([KEPT, ticket]);
                    args.extend(block.as_deref());
                }
                self.call(sources::ACQUIRE, &keys, &args)
            }
            Op::Look {
                ticket,
                score,
                lease,
                mode,
            } => {
                let score = score.map_or(String::new(), |score| score.to_string());
                let (hold, lease) = (hold_of(ticket), text(lease));
                let args = [hold, &lease, KEPT, ticket, &score, mode.letter()];
                self.call(sources::LOOK, &keys, &args)
            }
            Op::Confirm { hold, lease } => {
                self.call(sources::CONFIRM, &keys[..2], &[hold, &text(lease), KEPT])
            }
            Op::ConfirmAlone {
                hold,
                lease,
                highest,
            } => alone(sources::CONFIRM_ALONE, hold, lease, highest),
            Op::Renew { hold, lease, form } => {
                let source = match form {
                    Form::Many => sources::RENEW,
                    Form::One => sources::RENEW_ONE,
                    Form::Replicated => sources::RENEW_REPLICATED,
                };
                self.call(source, own, &[hold, &text(lease)])
            }
            Op::Event(event) => event.request(&keys),
            _ => self.end(name, op),
        }
    }

    fn end(&self, name: &str, op: &Op) -> Vec<String> {
        let (keys, channel) = (keys(name), redisson_channel(name));
        match op {
            Op::Release {
                hold,
                ticket,
                mode,
                redisson,
            } => {
                let ticket = ticket.as_deref().unwrap_or("");
                let mut args = vec![hold, mode.letter(), KEPT, ticket];
                let listening = match redisson {
                    Redisson::Open { own } => own.to_string(),
                    Redisson::Off | Redisson::Told => String::new(),
                };
                if !matches!(redisson, Redisson::Off) {
                    args.extend([&channel[..], &listening]);
                }
                self.call(sources::RELEASE, &keys, &args)
            }
            Op::ReleaseAlone {
                hold,
                mode,
                redisson,
            } => {
                let args = [&hold[..], mode.letter(), &channel];
                let args = &args[..2 + usize::from(*redisson)];
                self.call(sources::RELEASE_ALONE, &keys[..1], args)
            }
            Op::ForceUnlock { mode, redisson } => {
                let channel = if *redisson { &channel[..] } else { "" };
                self.call(
                    sources::FORCE_UNLOCK,
                    &keys,
                    &[channel, mode.letter(), KEPT],
                )
            }
            _ => panic!("{op:?} ends no hold"),
        }
    }
}

impl Event {
    fn request(&self, keys: &[String; 3]) -> Vec<String> {
        match self {
            Self::Expire => vec!["PEXPIRE".into(), keys[0].clone(), "-1".into()],
            Self::LoseTicket { ticket } => vec!["ZREM".into(), keys[2].clone(), ticket.clone()],
            Self::LoseLine => vec!["DEL".into(), keys[2].clone()],
            Self::LoseCounter => vec!["DEL".into(), keys[1].clone()],
            Self::Counter { value } => {
                vec![
                    "SET".into(),
                    keys[1].clone(),
                    value.to_string(),
                    "PX".into(),
                    KEPT.into(),
                ]
            }
            Self::Tickets { places } => {
                let add = "redis.call('ZADD', KEYS[1], unpack(ARGV)) redis.call('PEXPIRE', KEYS[1], 60000)";
                let mut request = vec!["EVAL".into(), add.into(), "1".into(), keys[2].clone()];
                for (score, ticket) in places {
                    request.extend([score.to_string(), ticket.clone()]);
                }
                request
            }
        }
    }
}

pub(super) fn keys(name: &str) -> [String; 3] {
    [
        name.to_owned(),
        format!("redisson_lock_token:{{{name}}}"),
        format!("leasehold_line:{{{name}}}"),
    ]
}
