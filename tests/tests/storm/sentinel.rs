//! A master with two replicas under three sentinels, all of which die, freeze and are replaced, and
//! processes that contend for locks there: the ledger accepts nothing stale, no update is lost, and
//! a lock has two holders only where a failover lost the first one; and not even there if replicas
//! confirm every lock.
//!
//! 20 seconds each or until every kind of fault was injected; two minutes and a half with
//! `LEASEHOLD_LONG=1`. `LEASEHOLD_SEED` repeats the choice of faults.

use std::time::Duration;

use leasehold_testkit::chance::Chance;
use leasehold_testkit::storm::Mode;
use leasehold_testkit::{Sentinels, Server, until};
use tokio::time::sleep;

use crate::roles::{Stage, storm, storm_in_line};

/// The longest time that a sentinel is away. One that was frozen for two seconds distrusts its
/// clock, and takes no part in failovers for a while.
const AWAY_MS: u64 = 1_500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_failover_forgets_nothing_stale_gets_through() {
    storm("storm-sentinel", sentinels().await, Mode::Fast).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_forgets_nothing_that_all_replicas_confirmed() {
    storm("storm-sentinel", sentinels().await, Mode::Safe).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_in_line_is_forgotten_whatever_a_failover_forgets() {
    storm_in_line("storm-line-sentinel", sentinels().await, Mode::Fast).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_in_line_is_forgotten_where_all_replicas_confirm_behind_sentinels() {
    storm_in_line("storm-line-sentinel", sentinels().await, Mode::Safe).await;
}

/// Servers that are slow on a busy machine must not be replaced.
async fn sentinels() -> Sentinels {
    Sentinels::builder()
        .down_after(Duration::from_secs(1))
        .start()
        .await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    KillMaster,
    /// SIGSTOP until a replica is promoted, and SIGCONT at that moment.
    FreezeMaster,
    Handover,
    KillSentinel,
    FreezeSentinel,
}

impl Stage for Sentinels {
    type Kind = Kind;

    const ALL: &'static [Kind] = &[
        Kind::KillMaster,
        Kind::FreezeMaster,
        Kind::Handover,
        Kind::KillSentinel,
        Kind::FreezeSentinel,
    ];

    const IN_LINE: &'static [Kind] = &[Kind::FreezeMaster, Kind::Handover];

    /// Sentinels that are asked for a failover do not involve the master: they promote a replica,
    /// and then notify the rest.
    fn forgets(kind: Kind) -> bool {
        Self::moves(kind)
    }

    fn moves(kind: Kind) -> bool {
        matches!(kind, Kind::KillMaster | Kind::FreezeMaster | Kind::Handover)
    }

    fn url(&self) -> String {
        self.url()
    }

    fn nodes(&self) -> Vec<&Server> {
        (0..self.servers().len())
            .map(|index| self.node(index))
            .collect()
    }

    fn processes(&self) -> Vec<&Server> {
        self.nodes()
            .into_iter()
            .chain((0..3).map(|index| self.sentinel(index)))
            .collect()
    }

    async fn master_of(&self, _: &str) -> usize {
        self.wait_for_writable().await
    }

    async fn strike(&self, kind: Kind, _: &str, master: usize, mode: Mode, chance: &mut Chance) {
        let sentinel = chance.below(3) as usize;
        match kind {
            Kind::KillMaster => {
                self.node(master).kill();
                // Sometimes it is back before a sentinel notices, and empty.
                if mode == Mode::Safe || chance.percent(50) {
                    promotion(self, master).await;
                } else {
                    sleep(chance.millis(0, 2_000)).await;
                }
                self.node(master).restart().await;
            }
            Kind::FreezeMaster => {
                self.node(master).pause();
                promotion(self, master).await;
                self.node(master).resume();
            }
            Kind::Handover => _ = self.failover().await,
            Kind::KillSentinel => {
                self.sentinel(sentinel).kill();
                sleep(chance.millis(0, AWAY_MS)).await;
                self.restart_sentinel(sentinel).await;
            }
            Kind::FreezeSentinel => {
                self.sentinel(sentinel).pause();
                sleep(chance.millis(0, AWAY_MS)).await;
                self.sentinel(sentinel).resume();
            }
        }
    }

    async fn is_whole(&self) {
        self.servers()
            .wait_until_linked(self.servers().len() - 1)
            .await;
        self.wait_until_ready().await;
    }
}

/// Returns at the moment in which another server than `master` calls itself one.
async fn promotion(sentinels: &Sentinels, master: usize) {
    until("a replica is promoted", async || {
        for index in 0..sentinels.servers().len() {
            if index != master && sentinels.servers().role(index).await.as_deref() == Some("master")
            {
                return Ok(());
            }
        }
        Err("nobody is".into())
    })
    .await;
}
