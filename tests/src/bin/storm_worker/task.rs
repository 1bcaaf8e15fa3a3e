//! One task: a loop that takes a lock, works under it and releases it, in another way each time.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, Guard, Owner, Release};
use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::{Mode, Outcome, Recorder, What, micros, now, valid_until};
use leasehold_testkit::storm::{LEASE, LOCKS};
use tokio::time::{sleep, timeout};

use crate::Worker;

/// The task's own state.
struct Task {
    worker: Arc<Worker>,
    recorder: Recorder,
    chance: Chance,
    owner: Owner,
}

/// The outcome of an attempt.
enum Taken {
    /// The call, its guard, and whether this task's owner has it, so that it nests.
    Yes(u64, Guard, bool),
    No,
    Failed,
}

/// Runs until the storm is over.
pub(crate) async fn run(worker: Arc<Worker>, recorder: Recorder, chance: Chance) {
    let owner = worker.locks.owner();
    let mut task = Task {
        worker,
        recorder,
        chance,
        owner,
    };
    while !task.worker.is_over() {
        let lock = task.chance.below(LOCKS.len() as u64) as usize;
        match task.take(lock).await {
            Taken::Yes(call, guard, nests) => task.hold(lock, call, guard, nests).await,
            Taken::No => {}
            // Limits the load of retries while the server is down.
            Taken::Failed => sleep(Duration::from_millis(20)).await,
        }
        let rest = task.chance.millis(0, 4);
        sleep(rest).await;
    }
}

impl Task {
    /// Requests a lock in one of the possible ways.
    async fn take(&mut self, lock: usize) -> Taken {
        let key = LOCKS[lock];
        let way = self.chance.below(100);
        let time = self.chance.millis(0, 1_500);
        let (waits, bound) = match way {
            0..15 => (false, None),
            15..40 => (true, Some(time)),
            _ => (true, None),
        };
        let call = self.recorder.invoke(key, Mode::Exclusive, waits, bound);
        let ended = tokio::select! {
            ended = self.attempt(way, key, time) => ended,
            () = self.worker.give_up.notified() => None,
        };
        let Some(taken) = ended else {
            self.recorder.record(What::Cancel { call });
            return Taken::No;
        };
        let why = match taken {
            Ok(Some(guard)) => return Taken::Yes(call, guard, (60..70).contains(&way)),
            Ok(None) => "held by another".to_owned(),
            Err(error) => error.to_string(),
        };
        let failed = why != "held by another";
        self.recorder.record(What::Fail { call, why });
        if failed { Taken::Failed } else { Taken::No }
    }

    /// The attempt itself; `None` if it was given up.
    async fn attempt(
        &self,
        way: u64,
        key: &str,
        time: Duration,
    ) -> Option<Result<Option<Guard>, Error>> {
        let mutex = self.worker.locks.mutex(key);
        Some(match way {
            0..15 => mutex.try_lock().await,
            15..40 => mutex.try_lock_for(time).await,
            // Dropped at whichever await point it has reached.
            40..50 => {
                let taken = timeout(time / 20, mutex.lock().into_future()).await;
                taken.ok()?.map(Some)
            }
            50..60 => mutex.lock().lease(LEASE).await.map(Some),
            60..70 => self.owner.mutex(key).lock().await.map(Some),
            _ => mutex.lock().await.map(Some),
        })
    }

