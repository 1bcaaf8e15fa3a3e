//! The texts of the plain mutex's scripts, put together from their steps, most of which are the mutex's. A file of its own, so
//! that tests that talk to a server without the library run the same texts.

/// The text of a script: its steps, then the script itself.
macro_rules! script {
    ($($file:literal),+) => { concat!($(include_str!($file)),+) };
}

pub(crate) const ACQUIRE: &str = script!(
    "../steps/time.lua",
    "../steps/token.lua",
    "../mutex/mine.lua",
    "foreign.lua",
    "../steps/join.lua",
    "join_line.lua",
    "acquire.lua"
);
pub(crate) const ACQUIRE_ALONE: &str = script!("foreign.lua", "acquire_alone.lua");
pub(crate) const LOOK: &str = script!(
    "../steps/time.lua",
    "../steps/token.lua",
    "../mutex/mine.lua",
    "foreign.lua",
    "../steps/join.lua",
    "join_line.lua",
    "enter.lua",
    "../mutex/grant.lua",
    "look.lua"
);
pub(crate) const CONFIRM: &str = script!(
    "../steps/time.lua",
    "../steps/token.lua",
    "../mutex/mine.lua",
    "confirm.lua"
);
pub(crate) const CONFIRM_ALONE: &str = script!("confirm_alone.lua");
pub(crate) const RELEASE: &str = script!(
    "release.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "enter.lua",
    "../mutex/grant.lua",
    "release_rest.lua"
);
pub(crate) const RELEASE_ALONE: &str = script!("release_alone.lua");
pub(crate) const KEEP: &str = script!("keep.lua");
pub(crate) const RENEW: &str = script!("renew.lua");
pub(crate) const RENEW_REPLICATED: &str = script!("renew_replicated.lua");
pub(crate) const INSPECT: &str = script!("inspect.lua");
