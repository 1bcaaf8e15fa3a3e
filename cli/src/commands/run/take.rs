//! Taking what a command runs under.

use std::time::{Duration, Instant};

use clap::Args as Arguments;
use leasehold::{Acquire, Error, Locks, MultiAcquire, Owner, Redlock, RedlockAcquire};
use serde::Serialize;

use super::Args;
use crate::commands::Context;
use crate::connect::{Durability, connect_as, connect_several};
use crate::duration;
use crate::exit::{self, Failure};
use crate::output::shown;
use crate::running::hold::Hold;
use crate::running::nested::is_held_above;
use crate::running::servers::Servers;
use crate::running::signals::Signals;

/// How many grants that end before they were confirmed are made up for.
const GRANTS: u32 = 5;

/// The arguments for a lock at several servers.
#[derive(Arguments, Debug)]
pub(crate) struct Several {
    /// A server, cluster or sentinels of several that have nothing to do with each other, instead of --url: the lock is held
    /// where a majority of them grants it (Redlock). Given again for each further one; in the environment with spaces between.
    #[arg(
        long,
        value_name = "URL",
        env = "LEASEHOLD_REDLOCK",
        hide_env_values = true,
        value_delimiter = ' ',
        conflicts_with_all = ["shared", "permits", "fair", "at_least"]
    )]
    redlock: Vec<String>,
    /// These servers forget no lock when they are restarted, as with `appendfsync always` and no failover.
    #[arg(long, requires = "redlock", conflicts_with = "longest_lease")]
    durable: bool,
    /// The longest lease that anybody uses at these servers: one that was started more recently grants nothing [default: --lease].
    #[arg(long, value_name = "TIME", requires = "redlock", value_parser = duration::parse)]
    longest_lease: Option<Duration>,
}

impl Several {
    pub(super) fn is_several(&self) -> bool {
        self.urls().next().is_some()
    }

    fn urls(&self) -> impl Iterator<Item = &str> {
        let urls = self.redlock.iter().map(String::as_str);
        urls.filter(|url| !url.is_empty())
    }

    const fn durability(&self) -> Durability {
        match (self.durable, self.longest_lease) {
            (true, _) => Durability::Forever,
            (false, Some(longest)) => Durability::UpTo(longest),
            (false, None) => Durability::Unknown,
        }
    }
}

/// What came of the attempt to take what the command runs under.
pub(super) enum Begun {
    Taken(Taken),
    /// A `run` above has it.
    Nested,
    /// A signal came.
    Interrupted(i32),
}

/// What the command runs under.
pub(super) struct Taken {
    pub(super) hold: Hold,
    /// In the order in which they were named, each of them once.
    pub(super) locks: Vec<Lock>,
    pub(super) owner: Owned,
}

/// A lock that is held.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Lock {
    #[serde(skip)]
    pub(super) name: String,
    /// The key on the server.
    pub(super) key: String,
    pub(super) token: Option<u64>,
}

/// Whose the locks are.
pub(super) enum Owned {
    /// Of an owner, whose locks nest.
    Owner(Owner),
    /// Of this client alone.
    Client(String),
    /// Of nobody who could take them again.
    Nobody,
}

impl Owned {
    /// What the command is told; empty where there is no owner that it could be.
    pub(super) fn told(&self) -> String {
        match self {
            Self::Owner(owner) => owner.id().to_owned(),
            Self::Client(_) | Self::Nobody => String::new(),
        }
    }

    /// What the ids of the holders begin with.
    pub(super) fn prefix(&self) -> Option<String> {
        match self {
            Self::Owner(owner) => Some(owner.id().to_owned()),
            Self::Client(client) => Some(format!("{client}:")),
            Self::Nobody => None,
        }
    }
}

/// Connects and takes what the command runs under, unless a signal comes before.
pub(super) async fn begin(
    args: &Args,
    context: &Context<'_>,
    signals: &mut Signals,
) -> Result<Begun, Failure> {
    let servers = tokio::select! {
        number = signals.next_end() => return Ok(Begun::Interrupted(number)),
        servers = servers(args, context) => servers?,
    };
    let begun = tokio::select! {
        number = signals.next_end() => Ok(Begun::Interrupted(number)),
        begun = take_whole(args, &servers) => begun,
    };
    if !matches!(begun, Ok(Begun::Taken(_))) {
        // Its place in line is given up.
        servers.close().await;
    }
    begun
}

async fn servers(args: &Args, context: &Context<'_>) -> Result<Servers, Failure> {
    if !args.servers.is_several() {
        let locks = connect_as(context.global, args.lease, &args.meta, context.output).await?;
        return Ok(Servers::One(locks));
    }
    let urls: Vec<_> = args.servers.urls().collect();
    let durability = args.servers.durability();
    let locks = connect_several(context.global, &urls, args.lease, durability).await?;
    Ok(Servers::Several(locks))
}

/// Takes what the command runs under, for a good part of its lease: what was waited for is granted for a second, until that is
/// confirmed. A command that began before would be ended if the confirmation came late.
async fn take_whole(args: &Args, servers: &Servers) -> Result<Begun, Failure> {
    let least = args.max_hold.unwrap_or(args.lease).min(args.lease) / 4;
    let begin = Instant::now();
    let mut failure = None;
    for _ in 0..GRANTS {
        let waited = begin.elapsed();
        let time = args.wait.at_most().map(|time| time.saturating_sub(waited));
        match take(args, servers, time).await {
            Ok(Begun::Taken(taken)) if !taken.hold.is_held_for(least).await => {}
            // The answer came after the lease.
            Err(lost) if lost.code == exit::LOST => failure = Some(lost),
            begun => return begun,
        }
    }
    Err(failure.unwrap_or_else(|| {
        let key = shown(&args.key);
        Failure::lost(format!(
            "`{key}` was lost each time before the command began"
        ))
    }))
}

