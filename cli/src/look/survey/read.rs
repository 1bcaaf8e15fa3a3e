//! Reading what is at keys that may be locks, in two rounds: what they are, and then what stands beside them.

use std::time::Duration;

use leasehold_resp::{Command, Error, Value};

use super::{Candidate, Hints};
use crate::look::node::Node;
use crate::look::replies::{integer, number, page, pairs, text, time};
use crate::look::seen::{Held, Kind, Lease, Seen};
use crate::look::shape::{Fields, Ticket, TicketKind, prefixed, suffixed};

/// Keys that are read at a time, so that 10,000 of them do not pile up in memory as replies.
const CHUNK: usize = 200;
/// Fields of a hash that are looked at first, as many as a small one has at least.
const FEW_FIELDS: i64 = 10;
/// Holders that are told of one lock.
const MOST_HOLDERS: i64 = 128;
/// Bytes of a string that is a lock or a number.
const TEXT: i64 = 63;
/// Tokens below it are counts, as Redisson's: no time of ours.
const OLDEST_TOKEN: u64 = 1_000_000_000_000_000;
/// Permits of one request of ours.
const MOST_PERMITS: u64 = 10_000;
/// Redisson's time for a permit without a lease.
const FOR_EVER: f64 = 922_337_203_685_477.0;

/// Reads all candidates; those that are no locks are left out.
pub(super) async fn read(
    node: &Node,
    candidates: Vec<Candidate>,
    tickets: usize,
) -> Result<Vec<Seen>, Error> {
    let mut seen = Vec::new();
    for chunk in candidates.chunks(CHUNK) {
        let now = node.ask(&Command::new("TIME")).await?;
        let now = time(&now).unwrap_or_default();
        let found = recognise(node, chunk).await?;
        let mut plan = Plan::new(now, tickets);
        for (candidate, found) in chunk.iter().zip(found) {
            plan.add(candidate, found);
        }
        let answers = node.ask_all(&plan.commands).await?;
        seen.extend(plan.finish(node, answers));
    }
    Ok(seen)
}

/// Contents of the key itself.
#[derive(Debug, Default)]
struct Found {
    fields: Option<Fields>,
    /// There are more fields than were read.
    more: bool,
    /// The start of a string.
    text: Option<String>,
}

async fn recognise(node: &Node, chunk: &[Candidate]) -> Result<Vec<Found>, Error> {
    let mut commands = Vec::new();
    for Candidate { key, hints } in chunk {
        if hints.hash {
            commands.push(fields_of(key, FEW_FIELDS));
        }
        if hints.has_text() {
            commands.push(start_of(key));
        }
    }
    let mut answers = node.ask_all(&commands).await?.into_iter();
    let mut found = Vec::with_capacity(chunk.len());
    for Candidate { hints, .. } in chunk {
        let mut one = Found::default();
        if hints.hash
            && let Some(reply) = answers.next().flatten()
            && let Some((cursor, fields)) = page(&reply)
        {
            one.more = cursor != b"0";
            one.fields = read_fields(fields);
        }
        if hints.has_text() {
            let reply = answers.next().flatten();
            one.text = reply
                .as_ref()
                .and_then(text)
                .filter(|text| !text.is_empty());
        }
        found.push(one);
    }
    Ok(found)
}

impl Hints {
    /// Whether the key itself may be a string.
    const fn has_text(self) -> bool {
        self.plain || self.permits || self.latch || self.reserved || self.line && !self.hash
    }
}

/// Questions of the second round, and who asks each.
struct Plan {
    commands: Vec<Command>,
    steps: Vec<Step>,
    /// The server's time in microseconds.
    now: u64,
    tickets: usize,
}

/// One lock, and where its answers begin.
struct Step {
    key: Vec<u8>,
    kind: Option<Kind>,
    found: Found,
    first: usize,
    /// Where the answers about its line begin, if it has one.
    line: Option<usize>,
}

