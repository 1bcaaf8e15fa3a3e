//! I10, I12 and I13: the keys on the server.

use std::collections::{HashMap, HashSet};

use super::Violation;
use super::facts::{Facts, violation};
use crate::history::What;

/// I10: every lock has an expiry, and no lock is left at the end.
pub(super) fn nothing_leaks(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for sample in facts.samples.iter().filter(|s| s.pttl == -1) {
        violations.push(violation(
            "I10",
            format!("{} has no expiry", sample.key),
            &[sample.event],
        ));
    }
    for event in facts.events {
        if let What::Quiesced { keys } = &event.what
            && !keys.is_empty()
        {
            violations.push(violation(
                "I10",
                format!("left at the end: {}", keys.join(", ")),
                &[event],
            ));
        }
    }
    violations
}

/// I12: a lock lives no longer than the lease it was taken for, and a renewal never shortens it.
pub(super) fn expiry_is_disciplined(facts: &Facts<'_>) -> Vec<Violation> {
    let lease = facts.limits.lease.as_millis();
    let mut violations = Vec::new();
    for sample in &facts.samples {
        if u128::try_from(sample.pttl).is_ok_and(|ttl| ttl > lease) {
            let message = format!(
                "{} lives for {} ms, the lease is {lease} ms",
                sample.key, sample.pttl
            );
            violations.push(violation("I12", message, &[sample.event]));
        }
    }
    for claim in &facts.claims {
        for pair in claim.renewals.windows(2) {
            if let (
                What::RenewOk {
                    valid_until: before,
                    ..
                },
                What::RenewOk {
                    valid_until: after, ..
                },
            ) = (&pair[0].what, &pair[1].what)
                && after < before
            {
                let message = format!("a renewal of {} by {} shortened it", claim.key, claim.hold);
                violations.push(violation("I12", message, &[pair[0], pair[1]]));
            }
        }
    }
    violations
}

/// I13: a request that is sent again leads to one grant for its call, and to one holder with a
/// count of one.
pub(super) fn requests_are_idempotent(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut granted = HashMap::new();
    for event in facts.events {
        if let What::Ok { call, .. } = &event.what
            && let Some(before) = granted.insert((event.process, *call), event)
        {
            violations.push(violation(
                "I13",
                "one call was granted twice".into(),
                &[before, event],
            ));
        }
    }
    // A key that is never shared, by readers or permits, has one holder.
    let shared: HashSet<_> = facts
        .calls
        .iter()
        .filter(|c| !c.mode.is_exclusive())
        .map(|c| c.key)
        .collect();
    for sample in &facts.samples {
        let many = !shared.contains(sample.key) && sample.holders.len() > 1;
        if many || sample.holders.iter().any(|h| h.count != 1) {
            let message = format!(
                "{} is held {:?}, not once by one",
                sample.key, sample.holders
            );
            violations.push(violation("I13", message, &[sample.event]));
        }
    }
    violations
}
