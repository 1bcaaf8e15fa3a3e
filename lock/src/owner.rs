//! Locks that nest.

use std::fmt;
use std::sync::Arc;

use crate::engine::handle::Handle;
use crate::engine::hold::OwnerHolds;
use crate::primitives::mutex::Mutex;

/// An owner of locks that nest: a lock that it holds already it gets again at once, without asking the server, and the last
/// guard releases it.
///
/// A task is no owner by itself: tasks move between threads and spawn others. An owner is a value; give a clone to
/// everything that acts on its behalf.
///
/// If a lock was lost and a guard of it is still around, locking it again fails with
/// [`ErrorKind::Lost`](crate::ErrorKind::Lost): the work under the old guard must end first.
#[derive(Clone)]
pub struct Owner {
    context: Arc<Handle>,
    holds: Arc<OwnerHolds>,
}

impl Owner {
    pub(crate) fn new(context: &Arc<Handle>) -> Self {
        Self {
            context: Arc::clone(context),
            holds: OwnerHolds::new(context.next_number()),
        }
    }

    /// The lock called `name`, of this owner.
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(&self.context, name.as_ref(), Some(&self.holds))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("number", &self.holds.number())
            .finish_non_exhaustive()
    }
}