impl Plan {
    const fn new(now: u64, tickets: usize) -> Self {
        Self {
            commands: Vec::new(),
            steps: Vec::new(),
            now,
            tickets,
        }
    }

    /// The commands of every step begin with the lease of the key, and end with its line if it has one.
    fn add(&mut self, candidate: &Candidate, found: Found) {
        let (key, hints) = (&candidate.key, candidate.hints);
        let kind = kind_of(hints, &found);
        if kind.is_none() && !hints.line {
            return;
        }
        let first = self.commands.len();
        self.commands.push(Command::new("PTTL").arg(key));
        match kind {
            Some(Kind::Mutex | Kind::ReadWrite) => {
                self.commands
                    .push(start_of(&prefixed("redisson_lock_token", key)));
                if found.more {
                    self.commands.push(fields_of(key, MOST_HOLDERS));
                    self.commands.push(Command::new("HLEN").arg(key));
                }
            }
            Some(Kind::Plain) => self
                .commands
                .push(start_of(&prefixed("leasehold_token", key))),
            Some(Kind::Semaphore) => {
                let (permits, now) = (suffixed(key, "timeout"), format!("({}", self.now / 1000));
                let alive = Command::new("ZRANGEBYSCORE")
                    .arg(&permits)
                    .arg(&now)
                    .arg("+inf");
                let alive = alive.arg("WITHSCORES").arg("LIMIT").arg("0").arg("1000");
                self.commands.push(alive);
                self.commands
                    .push(Command::new("ZCOUNT").arg(&permits).arg(&now).arg("+inf"));
                self.commands
                    .push(start_of(&prefixed("leasehold_cap", key)));
            }
            Some(Kind::Barrier) => {
                let arrived = Command::new("ZRANGEBYSCORE").arg(prefixed("leasehold_arrived", key));
                let arrived = arrived.arg("0").arg("100000000000000").arg("WITHSCORES");
                self.commands.push(arrived.arg("LIMIT").arg("0").arg("100"));
                let barrier = prefixed("leasehold_barrier", key);
                self.commands
                    .push(Command::new("HGET").arg(barrier).arg("parties"));
            }
            Some(Kind::Latch | Kind::Counting) | None => {}
        }
        let line = hints.line.then_some(self.commands.len());
        if hints.line {
            let line = prefixed("leasehold_line", key);
            let last = i64::try_from(self.tickets.max(1)).unwrap_or(1) - 1;
            self.commands.push(Command::new("ZCARD").arg(&line));
            let tickets = Command::new("ZRANGE").arg(&line).arg("0").arg_int(last);
            self.commands.push(tickets.arg("WITHSCORES"));
        }
        self.steps.push(Step {
            key: key.clone(),
            kind,
            found,
            first,
            line,
        });
    }

    fn finish(self, node: &Node, answers: Vec<Option<Value>>) -> Vec<Seen> {
        let steps = self.steps.into_iter();
        steps
            .filter_map(|step| {
                let line = step.line.and_then(|at| answers.get(at..at + 2));
                let answers = answers.get(step.first..)?;
                step.finish(node, answers, line.unwrap_or_default(), self.now)
            })
            .collect()
    }
}

