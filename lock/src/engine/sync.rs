//! A mutex that outlives panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic of another thread.
///
/// Every critical section of this crate leaves its data consistent between any two statements, and a mutex that gave up
/// on poisoning would turn one panic into locks that are never released.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
