//! Hand-made lower bounds: the cost of the bare work on this machine.
//!
//! They have no reconnect, no cancellation, no timeouts and panic on anything unexpected. They show
//! what can be reached.

pub mod grant;
pub mod mux;
pub mod raw_blocking;
pub mod raw_mutex;
pub mod raw_tokio;
pub mod scan;
pub mod slots;
pub mod tape;
pub mod write;
