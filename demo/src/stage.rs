//! The course of the demo.

use std::time::{Duration, Instant};

use leasehold_testkit::Scratch;
use leasehold_testkit::ledger::Ledger;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::event::{Event, micros};
use crate::fleet::{Fleet, State};
use crate::screen::{self, Screen, span};
use crate::server::{Private, Target};
use crate::stats::Stats;
use crate::{Failure, LEASE, LOCKS, Mode, WORKERS, placement};

/// Time before, between and after the two faults.
const SCENE: Duration = Duration::from_secs(5);

/// Time the frozen process stays frozen beyond its lease.
const OVERSLEEP: Duration = Duration::from_secs(1);

/// Upper bound on each wait. Far above the usual time, so that reaching it means an error rather
/// than a slow machine.
const LIMIT: Duration = Duration::from_secs(30);

/// The workers that are killed and frozen: any would do.
const KILLED: usize = 1;
const FROZEN: usize = 2;

/// The end of the run.
pub(crate) enum Ending {
    /// Every update is there.
    Whole,
    /// Number of lost updates.
    Lost(u64),
    /// By Ctrl-C or SIGTERM.
    Interrupted,
}

/// The state of the run.
pub(crate) struct Stage {
    fleet: Fleet,
    pub(crate) stats: Stats,
    pub(crate) screen: Screen,
    interrupt: Signal,
    terminate: Signal,
    /// The first error of a worker, to be reported once.
    trouble: Option<String>,
}

/// The reason for an early end.
pub(crate) enum Stop {
    Interrupted,
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// A hold of a lock.
#[derive(Clone, Copy)]
struct Hold {
    lock: usize,
    task: usize,
    token: u64,
}

/// Runs the demo. Processes, server and files are gone when it returns, also after an error.
pub(crate) async fn perform(mode: Mode) -> Result<Ending, Failure> {
    let target = Target::find(mode).await?;
    let directory = Scratch::new();
    // The user's server may have seen earlier runs, whose locks may still be held for a lease.
    let mut namespace = format!("leasehold-demo-{}-{}", std::process::id(), micros());
    if let Private::Cluster(cluster) = &target.private {
        namespace = placement::spread(cluster, &namespace).await?;
    }
    let screen = Screen::new(&target.describe().await?);
    let before = target.commands().await?;

    let mut stage = Stage {
        fleet: Fleet::start(&target.url, directory.path(), &namespace, mode)?,
        stats: Stats::new(),
        screen,
        interrupt: signal(SignalKind::interrupt())?,
        terminate: signal(SignalKind::terminate())?,
        trouble: None,
    };
    let played = match (mode, &target.private) {
        (Mode::WithoutLocks, _) => stage.play_without_locks().await,
        (_, Private::Cluster(cluster)) => stage.play_cluster(cluster, &namespace).await,
        (_, Private::None | Private::Server(_)) => stage.play().await,
    };
    stage.fleet.end().await;
    match played {
        Ok(()) => {}
        Err(Stop::Interrupted) => return Ok(Ending::Interrupted),
        Err(Stop::Failed(failure)) => return Err(failure),
    }
    let commands = match &target.private {
        // The counts of several servers cannot be added: one that was restarted begins at 0.
        Private::Cluster(_) => None,
        Private::None | Private::Server(_) => Some(target.commands().await? - before),
    };

    let ledgers = LOCKS.map(|name| Ledger::open(directory.join(name)));
    let summary = stage.stats.summary(&ledgers);
    screen::table(&summary, commands);
    Ok(if summary.lost == 0 {
        Ending::Whole
    } else {
        Ending::Lost(summary.lost)
    })
}

impl Stage {
    /// Contention, with a killed holder and a frozen holder in between.
    async fn play(&mut self) -> Result<(), Stop> {
        self.fight(SCENE).await?;
        self.kill_a_holder().await?;
        self.fight(SCENE).await?;
        self.freeze_a_holder().await?;
        self.fight(SCENE).await?;
        self.finish().await
    }

    async fn play_without_locks(&mut self) -> Result<(), Stop> {
        self.screen
            .note("nobody takes a lock: updates will be lost");
        self.fight(SCENE).await?;
        self.finish().await
    }

    pub(crate) async fn kill_a_holder(&mut self) -> Result<(), Stop> {
        let hold = self.lingering(KILLED).await?;
        let killed = micros();
        self.fleet.kill(KILLED)?;
        self.screen.note(&format!(
            "process {} killed (SIGKILL): its task {} holds {:?}, token {}",
            KILLED + 1,
            hold.task + 1,
            LOCKS[hold.lock],
            hold.token
        ));
        self.takeover(hold, killed).await?;
        Ok(())
    }

