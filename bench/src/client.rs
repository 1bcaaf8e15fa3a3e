//! The interface of a candidate.

use std::future::Future;

use crate::scripts::Job;

/// A client that can run the simple pair of [`scripts`](crate::scripts).
pub trait PairClient: Send + Sized + 'static {
    /// Connects to the server on `port`, whose scripts are loaded.
    fn connect(port: u16) -> impl Future<Output = Self> + Send;

    /// Acquires and releases `job`, one after the other.
    ///
    /// # Panics
    ///
    /// Unless both succeed: a figure for failing requests would be worthless.
    fn pair(&mut self, job: &Job) -> impl Future<Output = ()> + Send;
}

/// Many tasks that wait for locks of one server.
pub trait Waiting: Locker {
    /// Connects to the server on `port`; `waiters` tasks will share the result.
    fn connect(port: u16, waiters: usize) -> impl Future<Output = Self> + Send;
}

/// A lock that many tasks wait for.
pub trait Locker: Clone + Send + Sync + 'static {
    /// Proof of a held lock.
    type Guard: Send;

    /// Waits for the lock at `key`; `waiter` is this task's number, below the number announced.
    fn lock(&self, key: &str, waiter: usize) -> impl Future<Output = Self::Guard> + Send;

    /// Releases it.
    fn unlock(&self, guard: Self::Guard) -> impl Future<Output = ()> + Send;
}
