//! The commands that look at locks, as a person and a script use them: the built program against real servers.

mod doctor;
mod lists;
mod many;
mod scripts;
mod support;
mod terminal;
#[cfg(feature = "tls")]
mod tls;
mod top;
