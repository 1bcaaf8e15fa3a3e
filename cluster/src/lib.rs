//! The client of `leasehold`: routes scripts, commands and subscriptions to the right node.
//!
//! [`Client`] is the handle, for a server, a cluster, or the master that sentinels name ([`Target`]). Behind it a router
//! holds the map from slots to nodes, learns it anew when it is in doubt, and follows redirects. A [`Script`] is sent by its
//! SHA-1, and by its source to servers that do not know it. A [`Subscription`] follows its channel to the node that serves
//! it.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod background;
mod client;
#[doc(hidden)]
pub mod cluster_replicas;
mod contact;
mod data_guard;
mod discovery;
mod ending;
#[doc(hidden)]
pub mod expectation;
mod hub;
mod inbox;
mod listing;
mod locking;
mod map;
mod master_link;
mod monitor;
mod node;
mod pacing;
mod ping;
mod probes;
mod race;
mod random;
mod redirect;
mod replicated;
#[doc(hidden)]
pub mod replication_info;
#[doc(hidden)]
pub mod role;
mod router;
mod script;
mod sentinel;
#[doc(hidden)]
pub mod sentinel_account;
mod service;
pub mod slot;
mod source;
mod submitted;
mod subscriptions;
mod target;
#[doc(hidden)]
pub mod topology;
mod trust;
mod unanswered;
mod views;

pub use client::{Channels, Client, Evaluated};
pub use ending::{Ended, Ending};
pub use expectation::{Quorum, Refusal};
pub use inbox::SubscriptionEvent;
pub use monitor::{Change, Monitor};
pub use replicated::{Confirmed, Demand, Effect, Replicated, Round, Unconfirmed};
pub use script::{OwnedCall, Script, ScriptCall};
pub use service::FailureDetection;
pub use source::Source;
pub use submitted::Submitted;
pub use subscriptions::Subscription;
pub use target::Target;
pub use unanswered::Unanswered;
