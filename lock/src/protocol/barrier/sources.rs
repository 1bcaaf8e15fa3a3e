//! The texts of the barrier's scripts, put together from their steps. A file of its own, so that tests that talk to a server
//! without the library run the same texts.

pub(crate) const ARRIVE: &str = concat!(include_str!("generation.lua"), include_str!("arrive.lua"));
pub(crate) const LOOK: &str = concat!(include_str!("generation.lua"), include_str!("look.lua"));
pub(crate) const LEAVE: &str = include_str!("leave.lua");
pub(crate) const INSPECT: &str = include_str!("inspect.lua");
pub(crate) const RENEW: &str = include_str!("renew.lua");
