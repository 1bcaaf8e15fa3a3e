//! I4, I5, I11 and I16: the end of a hold.

use super::Violation;
use super::claim::Claim;
use super::facts::{Call, Facts, Sample, violation};
use crate::history::{Effect, Event, Outcome, What, micros};

/// I4: after the end of a hold was decided, nothing renews it and it does not come back.
pub(super) fn nothing_renews_after_the_end(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for claim in &facts.claims {
        let Some((end, gone_by)) = gone_by(facts, claim) else {
            continue;
        };
        for renewal in &claim.renewals {
            if matches!(&renewal.what, What::RenewOk { sent, .. } if *sent > end.at) {
                let message = format!("{} was renewed on {} after its end", claim.hold, claim.key);
                violations.push(violation("I4", message, &[end, renewal]));
            }
        }
        let has_died = died(facts, claim);
        for sample in facts
            .samples_of(claim)
            .filter(|s| s.asked > gone_by && s.shows(claim.hold))
        {
            // An owner keeps its id from one acquisition to the next.
            let later = |at| at > end.at && at <= sample.event.at;
            let asked_again = |c: &Call<'_>| {
                c.key == claim.key && later(c.invoke.at) && same_client(c.invoke, claim)
            };
            let granted_again =
                |c: &Claim<'_>| c.key == claim.key && c.hold == claim.hold && c.granted.at > end.at;
            // Passed on inside a process that died before it had recorded that.
            let process = claim.granted.process;
            let waited =
                |c: &Call<'_>| c.key == claim.key && c.invoke.process == process && c.end.is_none();
            let passed_on = |c: &Call<'_>| has_died && waited(c);
            let is_later = |c: &Call<'_>| asked_again(c) || passed_on(c);
            if !facts.calls.iter().any(is_later) && !facts.claims.iter().any(granted_again) {
                let message = format!("{} is on {} after its end", claim.hold, claim.key);
                violations.push(violation("I4", message, &[end, sample.event]));
            }
        }
    }
    violations
}

/// The event that ended a claim, and the moment after which the server must not show it.
pub(super) fn gone_by<'a>(facts: &Facts<'a>, claim: &Claim<'a>) -> Option<(&'a Event, u64)> {
    let cleanup = micros(facts.limits.cleanup);
    match (claim.release, claim.outcome) {
        (Some(_), Some((end, Outcome::Released | Outcome::AlreadyGone))) => Some((end, end.at)),
        // A drop sends the release and does not wait for it.
        (Some(drop), None) if matches!(drop.what, What::Drop { .. }) && !died(facts, claim) => {
            Some((drop, facts.due(drop.at, cleanup, |_| true)))
        }
        // The release may not have reached the server: the lease ends the hold.
        (release, outcome) => {
            let end = outcome.map(|(end, _)| end).or(release).or(claim.lost)?;
            Some((end, facts.due(end.at, facts.lease() + cleanup, |_| true)))
        }
    }
}

fn died(facts: &Facts<'_>, claim: &Claim<'_>) -> bool {
    facts.deaths.contains_key(&claim.granted.process)
}

/// I5: an owner whose hold is gone at the server soon stops claiming it.
pub(super) fn loss_is_told(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for claim in &facts.claims {
        let gone = facts
            .samples_of(claim)
            .find(|s| s.event.at < claim.end() && !s.shows(claim.hold));
        let Some(gone) = gone else { continue };
        let process = claim.granted.process;
        let holds_up = |effect| !matches!(effect, Effect::Freezes(other) if other != process);
        let due = facts.due(gone.event.at, micros(facts.limits.loss_notice), holds_up);
        // Events after the end of the history are unknown.
        if claim.end().min(facts.end) > due {
            let late = claim.end().min(facts.end) - gone.event.at;
            let message = format!(
                "{} claimed {} for {late} µs after the server had let go",
                claim.hold, claim.key
            );
            violations.push(violation("I5", message, &[claim.granted, gone.event]));
        }
    }
    violations
}

/// I11: nested grants of one owner end at the server with the last release, and there is one
/// release for each.
pub(super) fn nesting_is_balanced(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for claim in &facts.claims {
        if claim.releases > claim.grants {
            let message = format!(
                "{} was granted {} {} times and released {}",
                claim.hold, claim.key, claim.grants, claim.releases
            );
            let last = claim.release.unwrap_or(claim.granted);
            violations.push(violation("I11", message, &[claim.granted, last]));
        }
    }
    for claim in facts.claims.iter().filter(|c| c.grants > 1) {
        let missing = |s: &&Sample<'_>| claim.covers((s.asked, s.event.at)) && !s.shows(claim.hold);
        if let Some(sample) = facts.samples_of(claim).find(missing) {
            let message = format!(
                "{} still nests on {}, and the server has let go",
                claim.hold, claim.key
            );
            let mut found = violation("I11", message, &[claim.granted, sample.event]);
            found.excused = facts.may_lose_locks((claim.granted.at, sample.event.at));
            violations.push(found);
        }
    }
    violations
}

/// I16: `Released` only if it was there, `AlreadyGone` only if it was not.
pub(super) fn release_is_honest(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for claim in &facts.claims {
        let (Some(begin), Some((end, outcome))) = (claim.release, claim.outcome) else {
            continue;
        };
        // The last thing known of the key before the release began.
        let Some(last) = facts
            .samples_of(claim)
            .take_while(|s| s.event.at < begin.at)
            .last()
        else {
            continue;
        };
        let dishonest = match outcome {
            Outcome::Released => !last.shows(claim.hold),
            Outcome::AlreadyGone => last.shows(claim.hold) && end.at < last.lives_until(),
            Outcome::Unknown => false,
        };
        if dishonest {
            let message = format!(
                "the release of {} by {} said {outcome:?}, the server knew better",
                claim.key, claim.hold
            );
            let mut found = violation("I16", message, &[last.event, begin, end]);
            found.excused = facts.may_lose_locks((last.asked, end.at));
            violations.push(found);
        }
    }
    violations
}

fn same_client(event: &Event, claim: &Claim<'_>) -> bool {
    event.process == claim.granted.process && event.client == claim.granted.client
}
