//! I2: fencing tokens. No fault excuses them.

use std::collections::HashMap;

use super::Violation;
use super::claim::Claim;
use super::facts::{Facts, violation};
use crate::history::{Mode, What};

/// I2: tokens are unique, and each exclusive grant has a greater one than the grant before.
///
/// A grant that its owner learned of after its validity is left out: its place in the order is not known. For the
/// others it is, or two of them overlap, and that is I1.
pub(super) fn tokens_increase(facts: &Facts<'_>) -> Vec<Violation> {
    let mut last: HashMap<&str, &Claim<'_>> = HashMap::new();
    let mut seen: HashMap<(&str, u64), &Claim<'_>> = HashMap::new();
    let mut violations = Vec::new();
    for claim in &facts.claims {
        if let Some(other) = seen.insert((claim.key, claim.token), claim) {
            let message = format!("token {} was given twice for {}", claim.token, claim.key);
            violations.push(violation("I2", message, &[other.granted, claim.granted]));
            continue;
        }
        if claim.mode != Mode::Exclusive || claim.is_empty() {
            continue;
        }
        if let Some(before) = last.insert(claim.key, claim)
            && before.token > claim.token
        {
            let message = format!("token {} for {} came after {}", claim.token, claim.key, before.token);
            violations.push(violation("I2", message, &[before.granted, claim.granted]));
        }
    }
    violations
}

/// I2: once the guarded resource has taken a token, it takes no smaller one.
pub(super) fn the_resource_takes_no_older_token(facts: &Facts<'_>) -> Vec<Violation> {
    // Two uses at the same time may have been taken in either order: only one that was over before the other began
    // certainly came before it. So each use is compared with the greatest token of those.
    let mut uses: HashMap<&str, Vec<_>> = HashMap::new();
    for event in facts.events {
        if let What::Use { key, token, since, accepted: true, .. } = &event.what {
            uses.entry(key).or_default().push((event, *token, *since));
        }
    }
    let mut violations = Vec::new();
    for (key, by_end) in uses {
        let mut by_start = by_end.clone();
        by_start.sort_by_key(|(_, _, since)| *since);
        let mut over = by_end.iter().peekable();
        let mut greatest: Option<(&crate::history::Event, u64)> = None;
        for (event, token, since) in by_start {
            while let Some((earlier, taken, _)) = over.next_if(|(earlier, _, _)| earlier.at < since) {
                if greatest.is_none_or(|(_, most)| *taken > most) {
                    greatest = Some((earlier, *taken));
                }
            }
            if let Some((earlier, most)) = greatest.filter(|(_, most)| token < *most) {
                let message = format!("the resource behind {key} took token {token} after {most}");
                violations.push(violation("I2", message, &[earlier, event]));
            }
        }
    }
    violations
}
