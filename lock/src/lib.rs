//! Distributed locks on Redis and Valkey. A lock is a lease: it ends by itself when its holder dies.
//!
//! ```
//! # leasehold_testkit::example::with_url(async |url| {
//! # use std::time::Duration;
//! # async fn ship_order(_order: u32, _token: u64) {}
//! let locks = leasehold::Locks::connect(url).await?; // "redis://127.0.0.1:6379"
//! let order = locks.mutex("order:42");
//!
//! // Waits for its turn. The lease is renewed in the background until the guard is dropped.
//! let guard = order.lock().await?;
//! // Stops the work where it is if the lock is lost. The token is for the storage.
//! guard.run(ship_order(42, guard.token().as_u64())).await?;
//! guard.release().await?; // dropping the guard releases it too
//!
//! if let Some(guard) = order.try_lock_for(Duration::from_secs(2)).await? {
//!     println!("held for {:?} more, if nothing is renewed", guard.valid_for());
//! } // `None`: others had it all the time
//! # Ok(())
//! # });
//! ```
//!
//! # What is promised
//!
//! While [`Guard::is_held`] is true, nobody else holds the lock, if
//!
//! - the server does not forget what it confirmed: [`guides::topology`] says which server forgets what, and when;
//! - clocks behave: the client's runs within 1 % of the server's rate, and the server's does not step during a lease.
//!
//! Whatever fails:
//!
//! - [`Guard::is_held`] turns false by itself before the lease can have ended on the server. It asks the clocks of this
//!   machine, so it needs no answer. [`Guard::lost`] tells why, [`Guard::run`] drops the work.
//! - [`Guard::token`] is greater than that of every earlier holder. A storage that compares tokens refuses late writes:
//!   [`guides::fencing`]. **Only this makes a write safe.** Two masters at once, in a failover without [`Replicas::All`], can give
//!   one token twice: there [`Guard::id`] makes the difference.
//! - Only its holder extends or releases a lock. A renewal never brings back a lock that has ended.
//! - A request without an answer is [`ErrorKind::Unknown`], never "no". An [`Error`] never means that others hold the lock.
//! - Dropping a future that waits leaves nothing behind. Every key has an expiry, but for the counters that Redisson wants to
//!   keep ([`Interop::Redisson`]) and the latches and counting semaphores that are Redisson's by design.
//!
//! # What is not
//!
//! - **Exclusion without fencing.** A process can be stopped between its look at `is_held` and its write. No lock service prevents
//!   that write.
//! - **Exclusion across a failover**, unless [`Replicas::All`] or [`Redlock`] is used. Replication is asynchronous.
//! - Exactly-once execution: a job that is stopped half-way ran half.
//! - Strict order among processes: [`FairMutex`] has it, [`Mutex`] nearly.
//!
//! # Where to find what
//!
//! | I want to … | use |
//! |---|---|
//! | do something in one place at a time, over all processes | [`Locks::mutex`], [`Mutex::lock`] |
//! | skip it if it is being done already | [`Mutex::try_lock`] |
//! | wait, but not for ever | [`Mutex::try_lock_for`] |
//! | stop the work when the lock is lost | [`Guard::run`]; for blocking code [`Guard::cancellation`] |
//! | make a write safe | [`Guard::token`], [`guides::fencing`] |
//! | end a job that hangs | [`Acquire::max_hold`] |
//! | run a fast job once, on hosts whose clocks differ | [`Acquire::at_least`] |
//! | serve all in the order in which they asked | [`Locks::fair_mutex`] |
//! | let many read or one write | [`Locks::rw_lock`] |
//! | take several locks, all or none, without deadlocks | [`Locks::multi`] |
//! | let at most `n` do something | [`Locks::semaphore`] |
//! | wait until `n` parts are done | [`Locks::latch`] |
//! | let `n` workers go on together | [`Locks::barrier`] |
//! | lock what a caller has locked (re-entrancy) | [`Locks::owner`] |
//! | hand a lock to another process | [`Locks::owner_from`] |
//! | survive the loss of a server without a second holder | [`Replicas::All`], [`Redlock`], [`guides::topology`] |
//! | share locks with Redisson | [`Interop::Redisson`], [`guides::from_redisson`] |
//! | share locks with redis-py or redsync | [`Locks::plain_mutex`], [`guides::beside_others`] |
//! | see who holds a lock and who waits, or break it | [`Mutex::inspect`], [`Locks::process_of`], [`Mutex::force_unlock`] |
//! | end the program without keeping others waiting | [`Locks::shutdown`] |
//! | set up servers, timeouts, rights, alerts | [`guides::operating`] |
//! | count, trace or log what locks do | [`Locks::stats`], [`observer`], [`guides::observing`] |
//! | lock in code without a runtime | [`blocking`] |
//! | test code that locks, without a server | `leasehold::testing` (feature `testing`), [`guides::testing`] |
//! | come from redsync, redis-py or `flock` | [`guides::from_others`] |
//!
//! # Mistakes
//!
//! | | |
//! |---|---|
//! | `let _ = m.lock().await?;` | drops the guard, and the lock, at once. `let _guard = …` keeps it to the end of the scope |
//! | `if m.try_lock().await?.is_some() { … }` | drops it before the block. `if let Some(guard) = m.try_lock().await? { … }` |
//! | `if guard.is_held() { write().await }` | may be lost during the write: [`Guard::run`], and the token |
//! | a second `lock()` by the same task | waits for itself, as with Tokio's mutex: [`Locks::owner`] |
//! | `Locks::connect` for each request | a connection each time. Connect once: clones share it |
//! | one name for two kinds of lock | [`ErrorKind::WrongType`], or two locks that do not exclude each other |
//! | a cache and locks on one server | it evicts locks: `maxmemory-policy noeviction`, see [`Locks::warnings`] |
//!
//! # Features
//!
//! - `tls`: `rediss://` and the like, through rustls.
//! - `testing`: `leasehold::testing`, a fake for your tests, without a server. It takes a C compiler.
//! - `tracing`, `metrics`: observers for these, see [`guides::observing`].
//!
//! Rust 1.89 or later, and Tokio.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod client;
mod engine;
mod error;
mod guard;
pub mod guides;
pub mod observer;
mod options;
mod owner;
mod primitives;
mod process;
mod protocol;
mod request;
mod state;
mod stats;
#[cfg(feature = "testing")]
pub mod testing;
mod warning;

