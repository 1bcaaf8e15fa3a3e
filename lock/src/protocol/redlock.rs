//! The lock at one of several independent nodes: a mutex, and the second phase of its fencing token.

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::Script;
use leasehold_resp::Value;

use super::call::Call;
use super::mutex;
use crate::state::deadline::millis;
use crate::state::id::HoldId;
use crate::state::names::Name;

/// The mutex at a node.
pub(crate) use super::mutex::MUTEX as NODE;

pub(crate) const FENCE_SOURCE: &str = include_str!("redlock/fence.lua");

static FENCE: LazyLock<Script> = LazyLock::new(|| Script::new(FENCE_SOURCE));

/// Writes `token` where the hold still is.
pub(crate) fn fence<'a>(
    name: &'a Name,
    id: &'a HoldId,
    token: u64,
    counter_ttl: Option<Duration>,
) -> Call<'a> {
    let mut call = Call::new(&FENCE);
    call.key(name.key())
        .key(name.derived(mutex::COUNTER))
        .arg(id.as_bytes())
        .arg(token)
        .arg(counter_ttl.map_or(0, millis));
    call
}

/// Reads the reply: whether the hold is there, and the token with it; `None` if the script gives no such reply.
pub(crate) fn read_fence(reply: &Value) -> Option<bool> {
    match reply.as_int()? {
        1 => Some(true),
        0 => Some(false),
        _ => None,
    }
}
