//! I20, I21 and I2 by the servers' own record of lines: tickets, grants and their tokens.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Violation;
use super::facts::{Facts, overlap, violation};
use crate::history::{Change, Effect, Event, Ticket, What};
use crate::storm::BLOCK;

/// Number of dead tickets in a row after which a release leaves the lock absent.
const SKIPPED_AT_ONCE: usize = 64;

/// The record of one lock at one server.
pub(super) struct Record<'a> {
    server: &'a str,
    pub(super) key: &'a str,
    /// The changes in their order, each with its time.
    pub(super) changes: Vec<(&'a Event, u64, &'a Change)>,
}

pub(super) fn records(events: &[Event]) -> Vec<Record<'_>> {
    let mut records: BTreeMap<(&str, &str), Record<'_>> = BTreeMap::new();
    for event in events {
        if let What::Line {
            server,
            key,
            when,
            change,
        } = &event.what
        {
            let record = records.entry((server, key)).or_insert(Record {
                server,
                key,
                changes: Vec::new(),
            });
            record.changes.push((event, *when, change));
        }
    }
    records.into_values().collect()
}

/// A line as it changes.
#[derive(Default)]
pub(super) struct Line<'a> {
    waiting: HashMap<&'a str, Waiting<'a>>,
    /// Tickets that were skipped since the last grant.
    skipped: usize,
}

/// A ticket in line.
struct Waiting<'a> {
    joined: &'a Event,
    score: u64,
    /// Tickets that were served although they stood behind it, or in no line at all.
    passed_by: Vec<&'a Event>,
    /// Events each of which lets one of them by.
    excuses: usize,
}

impl<'a> Line<'a> {
    /// Number of tickets.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Applies a change.
    pub(super) fn apply(&mut self, event: &'a Event, change: &'a Change) {
        match change {
            Change::Known { holder, tickets } => {
                self.waiting.clear();
                for ticket in tickets {
                    self.join(event, ticket);
                }
                // As after an expiry: a failover has lost the holder, or its lease has run out.
                if holder.is_none() {
                    self.excuse_one();
                }
            }
            Change::Unknown => self.waiting.clear(),
            Change::Joined(ticket) => self.join(event, ticket),
            Change::Left { hold, is_skipped } => {
                self.waiting.remove(hold.as_str());
                self.skipped += usize::from(*is_skipped);
                if self.skipped == SKIPPED_AT_ONCE {
                    self.excuse_one();
                }
            }
            Change::Granted { hold, score, .. } => self.serve(event, hold, *score),
            Change::Taken {
                hold,
                score,
                is_alone: false,
            } => self.serve(event, hold, *score),
            // Requests that know no line, while a slot moves.
            Change::Taken { hold, .. } => _ = self.waiting.remove(hold.as_str()),
            // Nor does their release, which leaves the lock absent.
            Change::Expired { .. } | Change::Ended { is_alone: true, .. } => self.excuse_one(),
            Change::Ended { .. } => {}
        }
    }

    fn join(&mut self, event: &'a Event, ticket: &'a Ticket) {
        let waiting = Waiting {
            joined: event,
            score: ticket.score,
            passed_by: Vec::new(),
            excuses: 0,
        };
        self.waiting.insert(&ticket.hold, waiting);
    }

    fn serve(&mut self, event: &'a Event, hold: &str, score: Option<u64>) {
        self.skipped = 0;
        self.waiting.remove(hold);
        let score = score.unwrap_or(u64::MAX);
        for waiting in self.waiting.values_mut().filter(|w| w.score < score) {
            waiting.passed_by.push(event);
        }
    }

    fn excuse_one(&mut self) {
        self.skipped = 0;
        for waiting in self.waiting.values_mut() {
            waiting.excuses += 1;
        }
    }

    /// The tickets that have just been passed over once too often.
    fn wronged(&self) -> impl Iterator<Item = &Waiting<'a>> {
        self.waiting
            .values()
            .filter(|waiting| waiting.passed_by.len() == waiting.excuses + 1)
    }
}

/// I21: nobody is served before those who stand in front, except after an expiry: then the lock is
/// absent, and whoever asks first takes it. It is absent too after a release that has met very many
/// dead tickets.
pub(super) fn no_ticket_is_passed_over(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for record in records(facts.events) {
        let mut line = Line::default();
        for (event, _, change) in record.changes {
            line.apply(event, change);
            let serves = matches!(change, Change::Granted { .. } | Change::Taken { .. });
            for waiting in line.wronged().filter(|_| serves) {
                let message = format!(
                    "a ticket for {} was passed over {} times, with {} expiries in its time",
                    record.key,
                    waiting.passed_by.len(),
                    waiting.excuses
                );
                let events = [&[waiting.joined], &waiting.passed_by[..]].concat();
                violations.push(violation("I21", message, &events));
            }
        }
    }
    violations
}

