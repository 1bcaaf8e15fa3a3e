//! The texts of the latch's scripts, put together from their steps. A file of its own, so that tests that talk to a server
//! without the library run the same texts.

pub(crate) const SET: &str = concat!(include_str!("notes.lua"), include_str!("set.lua"));
pub(crate) const COUNT_DOWN: &str =
    concat!(include_str!("notes.lua"), include_str!("count_down.lua"));
pub(crate) const INSPECT: &str = include_str!("inspect.lua");
pub(crate) const LOOK: &str = include_str!("look.lua");
