//! I1 and I3: a hold has one owner, and only its owner ends it.

use std::collections::HashMap;

use super::Violation;
use super::claim::Claim;
use super::facts::{Facts, NEVER, Sample, Span, violation};
use crate::history::Mode;

/// I1: at no moment do two owners claim an exclusive lock, nor a reader beside a writer.
pub(super) fn claims_do_not_overlap(facts: &Facts<'_>) -> Vec<Violation> {
    let mut by_key: HashMap<&str, Vec<(Span, &Claim<'_>)>> = HashMap::new();
    for claim in &facts.claims {
        by_key
            .entry(claim.key)
            .or_default()
            .extend(claim.spans.iter().map(|span| (*span, claim)));
    }
    let mut violations = Vec::new();
    for mut spans in by_key.into_values() {
        spans.sort_by_key(|(span, _)| *span);
        let mut open: Vec<(Span, &Claim<'_>)> = Vec::new();
        for (span, claim) in spans {
            open.retain(|(before, _)| before.1 > span.0);
            if span.0 >= span.1 {
                continue;
            }
            let others: Vec<_> = open
                .iter()
                .filter(|(_, other)| other.hold != claim.hold)
                .collect();
            let conflict = others
                .iter()
                .find(|(_, other)| match (claim.mode, other.mode) {
                    (Mode::Shared, Mode::Shared) => false,
                    // These are counted, by another invariant.
                    (Mode::Permit(_), Mode::Permit(_)) => false,
                    _ => true,
                });
            if let Some((before, other)) = conflict {
                let together = before.1.min(span.1) - span.0;
                let message = format!(
                    "{} and {} both claim {} for {together} µs",
                    other.hold, claim.hold, claim.key
                );
                let mut found = violation("I1", message, &[other.granted, claim.granted]);
                // A server that loses its data after the first grant permits the second one.
                found.excused = claim.mode != Mode::Majority
                    && facts.may_lose_locks((other.granted.at, span.0 + 1));
                violations.push(found);
            }
            open.push((span, claim));
        }
    }
    violations
}

/// I1, by the server's state: while an owner claims a key, the server shows it as the holder.
pub(super) fn claims_are_true_at_the_server(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for claim in &facts.claims {
        for sample in facts.samples_of(claim) {
            if claim.covers((sample.asked, sample.event.at)) && !sample.shows(claim.hold) {
                let message = format!(
                    "{} claims {}, and the server does not know it",
                    claim.hold, claim.key
                );
                let mut found = violation("I1", message, &[claim.granted, sample.event]);
                found.excused = facts.may_lose_locks((claim.granted.at, sample.event.at));
                violations.push(found);
            }
        }
    }
    violations
}

/// I3: a hold that the server had with time left is still there later, unless its owner released
/// it.
pub(super) fn only_the_owner_ends_a_hold(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for claim in &facts.claims {
        // A holder that was notified of a loss may also remove its hold.
        let let_go = claim.release.or(claim.lost).map_or(NEVER, |e| e.at);
        let mut last: Option<&Sample<'_>> = None;
        for sample in facts.samples_of(claim).take_while(|s| s.event.at < let_go) {
            if sample.shows(claim.hold) {
                last = Some(sample);
                continue;
            }
            let Some(before) = last
                .take()
                .filter(|before| sample.event.at < before.lives_until())
            else {
                continue;
            };
            let left = before.lives_until() - sample.event.at;
            let message = format!(
                "{} was ended by somebody else on {}, {left} µs early",
                claim.hold, claim.key
            );
            let mut found = violation("I3", message, &[claim.granted, before.event, sample.event]);
            found.excused = facts.may_lose_locks((before.asked, sample.event.at));
            violations.push(found);
        }
    }
    violations
}
