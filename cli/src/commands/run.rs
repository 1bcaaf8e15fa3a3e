//! `run`: runs a command under a lock.

mod take;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args as Arguments;
use serde::Serialize;

use super::Context;
use crate::duration;
use crate::exit::{self, Failure};
use crate::output::{Output, shown};
use crate::running::hold::Hold;
use crate::running::limits::{Limits, OnLost};
use crate::running::messages::Ended;
use crate::running::nested::{self, Outer};
use crate::running::program;
use crate::running::signals::{self, Signals};
use crate::running::supervisor::{Outcome, Task, supervise};
use crate::wait::Waiting;
use take::{Begun, Lock, Taken, begin};

/// The longest wait for the server's answer to the release.
const RELEASE: Duration = Duration::from_secs(1);

/// The arguments of `run`.
#[derive(Arguments, Debug)]
#[command(after_help = "\
The command is never given to a shell. It has its process group, its standard streams and, at a terminal, the foreground. The
lock is renewed while it runs. If that fails, it gets SIGTERM --grace before the deadline and SIGKILL in time: it is dead before
others can have the lock.

Its environment has LEASEHOLD_KEY, LEASEHOLD_TOKEN (the fencing token; with --also a line for each lock, as in LEASEHOLD_KEY), LEASEHOLD_OWNER, LEASEHOLD_LEASE_MS, and in
LEASEHOLD_LOST_FD the number of a descriptor that ends when the lock is lost. A `run` of the same key inside of it runs its
command under the same hold.

Exit codes: that of the command; 128+n if it was killed by signal n; 75 if others have the lock; 76 if the lock was lost and the
command ended for that; 69 if the server cannot be reached; 64 for arguments that cannot be used; 77 if the server denies it; 126
and 127 if the command cannot be executed or found.")]
pub(crate) struct Args {
    /// The name of the lock.
    key: String,
    #[command(flatten)]
    wait: Waiting,
    /// How long the lock outlives this process and its machine; renewed at a third of it.
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    lease: Duration,
    /// Ends the command after so long, however well it goes on.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    max_hold: Option<Duration>,
    /// Keeps the lock for so long at least, also if the command takes less or dies: a fast job runs once on machines whose clocks
    /// differ by less.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with_all = ["shared", "permits"])]
    at_least: Option<Duration>,
    /// A read lock: any number of them at the same time, and none beside an exclusive one.
    #[arg(short, long, conflicts_with_all = ["permits", "fair"])]
    shared: bool,
    /// So many permits of a semaphore, instead of a lock; needs --of.
    #[arg(
        short,
        long,
        value_name = "N",
        requires = "of",
        conflicts_with = "fair"
    )]
    permits: Option<NonZeroU32>,
    /// How many permits the semaphore has in all; the same number everywhere.
    #[arg(long, value_name = "M", requires = "permits")]
    of: Option<NonZeroU32>,
    /// First come, first served, over all machines.
    #[arg(long)]
    fair: bool,
    /// Another lock to take together with KEY: all of them or none. Given again for each further one.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["shared", "permits", "fair", "at_least", "redlock"])]
    also: Vec<String>,
    #[command(flatten)]
    servers: take::Several,
    /// What others see of the holder, who look at the lock. Given again for each further one; nothing secret belongs here.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair, conflicts_with = "redlock")]
    meta: Vec<(String, String)>,
    /// The action before the lock is lost: a signal and then SIGKILL, `kill` for SIGKILL alone, or `ignore`.
    #[arg(long, value_name = "HOW", default_value = "term", value_parser = signals::on_lost)]
    on_lost: OnLost,
    /// From the first signal to the deadline of the lock [default: 5s, or a quarter of the lease if that is less].
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// The exit code if others have the lock.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = exit::BUSY)]
    conflict_exit: u8,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The last line with `--json`.
#[derive(Serialize)]
struct Report<'a> {
    /// `exited`, `killed`, `lost` or `stuck`.
    reason: &'a str,
    /// Why the lock was lost.
    lost: Option<String>,
    code: u8,
    #[serde(flatten)]
    lock: &'a Lock,
    /// What was taken with it.
    #[serde(skip_serializing_if = "<[Lock]>::is_empty")]
    also: &'a [Lock],
    waited_ms: u128,
    held_ms: u128,
}

