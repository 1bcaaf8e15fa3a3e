//! The facts of a history: claims, calls, samples of the server's state, faults.

use std::collections::{HashMap, HashSet};

use super::claim::Claim;
use super::{Limits, Violation};
use crate::history::{Effect, Event, Holder, Mode, Part, What, micros};

/// The end of a span that never ended.
pub(super) const NEVER: u64 = u64::MAX;

/// A span of time, in microseconds, from the first to the second.
pub(super) type Span = (u64, u64);

pub(super) struct Facts<'a> {
    pub(super) events: &'a [Event],
    pub(super) limits: Limits,
    pub(super) claims: Vec<Claim<'a>>,
    pub(super) calls: Vec<Call<'a>>,
    pub(super) samples: Vec<Sample<'a>>,
    pub(super) faults: Vec<Fault>,
    pub(super) deaths: HashMap<u32, u64>,
    /// Grants, by key and hold.
    pub(super) granted: HashSet<(&'a str, &'a str)>,
    /// Indices of the samples of a key, in their order.
    samples_by_key: HashMap<&'a str, Vec<usize>>,
    /// The last moment the history knows of.
    pub(super) end: u64,
}

/// An acquisition, from its request to its end.
pub(super) struct Call<'a> {
    pub(super) invoke: &'a Event,
    /// Its number within the process.
    pub(super) number: u64,
    pub(super) key: &'a str,
    pub(super) mode: Mode,
    pub(super) waits: bool,
    pub(super) bound: Option<u64>,
    /// `Ok`, `Fail` or `Cancel`; `None` while it is open.
    pub(super) end: Option<&'a Event>,
}

/// The server's state of a key, at some moment in `(asked, event.at)`.
pub(super) struct Sample<'a> {
    pub(super) event: &'a Event,
    pub(super) key: &'a str,
    pub(super) asked: u64,
    pub(super) holders: &'a [Holder],
    pub(super) pttl: i64,
}

pub(super) struct Fault {
    pub(super) effect: Effect,
    pub(super) span: Span,
}

impl<'a> Facts<'a> {
    pub(super) fn new(events: &'a [Event], limits: Limits) -> Self {
        let end = events.iter().map(|e| e.at).max().unwrap_or(0);
        let mut facts = Self {
            events,
            limits,
            claims: Vec::new(),
            calls: Vec::new(),
            samples: Vec::new(),
            faults: Vec::new(),
            deaths: HashMap::new(),
            granted: HashSet::new(),
            samples_by_key: HashMap::new(),
            end,
        };
        facts.collect();
        facts
    }

    fn collect(&mut self) {
        let mut open_calls = HashMap::new();
        // By hold: an owner may reuse its id for later claims; the last one is meant.
        let mut latest: HashMap<&str, usize> = HashMap::new();
        let mut open_faults = HashMap::new();
        for event in self.events {
            let at = event.at;
            match &event.what {
                What::Invoke {
                    call,
                    key,
                    mode,
                    waits,
                    bound,
                } => {
                    open_calls.insert((event.process, *call), self.calls.len());
                    let call = Call {
                        invoke: event,
                        number: *call,
                        key,
                        mode: *mode,
                        waits: *waits,
                        bound: *bound,
                        end: None,
                    };
                    self.calls.push(call);
                }
                What::Fail { call, .. } | What::Cancel { call } => {
                    if let Some(index) = open_calls.get(&(event.process, *call)) {
                        self.calls[*index].end = Some(event);
                    }
                }
                What::Ok {
                    call,
                    hold,
                    token,
                    valid_until,
                } => {
                    let Some(index) = open_calls.get(&(event.process, *call)) else {
                        continue;
                    };
                    let call = &mut self.calls[*index];
                    call.end.get_or_insert(event);
                    self.granted.insert((call.key, hold));
                    match latest.get(hold.as_str()).map(|i| &mut self.claims[*i]) {
                        Some(claim) if claim.depth > 0 && claim.key == call.key => {
                            claim.nest(at, *valid_until)
                        }
                        _ => {
                            latest.insert(hold, self.claims.len());
                            self.claims
                                .push(Claim::new(event, call, hold, *token, *valid_until));
                        }
                    }
                }
                What::Server {
                    key,
                    asked,
                    holders,
                    pttl,
                } => {
                    self.samples_by_key
                        .entry(key)
                        .or_default()
                        .push(self.samples.len());
                    self.samples.push(Sample {
                        event,
                        key,
                        asked: *asked,
                        holders,
                        pttl: *pttl,
                    });
                }
                What::FaultStart { id, effect, .. } => {
                    open_faults.insert((event.process, *id), self.faults.len());
                    self.faults.push(Fault {
                        effect: *effect,
                        span: (at, NEVER),
                    });
                }
                What::FaultEnd { id } => {
                    if let Some(index) = open_faults.get(&(event.process, *id)) {
                        self.faults[*index].span.1 = at;
                    }
                }
                What::Died { pid } => {
                    self.deaths.insert(*pid, at);
                    self.claims
                        .iter_mut()
                        .filter(|c| c.granted.process == *pid)
                        .for_each(|c| c.end_at(at));
                }
                What::RenewOk { hold, .. }
                | What::Lost { hold, .. }
                | What::ReleaseInvoke { hold }
                | What::ReleaseOk { hold, .. }
                | What::Drop { hold } => {
                    if let Some(index) = latest.get(hold.as_str()) {
                        self.claims[*index].goes_on(event);
                    }
                }
                What::Stalled { since } => self.faults.push(Fault {
                    effect: Effect::Delays,
                    span: (*since, at),
                }),
                // These are of single invariants.
                What::Use { .. }
                | What::Quiesced { .. }
                | What::SetCount { .. }
                | What::CountDown { .. }
                | What::Counted { .. }
                | What::Awaits { .. }
                | What::Opened { .. }
                | What::Counts { .. }
                | What::Arrive { .. }
                | What::Withdrawn { .. }
                | What::Together { .. }
                | What::Nodes { .. }
                | What::Passed { .. }
                | What::Line { .. } => {}
            }
        }
    }

