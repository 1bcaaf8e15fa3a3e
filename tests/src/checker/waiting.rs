//! I6, I8 and I9: waiters and attempts.

use std::collections::{HashMap, HashSet};

use super::Violation;
use super::claim::Claim;
use super::facts::{Call, Facts, NEVER, violation};
use crate::history::{Effect, Event, Outcome, What, micros};

/// I6: a lock that becomes free while others wait is held again soon.
pub(super) fn handoff_is_bounded(facts: &Facts<'_>) -> Vec<Violation> {
    let handoff = micros(facts.limits.handoff);
    let waiting = facts.calls_by_key();
    let mut grants: HashMap<&str, Vec<u64>> = HashMap::new();
    for claim in &facts.claims {
        grants.entry(claim.key).or_default().push(claim.granted.at);
    }
    let mut violations = Vec::new();
    for claim in facts.claims.iter().filter(|c| c.mode.is_exclusive()) {
        let Some((ended, free)) = free_at(facts, claim) else {
            continue;
        };
        let mut due = facts.due(free, handoff, |_| true);
        if facts
            .deaths
            .values()
            .any(|died| ended <= *died && *died <= due)
        {
            // A process that died may have been granted the lock without recording it.
            due = due.saturating_add(facts.lease());
        }
        let calls = &waiting.get(claim.key).map_or(&[][..], Vec::as_slice);
        let before = calls.partition_point(|(asked, _)| *asked <= free);
        let waited = before > 0 && calls[before - 1].1 > due;
        let granted = &grants[claim.key];
        let next = granted.get(granted.partition_point(|at| *at <= ended));
        if waited && due <= facts.end && next.is_none_or(|at| *at > due) {
            let message = format!(
                "{} was free and had a waiter, and nobody got it for {} µs",
                claim.key,
                due - free
            );
            let still = |c: &&Call<'_>| {
                c.key == claim.key && c.waits && c.invoke.at <= free && facts.end_of(c) > due
            };
            let waiter = facts.calls.iter().find(still).map(|c| c.invoke);
            let events: Vec<_> = claim
                .release
                .or(claim.lost)
                .into_iter()
                .chain(waiter)
                .collect();
            violations.push(violation("I6", message, &events));
        }
    }
    violations
}

/// The end of a claim, and the latest moment at which its lock became free.
fn free_at(facts: &Facts<'_>, claim: &Claim<'_>) -> Option<(u64, u64)> {
    let died = facts.deaths.get(&claim.granted.process).copied();
    match (claim.release, claim.outcome) {
        (Some(release), Some((end, Outcome::Released | Outcome::AlreadyGone))) => {
            Some((release.at, end.at))
        }
        (Some(release), None) if died.is_none() => Some((release.at, release.at)),
        // The release may not have reached the server: then the lease ends it.
        (release, _) => {
            let ended = release.or(claim.lost).map(|e| e.at).or(died)?;
            Some((ended, ended.saturating_add(facts.lease())))
        }
    }
}

/// I8: a call with a bound ends by then, a command timeout more at most, whatever is wrong with the
/// server.
pub(super) fn waits_are_bounded(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for call in &facts.calls {
        let Some(bound) = call.bound else { continue };
        let process = call.invoke.process;
        let frozen = |effect| effect == Effect::Freezes(process);
        let allowed = bound.saturating_sub(call.invoke.at) + micros(facts.limits.overrun);
        let due = facts.due(call.invoke.at, allowed, frozen);
        let ended = facts.end_of(call).min(facts.end);
        if ended > due {
            let message = format!(
                "a bounded wait for {} took {} µs too long",
                call.key,
                ended - due
            );
            let events: Vec<_> = [Some(call.invoke), call.end]
                .into_iter()
                .flatten()
                .collect();
            violations.push(violation("I8", message, &events));
        }
    }
    violations
}

/// I9: the server holds nothing for an acquisition that was never reported as granted, once it is
/// over.
pub(super) fn cancelled_calls_leave_nothing(facts: &Facts<'_>) -> Vec<Violation> {
    // The ids of a client share a prefix, `<client>:<n>`: an unknown id is assigned to its client
    // by it.
    let mut processes: HashMap<&str, HashSet<u32>> = HashMap::new();
    for claim in &facts.claims {
        processes
            .entry(client_of(claim.hold))
            .or_default()
            .insert(claim.granted.process);
    }
    let mut first_seen = HashMap::new();
    let mut violations = Vec::new();
    for sample in &facts.samples {
        for holder in sample.holders {
            if facts.granted.contains(&(sample.key, holder.id.as_str())) {
                continue;
            }
            let first_seen = *first_seen
                .entry((sample.key, &holder.id))
                .or_insert(sample.event.at);
            let suspects = processes.get(client_of(&holder.id));
            // The owner is not known for certain. Candidates are calls that began before the hold
            // was seen and are open or have just ended.
            let may_be_of = |c: &Call<'_>| {
                let died = facts.deaths.contains_key(&c.invoke.process);
                let cleanup = micros(facts.limits.cleanup) + if died { facts.lease() } else { 0 };
                let over = facts.end_of(c);
                c.key == sample.key
                    && c.invoke.at <= first_seen
                    && suspects.is_none_or(|processes| processes.contains(&c.invoke.process))
                    && !c.end.is_some_and(is_grant)
                    && (over == NEVER || facts.due(over, cleanup, |_| true) >= sample.asked)
            };
            if facts.calls.iter().any(may_be_of) {
                continue;
            }
            let message = format!(
                "{} is held by {}, which no acquisition was told of",
                sample.key, holder.id
            );
            let given_up = |c: &&Call<'_>| {
                c.key == sample.key
                    && c.invoke.at <= first_seen
                    && c.end.is_some_and(|end| !is_grant(end))
            };
            let last = facts.calls.iter().rfind(given_up).and_then(|c| c.end);
            let events: Vec<_> = last.into_iter().chain([sample.event]).collect();
            violations.push(violation("I9", message, &events));
        }
    }
    violations
}

fn is_grant(end: &Event) -> bool {
    matches!(end.what, What::Ok { .. })
}

fn client_of(hold: &str) -> &str {
    hold.rsplit_once(':').map_or(hold, |(client, _)| client)
}
