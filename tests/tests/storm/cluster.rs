//! A cluster whose masters die, freeze, hand over and give slots away, and processes that contend
//! for locks on it: the ledger accepts nothing stale, no update is lost, and a lock has two holders
//! only where a failover lost the first one; and not even there if replicas confirm every lock.
//!
//! 20 seconds each or until every kind of fault was injected; two minutes and a half with
//! `LEASEHOLD_LONG=1`. `LEASEHOLD_SEED` repeats the choice of faults.

use std::time::Duration;

use leasehold_testkit::chance::Chance;
use leasehold_testkit::storm::Mode;
use leasehold_testkit::{Cluster, Failover, Server, until};
use tokio::time::sleep;

use crate::roles::{Stage, storm, storm_in_line};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_cluster_forgets_nothing_stale_gets_through() {
    storm("storm-cluster", cluster(Mode::Fast).await, Mode::Fast).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_forgets_nothing_that_its_replicas_confirmed() {
    storm("storm-cluster", cluster(Mode::Safe).await, Mode::Safe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_in_line_is_forgotten_whatever_a_cluster_forgets() {
    storm_in_line("storm-line-cluster", cluster(Mode::Fast).await, Mode::Fast).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_in_line_is_forgotten_where_replicas_confirm_in_a_cluster() {
    storm_in_line("storm-line-cluster", cluster(Mode::Safe).await, Mode::Safe).await;
}

async fn cluster(mode: Mode) -> Cluster {
    let node_timeout = match mode {
        // Servers that are slow on a busy machine must not fail over by themselves: the checker
        // would not excuse it.
        Mode::Fast => Duration::from_secs(2),
        // Shorter than a lease: holds are still valid after the failover.
        Mode::Safe => Duration::from_secs(1),
    };
    Cluster::builder().node_timeout(node_timeout).start().await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    KillMaster,
    FreezeMaster,
    Takeover,
    Graceful,
    MoveSlot,
}

impl Stage for Cluster {
    type Kind = Kind;

    const ALL: &'static [Kind] = &[
        Kind::KillMaster,
        Kind::FreezeMaster,
        Kind::Takeover,
        Kind::Graceful,
        Kind::MoveSlot,
    ];

    const IN_LINE: &'static [Kind] = &[Kind::FreezeMaster, Kind::Graceful, Kind::MoveSlot];

    /// A handover in agreement and a slot that moves lose nothing; without agreement the last
    /// writes may be lost.
    fn forgets(kind: Kind) -> bool {
        matches!(kind, Kind::KillMaster | Kind::FreezeMaster | Kind::Takeover)
    }

    fn moves(_: Kind) -> bool {
        true
    }

    fn url(&self) -> String {
        self.url()
    }

    fn nodes(&self) -> Vec<&Server> {
        (0..self.len()).map(|index| self.node(index)).collect()
    }

    async fn master_of(&self, key: &str) -> usize {
        self.wait_for_writable(key).await
    }

    async fn strike(&self, kind: Kind, key: &str, master: usize, mode: Mode, chance: &mut Chance) {
        match kind {
            Kind::KillMaster => {
                let replicas = self.replicas_of(master).await;
                self.kill(master);
                if mode == Mode::Safe {
                    promotion(self, &replicas).await;
                } else {
                    // Sometimes it is back before the vote, and empty.
                    sleep(chance.millis(0, 4_000)).await;
                }
                self.restart(master).await;
            }
            Kind::FreezeMaster => {
                let replicas = self.replicas_of(master).await;
                self.freeze(master);
                if chance.percent(50) {
                    promotion(self, &replicas).await;
                } else {
                    sleep(chance.millis(200, 4_000)).await;
                }
                self.thaw(master);
            }
            Kind::Takeover | Kind::Graceful => {
                let how = if kind == Kind::Graceful {
                    Failover::Graceful
                } else {
                    Failover::Takeover
                };
                let replicas = self.replicas_of(master).await;
                self.failover(*replicas.first().expect("every master has a replica"), how)
                    .await;
            }
            Kind::MoveSlot => there_and_back(self, key, chance).await,
        }
    }

    async fn is_whole(&self) {
        self.wait_until_ok().await;
    }
}

/// Returns at the moment in which one of them becomes a master.
async fn promotion(cluster: &Cluster, replicas: &[usize]) {
    until("a replica is promoted", async || {
        for replica in replicas {
            if cluster.is_master(*replica).await {
                return Ok(());
            }
        }
        Err(format!("{replicas:?} follow"))
    })
    .await;
}

/// Moves the slot of a lock to another master while it is contended, and back.
async fn there_and_back(cluster: &Cluster, key: &str, chance: &mut Chance) {
    let slot = cluster.slot_of(key).await;
    let home = cluster
        .master_of_slot(slot)
        .await
        .expect("somebody serves the slot");
    let mut away = home;
    for index in 0..cluster.len() {
        if index != home && cluster.is_master(index).await {
            away = index;
        }
    }
    for target in [away, home] {
        let migration = cluster.migration(slot, target).await;
        migration.begin().await;
        sleep(chance.millis(0, 300)).await;
        migration.move_all_keys().await;
        migration.finish().await;
        migration.tell_everybody().await;
        cluster.wait_for_agreement().await;
    }
}
