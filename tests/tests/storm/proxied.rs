//! A storm on one server: every worker has a connection through a proxy of its own, which can
//! inject faults.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_testkit::chance::Chance;
use leasehold_testkit::storm::Mode;
use leasehold_testkit::{Proxy, Server};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::deck::Deck;
use crate::fault::Kind;
use crate::fleet::Fleet;

pub(crate) struct Storm {
    pub(crate) server: Server,
    pub(crate) fleet: Fleet,
    /// The line of each worker.
    pub(crate) lines: Vec<Line>,
    kinds: Vec<Kind>,
}

/// The proxy between one worker and the server.
pub(crate) struct Line {
    pub(crate) proxy: Proxy,
    /// Locked during a fault of the line.
    pub(crate) struck: Mutex<()>,
}

impl Storm {
    /// Starts everything, with so many worker processes at a time; they begin at once. Faults of these `kinds` will happen.
    pub(crate) async fn start(name: &str, workers: usize, kinds: &[Kind]) -> Arc<Self> {
        let server = Server::start().await;
        let line = |_| Line {
            proxy: Proxy::start(server.addr()),
            struck: Mutex::default(),
        };
        let lines: Vec<_> = (0..workers).map(line).collect();
        let urls: Vec<_> = lines.iter().map(|line| line.proxy.url()).collect();
        let fleet = Fleet::start(name, Mode::Fast, &urls);
        Arc::new(Self {
            server,
            fleet,
            lines,
            kinds: kinds.to_vec(),
        })
    }

    /// Lets faults happen for that long, one every half to one and a half seconds, some of them at
    /// the same time.
    pub(crate) async fn rage(self: &Arc<Self>, time: Duration) -> Deck<Kind> {
        let mut chance = Chance::new(self.fleet.seed);
        // The last two kinds are the reason for leases.
        let mut deck =
            Deck::new([&self.kinds[..], &[Kind::KillWorker, Kind::FreezeWorker]].concat());
        let mut running = JoinSet::new();
        let end = Instant::now() + time;
        loop {
            sleep(chance.millis(500, 1_500)).await;
            if Instant::now() >= end {
                break;
            }
            let kind = deck.draw(&mut chance);
            let (storm, chance) = (Arc::clone(self), Chance::new(chance.below(u64::MAX)));
            running.spawn(async move { kind.strike(&storm, chance).await.then_some(kind) });
        }
        while let Some(struck) = running.join_next().await {
            if let Some(kind) = struck.expect("a fault that can be injected") {
                deck.struck(kind);
            }
        }
        deck
    }

    /// Stops the workers and waits for them.
    pub(crate) async fn stop(&self) {
        self.fleet.stop().await;
        // A cut that ended in silence leaves the server with a connection without a client.
        self.lines.iter().for_each(|line| line.proxy.reset_all());
    }
}
