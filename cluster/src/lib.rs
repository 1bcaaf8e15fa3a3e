//! Which node, which script: the client that `leasehold` locks through.

pub mod client;
pub mod script;
pub mod subscriptions;

pub use client::{Client, Evaluated, Submitted};
pub use script::{Script, ScriptCall};
pub use subscriptions::{Event, Subscription};
