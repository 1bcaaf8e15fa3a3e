//! I7 and I15: the order in which those who wait are served.

use std::collections::HashMap;

use super::Violation;
use super::claim::Claim;
use super::facts::{Call, Facts, overlap, violation};
use crate::history::{Mode, What, micros};

/// A request that came this much earlier than another one, in microseconds, joined the line before it, also on a busy machine:
/// the time of the request is that of the call, and the place in line is the server's.
const APART: u64 = 1_000_000;

/// I7: a lock whose waiters are served in order goes to none of them before one that came earlier and goes on waiting.
///
/// Only what happened without a fault is judged: a fault may cost a waiter its turn.
pub(super) fn waiters_are_served_in_order(facts: &Facts<'_>) -> Vec<Violation> {
    let mut by_key: HashMap<&str, Vec<&Call<'_>>> = HashMap::new();
    for call in facts
        .calls
        .iter()
        .filter(|c| c.mode == Mode::Ordered && c.waits)
    {
        by_key.entry(call.key).or_default().push(call);
    }
    let mut violations = Vec::new();
    for calls in by_key.into_values() {
        // Those that came before and were not over yet, in the order of their requests.
        let mut open: Vec<&Call<'_>> = Vec::new();
        for late in calls {
            open.retain(|early| facts.end_of(early) > late.invoke.at);
            let passed = granted_at(late).and_then(|granted| {
                open.iter().find(|early| {
                    early.invoke.at + APART < late.invoke.at
                        && facts.end_of(early) > granted
                        && facts.is_calm((early.invoke.at, granted))
                })
            });
            if let Some(early) = passed {
                let message = format!(
                    "{} went to a request that came {} µs after one that was still waiting",
                    late.key,
                    late.invoke.at - early.invoke.at
                );
                let events: Vec<_> = [Some(early.invoke), Some(late.invoke), late.end]
                    .into_iter()
                    .flatten()
                    .collect();
                violations.push(violation("I7", message, &events));
            }
            open.push(late);
        }
    }
    violations
}

/// I15: readers who come after a writer that waits give way to it, unless it waits for another writer.
pub(super) fn readers_give_way_to_a_writer(facts: &Facts<'_>) -> Vec<Violation> {
    let allowed = micros(facts.limits.handoff) + APART;
    let mut claims: HashMap<&str, (Vec<&Claim<'_>>, Vec<&Claim<'_>>)> = HashMap::new();
    for claim in &facts.claims {
        let (readers, writers) = claims.entry(claim.key).or_default();
        if claim.mode == Mode::Shared {
            readers.push(claim);
        } else {
            writers.push(claim);
        }
    }
    for (readers, _) in claims.values_mut() {
        readers.sort_by_key(|claim| claim.asked);
    }
    let mut violations = Vec::new();
    for call in facts
        .calls
        .iter()
        .filter(|c| c.mode == Mode::Exclusive && c.waits)
    {
        let Some((readers, writers)) = claims.get(call.key) else {
            continue;
        };
        let until = facts.end_of(call).min(facts.end);
        let late =
            readers.partition_point(|claim| claim.asked <= call.invoke.at.saturating_add(allowed));
        let Some(reader) = readers[late..]
            .iter()
            .take_while(|claim| claim.asked <= until)
            .find(|claim| claim.granted.at <= until)
        else {
            continue;
        };
        let span = (call.invoke.at, reader.granted.at);
        let waits_for_a_writer = || {
            writers
                .iter()
                .any(|claim| overlap((claim.asked, claim.end()), span))
        };
        if facts.is_calm(span) && !waits_for_a_writer() {
            let message = format!(
                "a reader got {} {} µs after a writer had asked for it, who still waits",
                call.key,
                span.1 - span.0
            );
            violations.push(violation("I15", message, &[call.invoke, reader.granted]));
        }
    }
    violations
}

fn granted_at(call: &Call<'_>) -> Option<u64> {
    let end = call.end?;
    matches!(end.what, What::Ok { .. }).then_some(end.at)
}
