//! `run`: runs a command under a lock.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args as Arguments;
use leasehold::{Acquire, Locks, Owner};
use serde::Serialize;

use super::Context;
use crate::connect::{close, connect};
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

/// The longest wait for the server's answer to the release.
const RELEASE: Duration = Duration::from_secs(1);

/// The arguments of `run`.
#[derive(Arguments, Debug)]
#[command(after_help = "\
The command is never given to a shell. It has its process group, its standard streams and, at a terminal, the foreground. The
lock is renewed while it runs. If that fails, it gets SIGTERM --grace before the deadline and SIGKILL in time: it is dead before
others can have the lock.

Its environment has LEASEHOLD_KEY, LEASEHOLD_TOKEN (the fencing token), LEASEHOLD_OWNER, LEASEHOLD_LEASE_MS, and in
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
    /// What to do before the lock is lost: a signal and then SIGKILL, `kill` for SIGKILL alone, or `ignore`.
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
    key: &'a str,
    token: Option<u64>,
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
    let (owner, hold) = match begin(&args, context, &mut signals).await? {
        Begun::Hold { owner, hold } => (owner, hold),
        Begun::Nested(outer) => {
            return Err(run_inside(&program, &args.command, &outer, context.output));
        }
        Begun::Interrupted(number) => {
            let by = signals::name(number);
            context.output.note(&format!("ended by {by}"));
            return Ok(exit::of_signal(number));
        }
    };
    let (waited, held) = (began.elapsed(), Instant::now());
    context
        .output
        .note(&format!("`{}` is held", shown(hold.key())));
    let task = Task {
        program: &program,
        command: &args.command,
        environment: environment(&args, &hold, owner.as_ref()),
        limits,
        lease: args.lease,
    };
    let outcome = supervise(&task, &hold, &mut signals, context.output).await;
    let (key, token) = (hold.key().to_owned(), hold.token());
    release(hold, context.output).await;
    let outcome = outcome?;
    let (reason, code) = verdict(&outcome);
    tell(&outcome, code, context.output);
    if context.output.is_json() {
        context.output.last_line(&Report {
            reason,
            lost: outcome.reason.map(|reason| reason.to_string()),
            code,
            key: &key,
            token,
            waited_ms: waited.as_millis(),
            held_ms: held.elapsed().as_millis(),
        });
    }
    Ok(code)
}

/// What came of the attempt to take what the command runs under.
enum Begun {
    Hold {
        /// Of a lock that may nest.
        owner: Option<Owner>,
        hold: Hold,
    },
    /// A `run` above has it.
    Nested(Outer),
    /// A signal came.
    Interrupted(i32),
}

/// Connects and takes what the command runs under, unless a signal comes before.
async fn begin(
    args: &Args,
    context: &Context<'_>,
    signals: &mut Signals,
) -> Result<Begun, Failure> {
    let locks = tokio::select! {
        number = signals.next_end() => return Ok(Begun::Interrupted(number)),
        locks = connect(context.global, Some(args.lease), context.output) => locks?,
    };
    let begun = tokio::select! {
        number = signals.next_end() => Ok(Begun::Interrupted(number)),
        begun = take(args, &locks) => begun,
    };
    if !matches!(begun, Ok(Begun::Hold { .. })) {
        // Its place in line is given up.
        close(&locks).await;
    }
    begun
}

/// Takes what the command runs under.
async fn take(args: &Args, locks: &Locks) -> Result<Begun, Failure> {
    let key = &args.key;
    if args.permits.is_none()
        && let Some(outer) = nested::holding(locks, key).await?
    {
        if outer.shared && !args.shared {
            return Err(Failure::usage(format!(
                "`{}` is held as a read lock by the `run` around this one, so an exclusive lock would wait for itself",
                shown(key)
            )));
        }
        return Ok(Begun::Nested(outer));
    }
    let owner = locks.owner();
    let time = args.wait.at_most();
    let hold = if let (Some(permits), Some(of)) = (args.permits, args.of) {
        let semaphore = locks.semaphore(key, of.get());
        let permit = match time {
            Some(time) => {
                bounded(semaphore.try_acquire_many_for(permits.get(), time), args).await?
            }
            None => Some(bounded(semaphore.acquire_many(permits.get()), args).await?),
        };
        permit.map(Hold::Permits)
    } else if args.shared {
        let lock = owner.rw_lock(key);
        let guard = match time {
            Some(time) => bounded(lock.try_read_for(time), args).await?,
            None => Some(bounded(lock.read(), args).await?),
        };
        guard.map(Hold::Read)
    } else if args.fair {
        let lock = owner.fair_mutex(key);
        let guard = match time {
            Some(time) => bounded(lock.try_lock_for(time), args).await?,
            None => Some(bounded(lock.lock(), args).await?),
        };
        guard.map(Hold::Lock)
    } else {
        let lock = owner.mutex(key);
        let guard = match time {
            Some(time) => bounded(lock.try_lock_for(time), args).await?,
            None => Some(bounded(lock.lock(), args).await?),
        };
        guard.map(Hold::Lock)
    };
    let hold = hold.ok_or_else(|| Failure {
        code: args.conflict_exit,
        ..Failure::busy(format!("`{}` is held by others", shown(key)))
    })?;
    Ok(Begun::Hold {
        owner: args.permits.is_none().then_some(owner),
        hold,
    })
}

/// The same acquisition, with the shortest and the longest hold that were asked for.
fn bounded<T>(mut acquire: Acquire<T>, args: &Args) -> Acquire<T> {
    if let Some(at_least) = args.at_least {
        acquire = acquire.at_least(at_least);
    }
    if let Some(max_hold) = args.max_hold {
        acquire = acquire.max_hold(max_hold);
    }
    acquire
}

/// Becomes the command, under the hold of the `run` above, which watches over it. Returns only if that fails.
fn run_inside(program: &Path, command: &[OsString], outer: &Outer, output: &Output) -> Failure {
    output.note(&format!(
        "`{}` is held by the `run` around this one",
        shown(&outer.key)
    ));
    let [name, arguments @ ..] = command else {
        return Failure::usage("there is no command");
    };
    let error = Command::new(program).arg0(name).args(arguments).exec();
    Failure::cannot_run(
        exit::NOT_EXECUTABLE,
        format!("cannot run {name:?}: {error}"),
    )
}

/// What the command finds in its environment.
fn environment(args: &Args, hold: &Hold, owner: Option<&Owner>) -> Vec<(&'static str, OsString)> {
    let mut variables = vec![
        ("LEASEHOLD_KEY", OsString::from(&args.key)),
        (
            "LEASEHOLD_LEASE_MS",
            args.lease.as_millis().to_string().into(),
        ),
        // Not those of a `run` around this one.
        (
            "LEASEHOLD_TOKEN",
            hold.token()
                .map_or_else(String::new, |token| token.to_string())
                .into(),
        ),
        ("LEASEHOLD_OWNER", owner.map_or("", Owner::id).into()),
    ];
    if let Some(owner) = owner {
        let outer = Outer {
            key: hold.key().to_owned(),
            owner: owner.id().to_owned(),
            shared: args.shared,
        };
        variables.push((nested::OUTER, nested::extended(nested::chain(), outer)));
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