/// I20: a grant to a process that lives, runs and is connected is taken, or handed on. It does not
/// run out unused.
pub(super) fn no_grant_is_lost(facts: &Facts<'_>) -> Vec<Violation> {
    let records = records(facts.events);
    let claims = Claims::new(facts);
    let mut processes: HashMap<&str, u32> = HashMap::new();
    for record in &records {
        for (_, _, change) in &record.changes {
            if let Change::Granted { hold, token, .. } = change
                && let Some((_, process)) = claims.of(record.key, *token)
            {
                processes.insert(client_of(hold), process);
            }
        }
    }
    // Of a process that dies before it has taken any grant, nobody knows the client.
    let known: HashSet<u32> = processes.values().copied().collect();
    let strangers = facts.deaths.iter().filter(|(pid, _)| !known.contains(pid));
    let first_stranger = strangers.map(|(_, died)| *died).min();
    let mut violations = Vec::new();
    for record in &records {
        let mut open: Option<(&Event, u64, &str, u64)> = None;
        for (event, when, change) in &record.changes {
            match change {
                Change::Granted { hold, token, .. } => open = Some((event, *when, hold, *token)),
                Change::Expired { hold } => {
                    let Some((granted, since, _, token)) =
                        open.take().filter(|(_, _, granted, _)| granted == hold)
                    else {
                        continue;
                    };
                    let process = processes.get(client_of(hold)).copied();
                    let is_taken = claims.of(record.key, token).is_some();
                    let died = match process {
                        Some(process) => facts.deaths.get(&process).copied(),
                        None => first_stranger,
                    };
                    if !is_taken && !may_miss(facts, (process, died), (since, event.at)) {
                        let message = format!("{hold} was granted {} and did nothing", record.key);
                        violations.push(violation("I20", message, &[granted, event]));
                    }
                }
                Change::Joined(_) | Change::Left { .. } => {}
                _ => open = None,
            }
        }
    }
    violations
}

/// I2: each grant has a token of its own, whichever server makes it; but for two masters while servers may lose locks.
pub(super) fn no_token_is_granted_twice(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut seen = HashMap::new();
    for Record {
        server,
        key,
        changes,
    } in records(facts.events)
    {
        for (event, when, change) in changes {
            if let Change::Granted { hold, token, .. } = change
                && let Some((before, at, elsewhere, other)) =
                    seen.insert((key, *token), (event, when, server, hold))
            {
                let message =
                    format!("{other} and {hold} were both granted {key} with token {token}");
                let mut found = violation("I2", message, &[before, event]);
                let in_a_fault = |at| facts.may_lose_locks((at, at + 1));
                found.excused = elsewhere != server && in_a_fault(at) && in_a_fault(when);
                violations.push(found);
            }
        }
    }
    violations
}

/// The acquisitions that were reported, by lock and token.
struct Claims<'a>(HashMap<&'a str, BTreeMap<u64, u32>>);

impl<'a> Claims<'a> {
    fn new(facts: &Facts<'a>) -> Self {
        let mut claims: HashMap<&str, BTreeMap<u64, u32>> = HashMap::new();
        for claim in &facts.claims {
            let by_token = claims.entry(claim.key).or_default();
            by_token.insert(claim.token, claim.granted.process);
        }
        Self(claims)
    }

    /// The first acquisition under a grant with this token, and its process: the token itself, or
    /// another one of its block.
    fn of(&self, key: &str, token: u64) -> Option<(u64, u32)> {
        let block = self.0.get(key)?.range(token..token + BLOCK);
        block.map(|(token, process)| (*token, *process)).next()
    }
}

/// Whether something kept the process, or an unknown one, from noticing a grant in that time.
fn may_miss(
    facts: &Facts<'_>,
    (process, died): (Option<u32>, Option<u64>),
    span: (u64, u64),
) -> bool {
    let concerns = |effect| match (effect, process) {
        (Effect::Freezes(frozen), Some(process)) => frozen == process,
        _ => true,
    };
    died.is_some_and(|died| died <= span.1)
        || facts
            .faults
            .iter()
            .any(|fault| concerns(fault.effect) && overlap(fault.span, span))
}

/// A hold is `<client>:<number>`.
fn client_of(hold: &str) -> &str {
    hold.split(':').next().unwrap_or(hold)
}
