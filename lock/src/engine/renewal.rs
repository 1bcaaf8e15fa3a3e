//! Renewals in batches: one script call for many holds of one primitive and one hash slot, which is on one node.

pub(crate) mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use leasehold_cluster::{Client, Submitted};
use leasehold_resp as resp;
use leasehold_resp::ServerErrorKind;

use super::hold::Hold;
use super::registry::Registry;
use super::release;
use super::work_queue::DueHold;
use crate::error::LostReason;
use crate::protocol::call::Call;
use crate::protocol::{Protocol, Renewal, Renewed};
use crate::state::deadline::Now;
use crate::state::schedule::{self, Due};
use std::time::Duration;

/// Holds renewed by one script call: it keeps the server from everything else for about a fifth of a millisecond.
const BATCH: usize = 128;

/// Renewals that are sent together.
#[derive(Debug)]
struct Batch {
    protocol: &'static Protocol,
    renewals: Vec<Asked>,
    sent: Now,
}

/// One of them.
#[derive(Debug)]
struct Asked {
    hold: Arc<Hold>,
    lease: Duration,
    doubtful: bool,
}

/// Submits everything that is due, in one go: it leaves in one write for each node, and the batches are answered
/// independently of each other. Without a `client`, looks again after `put_off`. Ends what has run out.
fn submit_due(
    registry: &Registry,
    client: Option<&Client>,
    now: Now,
    put_off: Duration,
) -> Vec<(Batch, Submitted)> {
    let all = registry
        .work
        .take_due(now, client.is_none().then_some(put_off));
    for hold in all.over {
        // Ends it with its reason. If a renewal was confirmed this very moment, it lives on.
        release::check(registry, &hold);
    }
    let Some(client) = client else {
        return Vec::new();
    };
    let mut batches = Vec::new();
    for group in group(client, all.renewals) {
        let mut group = group.into_iter().peekable();
        while group.peek().is_some() {
            let due = group.by_ref().take(BATCH).collect();
            batches.extend(registry.work.submit(due, |due| submit(client, due)));
        }
    }
    batches
}

/// What may go into one call: holds with the same script, whose keys are in the same hash slot. That slot is on one node.
fn group(client: &Client, due: Vec<DueHold>) -> Vec<Vec<DueHold>> {
    let mut groups: HashMap<(*const Protocol, u16), Vec<DueHold>> = HashMap::new();
    for one in due {
        let slot = client.group(one.hold.name.key().as_bytes());
        let protocol: *const Protocol = one.hold.protocol;
        groups.entry((protocol, slot)).or_default().push(one);
    }
    groups.into_values().collect()
}

/// Submits one batch, unless nothing is left of it.
fn submit(client: &Client, due: Vec<DueHold>) -> Option<(Batch, Submitted)> {
    // Before the request is written: the leases count from here.
    let sent = Now::read();
    let protocol = due.first()?.hold.protocol;
    let lease = |one: DueHold| {
        let lease = one.hold.state().next_lease(sent)?;
        Some(Asked {
            hold: one.hold,
            lease,
            doubtful: one.doubtful,
        })
    };
    let renewals: Vec<Asked> = due.into_iter().filter_map(lease).collect();
    let batch = Batch {
        protocol,
        renewals,
        sent,
    };
    let submitted = client.submit(&batch.call()?.slices().call());
    Some((batch, submitted))
}

/// Acts on the answer to a batch.
fn settle(registry: &Registry, batch: &Batch, answer: Result<resp::Value, resp::Error>) {
    let results = answer
        .as_ref()
        .ok()
        .and_then(|reply| (batch.protocol.read_renewals)(reply))
        .filter(|results| results.len() == batch.renewals.len());
    let Some(results) = results else {
        // The client knows better now: which script to send along, or where. But two nodes that point at each other must
        // not keep the worker busy.
        let at_once = answer.is_err_and(|error| is_noscript_or_redirect(&error));
        let now = Instant::now();
        for Asked { hold, lease, .. } in &batch.renewals {
            let due = |failures| match failures {
                0..3 if at_once => Due::sharp(now),
                failures => schedule::retry(now, *lease, failures),
            };
            registry.work.reschedule(hold, due, true);
        }
        return;
    };
    let now = Now::read();
    for (asked, result) in batch.renewals.iter().zip(results) {
        let Asked {
            hold,
            lease,
            doubtful,
        } = asked;
        match result {
            Renewed::Gone if *doubtful => release::lose(registry, hold, LostReason::NodeGone),
            Renewed::Gone => release::lose(registry, hold, LostReason::Stolen),
            Renewed::Held => {
                let renewed = hold.state().renewed(batch.sent, *lease, now);
                // If it came too late or the hold is over, it stays due at its end.
                if renewed {
                    let next = registry
                        .work
                        .next_renewal(batch.sent.monotonic, hold.terms.lease);
                    registry.work.reschedule(hold, |_| next, false);
                }
            }
            // It stays due at its end.
            Renewed::Unclear => {}
        }
    }
}

impl Batch {
    /// The call that renews all of it; `None` if it is empty.
    fn call(&self) -> Option<Call<'_>> {
        if self.renewals.is_empty() {
            return None;
        }
        let mut call = Call::new(self.protocol.renew);
        for Asked { hold, lease, .. } in &self.renewals {
            let renewal = Renewal {
                name: &hold.name,
                id: &hold.id,
                lease: *lease,
            };
            (self.protocol.add_renewal)(&renewal, &mut call);
        }
        Some(call)
    }

    /// Each hold in a batch of its own.
    fn apart(self) -> impl Iterator<Item = Self> {
        let Self { protocol, sent, .. } = self;
        self.renewals.into_iter().map(move |one| Self {
            protocol,
            renewals: vec![one],
            sent,
        })
    }
}

fn is_noscript_or_redirect(error: &resp::Error) -> bool {
    error.as_server().is_some_and(|error| {
        error.is_redirect() || matches!(error.kind(), ServerErrorKind::NoScript)
    })
}
