//! The texts of the scripts of elections, put together from their steps, most of which are the mutex's. A file of its own, so
//! that tests that talk to a server without the library run the same texts.

/// The text of a script: its steps, then the script itself.
macro_rules! script {
    ($($file:literal),+) => { concat!($(include_str!($file)),+) };
}

pub(crate) const LOOK: &str = script!(
    "../steps/time.lua",
    "../steps/token.lua",
    "../mutex/mine.lua",
    "../steps/holders.lua",
    "../steps/join.lua",
    "word.lua",
    "../mutex/enter.lua",
    "../mutex/grant.lua",
    "../mutex/look.lua"
);
pub(crate) const RELEASE: &str = script!(
    "end.lua",
    "../mutex/release.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "word.lua",
    "../mutex/enter.lua",
    "../mutex/grant.lua",
    "../mutex/release_rest.lua"
);
pub(crate) const ANNOUNCE: &str = script!("announce.lua");
pub(crate) const LEADER: &str = script!("../steps/holders.lua", "leader.lua");
pub(crate) const RENEW: &str = script!("renew.lua");
pub(crate) const KEEP_ENTRY: &str = script!("keep_entry.lua");
