//! The part that is the same for all primitives: waiting for a lock, taking it, renewing it, ending it.
//!
//! The differences between them are in their [`Protocol`](crate::protocol::Protocol).

pub(crate) mod acquire;
mod asking;
mod attempt;
pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod conversion;
pub(crate) mod force;
pub(crate) mod grants;
pub(crate) mod handle;
pub(crate) mod hold;
mod home;
mod line;
pub(crate) mod multi;
mod open_attempt;
pub(crate) mod operation;
mod parked;
pub(crate) mod party;
pub(crate) mod presence;
mod queue;
mod readers;
pub(crate) mod redlock;
pub(crate) mod registry;
pub(crate) mod release;
pub(crate) mod renewal;
pub(crate) mod request;
pub(crate) mod run;
pub(crate) mod signal;
pub(crate) mod sync;
mod table;
pub(crate) mod telemetry;
pub(crate) mod together;
mod work_queue;
