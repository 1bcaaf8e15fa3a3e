//! Redisson's half: the recorded commands of its clients, verbatim, and the messages that they hear.

use std::collections::BTreeMap;

use leasehold_testkit::raw::encode;
use leasehold_testkit::{Raw, RawValue};
use serde_json::Value;

use super::recording::{Command, argument, number, spell, unspell};
use super::scripts::text;
use super::state::TOLERANCE;
use crate::support::until;

/// A message, with the client that heard it: `C2 redisson_lock__channel:{L} 0`.
pub(super) type Heard = Vec<String>;

/// The clients of Redisson's, as the servers see them.
pub(super) struct Java {
    /// A connection for commands to each server.
    servers: BTreeMap<String, Raw>,
    /// What is heard at each server by each client.
    ears: BTreeMap<(String, String), Raw>,
    /// The latest token of each fenced lock.
    tokens: BTreeMap<String, i64>,
}

impl Java {
    pub(super) const fn new(servers: BTreeMap<String, Raw>) -> Self {
        Self {
            servers,
            ears: BTreeMap::new(),
            tokens: BTreeMap::new(),
        }
    }

    pub(super) fn raw(&mut self, server: &str) -> &mut Raw {
        self.servers.get_mut(server).expect("a server")
    }

    /// Runs recorded commands that follow each other, scripts of one server as a pipeline, and compares the replies. What is to
    /// be taken now may be taken a little later: a call that waits asks again.
    pub(super) async fn run(&mut self, commands: &[&Command], when: &str) {
        let of_a_kind = |a: &&Command, b: &&Command| {
            a.script.is_some() && b.script.is_some() && a.server == b.server
        };
        for batch in commands.chunk_by(of_a_kind) {
            if batch[0].script.is_none() {
                self.plain(batch[0], when).await;
                continue;
            }
            let raw = self.raw(&batch[0].server);
            let now = now(raw).await;
            let requests = batch.iter().map(|command| request(command, now));
            let bytes: Vec<u8> = requests.flat_map(|request| encode(&request)).collect();
            raw.send_bytes(&bytes).await.unwrap();
            let mut replies = Vec::new();
            for _ in batch {
                replies.push(raw.read().await.unwrap());
            }
            for (command, reply) in batch.iter().zip(replies) {
                match self.compare(command, &reply, now) {
                    Ok(()) => {}
                    Err(_) if command.takes() => self.take_later(command, when).await,
                    Err(why) => panic!("{when}: {:?} replied {why}", command.script),
                }
            }
        }
    }

    /// Asks again and again until it is had.
    pub(super) async fn take_later(&mut self, command: &Command, when: &str) {
        let what = format!("{when}: {:?} of {}", command.script, command.from);
        until(&what, async || {
            let now = now(self.raw(&command.server)).await;
            let request = request(command, now);
            let reply = self.raw(&command.server).cmd(&request).await;
            if command.takes() {
                self.compare(command, &reply, now)
            } else {
                // It was refused at first.
                reply
                    .is_null()
                    .then_some(())
                    .ok_or_else(|| format!("{reply:?}"))
            }
        })
        .await;
    }

