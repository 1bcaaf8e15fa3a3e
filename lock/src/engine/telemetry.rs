//! Events of locks, counted for [`Stats`] and told to observers.
//!
//! Without observers it counts, and reads no clock. Nothing here is called under a mutex of this library.

mod counters;
mod life;
mod teller;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_cluster::{Change, Monitor};

use super::clock::Clock;
use super::home::Home;
use crate::error::{Error, LostReason};
use crate::observer::{
    GaveUp, GaveUpReason, Granted, MapChanged, Observer, Primitive, Released, Waiting, Way,
};
use crate::state::names::Name;
use crate::state::token::FencingToken;
use crate::stats::Stats;
use counters::{Counters, one_more};
use life::Begun;
pub(crate) use life::Life;
use teller::{Event, OfHold, Teller, What};

/// A renewal that is confirmed later than planned by this part of its lease counts as late: half of the lease has passed then.
const LATE_PART: u32 = 6;

/// The number of the next acquisition that observers are told of.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The observers that were registered.
#[derive(Clone)]
pub(crate) struct Observers(Arc<[Arc<dyn Observer>]>);

/// Counts, and tells.
pub(crate) struct Telemetry {
    counters: Counters,
    /// `None` if nobody is to be told.
    observers: Option<Observers>,
    teller: Teller,
    home: Home,
    clock: Clock,
    database: u32,
    /// Of the connections for everything but renewals.
    main: Arc<Monitor>,
    renewing: Arc<Monitor>,
}

/// The subject of an event: a hold as observers know it.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a Arc<Name>,
    pub(crate) primitive: Primitive,
    pub(crate) life: &'a Life,
}

/// A caller that waits. Dropping it tells that it is gone.
pub(crate) struct Caller<'a> {
    telemetry: &'a Telemetry,
    name: &'a Name,
    primitive: Primitive,
    /// If there are observers.
    begun: Option<Begun>,
    server: Option<Arc<str>>,
    is_open: bool,
}

impl Observers {
    pub(crate) fn new(observers: &[Arc<dyn Observer>]) -> Option<Self> {
        (!observers.is_empty()).then(|| Self(observers.into()))
    }

    /// Tells each of them. One that panics keeps nothing from the others.
    fn each(&self, tell: impl Fn(&dyn Observer)) {
        for observer in self.0.iter() {
            let _ = catch_unwind(AssertUnwindSafe(|| tell(&**observer)));
        }
    }
}

impl Telemetry {
    /// Telemetry of locks in the database with this number.
    pub(crate) fn new(observers: Option<Observers>, database: u32, clock: Clock) -> Arc<Self> {
        Arc::new_cyclic(|itself| {
            let monitor = |for_renewals| {
                let telemetry: Weak<Self> = itself.clone();
                Arc::new(Monitor::new(move |change| {
                    if let Some(telemetry) = telemetry.upgrade() {
                        telemetry.changed(change, for_renewals);
                    }
                }))
            };
            Self {
                counters: Counters::default(),
                observers,
                teller: Teller::default(),
                home: Home::here(),
                clock,
                database,
                main: monitor(false),
                renewing: monitor(true),
            }
        })
    }

    /// The clock that waits and holds are measured by.
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The monitor of the connections for everything but renewals.
    pub(crate) fn monitor(&self) -> Arc<Monitor> {
        Arc::clone(&self.main)
    }

    /// That of the connections for renewals.
    pub(crate) fn renewing_monitor(&self) -> Arc<Monitor> {
        Arc::clone(&self.renewing)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.counters
            .read(self.main.requests() + self.renewing.requests())
    }

