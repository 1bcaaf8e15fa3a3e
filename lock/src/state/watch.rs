//! When the watchers of one name look at the server: a state machine without clocks or I/O.
//!
//! All watchers of a name in this process share one look. A message, a new subscription and a new watcher ask for one; without
//! any of them looks are a few seconds apart, so that a lost message delays nobody for longer.

use std::time::{Duration, Instant};

/// Without messages, looks are this far apart at first, and twice as far each time, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Looks are this far apart at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Pause after a look that failed.
const AFTER_FAILURE: Duration = Duration::from_millis(250);
/// The longest outage of the server that watchers sit out.
const OUTAGE: Duration = Duration::from_secs(30);
/// A look that takes longer is made by another watcher as well: the task of the first may be blocked, or polled no more.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pauses are shorter by up to as many per mille, to spread the looks of many processes.
pub(crate) const JITTER: u64 = 100;

/// The looks at one name.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Looks so far, which are numbered from 1.
    begun: u64,
    /// When the latest one began.
    begun_at: Option<Instant>,
    /// Those without an outcome.
    under_way: u32,
    /// Whether there is a reason to look that is younger than the latest look.
    wanted: bool,
    /// When to look without a reason.
    look_at: Option<Instant>,
    /// Looks in a row without a reason.
    idle: u32,
    /// Whether messages cannot be heard.
    is_deaf: bool,
    /// When the first of the latest looks began that all failed.
    failing_since: Option<Instant>,
}

/// When to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    At(Instant),
}

impl Watch {
    pub(crate) const fn new() -> Self {
        Self {
            begun: 0,
            begun_at: None,
            under_way: 0,
            wanted: false,
            look_at: None,
            idle: 0,
            is_deaf: false,
            failing_since: None,
        }
    }

    /// How many looks have begun. A watcher that starts now goes by later ones only.
    pub(crate) const fn begun(&self) -> u64 {
        self.begun
    }

    /// There is a reason to look.
    pub(crate) const fn want(&mut self) {
        self.wanted = true;
    }

    /// The subscription was confirmed, or refused.
    pub(crate) const fn hears(&mut self, hears: bool) {
        self.is_deaf = !hears;
        self.want();
    }

    /// A look is due at `at` at the latest.
    pub(crate) fn look_by(&mut self, at: Instant) {
        self.look_at = Some(self.look_at.map_or(at, |known| known.min(at)));
    }

    /// When the next look is due, as of `now`.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let at = match (self.under_way, self.begun_at) {
            (0, _) | (_, None) if self.wanted => return Due::Now,
            (0, _) | (_, None) => self.look_at.unwrap_or(now),
            // Each in vain lets the next one wait longer.
            (under_way, Some(begun_at)) => begun_at + PATIENCE * (1 << (under_way - 1).min(5)),
        };
        if at <= now { Due::Now } else { Due::At(at) }
    }

    /// A look begins. Returns its number.
    pub(crate) fn begin(&mut self, now: Instant) -> u64 {
        self.begun += 1;
        self.begun_at = Some(now);
        self.under_way += 1;
        if std::mem::take(&mut self.wanted) {
            self.idle = 0;
        }
        self.begun
    }

    /// A look was answered. `within` is when the next one is due at the latest, and `jitter` below [`JITTER`].
    pub(crate) fn answered(&mut self, now: Instant, within: Option<Duration>, jitter: u64) {
        self.under_way -= 1;
        self.failing_since = None;
        let doublings = if self.is_deaf { 0 } else { self.idle.min(3) };
        let pause = (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE);
        let pause = pause - pause * jitter.min(JITTER) as u32 / 1000;
        self.look_at = Some(now + within.map_or(pause, |within| within.min(pause)));
        self.idle = self.idle.saturating_add(1);
    }

    /// A look failed for a reason that may pass. Returns whether that has been so for too long.
    pub(crate) fn failed(&mut self, now: Instant) -> bool {
        self.under_way -= 1;
        let since = *self.failing_since.get_or_insert(now);
        self.look_at = Some(now + AFTER_FAILURE);
        now.saturating_duration_since(since) >= OUTAGE
    }

    /// A look was given up, by a watcher that goes.
    pub(crate) const fn abandoned(&mut self) {
        self.under_way -= 1;
        self.wanted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn watchers_share_a_look_and_reasons_that_come_meanwhile_make_one_more() {
        let (mut watch, now) = (Watch::new(), Instant::now());
        watch.want();
        assert_eq!(watch.due(now), Due::Now);
        assert_eq!(watch.begin(now), 1);
        assert_eq!(watch.due(now), Due::At(now + PATIENCE));
        for _ in 0..1_000 {
            watch.want();
        }
        assert_eq!(watch.due(now), Due::At(now + PATIENCE));
        watch.answered(now, None, 0);
        assert_eq!(watch.due(now), Due::Now);
        assert_eq!(watch.begin(now), 2);
        watch.answered(now, None, 0);
        assert_eq!(watch.due(now), Due::At(now + ms(1_000)));
    }

    #[test]
    fn without_messages_looks_get_rarer_and_stay_bounded() {
        let (mut watch, mut now) = (Watch::new(), Instant::now());
        watch.want();
        let mut pauses = Vec::new();
        for _ in 0..6 {
            watch.begin(now);
            watch.answered(now, None, 0);
            let Due::At(at) = watch.due(now) else {
                panic!("nothing is wanted");
            };
            pauses.push((at - now).as_secs());
            now = at;
            assert_eq!(watch.due(now), Due::Now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
        watch.hears(false);
        watch.begin(now);
        watch.answered(now, None, 0);
        watch.begin(now);
        watch.answered(now, None, 0);
        assert_eq!(watch.due(now), Due::At(now + FIRST_PAUSE), "it is deaf");
    }

    #[test]
    fn an_end_that_is_known_is_looked_at_in_time() {
        let (mut watch, now) = (Watch::new(), Instant::now());
        watch.begin(now);
        watch.answered(now, Some(ms(30)), 0);
        assert_eq!(watch.due(now), Due::At(now + ms(30)));
        watch.look_by(now + ms(20));
        watch.look_by(now + ms(40));
        assert_eq!(watch.due(now), Due::At(now + ms(20)));
    }

    #[test]
    fn a_look_that_hangs_is_made_by_others_ever_more_rarely() {
        let (mut watch, now) = (Watch::new(), Instant::now());
        watch.begin(now);
        assert_eq!(watch.due(now + ms(999)), Due::At(now + ms(1_000)));
        assert_eq!(watch.due(now + ms(1_000)), Due::Now);
        watch.begin(now + ms(1_000));
        assert_eq!(watch.due(now + ms(1_000)), Due::At(now + ms(3_000)));
        watch.abandoned();
        watch.abandoned();
        assert_eq!(watch.due(now + ms(1_000)), Due::Now);
    }

    #[test]
    fn an_outage_is_sat_out_for_so_long() {
        let (mut watch, now) = (Watch::new(), Instant::now());
        watch.begin(now);
        assert!(!watch.failed(now));
        assert_eq!(watch.due(now), Due::At(now + AFTER_FAILURE));
        watch.begin(now + ms(29_000));
        assert!(!watch.failed(now + ms(29_000)));
        watch.begin(now + ms(30_000));
        assert!(watch.failed(now + ms(30_000)));
        watch.begin(now + ms(30_001));
        watch.answered(now + ms(30_001), None, 0);
        watch.begin(now + ms(31_000));
        assert!(!watch.failed(now + ms(31_000)));
    }
}
