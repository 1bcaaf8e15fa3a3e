//! State machines and arithmetic, without time, I/O or wake-ups.
//!
//! Nothing here calls another layer. Methods take the instant and return what the engine has to do.

pub(crate) mod backoff;
pub(crate) mod barrier;
pub(crate) mod chain;
pub(crate) mod deadline;
pub(crate) mod election;
pub(crate) mod hold;
pub(crate) mod id;
pub(crate) mod inspection;
pub(crate) mod jitter;
pub(crate) mod lane_order;
pub(crate) mod latch;
pub(crate) mod names;
pub(crate) mod presence;
pub(crate) mod primitive;
pub(crate) mod quorum;
pub(crate) mod readers;
pub(crate) mod redisson_turns;
pub(crate) mod schedule;
#[cfg(test)]
mod simulation;
pub(crate) mod ticket;
pub(crate) mod token;
pub(crate) mod waiters;
pub(crate) mod watch;
