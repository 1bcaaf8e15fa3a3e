//! I19: locks that are held at the majority of several independent servers.

use std::collections::HashMap;

use super::Violation;
use super::claim::Claim;
use super::ending::gone_by;
use super::facts::{Facts, violation};
use crate::history::{Event, Holder, Mode, What, micros};

/// The state of a key at all servers, at some moment in `(asked, event.at)`.
struct Round<'a> {
    event: &'a Event,
    asked: u64,
    nodes: &'a [Option<Vec<Holder>>],
}

/// I19: while an owner claims a key, the majority of the servers shows it as the holder. A server that does not answer may.
pub(super) fn claims_are_true_at_the_majority(facts: &Facts<'_>) -> Vec<Violation> {
    let rounds = rounds(facts);
    let mut violations = Vec::new();
    for claim in facts.claims.iter().filter(|c| c.mode == Mode::Majority) {
        for round in rounds_of(&rounds, claim) {
            let may_hold = round
                .nodes
                .iter()
                .filter(|node| node.as_deref().is_none_or(|all| shows(all, claim.hold)))
                .count();
            if claim.covers((round.asked, round.event.at)) && may_hold <= round.nodes.len() / 2 {
                let of = round.nodes.len();
                let message = format!(
                    "{} claims {}, and {may_hold} of {of} servers may know it",
                    claim.hold, claim.key
                );
                let mut found = violation("I19", message, &[claim.granted, round.event]);
                found.excused = facts.may_lose_locks((claim.granted.at, round.event.at));
                violations.push(found);
            }
        }
    }
    violations
}

/// I19: after its end no server shows a hold, nor what was granted to a request that was refused.
pub(super) fn nothing_stays_at_a_minority(facts: &Facts<'_>) -> Vec<Violation> {
    let rounds = rounds(facts);
    let cleanup = micros(facts.limits.cleanup);
    let claims = facts.claims.iter().filter(|c| c.mode == Mode::Majority);
    let ended = claims.filter_map(|claim| {
        gone_by(facts, claim).map(|(end, by)| (claim.key, claim.hold, end, by))
    });
    let mut violations = Vec::new();
    for (key, hold, end, by) in ended.chain(refused(facts)) {
        let gone_by = facts.due(by, cleanup, |_| true);
        let rounds = rounds.get(key).map_or(&[][..], Vec::as_slice);
        let late = rounds.partition_point(|round| round.event.at <= gone_by);
        let left = rounds[late..]
            .iter()
            .find(|round| round.asked > gone_by && round.shows(hold));
        if let Some(round) = left {
            let message = format!("a server has kept {key} for {hold}");
            violations.push(violation("I19", message, &[end, round.event]));
        }
    }
    violations
}

/// Requests that were refused: key, hold, end, and its time.
fn refused<'a>(facts: &Facts<'a>) -> Vec<(&'a str, &'a str, &'a Event, u64)> {
    let parts: HashMap<_, _> = facts.parts().collect();
    let calls = facts.calls.iter().filter(|c| c.mode == Mode::Majority);
    calls
        .filter_map(|call| {
            let hold = *parts.get(&(call.invoke.process, call.number))?;
            let end = call
                .end
                .filter(|end| !matches!(end.what, What::Ok { .. }))?;
            Some((call.key, hold, end, end.at))
        })
        .collect()
}

fn rounds<'a>(facts: &Facts<'a>) -> HashMap<&'a str, Vec<Round<'a>>> {
    let mut rounds: HashMap<&str, Vec<_>> = HashMap::new();
    for event in facts.events {
        if let What::Nodes { key, asked, nodes } = &event.what {
            rounds.entry(key).or_default().push(Round {
                event,
                asked: *asked,
                nodes,
            });
        }
    }
    rounds
}

/// Those after the grant.
fn rounds_of<'r, 'a>(
    rounds: &'r HashMap<&str, Vec<Round<'a>>>,
    claim: &Claim<'_>,
) -> &'r [Round<'a>] {
    let rounds = rounds.get(claim.key).map_or(&[][..], Vec::as_slice);
    &rounds[rounds.partition_point(|round| round.event.at < claim.granted.at)..]
}

impl Round<'_> {
    fn shows(&self, hold: &str) -> bool {
        self.nodes.iter().flatten().any(|all| shows(all, hold))
    }
}

fn shows(holders: &[Holder], hold: &str) -> bool {
    holders.iter().any(|holder| holder.id == hold)
}
