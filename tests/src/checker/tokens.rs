//! I2: fencing tokens. No fault excuses a resource that takes an older one.

use std::collections::HashMap;

use super::Violation;
use super::claim::Claim;
use super::facts::{Facts, violation};
use crate::history::{Mode, What};

/// I2: tokens are unique, and each exclusive grant has a greater one than the grant before.
///
/// A grant that its owner learned of after its validity is left out: its place in the order is not known. For the
/// others it is, or two of them overlap, and that is I1.
///
/// While servers may forget locks there can be two masters that grant, and then the order in which two grants are learned
/// of is not the one in which they were given. That is an excuse for a pair of which the second was asked for before the
/// first was known, and for no other.
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
        let before = *last.entry(claim.key).or_insert(claim);
        if before.token <= claim.token {
            last.insert(claim.key, claim);
            continue;
        }
        let message = format!(
            "token {} for {} came after {}",
            claim.token, claim.key, before.token
        );
        let mut found = violation("I2", message, &[before.granted, claim.granted]);
        let either_first = claim.asked < before.granted.at;
        found.excused = either_first && facts.may_lose_locks((claim.asked, claim.granted.at));
        violations.push(found);
    }
    violations
}

/// I2: once the guarded resource has taken a token, it takes no smaller one.
pub(super) fn the_resource_takes_no_older_token(facts: &Facts<'_>) -> Vec<Violation> {
    // Two uses at the same time may have been taken in either order: only one that was over before the other began
    // certainly came before it. So each use is compared with the greatest token of those.
    let mut uses: HashMap<&str, Vec<_>> = HashMap::new();
    for event in facts.events {
        if let What::Use {
            key,
            token,
            since,
            accepted: true,
            ..
        } = &event.what
        {
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
            while let Some((earlier, taken, _)) = over.next_if(|(earlier, _, _)| earlier.at < since)
            {
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
