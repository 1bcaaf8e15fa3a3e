//! Renewals in batches: one script call for many holds of one primitive and one hash slot, which is on one node.
//!
//! Holds that replicas confirm are renewed in [`rounds`], those of one node together.

mod rounds;
pub(crate) mod worker;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_cluster::{Client, Submitted};
use leasehold_resp as resp;
use leasehold_resp::ServerErrorKind;

use super::hold::Hold;
use super::registry::Registry;
use super::release;
use super::work_queue::DueHold;
use crate::error::LostReason;
use crate::protocol::call::Call;
use crate::protocol::permits::Permits;
use crate::protocol::{Protocol, Renewal, Renewed};
use crate::state::deadline::Now;
use crate::state::schedule::{self, Due};
use crate::state::waiters::Access;
use rounds::Rounds;

/// Holds renewed by one script call: it keeps the server from everything else for about a fifth of a millisecond.
const BATCH: usize = 128;

/// A renewal that replicas did not confirm is repeated after this part of the lease.
const UNCONFIRMED_PART: u32 = 20;

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
    permits: Permits,
    doubtful: bool,
}

/// Submits everything that is due, in one go: it leaves in one write for each node, and the batches are answered
/// independently of each other. Holds that replicas confirm go to `rounds` instead. Without a `client`, looks again after
/// `put_off`. Ends what has run out.
fn submit_due(
    registry: &Registry,
    client: Option<&Client>,
    rounds: &mut Rounds,
    now: Now,
    put_off: Duration,
) -> Vec<(Batch, Submitted)> {
    let all = registry
        .work
        .take_due(now, client.is_none().then_some(put_off));
    for hold in all.over {
        // Ends it with its reason. If a renewal was confirmed this very moment, it lives on.
        let reason = release::check(registry, &hold);
        if let Some(client) = client
            && reason == Some(LostReason::Expired)
            && hold.terms.quorum().is_some()
        {
            // A renewal that no replica confirmed may have prolonged it at the server by a whole lease.
            release::end_lost(registry, client, &hold);
        }
    }
    let Some(client) = client else {
        return Vec::new();
    };
    let (confirmed, plain) = all
        .renewals
        .into_iter()
        .partition(|due| due.hold.terms.quorum().is_some());
    rounds.add(client, confirmed);
    let mut batches = Vec::new();
    for group in group(client, plain) {
        batches.extend(registry.work.submit(group, |due| submit(client, due)));
    }
    batches
}

/// Groups of holds that may go into one call: at most [`BATCH`] with the same script, whose keys are in the same hash slot.
/// That slot is on one node.
fn group(client: &Client, due: Vec<DueHold>) -> impl Iterator<Item = Vec<DueHold>> {
    let mut groups: HashMap<(*const Protocol, u16), Vec<DueHold>> = HashMap::new();
    for one in due {
        let slot = client.group(one.hold.name.key().as_bytes());
        let protocol: *const Protocol = one.hold.protocol;
        groups.entry((protocol, slot)).or_default().push(one);
    }
    groups.into_values().flat_map(|group| cut(group, BATCH))
}

/// `items` in their order, in pieces of at most `size`.
fn cut<T>(items: Vec<T>, size: usize) -> impl Iterator<Item = Vec<T>> {
    let mut items = items.into_iter();
    std::iter::from_fn(move || {
        let piece: Vec<T> = items.by_ref().take(size).collect();
        (!piece.is_empty()).then_some(piece)
    })
}

/// Submits one batch, unless nothing is left of it.
fn submit(client: &Client, due: Vec<DueHold>) -> Option<(Batch, Submitted)> {
    let batch = Batch::of(due)?;
    let submitted = client.submit(&batch.call()?.slices().call());
    Some((batch, submitted))
}

impl Asked {
    fn renewal(&self) -> Renewal<'_> {
        Renewal {
            name: &self.hold.name,
            id: &self.hold.id,
            permits: self.permits,
            lease: self.lease,
        }
    }
}

impl Batch {
    /// A batch of those of `due` that still need a renewal, which are of one script.
    fn of(due: Vec<DueHold>) -> Option<Self> {
        // Before the request is written: the leases count from here.
        let first = due.first()?;
        let (sent, protocol) = (first.hold.clock().read(), first.hold.protocol);
        let lease = |one: DueHold| {
            let lease = one.hold.state().next_lease(sent)?;
            let permits = one.hold.permits();
            Some(Asked {
                hold: one.hold,
                lease,
                permits,
                doubtful: one.doubtful,
            })
        };
        Some(Self {
            protocol,
            renewals: due.into_iter().filter_map(lease).collect(),
            sent,
        })
    }
}

/// The effect on the deadline of a renewal that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worth {
    /// It extends the lease.
    Counts,
    /// Not all replicas that must have confirmed it.
    Unconfirmed,
}

