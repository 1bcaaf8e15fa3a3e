//! When the entry of this process on the server is written, kept and removed: a state machine without time or I/O.

use std::time::{Duration, Instant};

use super::deadline::MAX_LEASE;

/// How often the entry is refreshed.
const REFRESH: Duration = Duration::from_secs(30);
/// How long it lasts at least: two refreshes may fail. It lasts as long as the longest lease here, so that it tells whose a
/// lock is for as long as its holder may be dead.
const SHORTEST: Duration = Duration::from_secs(90);
/// When a request for it that failed is repeated.
const RETRY: Duration = Duration::from_secs(10);
/// A refresh that is late by this is made by whoever takes something: there may be no worker.
const LATE: Duration = Duration::from_secs(5);

/// The entry of this process.
#[derive(Debug)]
pub(crate) struct Presence {
    phase: Phase,
    /// The longest lease that was taken.
    longest: Duration,
    /// Whether the server may have it.
    is_written: bool,
    is_closing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// To be written when something is taken.
    Idle,
    /// To be refreshed at this instant if anything is held or waited for then.
    Due(Instant),
    /// A request is under way, by which it lasts so long.
    Asking(Duration),
    /// The user has no right to it.
    Refused,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// For good.
    Refused,
    Failed,
}

/// The work left at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    Nothing,
    /// A request is under way.
    Wait,
    /// To be removed, which begins with this.
    Remove,
}

impl Presence {
    pub(crate) const fn new() -> Self {
        Self {
            phase: Phase::Idle,
            longest: Duration::ZERO,
            is_written: false,
            is_closing: false,
        }
    }

    /// Something was taken for this long, or is waited for. Returns for how long the entry is to be written, which begins with
    /// this.
    pub(crate) fn used(&mut self, now: Instant, lease: Duration) -> Option<Duration> {
        let is_longer = lease > self.longest.max(SHORTEST);
        self.longest = self.longest.max(lease);
        let is_due = match self.phase {
            Phase::Idle => true,
            Phase::Due(at) => is_longer || now >= at + LATE,
            Phase::Asking(_) | Phase::Refused => false,
        };
        (is_due && !self.is_closing).then(|| self.write())
    }

    /// The longest lease of uses that need not be told until an instant; `None` if all must be told.
    pub(crate) fn knows(&self) -> Option<(Duration, Option<Instant>)> {
        let until = match self.phase {
            _ if self.is_closing => None,
            Phase::Idle => return None,
            Phase::Due(at) => Some(at + LATE),
            Phase::Asking(_) | Phase::Refused => None,
        };
        let longest = match self.phase {
            Phase::Refused => MAX_LEASE,
            _ => self.longest.max(SHORTEST),
        };
        Some((longest, until))
    }

