//! `verify`: whether what `lock` took is still held.

use clap::Args as Arguments;
use serde::Serialize;

use super::Context;
use crate::connect::connect;
use crate::exit::{self, Failure};
use crate::hold_text::HoldText;

/// The arguments of `verify`.
#[derive(Arguments, Debug)]
#[command(after_help = "Prints for how long it stays held, and exits with 1 if it is gone.")]
pub(crate) struct Args {
    /// The name of the lock.
    key: String,
    /// The line that `lock` printed.
    hold: HoldText,
}

#[derive(Serialize)]
struct Verified<'a> {
    key: &'a str,
    held: bool,
    remaining_ms: u128,
}

/// Asks for the hold.
pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let Args { key, hold } = args;
    let locks = connect(context.global, context.output).await?;
    let hold = locks.mutex(&key).detached(hold.id);
    let remaining = hold.remaining().await?;
    let verified = Verified {
        key: hold.key(),
        held: remaining.is_some(),
        remaining_ms: remaining.unwrap_or_default().as_millis(),
    };
    match remaining {
        Some(remaining) => {
            let text = humantime::format_duration(remaining);
            context
                .output
                .result(text, &verified)
                .map_err(Failure::of_output)?;
            Ok(exit::OK)
        }
        None => {
            if context.output.is_json() {
                context.output.told(&verified)?;
            }
            context.output.warn("it is not held any more by this hold");
            Ok(exit::GONE)
        }
    }
}
