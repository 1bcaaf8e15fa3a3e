//! `leasehold wait KEY`: until a lock is free.

use std::time::{Duration, Instant};

use super::Context;
use crate::duration;
use crate::exit::{DATA, Failure, OK};
use crate::look::seen::{Kind, Lease, Seen};
use crate::look::text::escaped;
use crate::look::{Looker, failure, survey};

/// Waits until a lock is free, and takes nothing: somebody else may have it a moment later.
///
/// Of a semaphore it waits for a free permit. Exits with 75 when the time is over.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The lock.
    key: String,
    /// Waits for so long at most.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
}

/// The pause between two looks, which grows from one to the other.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let looker = Looker::connect(context.global, crate::look::BUDGET).await?;
    let key = looker.key(&args.key)?;
    let until = args
        .timeout
        .and_then(|time| Instant::now().checked_add(time));
    let mut pause = SHORTEST;
    loop {
        let seen = survey::at_key(&looker.client, &looker.pace, &key, 1).await;
        let Some(seen) = seen.map_err(|error| failure(&error))? else {
            return free(&looker, &key).await;
        };
        if is_free(&seen) {
            return Ok(OK);
        }
        let now = Instant::now();
        let left = until.map_or(LONGEST, |until| until.saturating_duration_since(now));
        if left.is_zero() {
            return Err(Failure::busy(format!("`{}` is still held", escaped(&key))));
        }
        // Just behind the end of the lease, if that comes first.
        let end = match seen.lease {
            Lease::Left(end) => end + Duration::from_millis(1),
            Lease::Endless | Lease::None => LONGEST,
        };
        tokio::time::sleep(pause.min(left).min(end)).await;
        pause = (pause * 2).min(LONGEST);
    }
}

/// Nothing is there; or something that is no lock, and will not become free.
async fn free(looker: &Looker, key: &[u8]) -> Result<u8, Failure> {
    match looker.type_of(key).await?.as_str() {
        "none" => Ok(OK),
        kind => Err(Failure {
            code: DATA,
            reason: "data",
            message: format!(
                "`{}` is no lock, but a {kind} of something else",
                escaped(key)
            ),
        }),
    }
}

fn is_free(seen: &Seen) -> bool {
    match (seen.kind, seen.left) {
        (Kind::Semaphore | Kind::Counting, Some(left)) => left > 0,
        (Kind::Latch, Some(left)) => left <= 0,
        _ => !seen.is_held(),
    }
}