    /// When to look whether it has to be refreshed.
    pub(crate) const fn next_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Due(at) if !self.is_closing => Some(at),
            _ => None,
        }
    }

    /// For how long the entry is to be refreshed, if that is due; it begins with this. `is_busy` if anything is held or waited
    /// for.
    pub(crate) fn refresh(&mut self, now: Instant, is_busy: bool) -> Option<Duration> {
        if self.next_at().is_none_or(|at| at > now) {
            return None;
        }
        if !is_busy {
            // It ends by itself.
            self.phase = Phase::Idle;
            return None;
        }
        Some(self.write())
    }

    fn write(&mut self) -> Duration {
        let lasts = self.longest.max(SHORTEST);
        self.phase = Phase::Asking(lasts);
        self.is_written = true;
        lasts
    }

    /// The request that began has this outcome. `retries` if whoever made it comes back to it.
    pub(crate) fn answered(&mut self, outcome: Outcome, now: Instant, retries: bool) {
        let Phase::Asking(lasts) = self.phase else {
            return;
        };
        self.phase = match outcome {
            // Meanwhile something was taken for longer.
            Outcome::Done if lasts < self.longest => Phase::Idle,
            Outcome::Done => Phase::Due(now + REFRESH),
            Outcome::Failed if retries => Phase::Due(now + RETRY),
            Outcome::Failed => Phase::Due(now),
            Outcome::Refused => Phase::Refused,
        };
        self.is_written &= outcome != Outcome::Refused;
    }

    /// The server may be another one, which does not have it.
    pub(crate) fn doubt(&mut self, now: Instant) {
        if let Phase::Due(at) = &mut self.phase {
            *at = now.min(*at);
        }
    }

    /// It is not written any more.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
    }

    /// The work left once it is closed.
    pub(crate) fn leave(&mut self) -> Leave {
        if matches!(self.phase, Phase::Asking(_)) {
            return Leave::Wait;
        }
        if !std::mem::take(&mut self.is_written) {
            return Leave::Nothing;
        }
        self.phase = Phase::Idle;
        Leave::Remove
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    const USUAL: Option<Duration> = Some(SHORTEST);

    fn written(now: Instant) -> Presence {
        let mut presence = Presence::new();
        assert_eq!(presence.used(now, seconds(30)), USUAL);
        presence.answered(Outcome::Done, now, false);
        presence
    }

    #[test]
    fn it_is_written_at_the_first_use_and_refreshed_while_in_use() {
        let mut presence = Presence::new();
        let now = Instant::now();
        assert_eq!(presence.refresh(now, true), None, "nothing was taken yet");
        assert_eq!(presence.knows(), None);
        assert_eq!(presence.used(now, seconds(30)), USUAL);
        assert_eq!(presence.used(now, seconds(30)), None, "once");
        assert_eq!(presence.refresh(now, true), None, "under way");
        presence.answered(Outcome::Done, now, false);
        assert_eq!(presence.knows(), Some((SHORTEST, Some(now + seconds(35)))));
        assert_eq!(presence.used(now, seconds(30)), None);
        assert_eq!(presence.refresh(now + seconds(29), true), None);
        assert_eq!(presence.refresh(now + seconds(30), true), USUAL);
        presence.answered(Outcome::Failed, now + seconds(30), true);
        assert_eq!(presence.refresh(now + seconds(40), true), USUAL);
        presence.answered(Outcome::Done, now + seconds(40), true);
        assert_eq!(presence.refresh(now + seconds(70), false), None, "idle");
        assert_eq!(presence.used(now + seconds(71), seconds(30)), USUAL);
    }

    #[test]
    fn a_failure_of_a_user_is_left_to_the_worker() {
        let mut presence = Presence::new();
        let now = Instant::now();
        presence.used(now, seconds(30));
        presence.answered(Outcome::Failed, now, false);
        assert_eq!(presence.used(now, seconds(30)), None);
        assert_eq!(presence.refresh(now, true), USUAL);
    }

    #[test]
    fn without_a_worker_the_next_use_refreshes_it() {
        let now = Instant::now();
        let mut presence = written(now);
        assert_eq!(presence.used(now + seconds(34), seconds(1)), None);
        assert_eq!(presence.used(now + seconds(35), seconds(1)), USUAL);
    }

    #[test]
    fn it_lasts_as_long_as_the_longest_lease() {
        let now = Instant::now();
        let mut presence = written(now);
        assert_eq!(presence.used(now, seconds(600)), Some(seconds(600)));
        assert_eq!(presence.used(now, seconds(900)), None, "under way");
        presence.answered(Outcome::Done, now, false);
        assert_eq!(presence.used(now, seconds(1)), Some(seconds(900)));
        presence.answered(Outcome::Done, now, false);
        assert_eq!(presence.used(now, seconds(900)), None);
        let knows = presence.knows().unwrap();
        assert_eq!(knows.0, seconds(900));
    }

    #[test]
    fn another_server_is_told_at_once() {
        let now = Instant::now();
        let mut presence = Presence::new();
        presence.doubt(now);
        assert_eq!(presence.next_at(), None, "nothing to tell");
        let mut presence = written(now);
        presence.doubt(now + seconds(1));
        assert_eq!(presence.refresh(now + seconds(1), true), USUAL);
    }

    #[test]
    fn a_refusal_is_for_good() {
        let mut presence = Presence::new();
        let now = Instant::now();
        presence.used(now, seconds(30));
        presence.answered(Outcome::Refused, now, false);
        assert_eq!(presence.used(now + seconds(99), seconds(999)), None);
        assert_eq!(presence.refresh(now + seconds(99), true), None);
        assert_eq!(presence.knows(), Some((MAX_LEASE, None)));
        presence.close();
        assert_eq!(presence.leave(), Leave::Nothing);
    }

    #[test]
    fn what_was_written_is_removed_at_the_end() {
        let now = Instant::now();
        let mut unused = Presence::new();
        unused.close();
        assert_eq!(unused.leave(), Leave::Nothing);
        assert_eq!(unused.used(now, seconds(1)), None, "too late");

        let mut presence = Presence::new();
        presence.used(now, seconds(30));
        presence.close();
        assert_eq!(presence.leave(), Leave::Wait);
        presence.answered(Outcome::Done, now, false);
        assert_eq!(presence.next_at(), None);
        assert_eq!(presence.leave(), Leave::Remove);
        assert_eq!(presence.leave(), Leave::Nothing);
        assert_eq!(presence.used(now, seconds(1)), None);
    }
}
