//! The part of a `Locks` that its users hold.

use std::ops::Deref;
use std::sync::Arc;

use super::context::Context;

/// A context that is in use, by a handle or a request. Holds keep the context too, but only until they end: with the last
/// handle gone, holds that are not renewed are watched, so that a guard that was leaked does not keep the connection.
#[derive(Debug)]
pub(crate) struct Handle(Arc<Context>);

impl Handle {
    pub(crate) fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self(context))
    }
}

impl Deref for Handle {
    type Target = Arc<Context>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let registry = &self.0.registry;
        if registry.home.is_elsewhere() {
            return;
        }
        let mut watched = false;
        for hold in registry.table.all_holds() {
            if !hold.needs_renewal() {
                registry.work.watch(&hold);
                watched = true;
            }
        }
        if watched {
            // Without a thread the connection lasts as long as the guards.
            let _ = registry.start_worker();
        }
    }
}
