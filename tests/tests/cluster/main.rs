//! The cluster and sentinel client: the map, redirects, failovers, scripts and subscriptions.

mod connections;
mod failover;
mod isolation;
mod map_questions;
mod partition;
mod redirects;
mod redirects_scripted;
mod scripts_cache;
mod sentinel_failover;
mod sentinel_replies;
mod slots;
mod subscriptions;
mod subscriptions_gap;
mod support;
mod topology;
