//! `leasehold latch`: a count-down that scripts wait for.

use std::time::Duration;

use clap::Subcommand;
use leasehold::Latch;
use serde::Serialize;

use super::Context;
use crate::connect::connect;
use crate::duration;
use crate::exit::{Failure, GONE, OK};
use crate::look;

/// Sets a latch, counts it down, waits until it is open.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Sets the count, if the latch is open; exits with 1 if it is not.
    Set {
        /// The latch.
        key: String,
        /// How often it is to be counted down.
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
        /// Sets it also if it is closed.
        #[arg(long)]
        reset: bool,
        /// The latch is gone after so long.
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        expiry: Option<Duration>,
    },
    /// Counts down by one, and prints what is left.
    CountDown {
        /// The latch.
        key: String,
        /// Counts this participant once only, however often it is repeated.
        #[arg(long = "as", value_name = "NAME")]
        participant: Option<String>,
    },
    /// Waits until the latch is open; exits with 75 when the time is over.
    Wait {
        /// The latch.
        key: String,
        /// Waits for so long at most.
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        timeout: Option<Duration>,
    },
    /// Prints the count; 0 if the latch is open.
    Get {
        /// The latch.
        key: String,
    },
}

#[derive(Debug, Serialize)]
struct Told<'a> {
    key: &'a str,
    count: u64,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    participants: &'a [String],
}

pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let locks = connect(context.global, context.output).await?;
    match args.act {
        Act::Set {
            key,
            count,
            reset,
            expiry,
        } => {
            let mut latch = locks.latch(&key);
            if let Some(expiry) = expiry {
                latch = latch.expiry(expiry);
            }
            if reset {
                latch.reset(count).await?;
            } else if !latch.try_set_count(count).await? {
                context
                    .output
                    .warn(&format!("`{}` is not open: it was not set", latch.key()));
                return Ok(GONE);
            }
            Ok(OK)
        }
        Act::CountDown { key, participant } => {
            let latch = locks.latch(&key);
            let left = match participant {
                Some(participant) => latch.count_down_as(participant).await?,
                None => latch.count_down().await?,
            };
            tell(&latch, left, &[], context)
        }
        Act::Wait { key, timeout } => {
            let latch = locks.latch(&key);
            match timeout {
                None => latch.wait().await?,
                Some(time) if latch.wait_for(time).await? => {}
                Some(_) => return Err(Failure::busy(format!("`{}` is still closed", latch.key()))),
            }
            Ok(OK)
        }
        Act::Get { key } => {
            let latch = locks.latch(&key);
            let count = latch.count().await?;
            let inspection = latch.inspect().await?;
            tell(&latch, count, inspection.participants(), context)
        }
    }
}

fn tell(
    latch: &Latch,
    count: u64,
    participants: &[String],
    context: &Context<'_>,
) -> Result<u8, Failure> {
    let key = latch.key();
    look::print_both(
        context,
        &count.to_string(),
        &Told {
            key,
            count,
            participants,
        },
    )?;
    Ok(OK)
}
