//! `leasehold inspect KEY`: everything that its server knows of a lock.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use leasehold::{Inspection, Interop};
use serde::Serialize;

use super::Context;
use crate::exit::{DATA, Failure, GONE, OK};
use crate::look::processes::{Process, Processes};
use crate::look::seen::{Held, Kind, Lease, Seen};
use crate::look::text::{duration, escaped};
use crate::look::view::{LockView, known, place};
use crate::look::{self, Looker, failure, survey};

/// Tells all of a lock: its kind, who holds it and since when, and who waits for it.
///
/// Exits with 1 if nothing is there.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The lock. Odd bytes are written as tables show them: \n, \xff, \\.
    pub(crate) key: String,
}

/// A waiter for programs.
#[derive(Debug, Serialize)]
struct WaiterView<'a> {
    place: usize,
    id: &'a str,
    client: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a Process>,
    waited_ms: u64,
    permits: u32,
}

/// A lock with its line, for programs.
#[derive(Debug, Serialize)]
struct WholeView<'a> {
    #[serde(flatten)]
    lock: LockView<'a>,
    layout: &'static str,
    line: Vec<WaiterView<'a>>,
}

pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    let looker = Looker::connect(context.global, look::BUDGET).await?;
    let key = looker.key(&args.key)?;
    let seen = survey::at_key(&looker.client, &looker.pace, &key, 100).await;
    let Some(mut seen) = seen.map_err(|error| failure(&error))? else {
        return nothing(&looker, &key, context).await;
    };
    let processes = Processes::read(&looker.client, &looker.pace).await;
    let inspection = inspection(&looker, &seen, context).await?;
    if let Some(inspection) = &inspection {
        refine(&mut seen, inspection);
    }
    let now = looker
        .server_time(&key)
        .await
        .unwrap_or_else(SystemTime::now);
    let line = line(inspection.as_ref(), &processes, now);
    if context.output.is_json() {
        let lock = LockView::new(&seen, &processes);
        let layout = seen.kind.layout();
        look::print_row(context, &WholeView { lock, layout, line })?;
    } else {
        look::print(context, &whole(&seen, &processes, &line))?;
    }
    Ok(OK)
}

/// Nothing is there, or something else.
async fn nothing(looker: &Looker, key: &[u8], context: &Context<'_>) -> Result<u8, Failure> {
    let shown = escaped(key);
    match looker.type_of(key).await?.as_str() {
        "none" => {
            context
                .output
                .warn(&format!("`{shown}`: nothing is there, so the lock is free"));
            Ok(GONE)
        }
        "string" => Err(Failure {
            code: DATA,
            reason: "data",
            message: format!(
                "`{shown}` is a string: it may be a lock of another library, the number of a semaphore, or anything else; nothing \
                 beside it tells"
            ),
        }),
        kind => Err(Failure {
            code: DATA,
            reason: "data",
            message: format!("`{shown}` is no lock, but a {kind} of something else"),
        }),
    }
}

/// The library's answer to one `inspect`; `None` for a key that it cannot have, and for a kind without holders.
async fn inspection(
    looker: &Looker,
    seen: &Seen,
    context: &Context<'_>,
) -> Result<Option<Inspection>, Failure> {
    let Ok(name) = std::str::from_utf8(&seen.key) else {
        return Ok(None);
    };
    let locks = looker.locks(context.global).await?;
    let inspection = match seen.kind {
        // With Redisson its queue is part of the line.
        Kind::Mutex if Interop::from(context.global.interop) == Interop::Redisson => {
            locks.fair_mutex(name).inspect().await?
        }
        Kind::Mutex => locks.mutex(name).inspect().await?,
        Kind::ReadWrite => locks.rw_lock(name).inspect().await?,
        Kind::Plain => locks.plain_mutex(name).inspect().await?,
        Kind::Semaphore => locks.semaphore(name, 1).inspect().await?,
        Kind::Barrier | Kind::Latch | Kind::Counting => return Ok(None),
    };
    let _ = locks.shutdown().await;
    Ok(Some(inspection))
}

