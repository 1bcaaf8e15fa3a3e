//! All locks of the servers: found by `SCAN`, recognised by their shape, read with commands that change nothing.
//!
//! Three scans find what may be a lock: sorted sets, whose names tell lines, permits, latches and barriers; hashes, of which
//! the fields are looked at; and the counters of tokens of locks that are strings. A foreign key costs one look at most.

mod read;

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_cluster::Client;
use leasehold_resp::{Command, Error, Value};
use tokio::task::JoinSet;

use super::glob;
use super::node::Node;
use super::pace::Pace;
use super::seen::{Kind, Seen};
use super::shape::{self, Beside, prefixed, suffixed};

/// The locks to look for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// A pattern as of `SCAN … MATCH`; every key if there is none.
    pub(crate) pattern: Option<Vec<u8>>,
    /// How many tickets of each line are read.
    pub(crate) tickets: usize,
}

/// The locks of all masters.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// By their keys.
    pub(crate) locks: Vec<Seen>,
    /// The masters that could not be asked: what they have is missing.
    pub(crate) failures: Vec<Error>,
    /// How many masters there are.
    pub(crate) masters: usize,
}

/// The kinds that a key may be of, by what was found of it.
#[derive(Clone, Copy, Debug, Default)]
struct Hints {
    hash: bool,
    line: bool,
    plain: bool,
    permits: bool,
    latch: bool,
    barrier: bool,
    reserved: bool,
}

/// A key that may be a lock.
#[derive(Clone, Debug)]
struct Candidate {
    key: Vec<u8>,
    hints: Hints,
}

/// Looks at all masters at once.
///
/// # Cancel safety
///
/// Cancel safe: it only reads.
pub(crate) async fn survey(client: &Client, pace: &Arc<Pace>, wanted: &Wanted) -> Survey {
    let mut looks = JoinSet::new();
    let mut survey = Survey::default();
    for connection in client.masters() {
        survey.masters += 1;
        let (node, wanted) = (Node::new(connection, pace), wanted.clone());
        looks.spawn(async move { of_node(&node, &wanted).await });
    }
    while let Some(look) = looks.join_next().await {
        match look {
            Ok(Ok(found)) => survey.locks.extend(found),
            Ok(Err(error)) => survey.failures.push(error),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
    survey.locks.sort_by(|a, b| a.key.cmp(&b.key));
    survey
}

/// The lock at a key; `None` if there is none.
///
/// # Cancel safety
///
/// Cancel safe: it only reads.
pub(crate) async fn at_key(
    client: &Client,
    pace: &Arc<Pace>,
    key: &[u8],
    tickets: usize,
) -> Result<Option<Seen>, Error> {
    let node = Node::new(client.master_of(key).await?, pace);
    let beside = [
        prefixed("leasehold_line", key),
        prefixed("leasehold_token", key),
        suffixed(key, "timeout"),
        prefixed("leasehold_latch", key),
        prefixed("leasehold_arrived", key),
        prefixed("leasehold_res", key),
    ];
    let exists = beside.map(|key| Command::new("EXISTS").arg(key));
    let answers = node.ask_all(&exists).await?;
    let there = |at: usize| matches!(answers.get(at), Some(Some(Value::Integer(1))));
    let hints = Hints {
        hash: true,
        line: there(0),
        plain: there(1),
        permits: there(2),
        latch: there(3),
        barrier: there(4),
        reserved: there(5),
    };
    let key = key.to_vec();
    let seen = read::read(&node, vec![Candidate { key, hints }], tickets).await?;
    Ok(seen.into_iter().next())
}

async fn of_node(node: &Node, wanted: &Wanted) -> Result<Vec<Seen>, Error> {
    let candidates = candidates(node, wanted).await?;
    read::read(node, candidates, wanted.tickets).await
}

async fn candidates(node: &Node, wanted: &Wanted) -> Result<Vec<Candidate>, Error> {
    let mut found: BTreeMap<Vec<u8>, Hints> = BTreeMap::new();
    let pattern = wanted.pattern.as_deref();
    let is_wanted = |key: &[u8]| pattern.is_none_or(|pattern| glob::matches(pattern, key));
    for key in node.keys("zset", None).await? {
        let Some((beside, name)) = shape::beside(&key).filter(|(_, name)| is_wanted(name)) else {
            continue;
        };
        let hints = found.entry(name.to_vec()).or_default();
        match beside {
            Beside::Line => hints.line = true,
            Beside::Permits => hints.permits = true,
            Beside::Latch => hints.latch = true,
            Beside::Arrived => hints.barrier = true,
            Beside::Reserved => hints.reserved = true,
            Beside::PlainToken => {}
        }
    }
    for key in node.keys("hash", pattern).await? {
        found.entry(key).or_default().hash = true;
    }
    for key in node.keys("string", Some(b"leasehold_token:*")).await? {
        if let Some((Beside::PlainToken, name)) = shape::beside(&key)
            && is_wanted(name)
        {
            found.entry(name.to_vec()).or_default().plain = true;
        }
    }
    Ok(found
        .into_iter()
        .map(|(key, hints)| Candidate { key, hints })
        .collect())
}

/// Those that are held or waited for, and latches that are not open.
pub(crate) fn in_use(seen: &Seen) -> bool {
    seen.is_held() || seen.waiting > 0 || seen.kind == Kind::Latch && seen.left != Some(0)
}
