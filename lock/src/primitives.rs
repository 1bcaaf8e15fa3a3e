//! Handles of the primitives, one file each: they name a protocol and hand out guards.

pub(crate) mod barrier;
pub(crate) mod counting;
pub(crate) mod detached;
pub(crate) mod election;
pub(crate) mod fair_mutex;
pub(crate) mod latch;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod permit;
pub(crate) mod plain_mutex;
pub(crate) mod redlock;
pub(crate) mod rw_lock;
pub(crate) mod semaphore;