    pub(crate) async fn freeze_a_holder(&mut self) -> Result<(), Stop> {
        let hold = self.lingering(FROZEN).await?;
        let frozen = micros();
        self.fleet.freeze(FROZEN)?;
        self.screen.note(&format!(
            "process {} frozen (SIGSTOP): its task {} holds {:?}, token {}",
            FROZEN + 1,
            hold.task + 1,
            LOCKS[hold.lock],
            hold.token
        ));
        let next = self.takeover(hold, frozen).await?;
        // The next holder has to write before the frozen one wakes, or the late write would not be
        // stale.
        self.until("the next's update", |_, event| {
            matches!(event, Event::Releasing { lock, token, .. } if *lock == hold.lock && *token >= next).then_some(())
        })
        .await?;
        let asleep = Duration::from_micros(micros().saturating_sub(frozen));
        self.fight((LEASE + OVERSLEEP).saturating_sub(asleep))
            .await?;

        self.fleet.wake(FROZEN)?;
        self.screen.note(&format!(
            "process {} woken (SIGCONT): it goes on to write what it had in mind",
            FROZEN + 1
        ));
        let (accepted, held) = self
            .until("the stale write", |worker, event| match *event {
                _ if worker != FROZEN => None,
                Event::Refused {
                    lock, token, held, ..
                } if (lock, token) == (hold.lock, hold.token) => Some((false, held)),
                Event::Releasing { lock, token, .. }
                    if (lock, token) == (hold.lock, hold.token) =>
                {
                    Some((true, false))
                }
                _ => None,
            })
            .await?;
        if accepted {
            return Err(Stop::Failed(
                "the ledger took a write with a token older than one it had seen".into(),
            ));
        }
        self.screen.note(&format!(
            "the ledger refused it: token {} is old; the guard says {}",
            hold.token,
            if held { "HELD, which is wrong" } else { "lost" }
        ));
        if held {
            return Err(Stop::Failed(
                "a guard said that it was held after its lease had run out".into(),
            ));
        }
        Ok(())
    }

    /// Makes `worker` keep the next lock it gets, and waits until it has one.
    async fn lingering(&mut self, worker: usize) -> Result<Hold, Stop> {
        self.fleet.linger(worker).await?;
        self.until("a holder that lingers", |who, event| match *event {
            Event::Lingering { lock, task, token } if who == worker => {
                Some(Hold { lock, task, token })
            }
            _ => None,
        })
        .await
    }

    /// Waits until another task has the lock of `hold`; returns its token.
    async fn takeover(&mut self, hold: Hold, since: u64) -> Result<u64, Stop> {
        let (next, token, at) = self
            .until("the take-over", |worker, event| match *event {
                Event::Holding {
                    lock, token, at, ..
                } if lock == hold.lock && token > hold.token => Some((worker, token, at)),
                _ => None,
            })
            .await?;
        self.screen.note(&format!(
            "process {} took {:?} over after {}, token {token}",
            next + 1,
            LOCKS[hold.lock],
            span(at.saturating_sub(since))
        ));
        Ok(token)
    }

    /// Lets the workers run for `time`.
    pub(crate) async fn fight(&mut self, time: Duration) -> Result<(), Stop> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step(end).await?;
        }
        Ok(())
    }

    /// Lets the workers run until `wanted` accepts an event.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        wanted: impl Fn(usize, &Event) -> Option<T>,
    ) -> Result<T, Stop> {
        let limit = Instant::now() + LIMIT;
        while Instant::now() < limit {
            if let Some((worker, event)) = self.step(limit).await?
                && let Some(found) = wanted(worker, &event)
            {
                return Ok(found);
            }
        }
        let trouble = self
            .trouble
            .as_deref()
            .unwrap_or("no worker reported trouble");
        Err(Stop::Failed(
            format!(
                "{what} did not come within {} s ({trouble})",
                LIMIT.as_secs()
            )
            .into(),
        ))
    }

    /// Handles one event, if one comes soon, and shows the current state.
    pub(crate) async fn step(&mut self, end: Instant) -> Result<Option<(usize, Event)>, Stop> {
        self.screen.show(&mut self.stats, self.fleet.states());
        let soon = end.min(Instant::now() + Duration::from_millis(50));
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => Err(Stop::Interrupted),
            _ = self.terminate.recv() => Err(Stop::Interrupted),
            heard = self.fleet.next() => match heard {
                None => Err(Stop::Failed("all workers have ended".into())),
                Some(heard) => match heard.event {
                    Some(event) => {
                        self.note(heard.worker, &event);
                        Ok(Some((heard.worker, event)))
                    }
                    None if self.fleet.state(heard.worker) == State::Killed => Ok(None),
                    None => Err(self.ended_early(heard.worker).await),
                },
            },
            () = tokio::time::sleep_until(soon.into()) => Ok(None),
        }
    }

    /// Stops the workers and handles their remaining events, up to the end of their outputs.
    pub(crate) async fn finish(&mut self) -> Result<(), Stop> {
        self.fleet.stop().await;
        let last = async {
            while let Some(heard) = self.fleet.next().await {
                if let Some(event) = heard.event {
                    self.stats.note(heard.worker, &event);
                }
            }
        };
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => return Err(Stop::Interrupted),
            _ = self.terminate.recv() => return Err(Stop::Interrupted),
            ended = tokio::time::timeout(LIMIT, last) => ended.map_err(|_| "the workers do not stop")?,
        }
        for worker in 0..WORKERS {
            let status = self.fleet.ended(worker).await?;
            if self.fleet.state(worker) != State::Killed && !status.success() {
                return Err(Stop::Failed(
                    format!("process {} failed: {status}", worker + 1).into(),
                ));
            }
        }
        self.screen.last(&mut self.stats, self.fleet.states());
        Ok(())
    }

    fn note(&mut self, worker: usize, event: &Event) {
        self.stats.note(worker, event);
        if let Event::Trouble(text) = event {
            let text = format!("process {}: {text}", worker + 1);
            // One line for the first error; a dead server causes hundreds.
            if self.trouble.is_none() {
                self.screen.note(&text);
                self.trouble = Some(text);
            }
        }
    }

    async fn ended_early(&mut self, worker: usize) -> Stop {
        let status = self
            .fleet
            .ended(worker)
            .await
            .map_or_else(|error| error.to_string(), |status| status.to_string());
        let trouble = self.trouble.as_deref().unwrap_or("it said nothing");
        Stop::Failed(format!("process {} ended early, {status} ({trouble})", worker + 1).into())
    }
}
