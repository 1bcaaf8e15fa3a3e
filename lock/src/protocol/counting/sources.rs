//! The texts of the scripts of semaphores without owners, put together from their steps. A file of its own, so that the tests
//! that talk to a server without the library run the same texts.

/// The text of a script: its steps, then the script itself.
macro_rules! script {
    ($($file:literal),+) => { concat!($(include_str!($file)),+) };
}

pub(crate) const ACQUIRE: &str = script!("count.lua", "../semaphore/grant.lua", "acquire.lua");
pub(crate) const LOOK_ALONE: &str = script!("look_alone.lua");
pub(crate) const CONFIRM: &str = script!("confirm.lua");
pub(crate) const UNDO: &str = script!("count.lua", "../semaphore/grant.lua", "undo.lua");
pub(crate) const UNDO_ALONE: &str = script!("undo_alone.lua");
pub(crate) const GIVE_BACK: &str = script!("count.lua", "../semaphore/grant.lua", "give_back.lua");
pub(crate) const SET_PERMITS: &str =
    script!("count.lua", "../semaphore/grant.lua", "set_permits.lua");
pub(crate) const AVAILABLE: &str = script!("available.lua");
