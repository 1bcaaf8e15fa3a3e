//! Real servers, a fault proxy and a history checker for the tests of leasehold.
//!
//! | module | contents |
//! |---|---|
//! | [`server`] | private Redis or Valkey processes: start, freeze, kill, restart |
//! | [`cluster`] | a private cluster: failovers, migrations, proxies in front of its nodes |
//! | [`replicas`], [`sentinels`] | a master with replicas, and sentinels |
//! | [`raw`] | an independent RESP client, so that no check depends on the code under test |
//! | [`proxy`] | a proxy that delays, trickles, swallows, corrupts and cuts |
//! | [`statistics`] | a server's statistics |
//! | [`network`] | source addresses of servers, for partitions |
//! | [`history`] | the events of all processes, on one clock |
//! | [`observer`] | the server's own state of a lock, written into the history |
//! | [`line_watch`] | the tickets of those who wait, by the server's record, written into the history |
//! | [`checker`] | which invariants a history breaks |
//! | [`broken`], [`broken_line`], [`broken_family`] | clients with a flaw each, which the checker must catch |
//! | [`ledger`] | a resource under a lock: detects lost updates, refuses stale tokens |
//! | [`cancel`] | drops a future at every await point |
//! | [`process`] | child processes that cannot outlive the test; signals |
//! | [`own_process`] | tests that run in a process of their own |
//! | [`chance`] | reproducible random choices |
//! | [`storm`] | settings that storms and their worker processes share |
//! | [`ports`] | loopback ports, unique among all test processes |
//! | [`scratch`] | a private directory |
//! | [`example`] | servers for the examples in the documentation |
//! | [`scripted`], [`fake_cluster`] | a server, or a cluster, that follows a test's script |
//! | `tls` | certificates made for a test (feature `tls`) |
//! | [`wait`] | waiting with a bound and a reason |

pub mod broken;
pub mod broken_family;
pub mod broken_line;
pub mod cancel;
pub mod chance;
pub mod checker;
pub mod cluster;
pub mod example;
pub mod fake_cluster;
pub mod history;
pub mod ledger;
pub mod line_watch;
pub mod network;
pub mod observer;
pub mod own_process;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod raw;
mod raw_value;
pub mod replicas;
pub mod scratch;
pub mod scripted;
pub mod sentinels;
pub mod server;
pub mod statistics;
pub mod storm;
#[cfg(feature = "tls")]
pub mod tls;
pub mod wait;

pub use cluster::{Cluster, Failover};
pub use fake_cluster::{Answer, Asked, FakeCluster};
pub use ledger::Ledger;
pub use own_process::in_own_process;
pub use proxy::{Accept, Cut, Fault, Proxy};
pub use raw::{Raw, RawValue};
pub use replicas::Replicas;
pub use scratch::Scratch;
pub use scripted::Scripted;
pub use sentinels::Sentinels;
pub use server::{Server, ServerBuilder};
pub use statistics::{calls, commands};
pub use wait::{ms, until, until_for};

/// The README's example, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
