//! Renewals that replicas confirm, in rounds: the batches of all holds of one node, one wait for its replicas.
//!
//! A round takes as long as the slowest replica, so there is one at a time for each node, and what comes due meanwhile
//! joins the next. Holds that no replica confirms are not in them, and wait for none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_cluster::{
    Client, Demand, Effect, Quorum, Replicated, Round, ScriptCall, Unanswered,
};
use leasehold_resp as resp;
use leasehold_resp::ServerErrorKind;

use super::super::registry::Registry;
use super::super::work_queue::DueHold;
use super::{Batch, Worth, group, settle};
use crate::protocol::call::Call;

/// A round takes this part of the shortest lease in it at most, so that several fit between the first renewal and the end.
const ROUND_PART: u32 = 4;

/// The shortest bound on a round.
const SHORTEST_ROUND: Duration = Duration::from_millis(50);

/// Batches of one round: more would fill the connection's outbox.
const MAX_BATCHES: usize = 1024;

/// Holds that are renewed together: of one node, with the same demand.
type Key = (Arc<str>, Quorum);

/// The rounds of all nodes.
#[derive(Debug, Default)]
pub(super) struct Rounds(HashMap<Key, NodeRounds>);

#[derive(Debug, Default)]
struct NodeRounds {
    under_way: bool,
    /// For the next round, by their indices in the schedule.
    next: HashMap<usize, DueHold>,
}

/// A round that is to be run.
#[derive(Debug)]
pub(super) struct Start {
    key: Key,
    batches: Vec<Batch>,
}

/// A round that was run.
pub(super) struct Ran {
    key: Key,
    batches: Vec<Batch>,
    outcome: Result<Round, resp::Error>,
}

impl Rounds {
    /// Adds what is due to the next round of its node.
    pub(super) fn add(&mut self, client: &Client, due: Vec<DueHold>) {
        for one in due {
            let Some(quorum) = one.hold.terms.quorum() else {
                continue;
            };
            let node = client.node(one.hold.name.key().as_bytes());
            let rounds = self.0.entry((node, quorum)).or_default();
            rounds.next.insert(one.index(), one);
        }
    }

    /// The rounds that can begin now.
    pub(super) fn start(&mut self, registry: &Registry, client: &Client) -> Vec<Start> {
        self.0
            .retain(|_, rounds| rounds.under_way || !rounds.next.is_empty());
        let mut starts = Vec::new();
        for (key, rounds) in &mut self.0 {
            if rounds.under_way {
                continue;
            }
            let due = std::mem::take(&mut rounds.next).into_values().collect();
            let due = registry.work.submit(due, |due| due);
            let mut batches = Vec::new();
            for group in group(client, due) {
                if batches.len() == MAX_BATCHES {
                    let left = group.into_iter().map(|one| (one.index(), one));
                    rounds.next.extend(left);
                    continue;
                }
                batches.extend(Batch::of(group).filter(|batch| !batch.renewals.is_empty()));
            }
            if !batches.is_empty() {
                rounds.under_way = true;
                let key = key.clone();
                starts.push(Start { key, batches });
            }
        }
        starts
    }

    /// Acts on the outcome of a round. Returns the batches whose holds are to be renewed one by one: their slot is
    /// migrating.
    pub(super) fn settle(&mut self, registry: &Registry, ran: Ran) -> Vec<Batch> {
        let Ran {
            key,
            batches,
            outcome,
        } = ran;
        if let Some(rounds) = self.0.get_mut(&key) {
            rounds.under_way = false;
        }
        let round = match outcome {
            Ok(round) => round,
            Err(error) => {
                for batch in batches {
                    settle(registry, &batch, Err(error.clone()), Worth::Unconfirmed);
                }
                return Vec::new();
            }
        };
        let worth = worth(round.confirmation.is_ok());
        let sent = registry.clock.at(round.sent, round.sent_wall);
        let mut apart = Vec::new();
        for (batch, reply) in batches.into_iter().zip(round.replies) {
            let batch = Batch { sent, ..batch };
            match reply {
                Err(error) if super::is_migrating(&error) => apart.push(batch),
                reply => settle(registry, &batch, reply, worth),
            }
        }
        apart
    }
}

