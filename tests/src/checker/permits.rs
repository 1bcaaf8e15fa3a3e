//! I17: a semaphore gives out what it has.

use std::collections::HashMap;

use super::Violation;
use super::claim::Claim;
use super::facts::{Facts, Span, violation};
use crate::history::Mode;

/// I17: at no moment are more permits claimed than the capacity, nor does the server show more.
pub(super) fn permits_stay_within_the_capacity(facts: &Facts<'_>) -> Vec<Violation> {
    let mut by_key: HashMap<&str, Vec<(Span, u32, &Claim<'_>)>> = HashMap::new();
    for claim in &facts.claims {
        if let Mode::Permit(of) = claim.mode {
            by_key
                .entry(claim.key)
                .or_default()
                .extend(claim.spans.iter().map(|span| (*span, of, claim)));
        }
    }
    let mut violations = Vec::new();
    for (key, mut spans) in by_key {
        spans.sort_by_key(|(span, ..)| *span);
        violations.extend(claimed_beyond(facts, key, &spans));
        let of = spans.iter().map(|(_, of, _)| *of).max().unwrap_or(0);
        violations.extend(shown_beyond(facts, key, of));
    }
    violations
}

fn claimed_beyond(
    facts: &Facts<'_>,
    key: &str,
    spans: &[(Span, u32, &Claim<'_>)],
) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut open: Vec<(Span, &Claim<'_>)> = Vec::new();
    for (span, of, claim) in spans.iter().filter(|(span, ..)| span.0 < span.1) {
        open.retain(|(before, _)| before.1 > span.0);
        open.push((*span, claim));
        if open.len() > *of as usize {
            let message = format!("{} permits of {key} are claimed, of {of}", open.len());
            let events: Vec<_> = open.iter().map(|(_, claim)| claim.granted).collect();
            let first = events.iter().map(|event| event.at).min().unwrap_or(0);
            let mut found = violation("I17", message, &events);
            found.excused = facts.may_lose_locks((first, span.0 + 1));
            violations.push(found);
        }
    }
    violations
}

fn shown_beyond(facts: &Facts<'_>, key: &str, of: u32) -> Vec<Violation> {
    let mut violations = Vec::new();
    for sample in facts.samples.iter().filter(|sample| sample.key == key) {
        let out: i64 = sample.holders.iter().map(|holder| holder.count).sum();
        if out > of.into() {
            let message = format!("the server shows {out} permits of {key}, of {of}");
            violations.push(violation("I17", message, &[sample.event]));
        }
    }
    violations
}
