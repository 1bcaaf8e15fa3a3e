//! A model of locks and their lines, which follows the commands that a server executes.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::monitor::Command;
use crate::history::{Change, Ticket, micros};

/// Microseconds by which the end of a lease is uncertain.
const DOUBT: u64 = 5_000;

/// The state of a lock by the server's own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) holder: Option<String>,
    /// The lease that is left.
    pub(super) left: Duration,
    /// Members of the line, and their scores.
    pub(super) tickets: Vec<(String, u64)>,
}

/// The locks at one server.
pub(super) struct Replay {
    locks: Vec<Lock>,
    /// States that hold when the command with this last argument comes up.
    expected: HashMap<String, (String, State)>,
    /// The changes that are not fetched yet: lock, time, change.
    changes: Vec<(String, u64, Change)>,
    /// The server's time of the last command.
    now: u64,
}

/// One lock. Tickets are known by the id of the hold that they become.
struct Lock {
    key: String,
    line: String,
    is_known: bool,
    holder: Option<Holder>,
    tickets: BTreeMap<String, u64>,
    script: Script,
}

struct Holder {
    id: String,
    /// The end of its lease, by the server's clock.
    until: u64,
}

/// Effects of the running script so far.
#[derive(Default)]
struct Script {
    /// Whether it uses the lock's own key only: then it knows no line.
    is_alone: bool,
    /// A ticket that it has taken out of the line, and its score.
    popped: Option<(String, u64)>,
    /// That ticket once it holds the lock. What that is shows at the end of the script: it is given back where nobody hears of
    /// it, and a process that is told nothing has taken the lock by itself.
    entered: Option<Entered>,
    /// The time of its last command.
    at: u64,
}

/// A ticket that holds the lock.
struct Entered {
    hold: String,
    score: u64,
    /// The token that it was told.
    token: Option<u64>,
}

impl Replay {
    pub(super) fn new(keys: &[String]) -> Self {
        let lock = |key: &String| Lock {
            key: key.clone(),
            line: line_of(key),
            is_known: false,
            holder: None,
            tickets: BTreeMap::new(),
            script: Script::default(),
        };
        Self {
            locks: keys.iter().map(lock).collect(),
            expected: HashMap::new(),
            changes: Vec::new(),
            now: 0,
        }
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.locks.iter().map(|lock| lock.key.clone()).collect()
    }

    /// The state of a lock, at the command whose last argument is `marker`.
    pub(super) fn expect(&mut self, marker: String, key: String, state: State) {
        self.expected.insert(marker, (key, state));
    }

    /// From here on the state of a lock is not known.
    pub(super) fn unknown(&mut self, key: &str) {
        for lock in self.locks.iter_mut().filter(|lock| lock.key == key) {
            lock.tell(vec![Change::Unknown], self.now, &mut self.changes);
        }
    }

    /// The record ends.
    pub(super) fn forget(&mut self) {
        for key in self.keys() {
            self.unknown(&key);
        }
    }

    /// The changes since the last call.
    pub(super) fn take(&mut self) -> Vec<(String, u64, Change)> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn apply(&mut self, command: &Command) {
        let name = command.name();
        let args: Vec<&str> = command.args.iter().map(String::as_str).collect();
        self.now = command.at;
        for lock in &mut self.locks {
            if !command.is_scripted {
                let settled = lock.settle().into_iter().collect();
                lock.tell(settled, lock.script.at, &mut self.changes);
            }
            let changes = if command.is_scripted {
                lock.in_script(&name, &args, command.at)
            } else {
                lock.begin(&name, &args)
            };
            lock.tell(changes, command.at, &mut self.changes);
        }
        if let Some(marker) = args.last()
            && let Some((key, state)) = self.expected.remove(*marker)
            && let Some(lock) = self.locks.iter_mut().find(|lock| lock.key == key)
        {
            let changes = lock.compare(state, command.at);
            lock.tell(changes, command.at, &mut self.changes);
        }
    }
}

impl Lock {
    /// Adds changes, as long as the state is known.
    fn tell(&mut self, changes: Vec<Change>, at: u64, to: &mut Vec<(String, u64, Change)>) {
        for change in changes {
            let becomes_known = matches!(change, Change::Known { .. });
            if self.is_known || becomes_known {
                self.is_known = !matches!(change, Change::Unknown);
                to.push((self.key.clone(), at, change));
            }
        }
    }

