//! `leasehold who HOST`: everything that the processes of a host hold.

use super::{Context, ls};
use crate::exit::{Failure, GONE};
use crate::look::survey::{Survey, Wanted};
use crate::look::{Budget, Looker};
use crate::output::shown;

/// Lists everything that the processes of a host hold.
///
/// Processes tell their host in a registry, for as long as they are connected. Those that do not, as Redisson's and older ones,
/// belong to no host here; `ls` lists what they hold. Exits with 1 if no process of the host is registered.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The host, as `hostname` prints it there.
    host: String,
    #[command(flatten)]
    budget: Budget,
}

pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let looker = Looker::connect(context.global, args.budget.budget).await?;
    let wanted = Wanted {
        pattern: looker.pattern(None),
        tickets: 1,
    };
    let (mut survey, processes) = looker.survey(&wanted).await;
    let here = |client: &str| {
        let process = processes.of(client);
        process.is_some_and(|process| process.host.eq_ignore_ascii_case(&args.host))
    };
    survey
        .locks
        .retain(|seen| seen.holders.iter().any(|held| here(held.client())));
    ls::print(survey.locks.iter(), &processes, context)?;
    let registered = processes.of_host(&args.host).len();
    if registered == 0 {
        let known: Vec<_> = processes.hosts().into_iter().map(shown).collect();
        let known = match &known[..] {
            [] => "none".to_owned(),
            known => known.join(", "),
        };
        context.output.warn(&format!(
            "no process of `{}` is registered; hosts here: {known}",
            shown(&args.host)
        ));
    }
    let code = ls::finish(&Survey { ..survey }, context)?;
    Ok(if registered == 0 { GONE } else { code })
}
