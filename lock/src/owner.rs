//! Locks that nest.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, Weak};

use crate::acquire::nest;
use crate::error::Error;
use crate::guard::Guard;
use crate::hold::Hold;
use crate::locks::Inner;
use crate::mutex::Mutex;
use crate::names::Name;
use crate::sync::lock;

/// Somebody whose locks nest: what it holds already it gets again at once, without asking the server, and the last guard
/// releases it.
///
/// A task is no owner by itself: tasks move between threads and spawn others. An owner is a value; give a clone to
/// whoever acts on its behalf.
///
/// If a lock was lost and a guard of it is still around, locking it again fails with
/// [`ErrorKind::Lost`](crate::ErrorKind::Lost): the work under the old guard must end first.
#[derive(Clone)]
pub struct Owner {
    inner: Arc<Inner>,
    owner: Arc<OwnerInner>,
}

/// What an owner holds.
#[derive(Debug)]
pub(crate) struct OwnerInner {
    number: u64,
    /// Every hold with guards, lost ones too.
    holds: StdMutex<HashMap<Arc<Name>, Weak<Hold>>>,
}

impl Owner {
    pub(crate) fn new(inner: &Arc<Inner>, number: u64) -> Self {
        let owner = OwnerInner {
            number,
            holds: StdMutex::new(HashMap::new()),
        };
        Self {
            inner: Arc::clone(inner),
            owner: Arc::new(owner),
        }
    }

    /// The lock called `name`, of this owner.
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(&self.inner, name.as_ref(), Some(&self.owner))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("number", &self.owner.number)
            .finish_non_exhaustive()
    }
}

impl OwnerInner {
    /// Tells owners apart, within one `Locks`.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// One guard more of what is held under `name`, if anything is.
    pub(crate) fn nest(&self, name: &Arc<Name>) -> Result<Option<Guard>, Error> {
        let hold = lock(&self.holds).get(name).and_then(Weak::upgrade);
        hold.map_or(Ok(None), |hold| nest(&hold))
    }

    pub(crate) fn remember(&self, hold: &Arc<Hold>) {
        lock(&self.holds).insert(Arc::clone(&hold.name), Arc::downgrade(hold));
    }

    /// The last guard of `hold` is gone.
    pub(crate) fn forget(&self, name: &Arc<Name>, hold: &Hold) {
        let mut holds = lock(&self.holds);
        if holds
            .get(name)
            .is_some_and(|known| std::ptr::eq(known.as_ptr(), hold))
        {
            holds.remove(name);
        }
    }
}
