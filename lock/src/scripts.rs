//! The scripts that change locks on the server, each in a file that says what it does and why it may be repeated.

use std::sync::LazyLock;

use leasehold_cluster::{Client, Script};
use leasehold_resp::{Command, Error};

/// Takes a lock.
pub(crate) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/acquire.lua")));
/// Ends one hold.
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));
/// Extends many holds.
pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));
/// Removes a lock from whoever has it.
pub(crate) static FORCE_UNLOCK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/force_unlock.lua")));

/// Loads `script` into the server's cache.
///
/// A release that is submitted from `Drop` cannot wait, so it cannot answer a NOSCRIPT with the text: it finds its script
/// loaded, or the keeper finishes the job.
pub(crate) async fn load(client: &Client, script: &Script) -> Result<(), Error> {
    let command = Command::new("SCRIPT").arg("LOAD").arg(script.source());
    client.call(b"", &command).await.map(drop)
}
