//! Faults of the cluster: a slot moves while its lock is contended, and a master dies and comes
//! back.

use std::rc::Rc;
use std::time::{Duration, Instant};

use leasehold_cluster::slot::slot;
use leasehold_testkit::Cluster;

use crate::LOCKS;
use crate::event::{Event, micros};
use crate::placement::key;
use crate::screen::{grouped, span};
use crate::stage::{Stage, Stop};

/// Time between two faults.
const SCENE: Duration = Duration::from_millis(2500);

/// Shorter than any failover: a master is replaced only after the node timeout of the kit's
/// clusters, a second. Earlier grants are those of the killed master.
const NO_FAILOVER_YET: Duration = Duration::from_millis(500);

/// The lock whose slot moves, and the lock whose master dies. Lock `n` is at master `n` in the
/// beginning.
const MOVED: usize = 1;
const ORPHANED: usize = 0;

impl Stage {
    /// The faults of the workers and, between them, those of the cluster.
    pub(crate) async fn play_cluster(
        &mut self,
        cluster: &Rc<Cluster>,
        namespace: &str,
    ) -> Result<(), Stop> {
        let places: Vec<_> = (0..LOCKS.len())
            .map(|lock| format!("{:?} at {}", LOCKS[lock], cluster.addr(lock)))
            .collect();
        self.screen
            .note(&format!("a lock on each master: {}", places.join(", ")));
        self.screen.note("no replica is waited for, so a failover may forget grants: the ledgers check the tokens of");
        self.screen
            .note("readers as well as of writers, and refuse those that are not the newest");
        self.fight(SCENE).await?;
        self.kill_a_holder().await?;
        self.fight(SCENE).await?;
        self.move_a_slot(cluster, namespace).await?;
        self.fight(SCENE).await?;
        self.kill_a_master(cluster).await?;
        self.freeze_a_holder().await?;
        self.fight(SCENE).await?;
        self.finish().await
    }

    /// Moves the slot of a lock to another master, step by step, while the lock is in use.
    async fn move_a_slot(&mut self, cluster: &Rc<Cluster>, namespace: &str) -> Result<(), Stop> {
        let (slot, target) = (
            slot(key(namespace, MOVED).as_bytes()),
            (MOVED + 1) % cluster.masters(),
        );
        let before = self.stats.holds_of(MOVED);
        self.screen.note(&format!(
            "slot {slot} of {:?} begins to move to {}",
            LOCKS[MOVED],
            cluster.addr(target)
        ));
        let begun = Rc::clone(cluster);
        self.meanwhile(async move { begun.migration(slot, target).await.begin().await })
            .await?;
        self.fight(Duration::from_secs(1)).await?;
        let moving = Rc::clone(cluster);
        self.meanwhile(async move {
            let migration = moving.migration(slot, target).await;
            migration.move_all_keys().await;
            migration.finish().await;
            migration.tell_everybody().await;
        })
        .await?;
        self.screen.note(&format!(
            "it has moved; meanwhile {:?} changed hands {} times",
            LOCKS[MOVED],
            grouped(self.stats.holds_of(MOVED) - before)
        ));
        Ok(())
    }

    /// Kills the master of a lock, waits for its replica to go on, and starts the master again.
    async fn kill_a_master(&mut self, cluster: &Rc<Cluster>) -> Result<(), Stop> {
        let others = |stage: &Self| -> u64 {
            (0..LOCKS.len())
                .filter(|lock| *lock != ORPHANED)
                .map(|lock| stage.stats.holds_of(lock))
                .sum()
        };
        let (killed, before) = (micros(), others(self));
        cluster.kill(ORPHANED);
        self.screen.note(&format!(
            "the master of {:?} killed (SIGKILL): {}",
            LOCKS[ORPHANED],
            cluster.addr(ORPHANED)
        ));
        let from = killed + u64::try_from(NO_FAILOVER_YET.as_micros())?;
        let (next, at) = self
            .until("the failover", |worker, event| match *event {
                Event::Holding {
                    lock: ORPHANED, at, ..
                } if at > from => Some((worker, at)),
                _ => None,
            })
            .await?;
        self.screen.note(&format!(
            "its replica took over: process {} got {:?} after {}; meanwhile the other locks changed hands {} times",
            next + 1,
            LOCKS[ORPHANED],
            span(at.saturating_sub(killed)),
            grouped(others(self) - before)
        ));
        self.fight(SCENE).await?;

        let begin = Instant::now();
        let restarted = Rc::clone(cluster);
        self.meanwhile(async move {
            restarted.restart(ORPHANED).await;
            restarted.wait_until_ok().await;
        })
        .await?;
        self.screen.note(&format!(
            "the killed master started again: a replica of the new one after {}",
            span(u64::try_from(begin.elapsed().as_micros())?)
        ));
        Ok(())
    }

    /// Lets the workers run until `job` is done.
    async fn meanwhile(&mut self, job: impl Future<Output = ()> + 'static) -> Result<(), Stop> {
        let job = tokio::task::spawn_local(job);
        while !job.is_finished() {
            self.step(Instant::now() + Duration::from_millis(20))
                .await?;
        }
        Ok(job.await?)
    }
}
