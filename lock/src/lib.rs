//! Lease-based distributed locks on Redis and Valkey.
//!
//! ```no_run
//! # use std::time::Duration;
//! # async fn example() -> Result<(), leasehold::Error> {
//! let locks = leasehold::Locks::connect("redis://127.0.0.1:6379").await?;
//! let order = locks.mutex("order:42");
//!
//! let guard = order.lock().await?; // waits; the lease is renewed until the guard is dropped
//! assert!(guard.is_held()); // asks the clocks, not the server
//! guard.release().await?; // or just drop it
//!
//! if let Some(guard) = order.try_lock_for(Duration::from_secs(2)).await? {
//!     let done = guard.run(async { /* dropped where it stands when the lock is lost */ }).await;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A guard is a lease, not a mutex. While [`Guard::is_held`] is true, the server's clock runs as ours does, and the server
//! does not forget what it confirmed, nobody else holds the lock. If this process stops or the server loses its data, two
//! holders can exist: [`Guard::lost`] tells as soon as it can be known, and [`Guard::token`] lets the storage behind the
//! lock refuse the older one.
//!
//! [`guides`] tell how to come from Redisson, and what is shared with it and with other libraries.

mod client;
mod engine;
mod error;
mod guard;
pub mod guides;
mod options;
mod owner;
mod primitives;
mod process;
mod protocol;
mod request;
mod state;
mod warning;

pub use client::{Locks, LocksBuilder};
pub use engine::release::Release;
pub use error::{Error, ErrorKind, Lost, LostReason};
pub use guard::Guard;
#[cfg(feature = "tls")]
pub use leasehold_resp::tls::TlsConfig;
pub use options::{Interop, Replicas};
pub use owner::Owner;
pub use primitives::barrier::{Barrier, BarrierWaitResult};
pub use primitives::counting::CountingSemaphore;
pub use primitives::detached::DetachedHold;
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
pub use state::inspection::{Holder, Inspection, Waiter};
pub use state::latch::LatchInspection;
pub use state::token::FencingToken;
/// The type of [`Guard::cancellation`].
pub use tokio_util::sync::CancellationToken;
pub use warning::Warning;

/// The README's example, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