    /// Works under a lock and releases it.
    async fn hold(&mut self, lock: usize, call: u64, guard: Guard, nests: bool) {
        let hold = guard.id().to_owned();
        let mut until = self.record_grant(call, &hold, &guard);
        let token = guard.token().as_u64();
        let ledger = self.worker.ledgers[lock].clone();

        let begun = ledger.begin(token, &hold).await;
        if begun.is_err() && guard.is_held() {
            println!(
                "CONTRADICTION {hold} holds {} with token {token}: {begun:?}",
                LOCKS[lock]
            );
        }
        let nested = if nests {
            self.nest(lock, &hold).await
        } else {
            None
        };
        let work = if let Some(time) = self.worker.lingers(LOCKS[lock]) {
            time
        } else if self.chance.below(400) == 0 {
            // Long enough to need renewals, and rare, because all others wait.
            LEASE * 3 / 2
        } else {
            self.chance.millis(0, 3)
        };
        self.work(&guard, &hold, work, &mut until).await;
        if let Some(nested) = nested {
            self.recorder.record(What::Drop { hold: hold.clone() });
            drop(nested);
        }
        // Without a check of `is_held`: the ledger has to refuse a stale write.
        if let Ok(value) = begun {
            let since = now();
            let written = ledger.write(token, &hold, value + 1).await;
            if written.is_err() && guard.is_held() {
                println!(
                    "CONTRADICTION {hold} holds {} with token {token}: {written:?}",
                    LOCKS[lock]
                );
            }
            let (key, accepted) = (LOCKS[lock].to_owned(), written.is_ok());
            self.recorder.record(What::Use {
                key,
                hold: hold.clone(),
                token,
                since,
                accepted,
            });
        }
        self.let_go(guard, hold).await;
    }

    fn record_grant(&self, call: u64, hold: &str, guard: &Guard) -> u64 {
        let until = valid_until(|| guard.valid_for());
        self.recorder.record(What::Ok {
            call,
            hold: hold.into(),
            token: guard.token().as_u64(),
            valid_until: until,
        });
        until
    }

    /// The same lock once more, under the same hold.
    async fn nest(&self, lock: usize, hold: &str) -> Option<Guard> {
        let call = self
            .recorder
            .invoke(LOCKS[lock], Mode::Exclusive, false, None);
        match self.owner.mutex(LOCKS[lock]).try_lock().await {
            Ok(Some(guard)) => {
                self.record_grant(call, hold, &guard);
                Some(guard)
            }
            Ok(None) => {
                self.recorder.record(What::Fail {
                    call,
                    why: "held by another".into(),
                });
                None
            }
            Err(error) => {
                self.recorder.record(What::Fail {
                    call,
                    why: error.to_string(),
                });
                None
            }
        }
    }

    /// Passes the time under the lock; notes renewals, and ends early with a loss.
    async fn work(&self, guard: &Guard, hold: &str, time: Duration, until: &mut u64) {
        let end = now() + micros(time);
        while now() < end {
            let pause =
                Duration::from_micros(end.saturating_sub(now())).min(Duration::from_millis(50));
            let lost = timeout(pause, guard.lost()).await;
            if let Ok(reason) = lost {
                self.recorder.record(What::Lost {
                    hold: hold.into(),
                    reason: reason.to_string(),
                });
                return;
            }
            let valid = valid_until(|| guard.valid_for());
            // Smaller differences come from reading two clocks.
            if valid > *until + 50_000 {
                *until = valid;
                // A guard trusts 99 per cent of a lease less 2 ms, counted from the sending of the
                // renewal.
                let sent = valid - (micros(LEASE) * 99 / 100 - 2_000);
                self.recorder.record(What::RenewOk {
                    hold: hold.into(),
                    sent,
                    valid_until: valid,
                });
            }
        }
    }

    async fn let_go(&mut self, guard: Guard, hold: String) {
        if self.chance.percent(50) {
            self.recorder.record(What::Drop { hold });
            drop(guard);
            return;
        }
        self.recorder
            .record(What::ReleaseInvoke { hold: hold.clone() });
        let outcome = match guard.release().await {
            Ok(Release::Released) => Outcome::Released,
            Ok(Release::AlreadyGone) => Outcome::AlreadyGone,
            Ok(other) => panic!("the last guard of {hold} was released, and it is {other:?}"),
            Err(error) => unknown(&error),
        };
        self.recorder.record(What::ReleaseOk { hold, outcome });
    }
}

/// After any error the release may have been executed.
fn unknown(error: &Error) -> Outcome {
    assert!(
        !error.key().is_empty(),
        "an error that does not say which key: {error}"
    );
    Outcome::Unknown
}
