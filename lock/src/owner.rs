//! Locks that nest.

use std::fmt;
use std::sync::Arc;

use crate::engine::handle::Handle;
use crate::engine::hold::OwnerHolds;
use crate::primitives::fair_mutex::FairMutex;
use crate::primitives::mutex::Mutex;
use crate::primitives::rw_lock::RwLock;

/// An owner of locks that nest: a lock that it holds already it gets again at once, without asking the server, and the last
/// guard releases it.
///
/// A task is no owner by itself: tasks move between threads and spawn others. An owner is a value; give a clone to
/// everything that acts on its behalf.
///
/// If a lock was lost and a guard of it is still around, locking it again fails with
/// [`ErrorKind::Lost`](crate::ErrorKind::Lost): the work under the old guard must end first.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let me = locks.owner();
/// let outer = me.mutex("order:42").lock().await?;
/// let inner = me.mutex("order:42").lock().await?; // at once, without a command
/// assert!(locks.mutex("order:42").try_lock().await?.is_none()); // of no owner
/// drop(inner);
/// outer.release().await?; // the last guard releases it
/// # Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct Owner {
    context: Arc<Handle>,
    holds: Arc<OwnerHolds>,
}

impl Owner {
    pub(crate) fn new(context: &Arc<Handle>) -> Self {
        Self {
            context: Arc::clone(context),
            holds: context.new_owner(None),
        }
    }

    /// The owner that takes over the holds of the one with this id; that one itself, if it is one of this client.
    pub(crate) fn from_id(context: &Arc<Handle>, id: &str) -> Self {
        let known = context.owner(id);
        Self {
            context: Arc::clone(context),
            holds: known.unwrap_or_else(|| context.new_owner(Some(id))),
        }
    }

    /// Its id, to be handed to another process: see [`Locks::owner_from`](crate::Locks::owner_from).
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// println!("send {} to the process that takes over", locks.owner().id());
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn id(&self) -> &str {
        self.holds.id()
    }

    /// The lock called `name`, of this owner.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let order = locks.owner().mutex("order:42");
    /// let both = (order.lock().await?, order.lock().await?);
    /// # drop(both);
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(&self.context, name.as_ref(), Some(&self.holds))
    }

    /// The fair lock called `name`, of this owner. Its waiters of one owner have one place in the order, since they nest.
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let printer = locks.owner().fair_mutex("printer");
    /// let both = (printer.lock().await?, printer.lock().await?);
    /// # drop(both);
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn fair_mutex(&self, name: impl AsRef<str>) -> FairMutex {
        FairMutex::new(&self.context, name.as_ref(), Some(&self.holds))
    }

    /// The read-write lock called `name`, of this owner: a read nests in a read and in a write, a write in a write. A write in a
    /// read would wait for itself, and is an error of the kind [`ErrorKind::Nested`](crate::ErrorKind::Nested).
    ///
    /// ```
    /// # leasehold_testkit::example::with_locks(async |locks| {
    /// let prices = locks.owner().rw_lock("prices");
    /// let writing = prices.write().await?;
    /// let reading = prices.read().await?; // nests in the write
    /// # drop((writing, reading));
    /// # Ok(())
    /// # });
    /// ```
    #[must_use]
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(&self.context, name.as_ref(), Some(&self.holds))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("number", &self.holds.number())
            .finish_non_exhaustive()
    }
}
