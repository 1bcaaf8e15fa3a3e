//! Locks as the commands print them: rows of a table for people, and JSON for programs. Pure.

use std::time::Duration;

use serde::Serialize;

use super::processes::{Process, Processes};
use super::seen::{Held, Kind, Lease, Seen};
use super::text::{duration, escaped};

/// Width of tables where the screen does not say its own.
pub(crate) const WIDTH: usize = 80;
/// Characters of a client's UUID that tell it from others.
const CLIENT: usize = 8;

/// A lock for programs. Times are in milliseconds; what is not known is left out.
#[derive(Debug, Serialize)]
pub(crate) struct LockView<'a> {
    /// With odd bytes escaped, as tables show it.
    key: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'a str>,
    node: &'a str,
    held: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    /// The key has no expiry.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    endless: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
    holding: u64,
    holders: Vec<HolderView<'a>>,
    waiting: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_wait_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<i64>,
}

/// A holder for programs.
#[derive(Debug, Serialize)]
struct HolderView<'a> {
    id: &'a str,
    client: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a Process>,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
}

impl<'a> LockView<'a> {
    pub(crate) fn new(seen: &'a Seen, processes: &'a Processes) -> Self {
        let holder = |held: &'a Held| HolderView {
            id: &held.id,
            client: held.client(),
            process: processes.of(held.client()),
            count: held.count,
            ttl_ms: held.remaining.map(ms),
        };
        Self {
            key: escaped(&seen.key),
            kind: seen.kind.name(),
            mode: seen.mode.as_deref(),
            node: &seen.node,
            held: seen.is_held(),
            ttl_ms: seen.lease.left().map(ms),
            endless: seen.lease == Lease::Endless,
            token: seen.token,
            held_ms: seen.held_for.map(ms),
            holding: seen.holding,
            holders: seen.holders.iter().map(holder).collect(),
            waiting: seen.waiting,
            oldest_wait_ms: seen.oldest_wait.map(ms),
            left: seen.left,
            all: seen.all,
        }
    }
}

/// Where a client runs, for people.
pub(crate) fn place(client: &str, processes: &Processes) -> String {
    processes.of(client).map_or_else(
        || {
            let short: String = client.chars().take(CLIENT).collect();
            format!("unknown host ({})", escaped(short.as_bytes()))
        },
        |process| escaped(process.place().as_bytes()),
    )
}

/// The holders of the lock, in a cell.
pub(crate) fn holder(seen: &Seen, processes: &Processes) -> String {
    match (&seen.holders[..], seen.kind, seen.left) {
        (_, Kind::Latch, Some(0)) => "open".into(),
        (_, Kind::Latch, Some(left)) => format!("{left} to go"),
        ([], Kind::Counting, Some(free)) => format!("{free} free"),
        ([], ..) => "free".into(),
        ([one], kind, _) if kind != Kind::Semaphore && kind != Kind::Barrier => {
            let place = place(one.client(), processes);
            match processes.of(one.client()).map(Process::told).as_deref() {
                None | Some("") => place,
                Some(told) => format!("{place} {}", escaped(told.as_bytes())),
            }
        }
        (_, Kind::Semaphore, _) => {
            let all = seen
                .all
                .map_or_else(String::new, |all| format!(" of {all}"));
            format!("{}{all} permits", seen.holding)
        }
        (_, Kind::Barrier, _) => {
            let all = seen
                .all
                .map_or_else(String::new, |all| format!(" of {all}"));
            format!("{}{all} parties", seen.holding)
        }
        _ => format!("{} holders", seen.holding),
    }
}

/// The rest of the lease, in a cell.
pub(crate) fn lease(seen: &Seen) -> String {
    match seen.lease {
        Lease::Left(left) => duration(left),
        Lease::Endless if seen.never_expires() => "NEVER".into(),
        Lease::Endless | Lease::None => "-".into(),
    }
}

/// A time, or a dash where it is not known.
pub(crate) fn known(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".into(), duration)
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
