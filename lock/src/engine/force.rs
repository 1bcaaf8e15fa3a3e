//! Removing a lock from whoever holds it.

use std::sync::Arc;
use std::time::Instant;

use super::context::Context;
use super::release;
use crate::error::{Error, ErrorKind, LostReason};
use crate::protocol::End;
use crate::protocol::call::Call;
use crate::state::names::Name;

/// Calls `script`, which removes the lock and leaves it to those in line, or `single_key` where only the lock's own key can be
/// used. Holders in this process lose it at once, others at their next renewal. Returns whether it was held.
pub(crate) async fn force(
    context: &Context,
    name: &Arc<Name>,
    script: for<'a> fn(&End<'a>) -> Call<'a>,
    single_key: for<'a> fn(&End<'a>) -> Call<'a>,
) -> Result<bool, Error> {
    context.ready(name).await?;
    let registry = &context.registry;
    let about = |error| context.about(name, error);
    let id = context.hold(0);
    let end = release::end(registry, &context.client, (name, &id, context.config.lease));
    let call = script(&end);
    let slices = call.slices();
    let single_key = || single_key(&end).to_owned();
    let call = slices.call().with_fallback(&single_key);
    // Granted before the request is sent, so gone when it is answered.
    let numbers = registry.table.numbers(name);
    let deadline = Instant::now() + context.config.command_timeout;
    let evaluated = context.client.eval(&call, deadline).await;
    let evaluated = evaluated.map_err(|error| about(Error::from_client(error)))?;
    // Also if they were passed on meanwhile.
    registry.table.spoil_passed(name, &numbers);
    for hold in registry.table.holds(name) {
        if numbers.contains(&hold.id.number()) {
            release::lose(registry, &hold, LostReason::Stolen);
        }
    }
    match evaluated.value.as_int() {
        Some(1) => Ok(true),
        Some(_) if evaluated.repeated => Err(about(Error::new(
            ErrorKind::Unknown,
            "the lock is free, but an attempt without an answer may have been what freed it",
        ))),
        Some(_) => Ok(false),
        None => Err(about(Error::unexpected(&evaluated.value))),
    }
}
