//! `leasehold break KEY`: takes a lock from whoever holds it.

use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;
use std::time::Instant;

use leasehold::Interop;
use leasehold_cluster::{Channels, Script};
use leasehold_resp::Command;
use serde::Serialize;

use super::Context;
use crate::exit::{DATA, Failure, GONE, OK};
use crate::look::permits;
use crate::look::processes::Processes;
use crate::look::seen::{Kind, Seen};
use crate::look::shape::prefixed;
use crate::look::text::escaped;
use crate::look::view::{holder, known};
use crate::look::{self, Looker, failure, survey};

/// Takes a lock from whoever holds it, and hands it to the next in line.
///
/// Its holder learns it at its next renewal, within a third of its lease, and may go on writing until then: only a storage that
/// checks fencing tokens refuses it. Asks first; without a terminal it needs --yes. Exits with 1 if nobody held it.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The lock.
    key: String,
    /// Does not ask.
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Told<'a> {
    key: &'a str,
    broken: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<&'a str>,
}

/// Deletes a string that still has the value that was shown.
static DELETE_IF: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("break_lock/delete_if.lua")));
pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let looker = Looker::connect(context.global, look::BUDGET).await?;
    let key = looker.key(&args.key)?;
    let shown = escaped(&key);
    let seen = survey::at_key(&looker.client, &looker.pace, &key, 1).await;
    let Some(seen) = seen.map_err(|error| failure(&error))?.filter(Seen::is_held) else {
        if looker.type_of(&key).await? != "none" {
            return Err(Failure {
                code: DATA,
                reason: "data",
                message: format!("`{shown}` is no lock that is held: it is left alone"),
            });
        }
        return told(context, shown, None);
    };
    let processes = Processes::read(&looker.client, &looker.pace).await;
    let was = format!(
        "{}, held by {} for {}",
        seen.kind_text(),
        holder(&seen, &processes),
        known(seen.held_for)
    );
    if !args.yes && !confirmed(&shown, &was)? {
        context.output.warn("nothing was done");
        return Ok(GONE);
    }
    let broken = break_it(&looker, &seen, context).await?;
    told(context, shown, broken.then_some(&was))
}

fn told(context: &Context<'_>, key: String, was: Option<&str>) -> Result<u8, Failure> {
    let text = match was {
        Some(was) => format!("broken: {key} ({was})"),
        None => format!("{key}: nobody held it"),
    };
    let broken = was.is_some();
    look::print_both(
        context,
        &text,
        &Told {
            key: &key,
            broken,
            was,
        },
    )?;
    Ok(if broken { OK } else { GONE })
}

/// Asks on the terminal. Only `yes` is a yes.
fn confirmed(key: &str, was: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "breaking a lock is asked for at a terminal: give --yes here",
        ));
    }
    let mut err = io::stderr().lock();
    let _ = write!(
        err,
        "{key}: {was}\nBreak it? Its holder may still be at work. [yes/no] "
    );
    let _ = err.flush();
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::system(error.to_string()))?;
    Ok(answer.trim().eq_ignore_ascii_case("yes"))
}

/// Breaks a lock that was seen. Returns whether it was held.
pub(crate) async fn break_it(
    looker: &Looker,
    seen: &Seen,
    context: &Context<'_>,
) -> Result<bool, Failure> {
    let key = &seen.key[..];
    match seen.kind {
        Kind::Mutex | Kind::ReadWrite => {
            let name = std::str::from_utf8(key).map_err(|_| {
                Failure::usage(format!(
                    "`{}` is no UTF-8: no library locks it",
                    escaped(key)
                ))
            })?;
            let locks = looker.locks(context.global).await?;
            let broken = match (seen.kind, Interop::from(context.global.interop)) {
                (Kind::ReadWrite, _) => locks.rw_lock(name).force_unlock().await?,
                // Redisson's queue is of fair locks.
                (_, Interop::Redisson) if queue_exists(looker, key).await? => {
                    locks.fair_mutex(name).force_unlock().await?
                }
                _ => locks.mutex(name).force_unlock().await?,
            };
            let _ = locks.shutdown().await;
            tell_redisson(looker, seen).await;
            Ok(broken)
        }
        Kind::Plain => {
            let Some(value) = seen.holders.first() else {
                return Ok(false);
            };
            eval(looker, &DELETE_IF, key, &[value.id.as_bytes()]).await
        }
        Kind::Semaphore => {
            let expired = permits::expire(looker, key, b"").await?;
            let locks = looker.locks(context.global).await?;
            permits::hand_on(&locks, key).await?;
            Ok(expired > 0)
        }
        Kind::Latch => Err(refused(
            "a latch is opened by counting: `leasehold latch count-down`",
        )),
        Kind::Barrier => Err(refused(
            "the parties of a barrier have leases: end their processes",
        )),
        Kind::Counting => Err(refused(
            "nobody owns the permits of this semaphore: `leasehold sem`",
        )),
    }
}

fn refused(message: &str) -> Failure {
    Failure {
        code: DATA,
        reason: "data",
        message: message.to_owned(),
    }
}

async fn queue_exists(looker: &Looker, key: &[u8]) -> Result<bool, Failure> {
    let exists = Command::new("EXISTS").arg(prefixed("redisson_lock_queue", key));
    let answer = looker.client.call(key, &exists).await;
    Ok(answer.map_err(|error| failure(&error))?.as_int() == Some(1))
}

/// Redisson's waiters wait for a message. If it cannot be sent they find out at the end of the lease that they know of.
async fn tell_redisson(looker: &Looker, seen: &Seen) {
    let (channel, word) = match seen.kind {
        Kind::ReadWrite => ("redisson_rwlock", "1"),
        _ => ("redisson_lock__channel", "0"),
    };
    let publish = match looker.client.channels() {
        Channels::Sharded => "SPUBLISH",
        Channels::Server | Channels::Cluster => "PUBLISH",
    };
    let channel = prefixed(channel, &seen.key);
    let _ = looker
        .client
        .call(&seen.key, &Command::new(publish).arg(channel).arg(word))
        .await;
}

async fn eval(
    looker: &Looker,
    script: &Script,
    key: &[u8],
    args: &[&[u8]],
) -> Result<bool, Failure> {
    let keys = [key];
    let deadline = Instant::now() + looker.client.command_timeout();
    let evaluated = looker
        .client
        .eval(&script.call(&keys, args), deadline)
        .await;
    Ok(evaluated.map_err(|error| failure(&error))?.value.as_int() == Some(1))
}
