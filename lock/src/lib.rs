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

mod acquire;
mod courtesy;
mod error;
mod guard;
mod hold;
mod id;
mod keeper;
mod lease;
mod locks;
mod mutex;
mod names;
mod owner;
mod place;
mod scripts;
mod sync;
mod waiters;

pub use error::{Error, ErrorKind, Lost, LostReason};
pub use guard::{Guard, Release};
pub use hold::{FencingToken, Replicas};
pub use locks::{Interop, Locks, LocksBuilder};
pub use mutex::{Holder, Lock, Mutex, TryLock};
pub use owner::Owner;

/// The README's example, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
