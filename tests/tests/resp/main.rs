//! The codec and the connection.

mod abandonment;
mod classify_recorded;
mod conformance;
mod connection_faults;
mod connection_integrity;
mod connection_live;
mod containment;
mod endpoint_urls;
mod fork;
mod handshake_auth;
mod hostile_peer;
mod limits;
mod memory;
mod pipeline_model;
mod pipeline_rules;
mod pool_exclusive;
mod properties;
mod runtimes;
mod secrets;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod types_live;
