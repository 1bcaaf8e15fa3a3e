//! I2: fencing tokens. A resource that accepts an older token is a violation under every fault.

use std::collections::HashMap;

use super::Violation;
use super::claim::Claim;
use super::facts::{Facts, violation};
use crate::history::What;
use crate::storm::BLOCK;

/// I2: tokens are unique, and each exclusive grant has a greater one than the grant before.
///
/// A grant that its owner learned of after its validity is left out, because its place in the order
/// is not known. The others are ordered, unless two of them overlap, which violates I1.
///
/// While servers may lose locks two masters can grant at the same time: both may give one token, and the order in which
/// grants are learned of may differ from the order in which they were made. This excuses a pair of holds
/// whose second grant was requested before the first was known, and no other; and likewise the grants that pass that one on
/// within its process.
pub(super) fn tokens_increase(facts: &Facts<'_>) -> Vec<Violation> {
    let mut last: HashMap<&str, &Claim<'_>> = HashMap::new();
    let mut seen: HashMap<(&str, u64), &Claim<'_>> = HashMap::new();
    let mut violations = Vec::new();
    for claim in &facts.claims {
        if !claim.mode.is_exclusive() || claim.token == 0 {
            // Permits have none, nor have other libraries' locks, and readers have that of the latest writer.
            continue;
        }
        if let Some(other) = seen.insert((claim.key, claim.token), claim) {
            let message = format!("token {} was given twice for {}", claim.token, claim.key);
            let mut found = violation("I2", message, &[other.granted, claim.granted]);
            found.excused = other.hold != claim.hold && are_of_two_masters(facts, other, claim);
            violations.push(found);
            continue;
        }
        if claim.is_empty() {
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
        found.excused = are_of_two_masters(facts, before, claim);
        violations.push(found);
    }
    violations
}

/// Whether two masters may have granted these, the first of which was learned of first.
fn are_of_two_masters(facts: &Facts<'_>, first: &Claim<'_>, second: &Claim<'_>) -> bool {
    let asked = asked_first(facts, second);
    let either_first = asked < first.granted.at;
    either_first && facts.may_lose_locks((asked, second.granted.at))
}

/// When the hold of `claim` was requested. One that is passed on within its process has tokens of one block.
fn asked_first(facts: &Facts<'_>, claim: &Claim<'_>) -> u64 {
    let same_hold = |other: &&Claim<'_>| {
        other.key == claim.key
            && other.granted.process == claim.granted.process
            && (other.token..other.token + BLOCK).contains(&claim.token)
    };
    let passed = facts.claims.iter().filter(same_hold);
    passed.map(|other| other.asked).min().unwrap_or(claim.asked)
}

/// I2: once the guarded resource has accepted a token, it accepts no smaller one; of holders with the same one only that with
/// the greatest id.
pub(super) fn the_resource_takes_no_older_token(facts: &Facts<'_>) -> Vec<Violation> {
    // Concurrent uses may have been accepted in either order. So each use is compared with the
    // greatest token of the uses that were over before it began.
    let mut uses: HashMap<&str, Vec<_>> = HashMap::new();
    for event in facts.events {
        if let What::Use {
            key,
            hold,
            token,
            since,
            accepted: true,
        } = &event.what
        {
            let fence = (*token, hold.as_str());
            uses.entry(key).or_default().push((event, fence, *since));
        }
    }
    let mut violations = Vec::new();
    for (key, by_end) in uses {
        let mut by_start = by_end.clone();
        by_start.sort_by_key(|(_, _, since)| *since);
        let mut over = by_end.iter().peekable();
        let mut greatest: Option<(&crate::history::Event, (u64, &str))> = None;
        for (event, fence, since) in by_start {
            while let Some((earlier, taken, _)) = over.next_if(|(earlier, _, _)| earlier.at < since)
            {
                if greatest.is_none_or(|(_, most)| *taken > most) {
                    greatest = Some((earlier, *taken));
                }
            }
            if let Some((earlier, most)) = greatest.filter(|(_, most)| fence < *most) {
                let message =
                    format!("the resource behind {key} took token {fence:?} after {most:?}");
                violations.push(violation("I2", message, &[earlier, event]));
            }
        }
    }
    violations
}