/// Runs a round.
pub(super) async fn run(client: Client, start: Start) -> Ran {
    let Start { key, batches } = start;
    let outcome = run_batches(&client, &batches, key.1).await;
    Ran {
        key,
        batches,
        outcome,
    }
}

async fn run_batches(
    client: &Client,
    batches: &[Batch],
    quorum: Quorum,
) -> Result<Round, resp::Error> {
    let calls: Vec<Call<'_>> = batches.iter().filter_map(Batch::call).collect();
    let slices: Vec<_> = calls.iter().map(Call::slices).collect();
    let calls: Vec<ScriptCall<'_>> = slices.iter().map(|slices| slices.call()).collect();
    let demand = demand(batches, quorum);
    let deadline = Instant::now() + (demand.lease / ROUND_PART).max(SHORTEST_ROUND);
    let round = client.eval_round(&calls, &demand, deadline).await?;
    let is_forgotten = |reply: &Result<_, resp::Error>| {
        let error = reply.as_ref().err().and_then(resp::Error::as_server);
        error.is_some_and(|error| matches!(error.kind(), ServerErrorKind::NoScript))
    };
    if round.replies.iter().any(is_forgotten) {
        // The server was restarted, or flushed its scripts: now they are sent along.
        return client.eval_round(&calls, &demand, deadline).await;
    }
    Ok(round)
}

/// Renews a single hold wherever its key is, and has it confirmed there.
pub(super) async fn run_one(
    client: &Client,
    batch: &Batch,
) -> (Result<resp::Value, resp::Error>, Worth) {
    let mut done = (
        Err(resp::Error::config("nothing to renew")),
        Worth::Unconfirmed,
    );
    for call in batch.calls_apart() {
        done = run_call(client, batch, &call).await;
        if !done.0.as_ref().is_ok_and(|reply| batch.is_held(reply)) || done.1 != Worth::Counts {
            break;
        }
    }
    done
}

/// Makes one call for the only hold of a batch, and has it confirmed.
async fn run_call(
    client: &Client,
    batch: &Batch,
    call: &Call<'_>,
) -> (Result<resp::Value, resp::Error>, Worth) {
    let first = batch.renewals.first();
    let Some(quorum) = first.and_then(|one| one.hold.terms.quorum()) else {
        return (
            Err(resp::Error::config("nothing to confirm")),
            Worth::Unconfirmed,
        );
    };
    let demand = demand(std::slice::from_ref(batch), quorum);
    let deadline = Instant::now() + (demand.lease / ROUND_PART).max(SHORTEST_ROUND);
    let slices = call.slices();
    let mut unanswered = Unanswered::default();
    let replicated = client
        .eval_replicated(
            &slices.call(),
            &demand,
            deadline,
            |_| Effect::Wrote,
            &mut unanswered,
        )
        .await;
    match replicated {
        Ok(Replicated::Ran(ran)) => (Ok(ran.evaluated.value), worth(ran.confirmation.is_ok())),
        Ok(Replicated::Untrusted { .. }) => {
            (Err(resp::Error::config("untrusted")), Worth::Unconfirmed)
        }
        Err(error) => (Err(error), Worth::Unconfirmed),
    }
}

fn demand(batches: &[Batch], quorum: Quorum) -> Demand {
    let leases = batches.iter().flat_map(|batch| &batch.renewals);
    Demand {
        quorum,
        lease: leases.map(|one| one.lease).min().unwrap_or_default(),
        // The guard is for grants: what is still there was not forgotten.
        guard: Duration::ZERO,
    }
}

const fn worth(is_confirmed: bool) -> Worth {
    if is_confirmed {
        Worth::Counts
    } else {
        Worth::Unconfirmed
    }
}