    /// A command that is no script.
    async fn plain(&mut self, command: &Command, when: &str) {
        let text = command.cmd.as_deref().unwrap_or_default();
        let words: Vec<String> = text.split(' ').map(spell).collect();
        match words[0].as_str() {
            "SUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "SUNSUBSCRIBE" => {
                let ear = self.ear(&command.from, &command.server);
                ear.send(&words).await.unwrap();
                // It is subscribed when this is answered; messages are kept.
                ear.cmd(&["PING"]).await;
            }
            "DEL" | "GET" | "EXISTS" | "HEXISTS" | "HGET" | "PTTL" => {
                let now = now(self.raw(&command.server)).await;
                let reply = self.raw(&command.server).cmd(&words).await;
                let is_latch = words[1].starts_with("redisson_unlock_latch:");
                if !is_latch && !words[1].starts_with("redisson_lock_token:") && words.len() == 2 {
                    let compared = compare(&command.reply, &reply, now);
                    compared.unwrap_or_else(|why| panic!("{when}: {text} replied {why}"));
                }
            }
            // Of the start of a client, and of replicas, which the servers here do not have.
            "PUBSUB" | "WAIT" | "SCRIPT" | "EVAL" => {}
            other => panic!("{when}: {other}"),
        }
    }

    fn ear(&mut self, client: &str, server: &str) -> &mut Raw {
        let ear = self.ears.get_mut(&(client.to_owned(), server.to_owned()));
        ear.unwrap_or_else(|| panic!("{client} has no ear at {server:?}"))
    }

    pub(super) async fn add_ear(&mut self, client: &str, server: &str, mut ear: Raw) {
        ear.hello3().await;
        ear.send(&["SUBSCRIBE", &mark(client, server)])
            .await
            .unwrap();
        self.ears.insert((client.into(), server.into()), ear);
    }

    /// A client died.
    pub(super) fn forget(&mut self, client: &str) {
        self.ears.retain(|(name, _), _| name != client);
    }

    /// The messages that were heard since the last time.
    pub(super) async fn heard(&mut self) -> Heard {
        let mut heard = Heard::new();
        let ears: Vec<_> = self.ears.keys().cloned().collect();
        for (client, server) in ears {
            let mark = mark(&client, &server);
            self.raw(&server).cmd(&["PUBLISH", &mark, "end"]).await;
            let ear = self.ear(&client, &server);
            loop {
                let push = ear.push().await;
                if !push[0].str().ends_with("message") {
                    continue;
                }
                if push[1].str() == mark {
                    break;
                }
                let (channel, message) = (unspell(push[1].str()), push[2].str());
                heard.push(format!("{client} {channel} {message}"));
            }
        }
        heard.sort();
        heard
    }

    fn compare(&mut self, command: &Command, reply: &RawValue, now: i64) -> Result<(), String> {
        let script = command.script.as_deref().unwrap_or_default();
        if script == "fenced.acquire_token" {
            // Tokens only have to grow.
            let pair = reply.array();
            compare(&command.reply[0], &pair[0], now)?;
            let (token, recorded) = (pair[1].int(), command.reply[1].as_i64());
            let latest = self.tokens.entry(command.keys[0].clone()).or_default();
            if recorded == Some(-1) {
                return (token == -1)
                    .then_some(())
                    .ok_or_else(|| format!("{token}"));
            }
            if token <= *latest {
                return Err(format!("{token} after {latest}"));
            }
            *latest = token;
            return Ok(());
        }
        if script.starts_with("fair.") && command.reply.as_str().is_some() {
            // How long to wait, from the times of those before it: any time will do.
            return match reply {
                RawValue::Int(_) => Ok(()),
                other => Err(format!("{other:?}, not {}", command.reply)),
            };
        }
        compare(&command.reply, reply, now)
    }
}

/// The time of a server, in milliseconds.
pub(super) async fn now(raw: &mut Raw) -> i64 {
    let time = raw.cmd(&["TIME"]).await;
    time.array()[0].int() * 1_000 + time.array()[1].int() / 1_000
}

/// The channel on which an ear hears that it has heard everything before.
fn mark(client: &str, server: &str) -> String {
    format!("mark:{client}:{server}")
}

fn request(command: &Command, now: i64) -> Vec<Vec<u8>> {
    let script = command.script.as_deref().expect("a script");
    let mut request = vec![
        b"EVAL".to_vec(),
        text(script).into(),
        command.keys.len().to_string().into(),
    ];
    request.extend(command.keys.iter().map(|key| spell(key).into_bytes()));
    request.extend(command.argv.iter().map(|arg| argument(arg, now)));
    request
}

/// Whether a reply is the recorded one, with times within their tolerance; what it is if not.
fn compare(recorded: &Value, reply: &RawValue, now: i64) -> Result<(), String> {
    let near = |seen: i64, recorded: i64| (seen - recorded).abs() <= TOLERANCE && seen > 0;
    let is_same = match (recorded, reply) {
        (Value::Null, RawValue::Null) => true,
        (Value::Number(recorded), RawValue::Int(seen)) => {
            let recorded = recorded.as_i64().expect("a number");
            *seen == recorded || recorded > 100 && near(*seen, recorded)
        }
        (Value::String(recorded), RawValue::Int(seen)) => {
            number(recorded, now).is_some_and(|recorded| near(*seen, recorded))
        }
        (Value::String(recorded), RawValue::Bulk(_) | RawValue::Simple(_)) => {
            match recorded.strip_prefix(':') {
                Some(time) => {
                    let time = number(time, now).expect("a time");
                    let seen = reply.str().strip_prefix(':').and_then(|s| s.parse().ok());
                    seen.is_some_and(|seen: i64| (seen - time).abs() <= TOLERANCE)
                }
                None => unspell(reply.str()) == *recorded,
            }
        }
        (Value::Array(recorded), RawValue::Array(seen)) => {
            recorded.len() == seen.len()
                && recorded
                    .iter()
                    .zip(seen)
                    .all(|(recorded, seen)| compare(recorded, seen, now).is_ok())
        }
        _ => false,
    };
    if is_same {
        Ok(())
    } else {
        Err(format!("{reply:?}, not {recorded}"))
    }
}