/// Takes what the command runs under, within this time.
async fn take(args: &Args, servers: &Servers, time: Option<Duration>) -> Result<Begun, Failure> {
    let names = names(args)?;
    if args.permits.is_none() && is_held_above(servers, &names, args.shared).await? {
        return Ok(Begun::Nested);
    }
    let (owner, hold) = match servers {
        Servers::Several(locks) => {
            let client = locks.client_id().to_owned();
            (Owned::Client(client), majority(args, locks, time).await?)
        }
        Servers::One(locks) if !args.also.is_empty() => {
            let client = locks.client_id().to_owned();
            (Owned::Client(client), all(args, locks, &names, time).await?)
        }
        Servers::One(locks) if args.permits.is_some() => {
            (Owned::Nobody, permits(args, locks, time).await?)
        }
        Servers::One(locks) => {
            let owner = locks.owner();
            let hold = one(args, &owner, time).await?;
            (Owned::Owner(owner), hold)
        }
    };
    let Some(hold) = hold else {
        return Err(busy(args, &names));
    };
    let locks = names.iter().map(|name| Lock {
        name: (*name).to_owned(),
        key: servers.key(name),
        token: hold.token(name),
    });
    let locks = locks.collect();
    Ok(Begun::Taken(Taken { hold, locks, owner }))
}

/// The names of the locks, each of them once.
fn names(args: &Args) -> Result<Vec<&str>, Failure> {
    let mut names = vec![args.key.as_str()];
    for name in &args.also {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let is_line = |name: &&&str| name.contains('\n');
    if let Some(name) = names.iter().find(is_line).filter(|_| !args.also.is_empty()) {
        return Err(Failure::usage(format!(
            "`{}`: LEASEHOLD_KEY has a line for each of several names, so none has two",
            shown(name)
        )));
    }
    Ok(names)
}

fn busy(args: &Args, names: &[&str]) -> Failure {
    let name = shown(&args.key);
    let message = match names.len() {
        1 => format!("`{name}` is held by others"),
        several => format!("one of the {several} locks from `{name}` on is held by others"),
    };
    Failure {
        code: args.conflict_exit,
        ..Failure::busy(message)
    }
}

/// A lock, or a read lock.
async fn one(args: &Args, owner: &Owner, time: Option<Duration>) -> Result<Option<Hold>, Failure> {
    let key = &args.key;
    if args.shared {
        let lock = owner.rw_lock(key);
        let at_most = |time| bounded(lock.try_read_for(time), args);
        let guard = within(time, at_most, || bounded(lock.read(), args)).await?;
        return Ok(guard.map(Hold::Read));
    }
    let guard = if args.fair {
        let lock = owner.fair_mutex(key);
        let at_most = |time| bounded(lock.try_lock_for(time), args);
        within(time, at_most, || bounded(lock.lock(), args)).await?
    } else {
        let lock = owner.mutex(key);
        let at_most = |time| bounded(lock.try_lock_for(time), args);
        within(time, at_most, || bounded(lock.lock(), args)).await?
    };
    Ok(guard.map(Hold::Lock))
}

/// Permits of a semaphore.
async fn permits(
    args: &Args,
    locks: &Locks,
    time: Option<Duration>,
) -> Result<Option<Hold>, Failure> {
    let (Some(permits), Some(of)) = (args.permits, args.of) else {
        return Ok(None);
    };
    let semaphore = locks.semaphore(&args.key, of.get());
    let at_most = |time| bounded(semaphore.try_acquire_many_for(permits.get(), time), args);
    let endless = || bounded(semaphore.acquire_many(permits.get()), args);
    let permit = within(time, at_most, endless).await?;
    Ok(permit.map(Hold::Permits))
}

/// Several locks, all of them or none.
async fn all(
    args: &Args,
    locks: &Locks,
    names: &[&str],
    time: Option<Duration>,
) -> Result<Option<Hold>, Failure> {
    fn limited<T>(acquire: MultiAcquire<T>, args: &Args) -> MultiAcquire<T> {
        match args.max_hold {
            Some(max_hold) => acquire.max_hold(max_hold),
            None => acquire,
        }
    }
    let multi = locks.multi(names);
    let at_most = |time| limited(multi.try_lock_for(time), args);
    let guard = within(time, at_most, || limited(multi.lock(), args)).await?;
    Ok(guard.map(Hold::All))
}

/// A lock that a majority of several servers grants, with a token.
async fn majority(
    args: &Args,
    locks: &Redlock,
    time: Option<Duration>,
) -> Result<Option<Hold>, Failure> {
    fn limited<T>(acquire: RedlockAcquire<T>, args: &Args) -> RedlockAcquire<T> {
        let fenced = acquire.fenced();
        match args.max_hold {
            Some(max_hold) => fenced.max_hold(max_hold),
            None => fenced,
        }
    }
    let mutex = locks.mutex(&args.key);
    let at_most = |time| limited(mutex.try_lock_for(time), args);
    let guard = within(time, at_most, || limited(mutex.lock(), args)).await?;
    Ok(guard.map(Hold::Majority))
}

/// The guard: within this time if there is one, and otherwise whenever it is granted.
async fn within<G, A, E>(
    time: Option<Duration>,
    at_most: impl FnOnce(Duration) -> A,
    endless: impl FnOnce() -> E,
) -> Result<Option<G>, Error>
where
    A: IntoFuture<Output = Result<Option<G>, Error>>,
    E: IntoFuture<Output = Result<G, Error>>,
{
    match time {
        Some(time) => at_most(time).await,
        None => endless().await.map(Some),
    }
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
