//! The texts of the mutex's scripts, put together from their steps; those that other primitives take too are in `steps`. A file
//! of its own, so that the tests and benchmarks that talk to a server without the library run the same texts.

/// The text of a script: its steps, then the script itself.
macro_rules! script {
    ($($file:literal),+) => { concat!($(include_str!($file)),+) };
}

pub(crate) const ACQUIRE: &str = script!(
    "acquire.lua",
    "../steps/time.lua",
    "../steps/holders.lua",
    "../steps/join.lua",
    "acquire_join.lua",
    "../steps/token.lua",
    "mine.lua",
    "acquire_rest.lua"
);
pub(crate) const ACQUIRE_ALONE: &str = script!("../steps/holders.lua", "acquire_alone.lua");
pub(crate) const TAKE_OVER: &str = script!(
    "../steps/time.lua",
    "../steps/token.lua",
    "mine.lua",
    "take_over.lua"
);
pub(crate) const LOOK: &str = script!(
    "../steps/time.lua",
    "../steps/token.lua",
    "mine.lua",
    "../steps/holders.lua",
    "../steps/join.lua",
    "word.lua",
    "enter.lua",
    "grant.lua",
    "look.lua"
);
pub(crate) const CONFIRM: &str = script!(
    "../steps/time.lua",
    "../steps/token.lua",
    "mine.lua",
    "confirm.lua"
);
pub(crate) const CONFIRM_ALONE: &str = script!("confirm_alone.lua");
pub(crate) const RELEASE: &str = script!(
    "release.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "word.lua",
    "enter.lua",
    "grant.lua",
    "release_rest.lua"
);
pub(crate) const RELEASE_ALONE: &str = script!("release_alone.lua");
pub(crate) const KEEP: &str = script!("keep.lua");
pub(crate) const RENEW: &str = script!("renew.lua");
pub(crate) const RENEW_ONE: &str = script!("renew_one.lua");
pub(crate) const RENEW_REPLICATED: &str = script!("renew_replicated.lua");
pub(crate) const INSPECT: &str = script!("inspect.lua");
pub(crate) const INSPECT_ALL: &str = script!("../steps/holders.lua", "inspect_all.lua");
pub(crate) const FORCE_UNLOCK: &str = script!(
    "../steps/time.lua",
    "../steps/token.lua",
    "word.lua",
    "enter.lua",
    "grant.lua",
    "../steps/only_holders.lua",
    "force_unlock.lua"
);
