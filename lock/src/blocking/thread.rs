//! The thread on which the connections of blocking locks are served.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind};

/// A thread with a runtime, until it is dropped. Futures are driven by the threads that wait for them; this one drives the tasks and
/// timers under them.
///
/// It is the thread that drops the runtime: that must not happen inside of an async task, where a guard may be dropped.
pub(super) struct Thread {
    runtime: Handle,
    locks: Arc<OnceLock<crate::Locks>>,
    /// Dropped to end the thread.
    _running: oneshot::Sender<()>,
}

impl Thread {
    pub(super) fn start() -> Result<Arc<Self>, Error> {
        let failed = |error: std::io::Error| Error::new(ErrorKind::Thread, error.to_string());
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        let locks = Arc::new(OnceLock::<crate::Locks>::new());
        let served = Arc::clone(&locks);
        std::thread::Builder::new()
            .name("leasehold-blocking".into())
            .spawn(move || {
                runtime.block_on(async {
                    // It only ever ends by being dropped.
                    let _ = ended.await;
                    if let Some(locks) = served.get() {
                        locks.finish().await;
                    }
                });
            })
            .map_err(failed)?;
        Ok(Arc::new(Self {
            runtime: handle,
            locks,
            _running: running,
        }))
    }

    /// Waits at the end for the releases made through these locks.
    pub(super) fn serve(&self, locks: &crate::Locks) {
        let _ = self.locks.set(locks.clone());
    }

    /// Blocks until `future` is done.
    ///
    /// # Panics
    ///
    /// Inside of an async task.
    #[track_caller]
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// The same for `time` at most; `None` if it is not done by then.
    ///
    /// # Panics
    ///
    /// Inside of an async task.
    #[track_caller]
    pub(super) fn block_on_for<F: Future>(&self, time: Duration, future: F) -> Option<F::Output> {
        self.runtime
            .block_on(async { tokio::time::timeout(time, future).await })
            .ok()
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread").finish_non_exhaustive()
    }
}