impl Step {
    fn finish(
        self,
        node: &Node,
        answers: &[Option<Value>],
        line: &[Option<Value>],
        now: u64,
    ) -> Option<Seen> {
        let answer = |at: usize| answers.get(at).and_then(Option::as_ref);
        let in_line = |at: usize| line.get(at).and_then(Option::as_ref);
        let tickets: Vec<(String, u64)> = in_line(1)
            .map(|value| pairs(value).into_iter().filter_map(read_ticket).collect())
            .unwrap_or_default();
        let waiting = in_line(0)
            .and_then(integer)
            .unwrap_or(0)
            .max(0)
            .cast_unsigned();
        let first = tickets.first().map(|(_, since)| *since);
        let mut seen = Seen {
            kind: self.kind.or_else(|| kind_of_ticket(&tickets.first()?.0))?,
            key: self.key,
            node: node.name().clone(),
            mode: None,
            lease: Lease::of_pttl(answer(0).and_then(integer).unwrap_or(-2)),
            holders: Vec::new(),
            holding: 0,
            token: None,
            held_for: None,
            waiting,
            oldest_wait: first.map(|since| micros(now.saturating_sub(since))),
            left: None,
            all: None,
            tickets: tickets.into_iter().map(|(ticket, _)| ticket).collect(),
        };
        match seen.kind {
            Kind::Mutex | Kind::ReadWrite => mutex(&mut seen, self.found, &answers[1..], now),
            Kind::Plain => plain(&mut seen, self.found, answer(1), now),
            Kind::Semaphore => semaphore(&mut seen, &self.found, &answers[1..], now),
            Kind::Barrier => barrier(&mut seen, answer(1)?, answer(2), now),
            Kind::Latch | Kind::Counting => {
                seen.left = Some(
                    self.found
                        .text
                        .and_then(|text| text.parse().ok())
                        .unwrap_or(0),
                );
            }
        }
        Some(seen)
    }
}

fn mutex(seen: &mut Seen, found: Found, answers: &[Option<Value>], now: u64) {
    let answer = |at: usize| answers.get(at).and_then(Option::as_ref);
    let mut fields = found.fields.unwrap_or_default();
    let mut holding = fields.holders.len();
    if found.more {
        if let Some(all) = answer(1)
            .and_then(page)
            .and_then(|(_, all)| read_fields(all))
        {
            fields.holders = all.holders;
            fields.mode = fields.mode.or(all.mode);
        }
        let length = answer(2)
            .and_then(integer)
            .unwrap_or(0)
            .max(1)
            .cast_unsigned() as usize;
        holding = length - usize::from(fields.mode.is_some());
    }
    let remaining = seen.lease.left();
    seen.holding = holding as u64;
    // That of a reader is not told: the counter may have grown since.
    if fields.mode.as_deref() != Some("read") {
        set_token(seen, answer(0), now);
    }
    let held = |(id, count)| Held {
        id,
        count,
        remaining,
    };
    seen.mode = fields.mode;
    seen.holders = fields.holders.into_iter().map(held).collect();
}

fn plain(seen: &mut Seen, found: Found, token: Option<&Value>, now: u64) {
    let Some(id) = found.text else {
        return;
    };
    let remaining = seen.lease.left();
    seen.holding = 1;
    seen.holders.push(Held {
        id,
        count: 1,
        remaining,
    });
    set_token(seen, token, now);
}

fn semaphore(seen: &mut Seen, found: &Found, answers: &[Option<Value>], now: u64) {
    let answer = |at: usize| answers.get(at).and_then(Option::as_ref);
    for (permit, until) in answer(0).map(pairs).unwrap_or_default() {
        let (Some(id), Some(until)) = (permit.as_bytes().and_then(permit_owner), number(until))
        else {
            continue;
        };
        match seen.holders.iter_mut().find(|holder| holder.id == id) {
            Some(holder) => holder.count += 1,
            None => seen.holders.push(Held {
                id,
                count: 1,
                remaining: (until < FOR_EVER).then(|| left_until(until, now)),
            }),
        }
    }
    let taken = answer(1).and_then(integer).unwrap_or(0);
    seen.holding = taken.max(0).cast_unsigned();
    seen.all = answer(2).and_then(integer);
    let free = found
        .text
        .as_deref()
        .and_then(|text| text.parse::<i64>().ok());
    seen.left = seen.all.map(|all| (all - taken).max(0)).or(free);
    let shortest = seen
        .holders
        .iter()
        .filter_map(|holder| holder.remaining)
        .min();
    seen.lease = shortest.map_or(seen.lease, Lease::Left);
}

