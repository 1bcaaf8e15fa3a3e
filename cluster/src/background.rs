//! Background tasks of a client: they run on the runtime of whichever call or connection starts them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;

/// Spawns `future`. Boxed: for each type of future that is spawned, all of the runtime's task code is compiled anew.
pub(crate) fn spawn(runtime: &Handle, future: impl Future<Output = ()> + Send + 'static) {
    let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
    runtime.spawn(future);
}

/// Whether a task of some kind exists, of which there must be only one.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnlyOne(Arc<AtomicBool>);

/// Held by the task. Dropping it lets another one begin; a runtime that is ending drops its tasks at any point, and even
/// before they ran.
#[derive(Debug)]
pub(crate) struct Begun(Arc<AtomicBool>);

impl OnlyOne {
    /// `None` if the task exists already.
    pub(crate) fn begin(&self) -> Option<Begun> {
        (!self.0.swap(true, Ordering::AcqRel)).then(|| Begun(Arc::clone(&self.0)))
    }

    pub(crate) fn exists(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
