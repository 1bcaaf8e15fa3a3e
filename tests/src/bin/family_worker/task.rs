//! One task: a loop that takes something, keeps it for a while and gives it back, in another way each time.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Backoff, Error, Release, WriteGuard};
use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::{Mode, Outcome, Part, Recorder, What, micros, now, valid_until};
use leasehold_testkit::storm::{self, FAIR, LEASE, PARTS, PERMITS, PLAIN, POOL, RED, RW};
use tokio::time::{sleep, timeout};

use crate::Worker;
use crate::held::Held;
use crate::meeting;

struct Task {
    worker: Arc<Worker>,
    recorder: Recorder,
    chance: Chance,
    number: u64,
    /// How often something was asked for, for the names of holds.
    asked: u64,
}

/// How something is asked for.
#[derive(Clone, Copy)]
enum Way {
    Try,
    For(Duration),
    Wait,
    /// Dropped at whichever await point it has reached by then.
    Cancel(Duration),
}

/// The request: a key and its mode for each claim.
type Claims = Vec<(&'static str, Mode)>;

/// Something that was asked for, with the numbers of the calls and the names of the holds.
struct Asked {
    claims: Claims,
    parts: Vec<Part>,
}

/// Something that is held, with the names of the holds.
struct Holding {
    held: Held,
    holds: Vec<String>,
    until: u64,
}

/// The outcome of a request.
enum Taken {
    Yes(Held),
    No,
    Failed(Error),
    Cancelled,
}

/// Asks a handle in one of the ways; its methods are named.
macro_rules! ask {
    ($way:expr, $handle:expr, $try:ident, $for:ident, $wait:ident $(, $what:expr)* $(; $how:ident($($with:expr)?))?) => {{
        let handle = $handle;
        let taken = match $way {
            Way::Try => Some(handle.$try($($what),*)$(.$how($($with)?))?.await),
            Way::For(time) => Some(handle.$for($($what,)* time)$(.$how($($with)?))?.await),
            Way::Wait => Some(handle.$wait($($what),*)$(.$how($($with)?))?.await.map(Some)),
            Way::Cancel(time) => {
                let waits = timeout(time, handle.$wait($($what),*)$(.$how($($with)?))?.into_future());
                waits.await.ok().map(|taken| taken.map(Some))
            }
        };
        match taken {
            Some(Ok(Some(held))) => Taken::Yes(Held::from(held)),
            Some(Ok(None)) => Taken::No,
            Some(Err(error)) => Taken::Failed(error),
            None => Taken::Cancelled,
        }
    }};
}

/// Runs until the storm is over.
pub(crate) async fn run(worker: Arc<Worker>, recorder: Recorder, chance: Chance, number: u64) {
    let mut task = Task {
        worker,
        recorder,
        chance,
        number,
        asked: 0,
    };
    while !task.worker.is_over() {
        match task.chance.below(100) {
            0..20 => task.fair().await,
            20..25 => task.red().await,
            25..45 => task.read().await,
            45..58 => task.write().await,
            58..72 => task.permits().await,
            72..86 => task.multi().await,
            86..92 => task.plain().await,
            // Replicas confirm no arrivals.
            92..96 if task.worker.mode == storm::Mode::Fast => {
                meeting::barrier(&task.worker, &task.recorder, task.number).await;
            }
            _ => meeting::latch(&task.worker, &task.recorder, task.chance.below(u64::MAX)).await,
        }
        let rest = task.chance.millis(0, 4);
        sleep(rest).await;
    }
}

impl Task {
    async fn fair(&mut self) {
        let (asked, way) = self.ask(vec![(FAIR, Mode::Ordered)]);
        let mutex = self.worker.locks.fair_mutex(FAIR);
        let taken = ask!(way, mutex, try_lock, try_lock_for, lock);
        self.go_on(asked, taken).await;
    }

    async fn read(&mut self) {
        let (asked, way) = self.ask(vec![(RW, Mode::Shared)]);
        let taken = ask!(
            way,
            self.worker.locks.rw_lock(RW),
            try_read,
            try_read_for,
            read
        );
        self.go_on(asked, taken).await;
    }

    async fn write(&mut self) {
        let (asked, way) = self.ask(vec![(RW, Mode::Exclusive)]);
        let lock = self.worker.locks.rw_lock(RW);
        let taken = ask!(way, lock, try_write, try_write_for, write);
        self.go_on(asked, taken).await;
    }

    async fn permits(&mut self) {
        let count = 1 + self.chance.below(3) as u32;
        let (asked, way) = self.ask(vec![(POOL, Mode::Permit(PERMITS)); count as usize]);
        let pool = self.worker.locks.semaphore(POOL, PERMITS);
        let taken = ask!(
            way,
            pool,
            try_acquire_many,
            try_acquire_many_for,
            acquire_many,
            count
        );
        self.go_on(asked, taken).await;
    }

    /// Two of three locks, or one of them alone.
    async fn multi(&mut self) {
        let without = self.chance.below(3) as usize;
        let parts: Vec<_> = (0..3)
            .filter(|part| *part != without)
            .map(|part| PARTS[part])
            .collect();
        if self.chance.percent(30) {
            let (asked, way) = self.ask(vec![(parts[0], Mode::Exclusive)]);
            let mutex = self.worker.locks.mutex(parts[0]);
            let taken = if self.chance.percent(20) {
                let backoff = Backoff::default();
                ask!(way, mutex, try_lock, try_lock_for, lock; polling(backoff))
            } else {
                ask!(way, mutex, try_lock, try_lock_for, lock)
            };
            return self.go_on(asked, taken).await;
        }
        let claims = parts.iter().map(|part| (*part, Mode::Exclusive)).collect();
        let (asked, way) = self.ask(claims);
        let multi = self.worker.locks.multi(&parts);
        let taken = ask!(way, multi, try_lock, try_lock_for, lock);
        self.go_on(asked, taken).await;
    }

    async fn plain(&mut self) {
        let (asked, way) = self.ask(vec![(PLAIN, Mode::Exclusive)]);
        let mutex = self.worker.locks.plain_mutex(PLAIN);
        let taken = ask!(way, mutex, try_lock, try_lock_for, lock);
        self.go_on(asked, taken).await;
    }

    async fn red(&mut self) {
        let (asked, way) = self.ask(vec![(RED, Mode::Majority)]);
        let mutex = self.worker.red.mutex(RED);
        let taken = ask!(way, mutex, try_lock, try_lock_for, lock; fenced());
        self.go_on(asked, taken).await;
    }

    /// Chooses a way, and writes down that the claims are asked for.
    fn ask(&mut self, claims: Claims) -> (Asked, Way) {
        let time = self.chance.millis(0, 1_500);
        let way = match self.chance.below(100) {
            0..20 => Way::Try,
            20..45 => Way::For(time),
            45..55 => Way::Cancel(time / 20),
            _ => Way::Wait,
        };
        let (waits, bound) = match way {
            Way::Try => (false, None),
            Way::For(time) => (true, Some(time)),
            Way::Wait | Way::Cancel(_) => (true, None),
        };
        (self.asks(claims, waits, bound), way)
    }

    fn asks(&mut self, claims: Claims, waits: bool, bound: Option<Duration>) -> Asked {
        self.asked += 1;
        let (process, task, asked) = (std::process::id(), self.number, self.asked);
        let part = |index| Part {
            call: self.recorder.number(),
            hold: format!("{process}:{task}:{asked}:{index}"),
        };
        let parts: Vec<_> = (0..claims.len()).map(part).collect();
        self.recorder.record(What::Together {
            parts: parts.clone(),
        });
        for ((key, mode), part) in claims.iter().zip(&parts) {
            self.recorder.invokes(part.call, key, *mode, waits, bound);
        }
        Asked { claims, parts }
    }

    async fn go_on(&mut self, asked: Asked, taken: Taken) {
        match taken {
            Taken::Yes(held) => self.hold(asked, held).await,
            Taken::No => self.fails(asked, "held by others"),
            Taken::Failed(error) => {
                self.fails(asked, &error.to_string());
                // Limits the load of retries while a server is down.
                sleep(Duration::from_millis(20)).await;
            }
            Taken::Cancelled => {
                for Part { call, .. } in asked.parts {
                    self.recorder.record(What::Cancel { call });
                }
            }
        }
    }

    fn fails(&self, asked: Asked, why: &str) {
        for Part { call, .. } in asked.parts {
            let why = why.to_owned();
            self.recorder.record(What::Fail { call, why });
        }
    }

    /// Keeps what was granted for a while, and gives it back.
    async fn hold(&mut self, asked: Asked, held: Held) {
        let mut holding = self.granted(asked, held);
        let work = if self.chance.below(200) == 0 {
            // Long enough to need renewals, and rare, because all others wait.
            LEASE * 3 / 2
        } else {
            self.chance.millis(0, 3)
        };
        self.work(&mut holding, work).await;
        let holding = match holding.held {
            Held::Write(guard) if self.chance.percent(20) => {
                let Some(holding) = self.downgrade(guard, holding.holds).await else {
                    return;
                };
                holding
            }
            held => Holding { held, ..holding },
        };
        self.let_go(holding).await;
    }

    fn granted(&self, asked: Asked, held: Held) -> Holding {
        let until = valid_until(|| held.valid_for());
        let mut holds = Vec::new();
        for (Part { call, hold }, (key, _)) in asked.parts.into_iter().zip(asked.claims) {
            self.recorder.record(What::Ok {
                call,
                hold: hold.clone(),
                token: held.token(key),
                valid_until: until,
            });
            holds.push(hold);
        }
        Holding { held, holds, until }
    }

    /// Passes the time; notes renewals, and ends early with a loss.
    async fn work(&self, holding: &mut Holding, time: Duration) {
        let end = now() + micros(time);
        while now() < end {
            let pause = Duration::from_micros(end.saturating_sub(now()));
            sleep(pause.min(Duration::from_millis(50))).await;
            if holding.held.valid_for().is_zero() {
                for hold in &holding.holds {
                    self.recorder.record(What::Lost {
                        hold: hold.clone(),
                        reason: "it is not held any more".into(),
                    });
                }
                return;
            }
            let valid = valid_until(|| holding.held.valid_for());
            // Smaller differences come from reading two clocks.
            if valid > holding.until + 50_000 {
                holding.until = valid;
                // A guard trusts 99 per cent of a lease less 2 ms, counted from the sending of the renewal.
                let sent = valid - (micros(LEASE) * 99 / 100 - 2_000);
                for hold in &holding.holds {
                    self.recorder.record(What::RenewOk {
                        hold: hold.clone(),
                        sent,
                        valid_until: valid,
                    });
                }
            }
        }
    }

    /// A writer becomes a reader.
    async fn downgrade(&mut self, guard: WriteGuard, holds: Vec<String>) -> Option<Holding> {
        let asked = self.asks(vec![(RW, Mode::Shared)], false, None);
        for hold in holds {
            // Before the call: from then on there may be other readers.
            self.recorder.record(What::Drop { hold });
        }
        match guard.downgrade().await {
            Ok(guard) => Some(self.granted(asked, Held::Read(guard))),
            Err(error) => {
                self.fails(asked, &error.to_string());
                None
            }
        }
    }

    async fn let_go(&mut self, holding: Holding) {
        let Holding { held, holds, .. } = holding;
        if self.chance.percent(50) {
            for hold in holds {
                self.recorder.record(What::Drop { hold });
            }
            drop(held);
            return;
        }
        for hold in &holds {
            self.recorder
                .record(What::ReleaseInvoke { hold: hold.clone() });
        }
        let outcome = match held.release().await {
            // Readers of a process share a hold, which ends with the last of them.
            Ok(Release::Released | Release::StillHeld) => Outcome::Released,
            Ok(Release::AlreadyGone) => Outcome::AlreadyGone,
            Ok(_) | Err(_) => Outcome::Unknown,
        };
        for hold in holds {
            self.recorder.record(What::ReleaseOk { hold, outcome });
        }
    }
}
