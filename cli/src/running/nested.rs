//! A `run` inside of another one: the chain of what runs above, in the environment.

use std::env;
use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use super::servers::Servers;
use crate::exit::Failure;
use crate::output::shown;

/// The variable with the chain.
pub(crate) const OUTER: &str = "LEASEHOLD_OUTER";

/// A lock of a `run` above this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outer {
    /// The key on the server.
    pub(crate) key: String,
    /// What the id of its holder begins with.
    pub(crate) owner: String,
    /// Whether it is a read lock.
    pub(crate) shared: bool,
    /// Whether a majority of several servers granted it.
    #[serde(default)]
    pub(crate) several: bool,
}

/// The chain above, outermost first. What cannot be read is none: this program wrote it, or somebody who wants no nesting.
pub(crate) fn chain() -> Vec<Outer> {
    let text = env::var(OUTER).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// The chain for a command under more locks.
pub(crate) fn extended(mut chain: Vec<Outer>, locks: impl Iterator<Item = Outer>) -> OsString {
    chain.extend(locks);
    serde_json::to_string(&chain).unwrap_or_default().into()
}

/// Whether a `run` above has all of these locks, `shared` or not, if the server says that they are there still.
///
/// The chain alone proves nothing: a process may have outlived the `run` that started it, and its hold may stay only because it was
/// to last for some time at least.
///
/// # Errors
///
/// What is wanted would wait for what is held above.
pub(crate) async fn is_held_above(
    servers: &Servers,
    names: &[&str],
    shared: bool,
) -> Result<bool, Failure> {
    let chain = chain();
    let mut held = Vec::new();
    for name in names {
        let Some(outer) = above(&chain, servers, name).await? else {
            continue;
        };
        let why = if outer.several != servers.is_several() {
            if outer.several {
                "by a majority of several servers"
            } else {
                "at a single server"
            }
        } else if outer.shared && !shared {
            "as a read lock"
        } else {
            held.push(*name);
            continue;
        };
        return Err(waits_for_itself(name, why));
    }
    match held.first() {
        Some(first) if held.len() < names.len() => {
            Err(waits_for_itself(first, "without the others"))
        }
        Some(_) => Ok(true),
        None => Ok(false),
    }
}

/// The lock of the chain that has this name and is held.
async fn above<'a>(
    chain: &'a [Outer],
    servers: &Servers,
    name: &str,
) -> Result<Option<&'a Outer>, Failure> {
    let key = servers.key(name);
    let Some(outer) = chain.iter().rfind(|outer| outer.key == key) else {
        return Ok(None);
    };
    let holders = servers.holders(name, outer.shared).await?;
    let is_held = holders.iter().any(|id| is_of(id, &outer.owner));
    Ok(is_held.then_some(outer))
}

fn waits_for_itself(name: &str, why: &str) -> Failure {
    Failure::usage(format!(
        "`{}` is held by the `run` around this one {why}: this one would wait for itself",
        shown(name)
    ))
}

/// Whether the hold `id` is one under which somebody acts, of `owner`: this is all of it but for the number of the hold, of seven
/// digits for an `Owner`, and what the kind of the lock adds.
fn is_of(id: &str, owner: &str) -> bool {
    let rest = id.strip_prefix(owner).unwrap_or_default();
    let (number, kind) = rest.split_once(':').unwrap_or((rest, ""));
    let is_whole = owner.ends_with(':') || number.len() == 7;
    is_whole
        && owner.contains(':')
        && !number.is_empty()
        && number.bytes().all(|digit| digit.is_ascii_digit())
        && kind != "kept"
}

#[cfg(test)]
mod tests {
    use super::is_of;

    #[test]
    fn a_hold_is_of_the_owner_that_its_id_names_in_full() {
        let owner = "6f1c2f3e-0000-4000-8000-000000000000:1000000000042";
        let (id, client) = (format!("{owner}0000003"), &owner[..37]);
        assert!(is_of(&id, owner));
        assert!(is_of(&format!("{id}:write"), owner));
        assert!(is_of(&format!("{client}17"), client), "of no owner");
        for part in [
            "",
            ":",
            &owner[..1],
            &owner[..36],
            &owner[..49],
            &id,
            "other:",
        ] {
            assert!(!is_of(&id, part), "{part:?}");
        }
        assert!(!is_of(&format!("{id}:kept"), owner));
    }
}
