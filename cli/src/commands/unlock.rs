//! `unlock`: gives back what `lock` took.

use clap::Args as Arguments;
use leasehold::Release;
use serde::Serialize;

use super::Context;
use crate::connect::connect;
use crate::exit::{self, Failure};
use crate::hold_text::HoldText;
use crate::output::shown;

/// The arguments of `unlock`.
#[derive(Arguments, Debug)]
#[command(
    after_help = "Exits with 1 if the hold is gone: then others may have had the lock. Another one's is never freed."
)]
pub(crate) struct Args {
    /// The name of the lock.
    key: String,
    /// The line that `lock` printed.
    hold: HoldText,
}

#[derive(Serialize)]
struct Unlocked<'a> {
    key: &'a str,
    released: bool,
}

/// Releases the hold.
pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let Args { key, hold } = args;
    let locks = connect(context.global, context.output).await?;
    let hold = locks.mutex(&key).detached(hold.id);
    let released = hold.release().await? == Release::Released;
    if context.output.is_json() {
        let key = hold.key();
        context.output.told(&Unlocked { key, released })?;
    }
    if released {
        return Ok(exit::OK);
    }
    let key = shown(&key);
    context.output.warn(&format!(
        "`{key}` was not held any more by this hold; others may have had it"
    ));
    Ok(exit::GONE)
}
