//! The text of the script for several locks, put together from the steps of one. A file of its own, so that the tests that talk
//! to a server without the library run the same text.

/// The text of a script: its steps, then the script itself.
macro_rules! script {
    ($($file:literal),+) => { concat!($(include_str!($file)),+) };
}

pub(crate) const ACQUIRE: &str = script!(
    "each.lua",
    "../steps/time.lua",
    "../steps/token.lua",
    "../mutex/mine.lua",
    "../steps/holders.lua",
    "acquire.lua"
);
