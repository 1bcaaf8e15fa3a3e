//! Which node, which script: the client that `leasehold` locks through.
//!
//! [`Client`] is the handle. Behind it the router holds the map from slots to nodes ([`topology`]), learns it anew when
//! it is in doubt, and follows redirects; scripts are known by their SHA ([`script`]); channels are heard at the node
//! they belong to ([`subscriptions`]).

mod background;
mod bounded;
pub mod client;
mod discovery;
mod hub;
mod inbox;
mod map;
mod node;
mod pacing;
mod probes;
mod race;
mod random;
mod redirect;
pub mod replicated;
pub mod role;
mod router;
pub mod script;
mod sentinel;
pub mod slot;
mod submitted;
pub mod subscriptions;
pub mod target;
pub mod topology;
mod views;

pub use client::{Client, Evaluated};
pub use inbox::SubscriptionEvent;
pub use replicated::{Confirmed, Quorum};
pub use script::{Script, ScriptCall};
pub use submitted::Submitted;
pub use subscriptions::Subscription;
pub use target::Target;
