//! Turns of the tasks of one process that want the same lock: one of them contends at the nodes, the others wait for it here, in
//! the order in which they came.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::{Mutex as Gate, OwnedMutexGuard};

use super::super::clock::Clock;
use super::super::sync::lock;
use crate::state::names::Name;

/// The gates of all names that are held or wanted here.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Arc<Name>, Arc<Gate<()>>>>);

/// The turn of one task. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Turn {
    /// `None` until the turn has come.
    passed: Option<OwnedMutexGuard<()>>,
    gate: Option<Arc<Gate<()>>>,
    name: Arc<Name>,
    turns: Arc<Turns>,
}

impl Turns {
    /// Waits for the turn at `name` until then; `None` when the time is over.
    pub(super) async fn take(
        self: &Arc<Self>,
        name: &Arc<Name>,
        until: Option<Instant>,
        clock: &Clock,
    ) -> Option<Turn> {
        let mut turn = self.wait_for(name);
        let gate = turn.gate.clone()?;
        turn.passed = match until {
            Some(until) => clock.timeout_at(until, gate.lock_owned()).await.ok(),
            None => Some(gate.lock_owned().await),
        };
        turn.passed.is_some().then_some(turn)
    }

    /// The turn at `name`, if nobody has it.
    pub(super) fn try_take(self: &Arc<Self>, name: &Arc<Name>) -> Option<Turn> {
        let mut turn = self.wait_for(name);
        turn.passed = turn.gate.clone()?.try_lock_owned().ok();
        turn.passed.is_some().then_some(turn)
    }

    fn wait_for(self: &Arc<Self>, name: &Arc<Name>) -> Turn {
        let gate = Arc::clone(lock(&self.0).entry(Arc::clone(name)).or_default());
        Turn {
            passed: None,
            gate: Some(gate),
            name: Arc::clone(name),
            turns: Arc::clone(self),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.passed = None;
        self.gate = None;
        let mut gates = lock(&self.turns.0);
        // Others have clones of it, made under the same mutex.
        if gates
            .get(&self.name)
            .is_some_and(|gate| Arc::strong_count(gate) == 1)
        {
            gates.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::redlock::NODE;

    #[tokio::test]
    async fn turns_come_in_order_and_leave_nothing_behind() {
        let turns = Arc::new(Turns::default());
        let name = Arc::new(Name::new(NODE.layout, None, "a"));
        let clock = Clock::new();
        let first = turns
            .take(&name, None, &clock)
            .await
            .expect("nobody is there");
        assert!(turns.try_take(&name).is_none());
        let over = Instant::now();
        assert!(turns.take(&name, Some(over), &clock).await.is_none());
        let waiting = {
            let (turns, name) = (Arc::clone(&turns), Arc::clone(&name));
            tokio::spawn(async move { turns.take(&name, None, &clock).await.is_some() })
        };
        tokio::task::yield_now().await;
        drop(first);
        assert!(waiting.await.unwrap());
        assert!(lock(&turns.0).is_empty());
    }
}
