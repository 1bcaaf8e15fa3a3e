//! Background tasks of a client: they run on the runtime of whoever happens to start them.

use std::future::Future;
use std::pin::Pin;

use tokio::runtime::Handle;

/// Spawns `future`. Boxed: for each type of future that is spawned, all of the runtime's task code is compiled anew.
pub(crate) fn spawn(runtime: &Handle, future: impl Future<Output = ()> + Send + 'static) {
    let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
    runtime.spawn(future);
}
