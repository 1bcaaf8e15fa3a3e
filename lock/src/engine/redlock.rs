//! A lock at several independent nodes, held where a majority of them grants it.
//!
//! All of it runs on a thread of its own with a runtime and the connections to all nodes: renewals, the answers that come late, and
//! the releases of what they granted must not depend on the user's runtime, and the nodes' deadlines are only as good as the
//! instants at which requests leave. One thread for all nodes, and not the keeper of each: a hold is one state machine that
//! all nodes' answers meet in. The user's futures only wait for its messages.

mod agent;
mod attempt;
mod core;
mod drive;
mod hold;
mod inspect;
mod node;
mod process;
mod turns;

pub(crate) use self::core::{Config, Core};
pub(crate) use drive::{Request, acquire};
pub(crate) use hold::QuorumGuard;
#[cfg(feature = "testing")]
pub(crate) use hold::QuorumHold;
pub(crate) use inspect::inspect;
pub(crate) use process::process_of;