    /// A caller begins to wait. `server` names the server that has the key, for observers.
    pub(crate) fn caller<'a>(
        &'a self,
        name: &'a Name,
        primitive: Primitive,
        server: impl FnOnce() -> Option<Arc<str>>,
    ) -> Caller<'a> {
        self.counters.began();
        let mut caller = Caller {
            telemetry: self,
            name,
            primitive,
            begun: None,
            server: None,
            is_open: true,
        };
        if let Some(observers) = self.observers() {
            let acquisition = NEXT.fetch_add(1, Ordering::Relaxed);
            caller.server = server();
            let waiting = Waiting {
                acquisition,
                key: name.key(),
                primitive,
                server: caller.server.as_deref().unwrap_or_default(),
                database: self.database,
            };
            caller.begun = Some(Begun {
                acquisition,
                since: self.clock.now(),
            });
            observers.each(|observer| observer.waiting(&waiting));
        }
        caller
    }

    /// A hold is over. Told once, and only if its grant was.
    pub(crate) fn ended(&self, subject: Subject<'_>, reason: LostReason, forgotten: bool) {
        if subject.life.end() {
            self.tell_end(subject, reason, forgotten);
        }
    }

    fn tell_end(&self, subject: Subject<'_>, reason: LostReason, forgotten: bool) {
        self.counters.ended(reason);
        let Some((observers, begun)) = self.observers().zip(subject.life.begun()) else {
            return;
        };
        let held = self.clock.now().saturating_duration_since(begun.since);
        if reason != LostReason::Released {
            return self.tell(observers, subject, begun, What::Lost { reason, held });
        }
        let released = Released {
            acquisition: begun.acquisition,
            key: subject.name.key(),
            primitive: subject.primitive,
            held,
            forgotten,
        };
        observers.each(|observer| observer.released(&released));
    }

    /// A renewal for `lease` was confirmed, so much later than planned.
    pub(crate) fn renewed(&self, subject: Subject<'_>, lease: Duration, late: Duration) {
        one_more(&self.counters.renewals);
        if late >= lease / LATE_PART {
            one_more(&self.counters.late_renewals);
        }
        if let Some((observers, begun)) = self.observers().zip(subject.life.begun()) {
            self.tell(observers, subject, begun, What::Renewed { lease, late });
        }
    }

    /// A renewal failed, and is tried again while there is something `left`.
    pub(crate) fn renewal_failed(&self, subject: Subject<'_>, left: Duration) {
        one_more(&self.counters.failed_renewals);
        if let Some((observers, begun)) = self.observers().zip(subject.life.begun()) {
            self.tell(observers, subject, begun, What::RenewalFailed { left });
        }
    }

    fn changed(&self, change: Change, for_renewals: bool) {
        let event = match change {
            // Both find the same map; it is one change.
            Change::Map { .. } if for_renewals => return,
            Change::Map { masters } => {
                one_more(&self.counters.map_changes);
                Event::Map(MapChanged { masters })
            }
            Change::Reconnected { node, after } => {
                one_more(&self.counters.reconnects);
                Event::Reconnected {
                    server: node,
                    after,
                    for_renewals,
                }
            }
            _ => return,
        };
        if let Some(observers) = self.observers() {
            self.send(observers, event);
        }
    }

    fn tell(&self, observers: &Observers, subject: Subject<'_>, begun: Begun, what: What) {
        let event = OfHold {
            acquisition: begun.acquisition,
            name: Arc::clone(subject.name),
            primitive: subject.primitive,
            what,
        };
        self.send(observers, Event::Hold(event));
    }

    fn send(&self, observers: &Observers, event: Event) {
        if !self.teller.tell(observers, event) {
            one_more(&self.counters.untold);
        }
    }

    /// The observers, unless this process was forked from theirs.
    fn observers(&self) -> Option<&Observers> {
        self.observers
            .as_ref()
            .filter(|_| !self.home.is_elsewhere())
    }
}

impl Caller<'_> {
    /// The caller has what it waited for, and there is no new hold.
    pub(crate) fn opened(mut self, way: Way) {
        self.tell_grant(way, None);
    }

    /// The caller has it as a new hold. `over` tells whether that has ended meanwhile.
    pub(crate) fn granted(
        mut self,
        way: Way,
        token: Option<FencingToken>,
        subject: Subject<'_>,
        over: impl FnOnce() -> Option<LostReason>,
    ) {
        if let Some(begun) = self.tell_grant(way, token) {
            subject.life.note(begun);
        }
        if !subject.life.begin() {
            let reason = over().unwrap_or(LostReason::Released);
            self.telemetry.tell_end(subject, reason, false);
        }
    }

    /// The wait for a latch or a barrier is over: `is_open` tells what that means, unless there was an error.
    pub(crate) fn waited<T>(self, outcome: &Result<T, Error>, is_open: impl FnOnce(&T) -> bool) {
        match outcome {
            Ok(outcome) if is_open(outcome) => self.opened(Way::Opened),
            Ok(_) => self.gave_up(GaveUpReason::TimedOut),
            Err(error) => self.failed(error),
        }
    }

    /// The caller does not get it.
    pub(crate) fn gave_up(mut self, reason: GaveUpReason) {
        self.tell_gave_up(reason);
    }

    /// The same because of an error.
    pub(crate) fn failed(self, error: &Error) {
        self.gave_up(GaveUpReason::Failed(error.kind()));
    }

    /// Returns the hold's beginning, for observers.
    fn tell_grant(&mut self, way: Way, token: Option<FencingToken>) -> Option<Begun> {
        self.is_open = false;
        let Telemetry {
            counters, database, ..
        } = self.telemetry;
        counters.granted(way);
        let (observers, begun) = self.telemetry.observers().zip(self.begun)?;
        let now = self.telemetry.clock.now();
        let granted = Granted {
            acquisition: begun.acquisition,
            key: self.name.key(),
            primitive: self.primitive,
            way,
            waited: now.saturating_duration_since(begun.since),
            token,
            server: self.server.as_deref().unwrap_or_default(),
            database: *database,
        };
        observers.each(|observer| observer.granted(&granted));
        Some(Begun {
            since: now,
            ..begun
        })
    }

    fn tell_gave_up(&mut self, reason: GaveUpReason) {
        self.is_open = false;
        self.telemetry.counters.gave_up(reason);
        if let Some((observers, begun)) = self.telemetry.observers().zip(self.begun) {
            let now = self.telemetry.clock.now();
            let gave_up = GaveUp {
                acquisition: begun.acquisition,
                key: self.name.key(),
                primitive: self.primitive,
                reason,
                waited: now.saturating_duration_since(begun.since),
            };
            observers.each(|observer| observer.gave_up(&gave_up));
        }
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.tell_gave_up(GaveUpReason::Cancelled);
        }
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observers").field(&self.0.len()).finish()
    }
}