    /// A command of a client: it ends the script before, which is settled.
    fn begin(&mut self, name: &str, args: &[&str]) -> Vec<Change> {
        self.script = Script::default();
        if name.starts_with("EVAL") {
            self.script.is_alone = args.get(2) == Some(&"1");
            return Vec::new();
        }
        // Not one of the library's: a slot that moves, or the stream from a master.
        let concerns_all = matches!(name, "FLUSHALL" | "FLUSHDB" | "REPLICAOF" | "SLAVEOF");
        if concerns_all || args.iter().any(|arg| self.has(arg)) {
            return vec![Change::Unknown];
        }
        Vec::new()
    }

    fn has(&self, key: &str) -> bool {
        key == self.key || key == self.line
    }

    /// A command of the script that runs.
    fn in_script(&mut self, name: &str, args: &[&str], at: u64) -> Vec<Change> {
        self.script.at = at;
        match (name, args) {
            ("PUBLISH" | "SPUBLISH", [_, channel, message]) => {
                self.told(channel, message);
                Vec::new()
            }
            ("ZADD", [_, line, .., place, ticket]) if *line == self.line => {
                self.add(ticket, score(place)).into_iter().collect()
            }
            ("ZREM", [_, line, ticket]) if *line == self.line => {
                let hold = hold_of(ticket);
                let was_there = self.tickets.remove(&hold).is_some();
                let left = Change::Left {
                    hold,
                    is_skipped: false,
                };
                was_there.then_some(left).into_iter().collect()
            }
            ("ZPOPMIN" | "ZPOPMAX", [_, line]) if *line == self.line => {
                let changes = self.settle().into_iter().collect();
                self.script.popped = self.pop(name == "ZPOPMIN");
                changes
            }
            ("HSET", [_, key, id, ..]) if *key == self.key => self.enter(id, at),
            ("HDEL", [_, key, id]) if *key == self.key => {
                let ended = self.holder.take_if(|holder| holder.id == *id);
                if let Some(unheard) = self.script.entered.take_if(|entered| entered.hold == *id) {
                    self.script.popped = Some((unheard.hold, unheard.score));
                    return Vec::new();
                }
                self.removed(ended, at)
            }
            ("DEL" | "UNLINK", [_, key]) if *key == self.key => {
                let ended = self.holder.take();
                self.removed(ended, at)
            }
            ("PEXPIRE", [_, key, millis, options @ ..]) if *key == self.key => {
                let until = at + millis.parse::<u64>().unwrap_or(0) * 1_000;
                if let Some(holder) = &mut self.holder {
                    let extends_only = options.iter().any(|word| word.eq_ignore_ascii_case("GT"));
                    holder.until = if extends_only {
                        holder.until.max(until)
                    } else {
                        until
                    };
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// A message; a grant is `<word> <number> <token> <time> <grant lease> <key>`.
    fn told(&mut self, channel: &str, message: &str) {
        let words: Vec<&str> = message.splitn(6, ' ').collect();
        let [word, number, token, _, _, key] = words[..] else {
            return;
        };
        let own = format!("{}:", self.line);
        let client = channel
            .strip_prefix(own.as_str())
            .or_else(|| channel.strip_prefix("leasehold:"));
        if let (true, true, Some(client), Some(entered)) = (
            word.starts_with('G'),
            key == self.key,
            client,
            &mut self.script.entered,
        ) && entered.hold == format!("{client}:{number}")
        {
            entered.token = token.parse().ok();
        }
    }

    fn add(&mut self, ticket: &str, score: u64) -> Option<Change> {
        let hold = hold_of(ticket);
        if let Some((popped, place)) = self.script.popped.take_if(|(popped, _)| *popped == hold) {
            // It was put back.
            self.tickets.insert(popped, place);
            return None;
        }
        if self.tickets.contains_key(&hold) {
            return None;
        }
        self.tickets.insert(hold.clone(), score);
        Some(Change::Joined(Ticket { hold, score }))
    }

    fn pop(&mut self, lowest: bool) -> Option<(String, u64)> {
        let tickets = self.tickets.iter().map(|(hold, score)| (*score, hold));
        let hold = if lowest { tickets.min() } else { tickets.max() }?
            .1
            .clone();
        self.tickets.remove_entry(&hold)
    }

    /// The removal of a hold, which finds nothing if its lease is over.
    fn removed(&self, holder: Option<Holder>, at: u64) -> Vec<Change> {
        let is_alone = self.script.is_alone;
        let change = |holder: Holder| match holder.is_over(at) {
            Some(true) => Change::Expired { hold: holder.id },
            Some(false) => Change::Ended {
                hold: holder.id,
                is_alone,
            },
            None => Change::Unknown,
        };
        holder.map(change).into_iter().collect()
    }

    /// A new holder.
    fn enter(&mut self, id: &str, at: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        match self.holder.take_if(|holder| holder.id != id) {
            // Otherwise the script would not have come to this.
            Some(holder) if holder.is_over(at) != Some(false) => {
                changes.push(Change::Expired { hold: holder.id });
            }
            Some(_) => changes.push(Change::Unknown),
            None => {}
        }
        if self.holder.is_some() {
            return changes;
        }
        let popped = self.script.popped.take_if(|(popped, _)| popped == id);
        self.script.entered = popped.map(|(hold, score)| Entered {
            hold,
            score,
            token: None,
        });
        if self.script.entered.is_none() {
            changes.push(Change::Taken {
                hold: id.into(),
                score: self.tickets.remove(id),
                is_alone: self.script.is_alone,
            });
        }
        self.holder = Some(Holder {
            id: id.into(),
            until: at,
        });
        changes
    }

    /// A ticket that was taken out of the line, and neither put back nor granted; or that has taken the lock itself.
    fn settle(&mut self) -> Option<Change> {
        if let Some(Entered { hold, score, token }) = self.script.entered.take() {
            let score = Some(score);
            let is_alone = self.script.is_alone;
            return Some(match token {
                Some(token) => Change::Granted { hold, token, score },
                None => Change::Taken {
                    hold,
                    score,
                    is_alone,
                },
            });
        }
        let (hold, _) = self.script.popped.take()?;
        Some(Change::Left {
            hold,
            is_skipped: true,
        })
    }

    /// Corrects the model by the server's state.
    fn compare(&mut self, state: State, at: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        let is_over =
            |holder: &mut Holder| state.holder.is_none() && holder.is_over(at) != Some(false);
        if let Some(holder) = self.holder.take_if(is_over) {
            changes.push(Change::Expired { hold: holder.id });
        }
        let holder = self.holder.as_ref().map(|holder| &holder.id);
        let tickets: BTreeMap<_, _> = state
            .tickets
            .iter()
            .map(|(ticket, score)| (hold_of(ticket), *score))
            .collect();
        if self.is_known && holder == state.holder.as_ref() && tickets == self.tickets {
            return changes;
        }
        let ticket = |(hold, score): (&String, &u64)| Ticket {
            hold: hold.clone(),
            score: *score,
        };
        changes.push(Change::Known {
            holder: state.holder.clone(),
            tickets: tickets.iter().map(ticket).collect(),
        });
        self.tickets = tickets;
        self.holder = state.holder.map(|id| Holder {
            id,
            until: at + micros(state.left),
        });
        changes
    }
}

impl Holder {
    /// Whether its lease has run out; `None` about the end of it. Servers round to milliseconds, and
    /// take the time once for a script.
    fn is_over(&self, at: u64) -> Option<bool> {
        (self.until.abs_diff(at) > DOUBT).then_some(self.until < at)
    }
}

/// The key of a lock's line.
pub(super) fn line_of(key: &str) -> String {
    format!("leasehold_line:{{{key}}}")
}

/// A score, which is a whole number of microseconds.
pub(super) fn score(text: &str) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "scores are times"
    )]
    text.parse::<f64>().map_or(0, |score| score as u64)
}

/// The hold that a ticket becomes: `<client>:<number>`, without what stands behind.
fn hold_of(ticket: &str) -> String {
    let Some((client, rest)) = ticket.split_once(':') else {
        return ticket.into();
    };
    let digits = rest.find(|c: char| !c.is_ascii_digit());
    format!("{client}:{}", &rest[..digits.unwrap_or(rest.len())])
}
