//! A `run` inside of another one: the chain of what runs above, in the environment.

use std::env;
use std::ffi::OsString;

use leasehold::Locks;
use serde::{Deserialize, Serialize};

use crate::exit::Failure;

/// The variable with the chain.
pub(crate) const OUTER: &str = "LEASEHOLD_OUTER";

/// A hold of a `run` above this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outer {
    /// The key on the server.
    pub(crate) key: String,
    /// The id of the owner.
    pub(crate) owner: String,
    /// Whether it is a read lock.
    pub(crate) shared: bool,
}

/// The chain above, outermost first. What cannot be read is none: this program wrote it, or somebody who wants no nesting.
pub(crate) fn chain() -> Vec<Outer> {
    let text = env::var(OUTER).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// The chain for a command under one more hold.
pub(crate) fn extended(mut chain: Vec<Outer>, hold: Outer) -> OsString {
    chain.push(hold);
    serde_json::to_string(&chain).unwrap_or_default().into()
}

/// The hold of the chain that has this key, if the server says that it is there still.
///
/// The chain alone proves nothing: a process may have outlived the `run` that started it.
pub(crate) async fn holding(locks: &Locks, name: &str) -> Result<Option<Outer>, Failure> {
    let mutex = locks.mutex(name);
    let Some(outer) = chain().into_iter().rfind(|outer| outer.key == mutex.key()) else {
        return Ok(None);
    };
    let found = if outer.shared {
        locks.rw_lock(name).inspect().await?
    } else {
        mutex.inspect().await?
    };
    let is_held = found
        .holders()
        .iter()
        .any(|holder| holder.id().starts_with(&outer.owner));
    Ok(is_held.then_some(outer))
}
