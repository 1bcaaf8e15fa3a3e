//! `lock`: takes a lock and leaves it held.

use std::time::Duration;

use clap::Args as Arguments;
use leasehold::Guard;
use serde::Serialize;

use super::Context;
use crate::connect::{close, connect};
use crate::duration;
use crate::exit::{self, Failure};
use crate::hold_text::HoldText;
use crate::output::shown;
use crate::wait::Waiting;

/// The arguments of `lock`.
#[derive(Arguments, Debug)]
#[command(after_help = "\
Example:
  T=$(leasehold lock nightly --try --lease 5m) || exit
  …                                    # ${T##*:} is the fencing token
  leasehold extend nightly \"$T\" --lease 5m || exit
  leasehold unlock nightly \"$T\"

Nothing renews the lock: `leasehold run` does, and ends its command in time.")]
pub(crate) struct Args {
    /// The name of the lock.
    key: String,
    /// How long it stays held unless it is extended or unlocked.
    #[arg(long, value_parser = duration::parse)]
    lease: Duration,
    #[command(flatten)]
    wait: Waiting,
}

/// A lock that is left held, as JSON.
#[derive(Serialize)]
struct Locked<'a> {
    key: &'a str,
    hold: &'a str,
    id: &'a str,
    token: u64,
    lease_ms: u128,
}

/// Prints the hold.
pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let Args { key, lease, wait } = args;
    let locks = connect(context.global, context.output).await?;
    let mutex = locks.mutex(&key);
    let guard = match wait.at_most() {
        Some(time) => mutex.try_lock_for(time).lease(lease).await?,
        None => Some(mutex.lock().lease(lease).await?),
    };
    let Some(guard) = guard else {
        // Its place in line is given up.
        close(&locks).await;
        let key = shown(&key);
        return Err(Failure::busy(format!("`{key}` is held by others")));
    };
    let token = guard.token().as_u64();
    let lost = || Failure::lost(format!("`{}` was lost while it was taken", shown(&key)));
    let id = guard.detach().map_err(|guard| {
        drop::<Guard>(guard);
        lost()
    })?;
    let hold = mutex.detached(id);
    // A grant that was waited for has a lease of a second.
    if !wait.is_try() && !hold.extend(lease).await? {
        return Err(lost());
    }
    let text = HoldText {
        id: hold.id().to_owned(),
        token,
    };
    let written = text.to_string();
    let told = Locked {
        key: hold.key(),
        hold: &written,
        id: &text.id,
        token,
        lease_ms: lease.as_millis(),
    };
    if let Err(error) = context.output.result(&written, &told) {
        // The script will never know what to unlock.
        let _ = hold.release().await;
        return Err(Failure::system(format!("cannot write the hold: {error}")));
    }
    Ok(exit::OK)
}
