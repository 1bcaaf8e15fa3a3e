//! What all primitives have in common: waiting for a lock, taking it, renewing it, ending it.
//!
//! What differs between them is in their [`Protocol`](crate::protocol::Protocol).

pub(crate) mod acquire;
pub(crate) mod context;
pub(crate) mod handle;
pub(crate) mod hold;
mod home;
mod queue;
pub(crate) mod registry;
pub(crate) mod release;
pub(crate) mod renewal;
mod stand_back;
mod sync;
mod table;
mod work_queue;
