//! One attempt: all nodes are asked at once, and a majority decides.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::Core;
use super::drive::Request;
use super::hold::QuorumGuard;
use super::hold::QuorumHold;
use super::node::Refusal;
use crate::error::{Error, ErrorKind};
use crate::options::Terms;
use crate::state::quorum::Outcome;

/// A node may take this part of the lease for its answer.
const PATIENCE_PART: u32 = 20;
/// The least time that a node has for its answer.
const SHORTEST: Duration = Duration::from_millis(5);
/// A node whose answer takes this many of its round trips is not waited for while others want the lock too.
const ROUND_TRIPS: u32 = 4;

/// The result of an attempt.
pub(super) enum Attempted {
    /// A majority granted it, with the fencing token if one was asked for.
    Granted(QuorumGuard, Option<u64>),
    /// Others have it, or too many nodes are too young to grant anything.
    Held {
        /// For how long they are too young.
        young: Duration,
        /// The nodes that granted it, and have it back.
        free: Vec<usize>,
    },
    Failed(Error),
}

/// How long a node may take for its answer.
pub(super) fn patience(terms: &Terms) -> Duration {
    (terms.lease / PATIENCE_PART).max(SHORTEST)
}

/// Asks all nodes once.
pub(super) async fn attempt(core: &Arc<Core>, request: &Request) -> Attempted {
    // Dropped, it is released wherever it was granted or still will be.
    let guard = QuorumHold::ask(core, &request.name, request.terms, request.is_fenced);
    let hold = guard.hold();
    let clock = &core.clock;
    let started = clock.now();
    let is_granted = decided(hold, started, time_to_answer, |hold| {
        let outcome = hold.state(|state| state.quorum.outcome(clock.read()));
        (outcome != Outcome::Open).then_some(outcome == Outcome::Granted)
    });
    if !is_granted.await {
        return refused(core, hold);
    }
    if !request.is_fenced {
        return Attempted::Granted(guard, None);
    }
    let token = hold.state(|state| state.quorum.token());
    hold.fence().send_replace(Some(token));
    let patience = |hold: &QuorumHold| patience(&hold.terms);
    let is_written = decided(hold, clock.now(), patience, |hold| {
        hold.state(|state| {
            if state.quorum.left(clock.read()).is_zero() {
                return Some(false);
            }
            state.quorum.is_fenced().then_some(true)
        })
    });
    if is_written.await {
        return Attempted::Granted(guard, Some(token));
    }
    let detail = "the fencing token could not be written at a majority of the nodes in time";
    Attempted::Failed(Error::new(ErrorKind::Unavailable, detail))
}

/// Waits until `decision` says something of the answers, or the nodes have had their time since `started`.
async fn decided(
    hold: &QuorumHold,
    started: Instant,
    time: impl Fn(&QuorumHold) -> Duration,
    decision: impl Fn(&QuorumHold) -> Option<bool>,
) -> bool {
    let clock = &hold.core.clock;
    let mut is_last_look = false;
    loop {
        let mut answered = pin!(hold.next_answer());
        answered.as_mut().enable();
        if let Some(decision) = decision(hold) {
            return decision;
        }
        let until = started + time(hold);
        if clock.now() < until {
            is_last_look = false;
            let _ = clock.timeout_at(until, answered).await;
        } else if is_last_look {
            return false;
        } else {
            // This thread may be late itself, with the answers in its sockets: they have their turn first.
            is_last_look = true;
            clock.sleep(Duration::from_millis(1)).await;
        }
    }
}

/// How long the answers of the nodes are waited for, from when they were asked.
///
/// With nobody else there, silence is all that can be in the way, and the longest time is right. Where others have got some of
/// the nodes already, whoever gives up first lets the other one have the lock.
fn time_to_answer(hold: &QuorumHold) -> Duration {
    let longest = patience(&hold.terms);
    let nodes = &hold.core.nodes;
    hold.state(|state| {
        if !state.is_contended() {
            return longest;
        }
        let time = |node: usize| (nodes[node].round_trip() * ROUND_TRIPS).clamp(SHORTEST, longest);
        state.quorum.awaited().map(time).max().unwrap_or(longest)
    })
}

/// Why there is no majority.
fn refused(core: &Core, hold: &QuorumHold) -> Attempted {
    let (all, needed) = (core.nodes.len(), core.needed());
    hold.state(|state| {
        let silent = state.quorum.awaited().count();
        let granted = all - silent - state.refusals.len();
        let mut failed = 0;
        let (mut young, mut failure) = (Vec::new(), None::<Error>);
        for refusal in &state.refusals {
            match refusal {
                Refusal::Held => {}
                Refusal::Young(left) => young.push(*left),
                Refusal::Failed(error) => {
                    failed += 1;
                    // One that will not go away by waiting tells more than silence.
                    let is_passing = failure
                        .as_ref()
                        .is_none_or(|known| is_passing(known.kind()));
                    if is_passing {
                        failure = Some(error.copied());
                    }
                }
            }
        }
        // Beside others, or with too many failures, those that are silent were not waited for.
        if failed <= all - needed && !state.is_contended() {
            failed += silent;
        }
        if failed <= all - needed {
            // Until enough of those that are too young are old enough. What others hold is free at any time.
            young.sort_unstable();
            let last = young.get((needed - 1).saturating_sub(granted)).copied();
            let left = last.filter(|_| !state.is_contended());
            return Attempted::Held {
                young: left.unwrap_or_default(),
                free: state.quorum.granting().collect(),
            };
        }
        let detail = format!(
            "{failed} of {all} nodes could not be asked or did not answer in time, too many for a majority"
        );
        Attempted::Failed(match failure {
            Some(error) if !is_passing(error.kind()) => error,
            Some(error) => error.reason_for(&detail),
            None => Error::new(ErrorKind::Unavailable, detail),
        })
    })
}

/// Whether what failed like this may succeed a little later.
pub(super) const fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Unknown)
}
