//! Where the engine tells a fake what happens, and asks it what is to fail.

use std::sync::Arc;

use crate::engine::context::Context;
use crate::engine::hold::Hold;
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
