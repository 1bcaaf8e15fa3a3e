//! The scripts that change locks on the server, each in a file that says what it does and why it may be repeated.

use std::sync::LazyLock;

use leasehold_cluster::Script;

/// Takes a lock.
pub(crate) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/acquire.lua")));
/// Ends one hold.
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));
/// Extends many holds.
pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));
/// Removes a lock from whoever has it.
pub(crate) static FORCE_UNLOCK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/force_unlock.lua")));
