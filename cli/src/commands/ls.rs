//! `leasehold ls [PATTERN]`: the locks of a server, or of all masters of a cluster.

use super::Context;
use crate::exit::{Failure, OK};
use crate::look::processes::Processes;
use crate::look::seen::Seen;
use crate::look::survey::{Survey, Wanted, in_use};
use crate::look::text::{Table, escaped};
use crate::look::view::{LockView, holder, known, lease};
use crate::look::{self, Budget, Looker, failure};

/// Lists the locks that are held or waited for.
///
/// Keys are found by SCAN, never by KEYS, and read within the budget. Only what a lock library wrote is listed: a hash whose
/// fields begin with the UUID of a client, or a key with permits, a count or a line beside it. A string counts as a lock only
/// where this library wrote it, and a semaphore without owners only while others wait for it.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Keys to list, as `shop:*`; all if none is given. In front of it stands the namespace, if there is one.
    pattern: Option<String>,
    /// Also those that are free: latches that are open, locks that only their line is left of.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    budget: Budget,
}

pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let looker = Looker::connect(context.global, args.budget.budget).await?;
    let wanted = Wanted {
        pattern: looker.pattern(args.pattern.as_deref()),
        tickets: 1,
    };
    let (survey, processes) = looker.survey(&wanted).await;
    let locks = survey.locks.iter().filter(|seen| args.all || in_use(seen));
    print(locks, &processes, context)?;
    finish(&survey, context)
}

/// Prints the locks, one a line.
pub(super) fn print<'a>(
    locks: impl Iterator<Item = &'a Seen>,
    processes: &Processes,
    context: &Context<'_>,
) -> Result<(), Failure> {
    if context.output.is_json() {
        for seen in locks {
            look::print_row(context, &LockView::new(seen, processes))?;
        }
        return Ok(());
    }
    let mut table = Table::new(
        &["KEY", "KIND", "HOLDER", "HELD", "TTL", "WAITING", "OLDEST"],
        0,
    );
    for seen in locks {
        table.row(vec![
            escaped(&seen.key),
            seen.kind_text(),
            holder(seen, processes),
            known(seen.held_for),
            lease(seen),
            seen.waiting.to_string(),
            known(seen.oldest_wait),
        ]);
    }
    look::print(context, &table.render(look::screen_width()))
}

/// Tells which masters could not be asked: what they have is missing above.
pub(super) fn finish(survey: &Survey, context: &Context<'_>) -> Result<u8, Failure> {
    let Some((last, others)) = survey.failures.split_last() else {
        return Ok(OK);
    };
    for error in others {
        context.output.warn(&error.to_string());
    }
    let mut told = failure(last);
    if survey.failures.len() < survey.masters {
        told.message = format!("some locks are missing here: {}", told.message);
    }
    Err(told)
}
