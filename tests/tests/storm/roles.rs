//! Storms in which servers change their roles, in both modes.
//!
//! **Fast**: a failover may lose the last grants, as the README says, and then two hold one lock
//! until the first is notified or its lease is over. Such overlaps are counted. All other
//! guarantees hold: tokens grow, and the ledger accepts nothing stale.
//!
//! **Safe**: one fault at a time, each of which is repaired before the next: then no grant may be
//! lost.
//!
//! The servers are not asked for holders, unlike in the storm on a single server. While roles
//! change there are two masters, or none, and neither's state is authoritative. Before and after
//! there is one, but it knows holds by ids that guards do not tell, and the newest token does not
//! identify them either: locks that were taken in a moving slot have one that is not in the
//! counter.
//!
//! **In line**: sixteen processes wait for the same few locks, and are killed and frozen while they
//! hold, wait and give up. Each server's record of the lines is checked as far as it goes: from the
//! moment at which it is a master until its role changes.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::{self, Effect};
use leasehold_testkit::storm::{LEASE, LOCKS, Mode};
use leasehold_testkit::{Raw, Server};
use tokio::time::sleep;

use crate::deck::Deck;
use crate::fleet::{Fleet, Moment, time};
use crate::verdict::{Verdict, it_was_a_line, nothing_is_left};

/// Worker processes at a time.
const WORKERS: usize = 3;

/// And where they wait in line for each other.
const MANY: usize = 16;

/// The duration of a storm, if every kind of fault was injected by then.
const SHORT: Duration = Duration::from_secs(20);

/// Upper bound on the decks that are played, even if a kind of fault had no effect.
const DECKS: usize = 40;

/// Servers and their faults.
pub(crate) trait Stage {
    type Kind: Copy + Debug + Ord + 'static;

    /// All kinds of faults.
    const ALL: &'static [Self::Kind];

    /// Those that happen to processes in line: an orderly one and one that is not.
    const IN_LINE: &'static [Self::Kind];

    /// Whether this may lose locks that no replica has confirmed.
    fn forgets(kind: Self::Kind) -> bool;

    /// Whether locks are at another master afterwards.
    fn moves(kind: Self::Kind) -> bool;

    fn url(&self) -> String;

    /// The servers that may have locks.
    fn nodes(&self) -> Vec<&Server>;

    /// The servers whose logs are kept.
    fn processes(&self) -> Vec<&Server> {
        self.nodes()
    }

    /// Waits until the master of a lock takes writes. Returns its number.
    async fn master_of(&self, key: &str) -> usize;

    /// Injects a fault at the master of a lock, and repairs it.
    async fn strike(
        &self,
        kind: Self::Kind,
        key: &str,
        master: usize,
        mode: Mode,
        chance: &mut Chance,
    );

    /// Waits until all servers are as at the start, except for their roles.
    async fn is_whole(&self);
}

/// A fault of any storm, or one of this stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Card<K> {
    Servers(K),
    ScriptFlush,
    ClientKill,
    KillWorker(Moment),
    FreezeWorker(Moment),
}

/// A storm that is over.
struct Over {
    fleet: Fleet,
    verdict: Verdict,
    /// Number of masters that were replaced.
    replaced: usize,
    /// Number of faults.
    played: usize,
}

/// Injects every kind of fault while workers contend for locks, and checks the history.
pub(crate) async fn storm<S: Stage>(name: &str, stage: S, mode: Mode) {
    let common = [
        Card::ScriptFlush,
        Card::ClientKill,
        Card::KillWorker(Moment::Holding),
        Card::FreezeWorker(Moment::Holding),
    ];
    let servers = S::ALL.iter().copied().map(Card::Servers);
    let cards = servers.chain(common).collect();
    let over = rage(name, &stage, mode, WORKERS, cards).await;
    it_was_a_storm(&over);
}

/// Injects faults while many workers wait in line for each other, and checks the history and the
/// record of the lines.
pub(crate) async fn storm_in_line<S: Stage>(name: &str, stage: S, mode: Mode) {
    let moments = [Moment::Holding, Moment::Waiting, Moment::Cancelling];
    let servers = S::IN_LINE.iter().copied().map(Card::Servers);
    let cards = servers
        .chain(moments.map(Card::KillWorker))
        .chain(moments.map(Card::FreezeWorker))
        .chain([Card::ClientKill]);
    let over = rage(name, &stage, mode, MANY, cards.collect()).await;
    let evidence = over.fleet.evidence();
    assert!(over.replaced > 0, "{evidence}: no master was replaced");
    it_was_a_line(&over.verdict, &evidence);
}