fn barrier(seen: &mut Seen, arrived: &Value, parties: Option<&Value>, now: u64) {
    for (party, until) in pairs(arrived) {
        let id = text(party).and_then(|party| Some(party.strip_prefix("a:")?.to_owned()));
        if let (Some(id), Some(until)) = (id, number(until)) {
            let remaining = Some(left_until(until, now));
            seen.holders.push(Held {
                id,
                count: 1,
                remaining,
            });
        }
    }
    seen.holding = seen.holders.len() as u64;
    seen.all = parties.and_then(integer);
    seen.left = seen.all.map(|all| (all - seen.holders.len() as i64).max(0));
    let shortest = seen
        .holders
        .iter()
        .filter_map(|holder| holder.remaining)
        .min();
    seen.lease = shortest.map_or(seen.lease, Lease::Left);
}

fn kind_of(hints: Hints, found: &Found) -> Option<Kind> {
    let is_number = |text: &String| text.parse::<i64>().is_ok();
    if let Some(fields) = &found.fields {
        return Some(match fields.mode {
            Some(_) => Kind::ReadWrite,
            None => Kind::Mutex,
        });
    }
    if hints.permits && found.text.as_ref().is_none_or(is_number) {
        return Some(Kind::Semaphore);
    }
    if hints.latch && found.text.as_ref().is_some_and(is_number) {
        return Some(Kind::Latch);
    }
    if hints.barrier {
        return Some(Kind::Barrier);
    }
    hints.plain.then_some(Kind::Plain)
}

fn kind_of_ticket(ticket: &str) -> Option<Kind> {
    Some(match Ticket::read(ticket)?.kind {
        TicketKind::Alone => Kind::Mutex,
        TicketKind::ReadWrite => Kind::ReadWrite,
        TicketKind::Permits => Kind::Counting,
    })
}

fn set_token(seen: &mut Seen, counter: Option<&Value>, now: u64) {
    let token = counter.and_then(|value| text(value)?.parse::<u64>().ok());
    seen.token = token;
    let since = token.filter(|token| *token >= OLDEST_TOKEN);
    seen.held_for = since.map(|since| micros(now.saturating_sub(since)));
}

/// The holder that the 16 bytes of a permit name: a hold of ours, of whose client they have a part, or Redisson's permit.
fn permit_owner(permit: &[u8]) -> Option<String> {
    let permit: &[u8; 16] = permit.try_into().ok()?;
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    // Redisson's are random, so the index of a permit would be far too large.
    if number(&permit[12..]) >= MOST_PERMITS {
        return Some(hex(permit));
    }
    Some(format!(
        "{}…{}:{}",
        hex(&permit[..4]),
        hex(&permit[4..7]),
        number(&permit[7..12])
    ))
}

/// Of a ticket and its score; what is no ticket, such as a fence in the line of a fair lock, is left out.
fn read_ticket((ticket, score): (&Value, &Value)) -> Option<(String, u64)> {
    let ticket = text(ticket)?;
    Ticket::read(&ticket)?;
    Some((ticket, number(score)?.max(0.0) as u64))
}

fn read_fields(fields: &Value) -> Option<Fields> {
    let pairs = pairs(fields);
    let bytes = |value: &'_ Value| value.as_bytes().map(<[u8]>::to_vec);
    let all: Option<Vec<_>> = pairs
        .iter()
        .map(|(f, v)| Some((bytes(f)?, bytes(v)?)))
        .collect();
    Fields::read(all?.iter().map(|(field, value)| (&field[..], &value[..])))
}

fn fields_of(key: &[u8], count: i64) -> Command {
    Command::new("HSCAN")
        .arg(key)
        .arg("0")
        .arg("COUNT")
        .arg_int(count)
}

fn start_of(key: &[u8]) -> Command {
    Command::new("GETRANGE").arg(key).arg("0").arg_int(TEXT)
}

fn left_until(ms: f64, now: u64) -> Duration {
    Duration::from_millis((ms.max(0.0) as u64).saturating_sub(now / 1000))
}

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}
