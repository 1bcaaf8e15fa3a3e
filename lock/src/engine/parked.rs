//! Subscriptions to the grants of single names that are not wanted here at the moment, kept for a while: a process that takes
//! the same lock of a cluster again and again would otherwise subscribe anew each time it has to wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use leasehold_cluster::Subscription;
use tokio::runtime::Handle;

use super::sync::lock;
use crate::state::names::Name;

/// How long they are kept.
const TIME: Duration = Duration::from_secs(1);
/// How many names they are kept of.
const NAMES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Parked(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By age.
    subscriptions: VecDeque<(Arc<Name>, Subscription, Instant)>,
    /// Whether a task ends those that have been kept long enough.
    is_swept: bool,
}

/// The task that ends them. Dropping it, which the end of its runtime does too, lets another one begin.
struct Sweep(Weak<Parked>);

impl Parked {
    /// Keeps `subscription` for a while. Without a runtime it ends now.
    pub(crate) fn park(self: &Arc<Self>, name: &Arc<Name>, subscription: Subscription) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut state = lock(&self.0);
        state
            .subscriptions
            .push_back((Arc::clone(name), subscription, Instant::now()));
        // Dropping one sends a command.
        let superfluous =
            (state.subscriptions.len() > NAMES).then(|| state.subscriptions.pop_front());
        let begins = !std::mem::replace(&mut state.is_swept, true);
        drop(state);
        drop(superfluous);
        if begins {
            runtime.spawn(Sweep(Arc::downgrade(self)).run());
        }
    }

    /// Takes the one of this name.
    pub(crate) fn take(&self, name: &Arc<Name>) -> Option<Subscription> {
        let mut state = lock(&self.0);
        let mut known = state.subscriptions.iter();
        let at = known.position(|(known, ..)| known == name)?;
        let (_, subscription, _) = state.subscriptions.remove(at)?;
        Some(subscription)
    }

    /// Ends all of them.
    pub(crate) fn clear(&self) {
        let ended = std::mem::take(&mut lock(&self.0).subscriptions);
        drop(ended);
    }

    /// Ends those that have been kept long enough. Returns whether there are others.
    fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut state = lock(&self.0);
        let old = state
            .subscriptions
            .iter()
            .take_while(|(_, _, since)| now >= *since + TIME);
        let old = old.count();
        let ended: Vec<_> = state.subscriptions.drain(..old).collect();
        let has_more = !state.subscriptions.is_empty();
        state.is_swept = has_more;
        drop(state);
        drop(ended);
        has_more
    }
}

impl Sweep {
    async fn run(self) {
        loop {
            tokio::time::sleep(TIME).await;
            let Some(parked) = self.0.upgrade() else {
                return;
            };
            if !parked.sweep() {
                return;
            }
        }
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        if let Some(parked) = self.0.upgrade() {
            lock(&parked.0).is_swept = false;
        }
    }
}