/// Injects the faults of all cards.
async fn rage<S: Stage>(
    name: &str,
    stage: &S,
    mode: Mode,
    workers: usize,
    cards: Vec<Card<S::Kind>>,
) -> Over {
    let time = time(SHORT);
    let urls = vec![stage.url(); workers];
    let fleet = Fleet::start(name, mode, &urls);
    let _evidence = fleet.keep_evidence(stage.processes().into_iter().map(Server::dir));
    let watches = (workers == MANY).then(|| {
        let nodes = stage.nodes().into_iter();
        nodes
            .map(|node| fleet.watch(node.addr()))
            .collect::<Vec<_>>()
    });
    let mut chance = Chance::new(fleet.seed);
    fleet.progresses().await;

    let most = DECKS * cards.len();
    let mut deck = Deck::new(cards);
    let (mut replaced, mut played) = (0, 0);
    let end = Instant::now() + time;
    while Instant::now() < end || !deck.is_through() {
        assert!(
            played < most,
            "{}: a kind of fault strikes nothing: {:?}",
            fleet.evidence(),
            deck.played()
        );
        played += 1;
        sleep(chance.millis(100, 600)).await;
        let card = deck.draw(&mut chance);
        let key = *chance.pick(&LOCKS);
        let before = stage.master_of(key).await;
        if strike(card, key, before, stage, &fleet, mode, &mut chance).await {
            deck.struck(card);
        }
        fleet.progresses().await;
        replaced += usize::from(stage.master_of(key).await != before);
    }
    let over = history::now();
    sleep(LEASE).await;
    fleet.stop().await;
    // The leases of abandoned holds are over by now.
    sleep(LEASE + Duration::from_secs(1)).await;
    drop(watches);
    nothing_is_left(&fleet, masters(stage).await).await;

    let verdict = fleet.judge(mode == Mode::Fast);
    println!(
        "{}: {:?}, {replaced} masters replaced",
        fleet.name,
        deck.played()
    );
    fleet.everybody_got_something(over).await;
    Over {
        fleet,
        verdict,
        replaced,
        played,
    }
}

/// Injects a fault and waits until all servers are repaired. Returns whether it had an effect.
async fn strike<S: Stage>(
    card: Card<S::Kind>,
    key: &str,
    master: usize,
    stage: &S,
    fleet: &Fleet,
    mode: Mode,
    chance: &mut Chance,
) -> bool {
    let kind = match card {
        Card::KillWorker(moment) => {
            fleet.kill(fleet.pick(chance), moment, chance).await;
            return true;
        }
        Card::FreezeWorker(moment) => {
            return fleet.freeze(fleet.pick(chance), moment, chance).await;
        }
        Card::ScriptFlush => {
            let work = tell_everybody(stage, &[&["SCRIPT", "FLUSH"]]);
            fleet.fault("ScriptFlush", Effect::Delays, work).await;
            return true;
        }
        Card::ClientKill => {
            // In RESP3 a client that listens counts as `pubsub`, though it sends commands as well.
            let work = tell_everybody(
                stage,
                &[
                    &["CLIENT", "KILL", "TYPE", "normal"],
                    &["CLIENT", "KILL", "TYPE", "pubsub"],
                ],
            );
            fleet.fault("ClientKill", Effect::Delays, work).await;
            return true;
        }
        Card::Servers(kind) => kind,
    };
    if S::moves(kind) && chance.percent(70) {
        // A hold with renewals during the fault: confirmations of a replaced master must not count
        // for long.
        let workers = fleet.pids().await;
        fleet.aim(*chance.pick(&workers), key, LEASE * 3 / 2).await;
        sleep(chance.millis(0, 1_000)).await;
    }
    let forgets = mode == Mode::Fast && S::forgets(kind);
    let effect = if forgets {
        Effect::LosesLocks
    } else {
        Effect::Delays
    };
    let work = async {
        stage.strike(kind, key, master, mode, chance).await;
        stage.is_whole().await;
    };
    fleet
        .fault(&format!("{kind:?} {key} at {master}"), effect, work)
        .await;
    true
}

async fn tell_everybody<S: Stage>(stage: &S, commands: &[&[&str]]) {
    for server in stage.nodes() {
        let mut raw = server.raw().await;
        for command in commands {
            raw.cmd(command).await;
        }
    }
}

async fn masters<S: Stage>(stage: &S) -> Vec<Raw> {
    let mut masters = Vec::new();
    for server in stage.nodes() {
        let mut raw = server.raw().await;
        if raw.cmd(&["ROLE"]).await.array()[0].str() == "master" {
            masters.push(raw);
        }
    }
    masters
}

/// A storm in which nothing happens proves nothing.
fn it_was_a_storm(over: &Over) {
    let (verdict, evidence) = (&over.verdict, over.fleet.evidence());
    // A worker that was frozen while it held a lock is notified of its loss, and a write without a
    // check is refused.
    assert!(
        verdict.report.losses > 0,
        "{evidence}: nobody was told of a loss\n{verdict}"
    );
    assert!(
        verdict.refused > 0,
        "{evidence}: no stale write came to be refused\n{verdict}"
    );
    assert!(
        over.replaced > 0,
        "{evidence}: no master was replaced\n{verdict}"
    );
    let few = |grants: &usize| *grants < 10 * over.played;
    assert!(
        !verdict.grants.values().any(few),
        "{evidence}: a lock without work\n{verdict}"
    );
}
