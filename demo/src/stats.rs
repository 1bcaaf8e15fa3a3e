//! Statistics of the demo, from the events of all workers to the closing table.

use std::collections::HashMap;
use std::time::Instant;

use leasehold_testkit::ledger::Ledger;

use crate::LOCKS;
use crate::event::Event;

/// Statistics of all events so far.
pub(crate) struct Stats {
    locks: Vec<Lock>,
    /// Writes that the ledger refused because it had seen a newer token.
    refused: u64,
    /// The longest wait for a lock, in microseconds.
    longest_wait: u64,
    /// Counts of hand-offs at the ends of the last few ticks, for the current rate.
    ticks: Vec<(Instant, u64)>,
}

/// One lock.
#[derive(Default)]
struct Lock {
    /// Holds that have not ended, by worker and task. More than one after a holder was frozen or
    /// killed.
    open: HashMap<(usize, usize), Hold>,
    ended: Vec<Hold>,
    /// The hold with the highest token, and its holder.
    newest: Option<Holder>,
}

/// One acquisition of a lock and its end.
#[derive(Clone, Copy)]
struct Hold {
    worker: usize,
    token: u64,
    acquired: u64,
    /// Just before the release; absent if the holder lost the lock instead.
    releasing: Option<u64>,
}

/// The current or last holder of a lock.
#[derive(Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) worker: usize,
    pub(crate) task: usize,
    pub(crate) token: u64,
    pub(crate) holds: bool,
}

/// The result of a run. Times are microseconds.
pub(crate) struct Summary {
    /// Updates that the ledgers accepted.
    pub(crate) updates: u64,
    /// Number of times a lock passed to the next holder by a release.
    pub(crate) handoffs: u64,
    /// Number of times a lock passed to the next holder because its lease ran out.
    pub(crate) takeovers: u64,
    /// Accepted updates that another one overwrote.
    pub(crate) lost: u64,
    pub(crate) refused: u64,
    pub(crate) longest_wait: u64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    /// Number of hand-offs to another process, and their median.
    pub(crate) crossings: u64,
    pub(crate) crossing_p50: u64,
}

impl Stats {
    pub(crate) fn new() -> Self {
        Self {
            locks: LOCKS.iter().map(|_| Lock::default()).collect(),
            refused: 0,
            longest_wait: 0,
            ticks: vec![(Instant::now(), 0)],
        }
    }

    /// Counts an event of `worker`.
    pub(crate) fn note(&mut self, worker: usize, event: &Event) {
        match *event {
            Event::Holding {
                lock,
                task,
                token,
                at,
                waited,
            } => {
                self.longest_wait = self.longest_wait.max(waited);
                self.locks[lock].begin(
                    worker,
                    task,
                    Hold {
                        worker,
                        token,
                        acquired: at,
                        releasing: None,
                    },
                );
            }
            Event::Releasing { lock, task, at, .. } => self.locks[lock].end(worker, task, Some(at)),
            Event::Refused { lock, task, .. } => {
                self.refused += 1;
                self.locks[lock].end(worker, task, None);
            }
            Event::Lingering { .. } | Event::Trouble(_) => {}
        }
    }

    /// Locks taken so far.
    pub(crate) fn holds(&self) -> u64 {
        self.locks.iter().map(Lock::holds).sum()
    }

    /// Locks taken in the last second, counted over the ticks since the one before that second
    /// began.
    pub(crate) fn rate(&mut self, now: Instant) -> u64 {
        self.ticks.push((now, self.holds()));
        let old = self
            .ticks
            .iter()
            .rposition(|(at, _)| now.duration_since(*at).as_millis() >= 1000)
            .unwrap_or(0);
        self.ticks.drain(..old);
        let ((from, before), (_, after)) = (self.ticks[0], self.ticks[self.ticks.len() - 1]);
        let seconds = now.duration_since(from).as_secs_f64().max(0.1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let rate = ((after - before) as f64 / seconds) as u64;
        rate
    }

    pub(crate) fn holder(&self, lock: usize) -> Option<Holder> {
        self.locks[lock].newest
    }

    pub(crate) fn holds_of(&self, lock: usize) -> u64 {
        self.locks[lock].holds()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    pub(crate) fn longest_wait(&self) -> u64 {
        self.longest_wait
    }

    /// The result of the run. The ledgers know the updates, those of the killed process among them.
    pub(crate) fn summary(mut self, ledgers: &[Ledger]) -> Summary {
        let (mut latencies, mut crossings) = (Vec::new(), Vec::new());
        let mut takeovers = 0;
        for lock in &mut self.locks {
            // By token, which is the order of the grants at the server; the workers' pipes are not
            // synchronised.
            for pair in lock.in_order().windows(2) {
                let Some(releasing) = pair[0].releasing else {
                    takeovers += 1;
                    continue;
                };
                let latency = pair[1].acquired.saturating_sub(releasing);
                latencies.push(latency);
                if pair[0].worker != pair[1].worker {
                    crossings.push(latency);
                }
            }
        }
        latencies.sort_unstable();
        crossings.sort_unstable();
        Summary {
            updates: ledgers.iter().map(Ledger::writes).sum(),
            lost: ledgers.iter().map(Ledger::lost_updates).sum(),
            refused: ledgers.iter().map(Ledger::refused).sum(),
            handoffs: latencies.len() as u64,
            takeovers,
            longest_wait: self.longest_wait,
            p50: percentile(&latencies, 50),
            p99: percentile(&latencies, 99),
            crossings: crossings.len() as u64,
            crossing_p50: percentile(&crossings, 50),
        }
    }
}

impl Lock {
    fn begin(&mut self, worker: usize, task: usize, hold: Hold) {
        if self.newest.is_none_or(|newest| newest.token <= hold.token) {
            self.newest = Some(Holder {
                worker,
                task,
                token: hold.token,
                holds: true,
            });
        }
        self.open.insert((worker, task), hold);
    }

    fn end(&mut self, worker: usize, task: usize, releasing: Option<u64>) {
        let Some(hold) = self
            .open
            .remove(&(worker, task))
            .map(|hold| Hold { releasing, ..hold })
        else {
            return;
        };
        if let Some(newest) = self
            .newest
            .as_mut()
            .filter(|newest| newest.token == hold.token)
        {
            newest.holds = false;
        }
        self.ended.push(hold);
    }

    fn holds(&self) -> u64 {
        (self.open.len() + self.ended.len()) as u64
    }

    fn in_order(&mut self) -> &[Hold] {
        self.ended.extend(self.open.drain().map(|(_, hold)| hold));
        self.ended.sort_unstable_by_key(|hold| hold.token);
        &self.ended
    }
}

/// The nearest rank of a sorted list; 0 of an empty one.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or(0)
}
