//! The texts of the semaphore's scripts, put together from their steps. A file of its own, so that the tests and benchmarks that
//! talk to a server without the library run the same texts.

/// The text of a script: its steps, then the script itself.
macro_rules! script {
    ($($file:literal),+) => { concat!($(include_str!($file)),+) };
}

pub(crate) const ACQUIRE: &str = script!("settle.lua", "grant.lua", "acquire.lua");
pub(crate) const ACQUIRE_ALONE: &str = script!("renewals.lua", "acquire_alone.lua");
pub(crate) const CONFIRM: &str = script!("renewals.lua", "confirm.lua");
pub(crate) const RELEASE: &str = script!("settle.lua", "grant.lua", "release.lua");
pub(crate) const RELEASE_ALONE: &str = script!("release_alone.lua");
pub(crate) const RENEW: &str = script!("renewals.lua", "renew.lua");
pub(crate) const RENEW_REPLICATED: &str = script!("renewals.lua", "renew_replicated.lua");
pub(crate) const INSPECT: &str = script!("inspect.lua");
pub(crate) const AVAILABLE: &str = script!("available.lua");
pub(crate) const SET_PERMITS: &str = script!("settle.lua", "grant.lua", "set_permits.lua");
