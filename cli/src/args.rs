//! The command line: what all commands have, and the list of them. Each command has its own arguments in its own file.

use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};
use leasehold::Interop;

#[cfg(target_os = "linux")]
use crate::commands::run;
use crate::commands::{
    break_lock, doctor, extend, generate, inspect, latch, lock, ls, sem, top, unlock, verify, wait,
    who,
};

/// Locks on Redis and Valkey, for commands and scripts.
///
/// A lock is a lease: it ends by itself when its holder dies.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Arguments of every command, before or behind its name.
#[derive(Arguments, Debug)]
pub(crate) struct Global {
    /// The server: redis://, unix://, redis-cluster://, redis-sentinel://, or rediss… with TLS.
    ///
    /// Better in the environment than here if it has a password: arguments can be seen by every user of the machine.
    #[arg(long, global = true, env = "LEASEHOLD_URL", hide_env_values = true)]
    pub(crate) url: Option<String>,
    #[cfg(feature = "tls")]
    #[command(flatten)]
    pub(crate) tls: crate::tls::Tls,
    /// A prefix of every key, followed by a colon.
    #[arg(long, global = true, env = "LEASEHOLD_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Other libraries that use the same locks.
    #[arg(long, global = true, value_enum, default_value_t = With::None)]
    pub(crate) interop: With,
    /// Prints JSON, one object a line.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Prints errors only.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Says what happens.
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

/// Another library beside this one.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum With {
    /// None.
    None,
    /// Redisson: its waiters are woken, and the order of its queues is kept.
    Redisson,
}

/// The commands, each in a file of its name under `commands/`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command under a lock, and ends it in time if the lock is lost.
    #[cfg(target_os = "linux")]
    Run(run::Args),
    /// Takes a lock and leaves it held, for a script: prints what `unlock` takes.
    Lock(lock::Args),
    /// Gives back a lock that `lock` took.
    Unlock(unlock::Args),
    /// Lets a lock that `lock` took last longer.
    Extend(extend::Args),
    /// Tells whether a lock that `lock` took is still held.
    Verify(verify::Args),
    /// Waits until a lock is free, and takes nothing.
    Wait(wait::Args),
    /// Takes permits of a semaphore for a script, and gives them back.
    Sem(sem::Args),
    /// Sets a latch, counts it down, waits until it is open.
    Latch(latch::Args),
    /// Lists the locks that are held or waited for.
    Ls(ls::Args),
    /// Tells all of a lock: who holds it and since when, and who waits.
    Inspect(inspect::Args),
    /// Lists everything that the processes of a host hold.
    Who(who::Args),
    /// Takes a lock from whoever holds it, after a question.
    Break(break_lock::Args),
    /// Shows the locks that are held or waited for, live.
    Top(top::Args),
    /// Checks the servers for what keeps locks from holding, and says what to change.
    Doctor(doctor::Args),
    /// Prints the manual, for packages.
    #[command(hide = true)]
    Man(generate::ManArgs),
    /// Prints what completes arguments in a shell, for packages.
    #[command(hide = true)]
    Completions(generate::CompletionsArgs),
}

impl From<With> for Interop {
    fn from(with: With) -> Self {
        match with {
            With::None => Self::Off,
            With::Redisson => Self::Redisson,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_tree_of_arguments_is_sound() {
        super::Args::command().debug_assert();
    }
}
