//! Where the engine tells a fake what happens, and asks it what is to fail.

use std::sync::Arc;

use crate::engine::clock::Clock;
use crate::engine::context::Context;
use crate::engine::hold::Hold;
use crate::engine::redlock::QuorumHold;
use crate::error::{Error, LostReason};
use crate::state::names::Name;

/// The error that a test wants the call for `name` to end with.
pub(crate) fn fail(context: &Context, name: &Name) -> Result<(), Error> {
    let failure = context
        .clock()
        .fake()
        .and_then(|world| world.failure(context.id(), name.key()));
    match failure {
        Some(kind) => Err(Error::new(kind, "the test asked for it")),
        None => Ok(()),
    }
}

/// The error that a test wants the call at this node of a Redlock to end with.
pub(crate) fn fail_at(clock: &Clock, node: usize) -> Result<(), Error> {
    match clock.fake().and_then(|world| world.failure_at(node)) {
        Some(kind) => Err(Error::new(kind, "the test asked for it")),
        None => Ok(()),
    }
}

/// `hold` was granted.
pub(crate) fn taken(hold: &Arc<Hold>) {
    if let Some(world) = hold.clock().fake() {
        world.taken(hold);
    }
}

/// `hold` is over.
pub(crate) fn ended(hold: &Hold, reason: LostReason) {
    if let Some(world) = hold.clock().fake() {
        world.ended(hold, reason);
    }
}

/// A majority granted `hold`.
pub(crate) fn taken_by_majority(hold: &Arc<QuorumHold>) {
    if let Some(world) = hold.clock().fake() {
        world.taken_by_majority(hold);
    }
}

/// `hold` is over, which a majority had granted.
pub(crate) fn ended_at_majority(hold: &QuorumHold, reason: LostReason) {
    if let Some(world) = hold.clock().fake() {
        world.ended_at_majority(hold, reason);
    }
}
