//! I18: requests for several locks at once.

use std::collections::HashMap;

use super::Violation;
use super::claim::Claim;
use super::ending::gone_by;
use super::facts::{Call, Facts, violation};
use crate::history::{Event, What, micros};

/// One lock of a request for several.
struct Part<'f, 'a> {
    call: &'f Call<'a>,
    hold: &'a str,
    claim: Option<&'f Claim<'a>>,
}

/// I18: a request for several is granted as a whole or not at all, its parts are all held at the server while it claims them,
/// lost together, and gone together in the end.
pub(super) fn all_or_none(facts: &Facts<'_>) -> Vec<Violation> {
    let calls: HashMap<_, _> = facts
        .calls
        .iter()
        .map(|call| ((call.invoke.process, call.number), call))
        .collect();
    let claims: HashMap<_, _> = facts.claims.iter().map(|c| ((c.key, c.hold), c)).collect();
    let mut violations = Vec::new();
    for event in facts.events {
        let What::Together { parts } = &event.what else {
            continue;
        };
        let parts: Vec<_> = parts
            .iter()
            .filter_map(|part| {
                let call = *calls.get(&(event.process, part.call))?;
                let claim = claims.get(&(call.key, part.hold.as_str())).copied();
                Some(Part {
                    call,
                    hold: &part.hold,
                    claim,
                })
            })
            .collect();
        violations.extend(granted_in_part(facts, &parts));
        violations.extend(held_in_part(facts, &parts));
        violations.extend(lost_in_part(facts, &parts));
        for part in &parts {
            violations.extend(left_behind(facts, part));
        }
    }
    violations
}

fn granted_in_part(facts: &Facts<'_>, parts: &[Part<'_, '_>]) -> Option<Violation> {
    let granted = parts.iter().find_map(|part| part.claim)?;
    let missing = parts.iter().find(|part| part.claim.is_none())?.call;
    // The grants of a request are written one after the other.
    let due = facts.due(granted.granted.at, micros(facts.limits.loss_notice), |_| {
        true
    });
    let is_cut_off = facts.deaths.contains_key(&missing.invoke.process) || due > facts.end;
    if missing.end.is_none() && is_cut_off {
        return None;
    }
    let message = format!("{} was granted, and {} was not", granted.key, missing.key);
    let end = missing.end.unwrap_or(missing.invoke);
    Some(violation("I18", message, &[granted.granted, end]))
}

fn held_in_part(facts: &Facts<'_>, parts: &[Part<'_, '_>]) -> Option<Violation> {
    let claims: Option<Vec<_>> = parts.iter().map(|part| part.claim).collect();
    let claims = claims?;
    for claim in &claims {
        let missing = facts.samples_of(claim).find(|sample| {
            let span = (sample.asked, sample.event.at);
            claims.iter().all(|claim| claim.covers(span)) && !sample.shows(claim.hold)
        });
        if let Some(sample) = missing {
            let message = format!("of all that {} claims, {} is gone", claim.hold, claim.key);
            let mut found = violation("I18", message, &[claim.granted, sample.event]);
            found.excused = facts.may_lose_locks((claim.granted.at, sample.event.at));
            return Some(found);
        }
    }
    None
}

fn lost_in_part(facts: &Facts<'_>, parts: &[Part<'_, '_>]) -> Option<Violation> {
    let claims = || parts.iter().filter_map(|part| part.claim);
    let lost = claims().filter_map(|claim| claim.lost);
    let lost = lost.min_by_key(|lost| lost.at)?;
    let due = facts.due(lost.at, micros(facts.limits.loss_notice), |_| true);
    let kept = claims().find(|claim| claim.end().min(facts.end) > due)?;
    let message = format!("{} is claimed on, after another part was lost", kept.key);
    Some(violation("I18", message, &[kept.granted, lost]))
}

/// The server must not show a part after the request was refused or its grant is over.
fn left_behind(facts: &Facts<'_>, part: &Part<'_, '_>) -> Option<Violation> {
    let (end, gone_by) = match part.claim {
        Some(claim) => gone_by(facts, claim)?,
        None => refused_by(facts, part.call)?,
    };
    let left = facts
        .samples
        .iter()
        .filter(|sample| sample.key == part.call.key && sample.asked > gone_by)
        .find(|sample| sample.shows(part.hold))?;
    let message = format!("{} is left of what {} asked for", left.key, part.hold);
    Some(violation("I18", message, &[end, left.event]))
}

fn refused_by<'a>(facts: &Facts<'a>, call: &Call<'a>) -> Option<(&'a Event, u64)> {
    let end = call.end?;
    let cleanup = micros(facts.limits.cleanup);
    Some((end, facts.due(end.at, cleanup, |_| true)))
}
