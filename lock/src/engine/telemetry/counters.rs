//! The counters behind [`Stats`].

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{ErrorKind, KINDS, LostReason, REASONS};
use crate::observer::{GaveUpReason, Way};
use crate::stats::Stats;

/// Counts of events so far. Gauges are differences, so that a lock that is taken and released costs three additions.
#[derive(Debug, Default)]
pub(super) struct Counters {
    begun: AtomicU64,
    ways: [AtomicU64; Way::ALL.len()],
    not_free: AtomicU64,
    timed_out: AtomicU64,
    cancelled: AtomicU64,
    errors: [AtomicU64; KINDS],
    released: AtomicU64,
    lost: [AtomicU64; REASONS],
    pub(super) renewals: AtomicU64,
    pub(super) late_renewals: AtomicU64,
    pub(super) failed_renewals: AtomicU64,
    pub(super) reconnects: AtomicU64,
    pub(super) map_changes: AtomicU64,
    pub(super) untold: AtomicU64,
}

impl Counters {
    pub(super) fn began(&self) {
        one_more(&self.begun);
    }

    pub(super) fn granted(&self, way: Way) {
        one_more(&self.ways[way as usize]);
    }

    pub(super) fn gave_up(&self, reason: GaveUpReason) {
        one_more(match reason {
            GaveUpReason::NotFree => &self.not_free,
            GaveUpReason::TimedOut => &self.timed_out,
            GaveUpReason::Cancelled => &self.cancelled,
            GaveUpReason::Failed(kind) => self.error(kind),
        });
    }

    pub(super) fn ended(&self, reason: LostReason) {
        one_more(match reason {
            LostReason::Released => &self.released,
            reason => &self.lost[reason.index()],
        });
    }

    const fn error(&self, kind: ErrorKind) -> &AtomicU64 {
        &self.errors[kind.index()]
    }

    /// Ends before beginnings: what is under way counts as such, and no gauge is below zero for long.
    pub(super) fn read(&self, requests: u64) -> Stats {
        let lost = from_fn(|at| get(&self.lost[at]));
        let released = get(&self.released);
        let ways = from_fn(|at| get(&self.ways[at]));
        let errors = from_fn(|at| get(&self.errors[at]));
        Stats {
            lost,
            released,
            ways,
            errors,
            not_free: get(&self.not_free),
            timed_out: get(&self.timed_out),
            cancelled: get(&self.cancelled),
            begun: get(&self.begun),
            renewals: get(&self.renewals),
            late_renewals: get(&self.late_renewals),
            failed_renewals: get(&self.failed_renewals),
            reconnects: get(&self.reconnects),
            map_changes: get(&self.map_changes),
            requests,
            untold: get(&self.untold),
        }
    }
}

pub(super) fn one_more(counter: &AtomicU64) {
    // An end is counted behind its beginning also for other threads.
    counter.fetch_add(1, Ordering::Release);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Acquire)
}
