//! The thread that tells observers what happens by itself. The tasks of connections and the renewals must not wait for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Observers;
use crate::error::LostReason;
use crate::observer::{LeaseLost, MapChanged, Primitive, Reconnected, RenewalFailed, Renewed};
use crate::state::names::Name;

/// Events that wait for a slow observer. Losses wait in any case: there are no more of them than holds.
const QUEUE: usize = 1024;

/// An event of a hold.
#[derive(Debug)]
pub(super) struct OfHold {
    pub(super) acquisition: u64,
    pub(super) name: Arc<Name>,
    pub(super) primitive: Primitive,
    pub(super) what: What,
}

/// The event.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Renewed { lease: Duration, late: Duration },
    RenewalFailed { left: Duration },
    Lost { reason: LostReason, held: Duration },
}

/// An event that is told on the thread.
#[derive(Debug)]
pub(super) enum Event {
    Hold(OfHold),
    Map(MapChanged),
    Reconnected {
        server: Arc<str>,
        after: Duration,
        for_renewals: bool,
    },
}

/// The way to the thread, which ends with it.
#[derive(Debug, Default)]
pub(super) struct Teller {
    /// Absent until there is something to tell; `None` in it if the thread could not be started.
    queue: OnceLock<Option<Sender<Event>>>,
    /// How many events wait.
    waiting: Arc<AtomicUsize>,
}

impl Teller {
    /// Has `event` told. Returns false if it cannot be: too many wait, or there is no thread.
    pub(super) fn tell(&self, observers: &Observers, event: Event) -> bool {
        let queue = self
            .queue
            .get_or_init(|| start(observers.clone(), &self.waiting));
        let Some(queue) = queue else {
            return false;
        };
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= QUEUE && !event.is_loss() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        queue.send(event).is_ok()
    }
}

impl Event {
    const fn is_loss(&self) -> bool {
        matches!(
            self,
            Self::Hold(OfHold {
                what: What::Lost { .. },
                ..
            })
        )
    }
}

fn start(observers: Observers, waiting: &Arc<AtomicUsize>) -> Option<Sender<Event>> {
    let (queue, events) = channel();
    let waiting = Arc::clone(waiting);
    let thread = std::thread::Builder::new().name("leasehold-observer".into());
    let started = thread.spawn(move || tell_all(&observers, &events, &waiting));
    started.ok().map(|_| queue)
}

fn tell_all(observers: &Observers, events: &Receiver<Event>, waiting: &AtomicUsize) {
    while let Ok(event) = events.recv() {
        waiting.fetch_sub(1, Ordering::Relaxed);
        match &event {
            Event::Hold(of_hold) => tell_of_hold(observers, of_hold),
            Event::Map(changed) => observers.each(|observer| observer.map_changed(changed)),
            Event::Reconnected {
                server,
                after,
                for_renewals,
            } => {
                let reconnected = Reconnected {
                    server,
                    after: *after,
                    for_renewals: *for_renewals,
                };
                observers.each(|observer| observer.reconnected(&reconnected));
            }
        }
    }
}

fn tell_of_hold(observers: &Observers, of_hold: &OfHold) {
    let OfHold {
        acquisition,
        ref name,
        primitive,
        what,
    } = *of_hold;
    let key = name.key();
    match what {
        What::Renewed { lease, late } => {
            let renewed = Renewed {
                acquisition,
                key,
                primitive,
                lease,
                late,
            };
            observers.each(|observer| observer.renewed(&renewed));
        }
        What::RenewalFailed { left } => {
            let failed = RenewalFailed {
                acquisition,
                key,
                primitive,
                left,
            };
            observers.each(|observer| observer.renewal_failed(&failed));
        }
        What::Lost { reason, held } => {
            let lost = LeaseLost {
                acquisition,
                key,
                primitive,
                reason,
                held,
            };
            observers.each(|observer| observer.lost(&lost));
        }
    }
}