pub use client::{Locks, LocksBuilder};
pub use engine::release::Release;
pub use error::{Error, ErrorKind, Lost, LostReason};
pub use guard::Guard;
#[cfg(feature = "tls")]
pub use leasehold_resp::tls::TlsConfig;
pub use observer::Observer;
pub use options::{Interop, Replicas};
pub use owner::Owner;
pub use primitives::barrier::{Barrier, BarrierWaitResult};
pub use primitives::counting::CountingSemaphore;
pub use primitives::detached::DetachedHold;
pub use primitives::election::{Election, Leaders, Leadership, Term};
pub use primitives::fair_mutex::FairMutex;
pub use primitives::latch::Latch;
pub use primitives::multi::{Multi, MultiAcquire, MultiGuard, TryMultiAcquire};
pub use primitives::mutex::Mutex;
pub use primitives::permit::Permit;
pub use primitives::plain_mutex::PlainMutex;
pub use primitives::redlock::{
    Redlock, RedlockAcquire, RedlockBuilder, RedlockGuard, RedlockMutex, TryRedlockAcquire,
};
pub use primitives::rw_lock::{ReadGuard, RwLock, WriteGuard};
pub use primitives::semaphore::Semaphore;
pub use process::Process;
pub use request::{Acquire, TryAcquire};
pub use state::backoff::Backoff;
pub use state::election::Leader;
pub use state::inspection::{Holder, Inspection, Waiter};
pub use state::latch::LatchInspection;
pub use state::token::FencingToken;
pub use stats::Stats;
/// The type of [`Guard::cancellation`].
pub use tokio_util::sync::CancellationToken;
pub use warning::Warning;

/// The README's example, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
