//! `extend`: lets what `lock` took last longer.

use std::time::Duration;

use clap::Args as Arguments;
use serde::Serialize;

use super::Context;
use crate::connect::connect;
use crate::duration;
use crate::exit::{self, Failure};
use crate::hold_text::HoldText;
use crate::output::shown;

/// The arguments of `extend`.
#[derive(Arguments, Debug)]
#[command(after_help = "Exits with 1 if the hold is gone: the lock is never taken anew.")]
pub(crate) struct Args {
    /// The name of the lock.
    key: String,
    /// The line that `lock` printed.
    hold: HoldText,
    /// How long it stays held from now on, unless that is longer already.
    #[arg(long, value_parser = duration::parse)]
    lease: Duration,
}

#[derive(Serialize)]
struct Extended<'a> {
    key: &'a str,
    held: bool,
    lease_ms: u128,
}

/// Extends the hold.
pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let Args { key, hold, lease } = args;
    let locks = connect(context.global, context.output).await?;
    let hold = locks.mutex(&key).detached(hold.id);
    let held = hold.extend(lease).await?;
    if context.output.is_json() {
        context.output.told(&Extended {
            key: hold.key(),
            held,
            lease_ms: if held { lease.as_millis() } else { 0 },
        })?;
    }
    if held {
        return Ok(exit::OK);
    }
    let key = shown(&key);
    context.output.warn(&format!(
        "`{key}` is not held any more by this hold; stop the work it protects"
    ));
    Ok(exit::GONE)
}