/// Readers have leases of their own, which the library asks for.
fn refine(seen: &mut Seen, inspection: &Inspection) {
    for holder in inspection.holders() {
        let known = seen.holders.iter_mut().find(|held| held.id == holder.id());
        if let Some(held) = known {
            held.remaining = holder.remaining();
        }
    }
    seen.waiting = inspection.waiting();
}

fn line<'a>(
    inspection: Option<&'a Inspection>,
    processes: &'a Processes,
    now: SystemTime,
) -> Vec<WaiterView<'a>> {
    let waiters = inspection.map(Inspection::waiters).unwrap_or_default();
    let view = |(at, waiter): (usize, &'a leasehold::Waiter)| WaiterView {
        place: at + 1,
        id: waiter.id(),
        client: waiter.client(),
        process: processes.of(waiter.client()),
        waited_ms: now
            .duration_since(waiter.since())
            .map_or(0, |waited| waited.as_millis() as u64),
        permits: waiter.permits(),
    };
    waiters.iter().enumerate().map(view).collect()
}

fn whole(seen: &Seen, processes: &Processes, line: &[WaiterView<'_>]) -> String {
    let mut out = facts(seen);
    for held in &seen.holders {
        add_holder(&mut out, held, processes);
    }
    let _ = writeln!(out, "{:<9} {}", "waiting", seen.waiting);
    for waiter in line {
        let waited = duration(Duration::from_millis(waiter.waited_ms));
        let place = place(waiter.client, processes);
        let _ = write!(out, "{:>4}  {place}, for {waited}", waiter.place);
        if waiter.permits > 0 {
            let _ = write!(out, ", {} permits", waiter.permits);
        }
        out.push('\n');
    }
    out
}

/// A line for each, above the holders.
fn facts(seen: &Seen) -> String {
    let mut out = String::new();
    let mut field = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<9} {value}");
    };
    let kind = format!("{} ({})", seen.kind_text(), seen.kind.layout());
    field("key", escaped(&seen.key));
    field("kind", kind);
    field("node", seen.node.to_string());
    match seen.lease {
        Lease::Left(left) => field("ttl", duration(left)),
        Lease::Endless if seen.never_expires() => {
            let told = "none: nobody frees it if its holder dies; see `leasehold break`";
            field("ttl", told.into());
        }
        Lease::Endless | Lease::None => {}
    }
    if let Some(token) = seen.token {
        field("token", token.to_string());
    }
    if let Some(left) = seen.left {
        let all = seen.all.map(|all| format!(" of {all}"));
        field("left", format!("{left}{}", all.unwrap_or_default()));
    }
    if seen.is_held() {
        field("held for", known(seen.held_for));
    }
    if seen.kind != Kind::Latch {
        field("holders", seen.holding.to_string());
    }
    out
}

fn add_holder(out: &mut String, held: &Held, processes: &Processes) {
    let place = place(held.client(), processes);
    let id = escaped(held.id.as_bytes());
    let _ = write!(out, "  {place}\n    id {id}");
    if held.count != 1 {
        let _ = write!(out, ", {} times", held.count);
    }
    if let Some(remaining) = held.remaining {
        let _ = write!(out, ", ttl {}", duration(remaining));
    }
    if let Some(process) = processes.of(held.client()) {
        if let Some(version) = &process.version {
            let _ = write!(out, ", version {}", escaped(version.as_bytes()));
        }
        if let Some(since) = process.connected_for() {
            let _ = write!(out, ", connected for {}", duration(since));
        }
        for (name, value) in &process.meta {
            let (name, value) = (escaped(name.as_bytes()), escaped(value.as_bytes()));
            let _ = write!(out, "\n    {name}={value}");
        }
    }
    out.push('\n');
}
