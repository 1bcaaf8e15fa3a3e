//! `leasehold doctor`: what keeps locks on these servers from being what they promise, and what to change.

mod clocks;
pub(crate) mod finding;
mod keys;
mod rights;
mod servers;

use std::time::Duration;

use super::Context;
use crate::duration;
use crate::exit::{Failure, OK};
use crate::look::{self, Budget, Looker};
use finding::{Finding, Level, Report};
use rights::Primitive;

/// Checks the servers: settings, persistence, replicas, clocks, locks without expiry, dead places in lines, and rights.
///
/// Changes nothing. Exits with 1 if there is a fault. What this user may not ask is said, and is no fault.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The longest lease in use.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    lease: Duration,
    /// The locks are taken with `replicated(Replicas::All)`.
    #[arg(long)]
    replicated: bool,
    /// The locks are taken with `restart_guard`.
    #[arg(long)]
    restart_guard: bool,
    /// Primitives in use, whose rights are checked.
    #[arg(
        long = "for",
        value_name = "KIND",
        value_enum,
        value_delimiter = ',',
        default_value = "mutex"
    )]
    kinds: Vec<Primitive>,
    #[command(flatten)]
    budget: Budget,
}

/// At least one fault was found.
const FAULTS: u8 = 1;

pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let looker = Looker::connect(context.global, args.budget.budget).await?;
    let mut report = Report::default();
    servers::check(&looker, &args, context, &mut report).await;
    clocks::check(&looker, &args, &mut report).await;
    keys::check(&looker, &mut report).await;
    rights::check(&looker, &args.kinds, &mut report).await;
    if context.output.is_json() {
        for finding in report.findings() {
            look::print_row(context, finding)?;
        }
    } else {
        let width = look::screen_width().min(100);
        look::print(context, &report.render(width, finding::is_coloured()))?;
    }
    let has_faults = report
        .findings()
        .iter()
        .any(|finding| finding.level == Level::Fault);
    Ok(if has_faults { FAULTS } else { OK })
}

/// Facts that could not be found out.
fn unknown(check: &'static str, node: &str, error: &leasehold_resp::Error) -> Finding {
    Finding::new(Level::Note, check, format!("cannot be told: {error}")).at(node)
}
