//! `leasehold sem`: permits of a semaphore for scripts.

use std::time::{Duration, Instant};

use clap::Subcommand;
use leasehold::{Locks, Permit};
use serde::Serialize;

use super::Context;
use crate::connect::connect;
use crate::duration;
use crate::exit::{Failure, GONE, OK};
use crate::look::permits::{self, PermitId};
use crate::look::{self, Looker};

/// Takes permits of a semaphore and gives them back, by their id.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Takes permits, leaves them taken, and prints their id for `release`. Nothing renews them.
    Acquire {
        /// The semaphore.
        key: String,
        /// How many permits there are over all processes; the same number everywhere.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        permits: u32,
        /// How many to take.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        take: u32,
        /// How long they stay taken unless they are released.
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        lease: Duration,
        #[command(flatten)]
        wait: crate::wait::Waiting,
    },
    /// Gives back what `acquire` took; exits with 1 if it was not taken any more.
    Release {
        /// The semaphore.
        key: String,
        /// The line that `acquire` printed.
        id: PermitId,
    },
    /// Tells who holds permits, and who waits.
    Inspect {
        /// The semaphore.
        key: String,
    },
}

#[derive(Debug, Serialize)]
struct Acquired<'a> {
    key: &'a str,
    id: &'a str,
    permits: u32,
}

#[derive(Debug, Serialize)]
struct Released<'a> {
    key: &'a str,
    released: u64,
}

/// Until a grant that was waited for has become the whole lease.
const GRANT: Duration = Duration::from_secs(2);

pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    match args.act {
        Act::Acquire {
            key,
            permits,
            take,
            lease,
            wait,
        } => {
            let locks = connect(context.global, context.output).await?;
            acquire(&locks, &key, (permits, take), lease, wait, context).await
        }
        Act::Release { key, id } => release(&key, &id, context).await,
        Act::Inspect { key } => {
            super::inspect::execute(super::inspect::Args { key }, context).await
        }
    }
}

async fn acquire(
    locks: &Locks,
    key: &str,
    (permits, take): (u32, u32),
    lease: Duration,
    wait: crate::wait::Waiting,
    context: &Context<'_>,
) -> Result<u8, Failure> {
    let semaphore = locks.semaphore(key, permits);
    let permit = match wait.at_most() {
        Some(time) => {
            semaphore
                .try_acquire_many_for(take, time)
                .lease(lease)
                .await?
        }
        None => Some(semaphore.acquire_many(take).lease(lease).await?),
    };
    let Some(permit) = permit else {
        return Err(Failure::busy(format!(
            "`{}` has not so many free permits",
            semaphore.key()
        )));
    };
    settle(&permit, lease).await;
    let inspection = semaphore.inspect().await?;
    let mut holders = inspection.holders().iter();
    let ours = holders.find(|holder| holder.client() == locks.client_id());
    let Some(id) = ours
        .map(|holder| holder.id().to_owned())
        .filter(|_| permit.is_held())
    else {
        return Err(Failure::lost(format!(
            "the permits of `{key}` were lost while they were taken"
        )));
    };
    let told = Acquired {
        key: semaphore.key(),
        id: &id,
        permits: take,
    };
    // Printed while they can still be given back.
    look::print_both(context, &id, &told)?;
    permit.forget();
    Ok(OK)
}

/// A permit that was waited for has a lease of a second at first.
async fn settle(permit: &Permit, lease: Duration) {
    let until = Instant::now() + GRANT.min(lease);
    while permit.valid_for() + GRANT < lease && permit.is_held() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn release(key: &str, id: &PermitId, context: &Context<'_>) -> Result<u8, Failure> {
    let looker = Looker::connect(context.global, look::BUDGET).await?;
    let whole = looker.key(key)?;
    let released = permits::expire(&looker, &whole, &id.prefix()).await?;
    if released > 0 {
        let locks = looker.locks(context.global).await?;
        permits::hand_on(&locks, &whole).await?;
    }
    if context.output.is_json() {
        look::print_row(context, &Released { key, released })?;
    }
    if released == 0 {
        context
            .output
            .warn("these permits were not taken any more: others may have had them");
        return Ok(GONE);
    }
    Ok(OK)
}