/// Acts on the answer to a batch.
fn settle(
    registry: &Registry,
    batch: &Batch,
    answer: Result<resp::Value, resp::Error>,
    worth: Worth,
) {
    let results = answer
        .as_ref()
        .ok()
        .and_then(|reply| (batch.protocol.read_renewals)(reply, batch.renewals.len()));
    let Some(results) = results else {
        // The client knows better now: which script to send along, or where. But two nodes that point at each other must
        // not keep the worker busy.
        let at_once = answer.is_err_and(|error| is_noscript_or_redirect(&error));
        let now = registry.clock.now();
        for Asked { hold, lease, .. } in &batch.renewals {
            // The one of a grant is short.
            let known = hold.state().lease();
            let due = |failures| match failures {
                0..3 if at_once => Due::sharp(now),
                failures => schedule::retry(now, known.min(*lease), failures),
            };
            registry.work.reschedule(hold, due, true);
            if !at_once {
                tell_failure(registry, hold);
            }
        }
        return;
    };
    let now = registry.clock.read();
    for (asked, result) in batch.renewals.iter().zip(results) {
        settle_one(registry, asked, result, worth, (batch.sent, now));
    }
}

/// Acts on the answer to one renewal, which was sent and answered at these times.
fn settle_one(
    registry: &Registry,
    asked: &Asked,
    result: Renewed,
    worth: Worth,
    (sent, now): (Now, Now),
) {
    let Asked {
        hold,
        lease,
        permits,
        doubtful,
    } = asked;
    match result {
        Renewed::Gone if hold.permits() != *permits => {
            // Some of them were given back meanwhile, which the server may have seen before.
            registry
                .work
                .reschedule(hold, |_| Due::sharp(now.monotonic), *doubtful);
        }
        Renewed::Gone if *doubtful => release::lose(registry, hold, LostReason::NodeGone),
        Renewed::Gone => release::lose(registry, hold, LostReason::Stolen),
        Renewed::Held | Renewed::Contended if worth == Worth::Unconfirmed => {
            tell_failure(registry, hold);
            let next = Due::sharp(now.monotonic + *lease / UNCONFIRMED_PART);
            registry.work.reschedule(hold, |_| next, false);
        }
        Renewed::Held | Renewed::Contended => {
            tell_readers(registry, hold, result == Renewed::Contended);
            let (late, renewed) = {
                let mut state = hold.state();
                (state.late(now), state.renewed(sent, *lease, now))
            };
            // If it came too late or the hold is over, it stays due at its end.
            if renewed {
                registry.telemetry.renewed(hold.subject(), *lease, late);
                let next = registry.work.next_renewal(sent.monotonic, hold.terms.lease);
                registry.work.reschedule(hold, |_| next, false);
            }
        }
        // It stays due at its end.
        Renewed::Unclear => {}
    }
}

fn tell_failure(registry: &Registry, hold: &Hold) {
    let telemetry = &registry.telemetry;
    telemetry.renewal_failed(hold.subject(), hold.left());
}

/// Acts on what a renewal tells about those who wait.
fn tell_readers(registry: &Registry, hold: &Hold, is_contended: bool) {
    if hold.protocol.access != Access::Shared {
        return;
    }
    let number = hold.id.number();
    if is_contended {
        registry.table.writer_waits(&hold.name, number);
    } else {
        registry.table.nobody_waits(&hold.name, number);
    }
}

impl Batch {
    /// The call that renews all of it; `None` if it is empty.
    fn call(&self) -> Option<Call<'_>> {
        if self.renewals.is_empty() {
            return None;
        }
        let is_confirmed = |one: &Asked| one.hold.terms.quorum().is_some();
        let script = if self.renewals.iter().any(is_confirmed) {
            self.protocol.renew_replicated
        } else if self.renewals.len() == 1 {
            self.protocol.renew_one
        } else {
            self.protocol.renew
        };
        let mut call = Call::new(script);
        for one in &self.renewals {
            (self.protocol.add_renewal)(&one.renewal(), &mut call);
        }
        Some(call)
    }

    /// The calls that renew its only hold wherever its keys are, to be made one after another while they find it.
    fn calls_apart(&self) -> Vec<Call<'_>> {
        let one = self.renewals.first().map(Asked::renewal);
        match (self.protocol.renew_apart, one) {
            (Some(calls), Some(renewal)) => calls.map(|call| call(&renewal)).into(),
            _ => self.call().into_iter().collect(),
        }
    }

    /// Whether this reply says that all of it is there.
    fn is_held(&self, reply: &resp::Value) -> bool {
        let results = (self.protocol.read_renewals)(reply, self.renewals.len());
        let is_held = |result: &Renewed| matches!(result, Renewed::Held | Renewed::Contended);
        results.is_some_and(|results| results.iter().all(is_held))
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

/// Whether keys of the slot are at two nodes: these at the other one, or some of them here and some there.
fn is_migrating(error: &resp::Error) -> bool {
    error.as_server().is_some_and(|error| {
        matches!(
            error.kind(),
            ServerErrorKind::Ask { .. } | ServerErrorKind::TryAgain
        )
    })
}
