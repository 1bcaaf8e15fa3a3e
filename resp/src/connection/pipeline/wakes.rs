//! The tasks to wake and the callbacks to call once the lock is released.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use super::request::{Callback, Outcome};

/// Wakers and callbacks, collected under the lock and fired after it.
#[derive(Default)]
pub struct Wakes {
    pub(super) wakers: Vec<Waker>,
    pub(super) callbacks: Vec<(Callback, Outcome)>,
}

impl Wakes {
    /// How many tasks and callbacks there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.wakers.len() + self.callbacks.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Wakes and calls them all. Not to be called under a lock: wakers may run arbitrary code.
    ///
    /// A callback that panics has had its message printed by the panic hook; the others are called all the same, and the
    /// connection goes on.
    pub fn fire(&mut self) {
        if self.wakers.len() > 1 {
            self.wakers.drain(..).for_each(Waker::wake);
        } else if let Some(waker) = self.wakers.pop() {
            waker.wake();
        }
        if !self.callbacks.is_empty() {
            for (callback, outcome) in self.callbacks.drain(..) {
                contain(|| callback(outcome));
            }
        }
    }
}

/// Runs code of others on the connection's task, which must survive its panics.
pub(crate) fn contain(run: impl FnOnce()) {
    // Unwind safe: a callback has no access to the state of the connection.
    let _ = catch_unwind(AssertUnwindSafe(run));
}

impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakes").field("len", &self.len()).finish()
    }
}