/// Runs the command, and returns its exit code.
pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let Some(name) = args.command.first() else {
        return Err(Failure::usage("there is no command"));
    };
    let program = program::find(name)?;
    let limits = Limits::new(args.lease, args.grace, args.on_lost)?;
    let mut signals =
        Signals::new().map_err(|error| Failure::system(format!("no signals: {error}")))?;
    let began = Instant::now();
    let Taken { hold, locks, owner } = match begin(&args, context, &mut signals).await? {
        Begun::Taken(taken) => taken,
        Begun::Nested => {
            return Err(run_inside(&program, &args, context.output));
        }
        Begun::Interrupted(number) => {
            let by = signals::name(number);
            context.output.note(&format!("ended by {by}"));
            return Ok(exit::of_signal(number));
        }
    };
    let (waited, held) = (began.elapsed(), Instant::now());
    context.output.note(&format!("{} held", described(&locks)));
    let task = Task {
        program: &program,
        command: &args.command,
        environment: environment(&args, &locks, &owner),
        limits,
        lease: args.lease,
    };
    let outcome = supervise(&task, &hold, &mut signals, context.output).await;
    release(hold, context.output).await;
    let outcome = outcome?;
    let (reason, code) = verdict(&outcome);
    tell(&outcome, code, context.output);
    if let (true, [first, also @ ..]) = (context.output.is_json(), &locks[..]) {
        context.output.last_line(&Report {
            reason,
            lost: outcome.reason.map(|reason| reason.to_string()),
            code,
            lock: first,
            also,
            waited_ms: waited.as_millis(),
            held_ms: held.elapsed().as_millis(),
        });
    }
    Ok(code)
}

/// Reads `name=value`.
fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("it is no name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Becomes the command, under the hold of the `run` above, which watches over it. Returns only if that fails.
fn run_inside(program: &Path, args: &Args, output: &Output) -> Failure {
    output.note(&format!(
        "`{}` is held by the `run` around this one",
        shown(&args.key)
    ));
    let [name, arguments @ ..] = &args.command[..] else {
        return Failure::usage("there is no command");
    };
    let error = Command::new(program).arg0(name).args(arguments).exec();
    Failure::cannot_run(
        exit::NOT_EXECUTABLE,
        format!("cannot run {name:?}: {error}"),
    )
}

/// The locks, for people.
fn described(locks: &[Lock]) -> String {
    let keys: Vec<_> = locks
        .iter()
        .map(|lock| format!("`{}`", shown(&lock.key)))
        .collect();
    let verb = if keys.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", keys.join(", "))
}

/// What the command finds in its environment. Of several locks, names and tokens have a line each.
fn environment(args: &Args, locks: &[Lock], owner: &take::Owned) -> Vec<(&'static str, OsString)> {
    let lines = |text: fn(&Lock) -> String| -> OsString {
        let lines: Vec<_> = locks.iter().map(text).collect();
        lines.join("\n").into()
    };
    let token = |lock: &Lock| {
        lock.token
            .map(|token| token.to_string())
            .unwrap_or_default()
    };
    let mut variables = vec![
        ("LEASEHOLD_KEY", lines(|lock| lock.name.clone())),
        (
            "LEASEHOLD_LEASE_MS",
            args.lease.as_millis().to_string().into(),
        ),
        // Not those of a `run` around this one.
        ("LEASEHOLD_TOKEN", lines(token)),
        ("LEASEHOLD_OWNER", owner.told().into()),
    ];
    if let Some(prefix) = owner.prefix() {
        let above = locks.iter().map(|lock| Outer {
            key: lock.key.clone(),
            owner: prefix.clone(),
            shared: args.shared,
            several: args.servers.is_several(),
        });
        variables.push((nested::OUTER, nested::extended(nested::chain(), above)));
    }
    variables
}

/// Gives the lock back. The command has ended, so the answer matters to nobody but those who wait.
async fn release(hold: Hold, output: &Output) {
    match tokio::time::timeout(RELEASE, hold.release()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => output.warn(&format!("the release failed: {error}")),
        Err(_) => output.warn("the release was not answered; the lock ends with its lease"),
    }
}

/// The word for what happened, and the exit code.
fn verdict(outcome: &Outcome) -> (&'static str, u8) {
    match outcome.ended {
        None => ("stuck", exit::LOST),
        _ if outcome.lost => ("lost", exit::LOST),
        Some(Ended::Exited(code)) => ("exited", u8::try_from(code).unwrap_or(u8::MAX)),
        Some(Ended::Killed(signal)) => ("killed", exit::of_signal(signal)),
    }
}

fn tell(outcome: &Outcome, code: u8, output: &Output) {
    match (outcome.ended, outcome.lost) {
        (None, _) => output.warn("the lock is lost, and the command could not be ended"),
        (_, true) => {
            let why = outcome.reason.map_or_else(
                || "it could not be renewed in time".to_owned(),
                |reason| reason.to_string(),
            );
            output.warn(&format!("the command was ended for its lock: {why}"));
        }
        (Some(Ended::Killed(signal)), false) => {
            output.note(&format!(
                "the command was killed by {}",
                signals::name(signal)
            ));
        }
        _ => output.note(&format!("the command has ended with {code}")),
    }
}
