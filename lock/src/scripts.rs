//! The scripts that change locks on the server, each in a file that says what it does and why it may be repeated.

use std::sync::LazyLock;

use leasehold_cluster::{Client, Script};

use crate::id::HoldId;
use crate::names::Name;

/// Takes a lock.
pub(crate) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/acquire.lua")));
/// Takes a lock while its slot migrates.
pub(crate) static ACQUIRE_ALONE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/acquire_alone.lua")));
/// Ends one hold.
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));
/// Extends many holds.
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));
/// Removes a lock from whoever has it.
pub(crate) static FORCE_UNLOCK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/force_unlock.lua")));

/// The keys and arguments of [`RELEASE`].
pub(crate) fn release_of<'a>(
    client: &Client,
    name: &'a Name,
    id: &'a HoldId,
) -> ([&'a [u8]; 1], [&'a [u8]; 3]) {
    let args = [
        id.as_bytes(),
        name.channel().as_bytes(),
        client.publish_command().as_bytes(),
    ];
    ([name.key().as_bytes()], args)
}