    /// Samples of a claim's key after the grant, in order, until a few leases after its end. A hold
    /// that comes back does so within that time, and a long history need not be read to its end for
    /// each claim.
    pub(super) fn samples_of(&self, claim: &Claim<'_>) -> impl Iterator<Item = &Sample<'a>> {
        let indices = self
            .samples_by_key
            .get(claim.key)
            .map_or(&[][..], Vec::as_slice);
        let first = indices.partition_point(|i| self.samples[*i].event.at < claim.granted.at);
        let until = claim.end().saturating_add(10 * self.lease());
        let from = claim.granted.at;
        let rest = indices[first..].iter().map(|i| &self.samples[*i]);
        rest.take_while(move |s| s.asked <= until)
            .filter(move |s| s.asked >= from)
    }

    /// The holds that calls are for, where they are known from the beginning.
    pub(super) fn parts(&self) -> impl Iterator<Item = ((u32, u64), &'a str)> {
        self.events.iter().flat_map(|event| {
            let parts = match &event.what {
                What::Together { parts } => parts.as_slice(),
                _ => &[],
            };
            let of = |part: &'a Part| ((event.process, part.call), part.hold.as_str());
            parts.iter().map(of)
        })
    }

    /// Whether a fault that may lose locks was active in the span.
    pub(super) fn may_lose_locks(&self, span: Span) -> bool {
        self.faults
            .iter()
            .any(|f| f.effect == Effect::LosesLocks && overlap(f.span, span))
    }

    /// The moment by which something that is due `allowed` after `from` must have happened: faults
    /// in between that hold up `process` (all of them, or those that freeze it) start the allowance
    /// anew when they are over.
    pub(super) fn due(&self, from: u64, allowed: u64, counts: impl Fn(Effect) -> bool) -> u64 {
        let mut start = from;
        // Each fault can move it once.
        for _ in &self.faults {
            let over = |f: &&Fault| {
                counts(f.effect) && overlap(f.span, (from, start.saturating_add(allowed)))
            };
            let latest = self
                .faults
                .iter()
                .filter(over)
                .map(|f| f.span.1)
                .max()
                .unwrap_or(start);
            if latest <= start {
                break;
            }
            start = latest;
        }
        start.saturating_add(allowed)
    }

    /// Whether no fault was active in the span.
    pub(super) fn is_calm(&self, span: Span) -> bool {
        !self.faults.iter().any(|fault| overlap(fault.span, span))
    }

    pub(super) fn handoffs(&self) -> usize {
        let mut last: HashMap<&str, (u32, &str)> = HashMap::new();
        let mut handoffs = 0;
        for claim in &self.claims {
            let holder = (claim.granted.process, claim.granted.client.as_str());
            handoffs += usize::from(
                last.insert(claim.key, holder)
                    .is_some_and(|before| before != holder),
            );
        }
        handoffs
    }

    /// The calls of a key by the time of their request, with the latest end of each and all before
    /// it.
    pub(super) fn calls_by_key(&self) -> HashMap<&'a str, Vec<(u64, u64)>> {
        let mut by_key: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
        for call in self.calls.iter().filter(|c| c.waits) {
            let calls = by_key.entry(call.key).or_default();
            let latest = calls.last().map_or(0, |(_, end)| *end);
            calls.push((call.invoke.at, latest.max(self.end_of(call))));
        }
        by_key
    }

    /// The end of a call: answered, given up, or its process killed.
    pub(super) fn end_of(&self, call: &Call<'_>) -> u64 {
        let died = self.deaths.get(&call.invoke.process).copied();
        call.end.map(|e| e.at).or(died).unwrap_or(NEVER)
    }

    pub(super) fn lease(&self) -> u64 {
        micros(self.limits.lease)
    }
}

impl Sample<'_> {
    /// The key lives until then at least. The server rounds, to the nearest millisecond.
    pub(super) fn lives_until(&self) -> u64 {
        self.asked + u64::try_from(self.pttl - 1).unwrap_or(0) * 1_000
    }

    pub(super) fn shows(&self, hold: &str) -> bool {
        self.holders.iter().any(|h| h.id == hold)
    }
}

pub(super) fn overlap(a: Span, b: Span) -> bool {
    a.0 < b.1 && b.0 < a.1
}

pub(super) fn violation(invariant: &'static str, message: String, events: &[&Event]) -> Violation {
    let events = events.iter().map(|e| (*e).clone()).collect();
    Violation {
        invariant,
        excused: false,
        message,
        events,
    }
}
