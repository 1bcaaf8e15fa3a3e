//! A slot that the servers move by themselves: `CLUSTER MIGRATESLOTS`, which Valkey 9 has.
//!
//! The source streams the slot to the target, and goes on serving it. Then it pauses all commands
//! that may write, in all of its slots, until the target has taken over or ten seconds have passed,
//! and answers `MOVED`. There is no `ASK` and no `TRYAGAIN`. A client at the target sees nothing of
//! the slot before that.

use super::Cluster;
use crate::raw::RawValue;
use crate::wait::until;

/// A migration that can be held at two of its steps. Nothing happens before it is started.
#[derive(Debug)]
pub struct AtomicMigration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    source: usize,
    target: usize,
}

/// Steps at which a migration can be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The target has the snapshot and receives new writes. The source still serves the slot.
    Streaming,
    /// The source holds back all writes and has permitted the target to take over. If the target
    /// does not, the source goes on after ten seconds and the migration has failed.
    Paused,
}

impl Cluster {
    /// Prepares to have the servers move `slot` from where it is now to the node `target`. `None`
    /// where servers cannot do that, or cannot be held while they do.
    ///
    /// # Panics
    ///
    /// When no node serves the slot.
    pub async fn atomic_migration(&self, slot: u16, target: usize) -> Option<AtomicMigration<'_>> {
        let source = self.source_of(slot).await;
        if !self.node(source).knows("cluster|migrateslots").await {
            return None;
        }
        let migration = AtomicMigration {
            cluster: self,
            slot,
            source,
            target,
        };
        for step in [Step::Streaming, Step::Paused] {
            if migration.debug(step, "0").await.error().is_some() {
                return None;
            }
        }
        Some(migration)
    }

    /// Moves the slot without a stop. Returns when they have; `false`, and nothing done, where they
    /// cannot.
    ///
    /// # Panics
    ///
    /// When the migration fails.
    pub async fn migrate_slot_atomically(&self, slot: u16, target: usize) -> bool {
        let Some(migration) = self.atomic_migration(slot, target).await else {
            return false;
        };
        migration.start().await;
        migration.finish().await;
        true
    }
}

impl AtomicMigration<'_> {
    /// The source node.
    #[must_use]
    pub fn source(&self) -> usize {
        self.source
    }

    /// The target node.
    #[must_use]
    pub fn target(&self) -> usize {
        self.target
    }

    /// Starts the migration, which goes on until the slot has moved.
    ///
    /// # Panics
    ///
    /// When the source refuses it.
    pub async fn start(&self) {
        let (slot, target) = (self.slot.to_string(), self.cluster.id(self.target));
        let command = [
            "CLUSTER",
            "MIGRATESLOTS",
            "SLOTSRANGE",
            &slot,
            &slot,
            "NODE",
            target,
        ];
        let reply = self.cluster.raw(self.source).await.cmd(&command).await;
        assert!(reply.is_ok(), "{reply:?}");
    }

    /// Keeps it from going on behind `step`, also if it has not begun. Returns at once.
    ///
    /// # Panics
    ///
    /// When a server refuses it.
    pub async fn hold(&self, step: Step) {
        let reply = self.debug(step, "1").await;
        assert!(reply.is_ok(), "{reply:?}");
    }

    /// Lets it go on from `step`.
    ///
    /// # Panics
    ///
    /// When a server refuses it.
    pub async fn let_go(&self, step: Step) {
        let reply = self.debug(step, "0").await;
        assert!(reply.is_ok(), "{reply:?}");
    }

    /// Waits until it is held at `step`.
    ///
    /// # Panics
    ///
    /// When it does not get there.
    pub async fn reach(&self, step: Step) {
        self.await_state(match step {
            Step::Streaming => "waiting-to-pause",
            Step::Paused => "failover-granted",
        })
        .await;
    }

    /// [`start`](Self::start), and waits until it is held at `step` and nowhere before.
    ///
    /// # Panics
    ///
    /// As they do.
    pub async fn start_until(&self, step: Step) {
        self.let_go(Step::Streaming).await;
        self.hold(step).await;
        self.start().await;
        self.reach(step).await;
    }

    /// Lets it go on to its end and waits for that: source and target agree that the slot has
    /// moved.
    ///
    /// # Panics
    ///
    /// When the migration fails.
    pub async fn finish(&self) {
        for step in [Step::Streaming, Step::Paused] {
            self.let_go(step).await;
        }
        self.await_state("success").await;
    }

    /// Calls it off: the slot stays where it is, with everything in it, and writes go on at once.
    ///
    /// # Panics
    ///
    /// When the source refuses it.
    pub async fn cancel(&self) {
        let reply = self
            .cluster
            .raw(self.source)
            .await
            .cmd(&["CLUSTER", "CANCELSLOTMIGRATIONS"])
            .await;
        assert!(reply.is_ok(), "{reply:?}");
        self.await_state("cancelled").await;
        // The target notices a moment later, and until then refuses another import of the slot.
        until("cancelled at the target too", async || {
            match self.state_at(self.target).await {
                // It may not have heard of it.
                Some((state, _)) if !is_over(&state) => Err(state),
                _ => Ok(()),
            }
        })
        .await;
    }

    /// Waits until the source calls it failed.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub async fn failed(&self) {
        self.await_state("failed").await;
    }

    async fn await_state(&self, wanted: &str) {
        until(wanted, async || {
            let job = self.state_at(self.source).await;
            let (state, message) = job.ok_or("no job for the slot")?;
            assert!(
                state == wanted || !is_over(&state),
                "the migration ended: {state}, {message}"
            );
            if state == wanted { Ok(()) } else { Err(state) }
        })
        .await;
    }

    /// The state of a node's newest job for the slot, and what it says of that.
    async fn state_at(&self, node: usize) -> Option<(String, String)> {
        let jobs = self
            .cluster
            .raw(node)
            .await
            .cmd(&["CLUSTER", "GETSLOTMIGRATIONS"])
            .await;
        let range = format!("{0}-{0}", self.slot);
        let field = |job: &RawValue, name: &str| {
            job.get(name)
                .map(|value| value.str().to_owned())
                .unwrap_or_default()
        };
        // The newest comes first.
        let job = jobs
            .array()
            .iter()
            .find(|job| field(job, "slot_ranges") == range)?;
        Some((field(job, "state"), field(job, "message")))
    }

    async fn debug(&self, step: Step, on: &str) -> RawValue {
        let (node, what) = match step {
            Step::Streaming => (self.source, "PREVENT-PAUSE"),
            Step::Paused => (self.target, "PREVENT-FAILOVER"),
        };
        self.cluster
            .raw(node)
            .await
            .cmd(&["DEBUG", "SLOTMIGRATION", what, on])
            .await
    }
}

fn is_over(state: &str) -> bool {
    ["success", "cancelled", "failed"].contains(&state)
}
