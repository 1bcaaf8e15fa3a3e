//! The texts of the fair mutex's scripts, put together from their steps; the others are the mutex's. A file of its own, so that
//! the tests and benchmarks that talk to a server without the library run the same texts.

/// The text of a script: its steps, then the script itself.
macro_rules! script {
    ($($file:literal),+) => { concat!($(include_str!($file)),+) };
}

pub(crate) const ASK: &str = script!(
    "ask.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "../mutex/mine.lua",
    "../steps/holders.lua",
    "queue.lua",
    "grant.lua",
    "ask_rest.lua"
);
pub(crate) const RELEASE: &str = script!(
    "release.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "queue.lua",
    "grant.lua",
    "release_rest.lua"
);
pub(crate) const FORCE_UNLOCK: &str = script!(
    "../steps/time.lua",
    "../steps/token.lua",
    "queue.lua",
    "grant.lua",
    "../steps/only_holders.lua",
    "../mutex/force_unlock.lua"
);
pub(crate) const INSPECT: &str = script!("../steps/holders.lua", "inspect.lua");
