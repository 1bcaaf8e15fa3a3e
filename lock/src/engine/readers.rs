//! Reads that share one hold of their process, and how they hear that somebody waits to write.

use std::sync::Arc;

use leasehold_cluster::{Channels, Source};

use super::context::Context;
use super::grants;
use super::hold::Hold;
use super::request::Request;
use crate::options::Terms;
use crate::protocol::Protocol;
use crate::state::names::Name;
use crate::state::readers::Known;
use crate::state::waiters::Access;

/// The place of a read among the waiters of its name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// It has none yet, so it may pass nobody.
    Newcomers,
    /// It is the head.
    Head,
}

/// One guard more of a hold that this process reads with already, if the request may share one and nobody waits to write.
pub(super) fn share(request: &Request, among: Among) -> Option<Arc<Hold>> {
    let Request {
        context,
        name,
        protocol,
        owner,
        terms,
        ..
    } = request;
    // The holds of an owner are its own: it nests in them.
    if protocol.access != Access::Shared || owner.is_some() || !is_shareable(terms) {
        return None;
    }
    let now = context.clock().read();
    let table = &context.registry.table;
    let hold = table.shared(name, now.monotonic, among == Among::Newcomers)?;
    let shares = hold.state().share(terms, hold.acknowledged, now);
    shares.then_some(hold)
}

/// Subscribes to what tells of waiting writers, if the request is a read of a process that reads already: what it gets then is
/// shared by those that come later.
pub(super) fn listen(request: &Request) {
    let Request {
        context,
        name,
        protocol,
        ..
    } = request;
    if protocol.access == Access::Shared && !context.registry.table.holds(name).is_empty() {
        grants::listen_to_grants(context, protocol, name);
    }
}

/// The connection over which readers of `name` hear of waiting writers, if this is a `protocol` to read.
pub(super) fn hears_of(context: &Context, protocol: &Protocol, name: &Arc<Name>) -> Option<Source> {
    let is_read = protocol.access == Access::Shared;
    is_read.then(|| grants::asked_over(context, name))?
}

/// `hold` has begun: later reads may share it. It was asked for over the connection `source`, when writers were heard of over
/// `heard`; a message that granted it tells neither.
pub(super) fn begin(
    context: &Context,
    hold: &Arc<Hold>,
    asked: Option<(Option<Source>, Option<Source>)>,
) {
    let is_read = hold.protocol.access == Access::Shared;
    if !is_read || hold.owner.is_some() || !is_shareable(&hold.terms) {
        return;
    }
    let Some(hears) = grants::asked_over(context, &hold.name) else {
        return;
    };
    // A request behind the subscription, which is the same still, misses no writer that comes later.
    let known = match asked {
        Some((Some(source), Some(heard)))
            if source == heard
                && heard == hears
                && context.client.channels() != Channels::Cluster =>
        {
            Known::Nobody(source)
        }
        _ => Known::Unclear,
    };
    let table = &context.registry.table;
    table.with_gate(&hold.name, |gate| {
        let now = context.clock().now();
        gate.admit(hold.id.number(), Arc::clone(hold), known, now)
    });
}

/// A lease that is fixed, or bounded, is of one guard.
const fn is_shareable(terms: &Terms) -> bool {
    terms.renew && terms.max_hold.is_none()
}
