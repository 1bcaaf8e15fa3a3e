//! How a hold lasts and ends: a state machine without clocks, I/O or wake-ups.

use std::time::{Duration, Instant};

use super::deadline::{Deadline, Now};
use super::schedule;
use crate::error::LostReason;
use crate::options::Terms;

/// The state of one acquisition that was granted.
#[derive(Debug)]
pub(crate) struct HoldState {
    terms: Terms,
    phase: Phase,
    deadline: Deadline,
    /// The lease that was granted or renewed last, and when it began at the latest.
    lease: Duration,
    lease_since: Now,
    /// Whether that is a grant's, less than was asked for, which the first renewal makes up for.
    is_short: bool,
    /// When the request that was granted was sent: `max_hold` counts from here.
    since: Now,
    /// Until when the lock stays taken at least, if that was asked for.
    keep_until: Option<Instant>,
    /// Whether it is kept beyond its end: then every repetition of the release says so.
    is_kept: bool,
    /// Guards that are alive; an `Owner` may have several, reads of one process too, and permits can be split.
    guards: usize,
    /// The permits they take of a primitive that counts.
    permits: u32,
    /// Whether it is being converted: its guard stays the only one meanwhile.
    is_sealed: bool,
    /// The index of its renewals in the schedule.
    scheduled: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Over(LostReason),
}

/// Effects of the end of a hold, for the engine to carry out.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the effects of an end are to be carried out"]
pub(crate) struct Ending {
    pub(crate) reason: LostReason,
    /// The index to remove from the schedule: nothing may be renewed any more.
    pub(crate) scheduled: Option<usize>,
    /// Whether the server may still have the hold and is to be told.
    pub(crate) release: bool,
}

/// How the lock of a hold stays taken when that is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// For so long.
    pub(crate) left: Duration,
    /// Whether that may be longer than its lease is: not if it was lost.
    pub(crate) may_grow: bool,
}

/// The state at one instant.
#[derive(Debug)]
pub(crate) enum Status {
    Held,
    /// It was over before.
    Over(LostReason),
    /// It has just run out.
    Ended(Ending),
}

/// The meaning of the end of one guard.
#[derive(Debug)]
pub(crate) enum Leave {
    /// Other guards are alive.
    Nested,
    /// Other guards are alive, and this one's permits, which are the last of the hold, are to be given back: so many are left.
    Part { left: u32 },
    /// The same, but the hold is over.
    PartOver,
    /// It was the last one.
    Last(Ending),
}

/// The result of an attempt to nest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Nest {
    /// There is one guard more.
    Nested,
    /// It was released meanwhile.
    Over,
    /// It was lost while guards of it are alive.
    Lost(LostReason),
    /// It does not give what is asked for.
    Refused(&'static str),
}

impl HoldState {
    /// A hold with one guard that begins at `since`, with a `lease` that counts from `lease_since`. If that is less than the
    /// terms say, the first renewal makes up for it.
    pub(crate) fn new(
        terms: Terms,
        permits: u32,
        since: Now,
        lease_since: Now,
        lease: Duration,
    ) -> Self {
        Self {
            terms,
            phase: Phase::Held,
            deadline: Deadline::new(lease_since, lease),
            lease,
            lease_since,
            is_short: lease < terms.first_lease(),
            since,
            keep_until: None,
            is_kept: false,
            guards: 1,
            permits,
            is_sealed: false,
            scheduled: None,
        }
    }

    /// How long it may be trusted; zero when it is over.
    pub(crate) fn left(&self, now: Now) -> Duration {
        match self.phase {
            Phase::Held => self.deadline.left(now),
            Phase::Over(_) => Duration::ZERO,
        }
    }

    /// Ends it if it has run out.
    pub(crate) fn check(&mut self, now: Now) -> Status {
        match self.phase {
            Phase::Over(reason) => Status::Over(reason),
            Phase::Held if !self.deadline.is_over(now) => Status::Held,
            // A release is sent when the last guard goes: until then its work may still be at it.
            Phase::Held => Status::Ended(self.end(self.ran_out(), false)),
        }
    }

    /// Ends it for `reason`; `Err` with the earlier reason if it was over before.
    pub(crate) fn lose(&mut self, reason: LostReason) -> Result<Ending, LostReason> {
        match self.phase {
            Phase::Over(earlier) => Err(earlier),
            Phase::Held => Ok(self.end(reason, reason == LostReason::Closed)),
        }
    }

    /// One guard more, if it is not over and gives what `asked` says. `acknowledged` replicas confirmed it.
    pub(crate) fn nest(&mut self, asked: &Terms, acknowledged: usize, now: Now) -> Nest {
        match self.phase {
            Phase::Held => {}
            Phase::Over(_) if self.guards == 0 => return Nest::Over,
            Phase::Over(reason) => return Nest::Lost(reason),
        }
        if self.is_sealed {
            return Nest::Refused("a guard that is not being upgraded or downgraded");
        }
        let since = self.since.monotonic;
        if let Some(missing) = asked.missing_in(&self.terms, acknowledged, since, now.monotonic) {
            return Nest::Refused(missing);
        }
        self.guards += 1;
        self.keep(asked.at_least, now);
        Nest::Nested
    }

    /// The lock stays taken for `at_least` from `now`.
    pub(crate) fn keep(&mut self, at_least: Option<Duration>, now: Now) {
        let until = at_least.map(|time| now.monotonic + time);
        self.keep_until = self.keep_until.max(until);
    }

    /// The lock does not stay taken.
    #[cfg(feature = "testing")]
    pub(crate) const fn keep_no_longer(&mut self) {
        self.keep_until = None;
    }

    /// How the lock stays taken when this hold is released at `now`, if it does.
    pub(crate) fn kept(&mut self, now: Now) -> Option<Kept> {
        let left = self.at_least(now.monotonic);
        self.is_kept |= !left.is_zero();
        self.is_kept.then(|| Kept {
            left: left.max(Duration::from_millis(1)),
            may_grow: matches!(
                self.phase,
                Phase::Held | Phase::Over(LostReason::Released | LostReason::Closed)
            ),
        })
    }

    /// How long the lock is to stay taken at least.
    fn at_least(&self, now: Instant) -> Duration {
        let until = self.keep_until;
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// One guard more for a read of this process that shares it, if at least half of the lease is left and it gives what `asked`
    /// says. `acknowledged` replicas confirmed it.
    pub(crate) fn share(&mut self, asked: &Terms, acknowledged: usize, now: Now) -> bool {
        let since = self.since.monotonic;
        let shares = !self.is_sealed
            && self.left(now) >= self.lease / 2
            && asked
                .missing_in(&self.terms, acknowledged, since, now.monotonic)
                .is_none();
        self.guards += usize::from(shares);
        shares
    }

    /// Admits no guard beside its only one, until [`unseal`](Self::unseal). Returns false if there are others, or it is over.
    pub(crate) fn seal(&mut self) -> bool {
        self.is_sealed |= self.phase == Phase::Held && self.guards == 1;
        self.is_sealed
    }

    pub(crate) const fn unseal(&mut self) {
        self.is_sealed = false;
    }

    /// The rest of it to ask for at `now`, in one lease; `None` if that is nothing.
    pub(crate) fn rest(&self, now: Now) -> Option<Duration> {
        let (since, now) = (self.since.monotonic, now.monotonic);
        if self.terms.renew {
            self.terms.next_lease(since, self.at_least(now), now)
        } else {
            self.terms.rest_of_first_lease(since, now)
        }
    }

    /// When the request that was granted was sent.
    pub(crate) const fn since(&self) -> Now {
        self.since
    }

    /// One guard less, which has so many of the permits.
    pub(crate) fn leave(&mut self, permits: u32) -> Leave {
        self.guards -= 1;
        if self.guards > 0 && permits > 0 {
            if self.phase != Phase::Held {
                // Permits that the server may still have are released with the last guard.
                return Leave::PartOver;
            }
            self.permits -= permits;
            return Leave::Part { left: self.permits };
        }
        if self.guards > 0 {
            return Leave::Nested;
        }
        let (reason, release) = match self.phase {
            Phase::Held => (LostReason::Released, true),
            // It ran out by this careful clock; the server may still have it and would keep others waiting.
            Phase::Over(reason @ (LostReason::Expired | LostReason::MaxHold)) => (reason, true),
            // One of its permits is gone, and the others may be there.
            Phase::Over(reason @ (LostReason::Stolen | LostReason::NodeGone)) => {
                (reason, self.permits > 1)
            }
            // It was released.
            Phase::Over(reason) => (reason, false),
        };
        Leave::Last(self.end(reason, release))
    }

    /// One guard less, whose permits the server keeps until the lease ends. Returns the end of the hold if it was the last one.
    pub(crate) fn forget(&mut self, permits: u32) -> Option<Ending> {
        self.guards -= 1;
        self.permits -= permits;
        let reason = match self.phase {
            Phase::Held => LostReason::Released,
            Phase::Over(reason) => reason,
        };
        (self.guards == 0).then(|| self.end(reason, false))
    }

    /// One guard more, to take over permits of another one.
    pub(crate) const fn split(&mut self) {
        self.guards += 1;
    }

    /// One guard less, whose permits another one takes over.
    pub(crate) const fn merge(&mut self) {
        self.guards -= 1;
    }

    /// The permits that the guards take of a primitive that counts.
    pub(crate) const fn permits(&self) -> u32 {
        self.permits
    }

    /// A renewal that was sent at `sent` for `lease` was confirmed at `now`. Returns false if the hold was over before: an
    /// answer that comes too late revives nothing.
    pub(crate) fn renewed(&mut self, sent: Now, lease: Duration, now: Now) -> bool {
        let held = self.phase == Phase::Held && !self.deadline.is_over(now);
        if held {
            self.deadline = self.deadline.extended(Deadline::new(sent, lease));
            self.lease = lease;
            self.lease_since = sent;
            self.is_short = false;
        }
        held
    }

    /// The lease of a renewal that is sent at `now`; `None` if there is nothing to renew.
    pub(crate) fn next_lease(&self, now: Now) -> Option<Duration> {
        let (since, now) = (self.since.monotonic, now.monotonic);
        if self.is_short && !self.terms.needs_renewal() {
            return self.terms.rest_of_first_lease(since, now);
        }
        self.terms.next_lease(since, self.at_least(now), now)
    }

    /// Whether there will be anything to renew.
    pub(crate) fn needs_renewal(&self) -> bool {
        self.terms.needs_renewal() || self.is_short
    }

    /// The lease that was granted or renewed last.
    pub(crate) const fn lease(&self) -> Duration {
        self.lease
    }

    /// When it began at the latest.
    pub(crate) const fn lease_since(&self) -> Now {
        self.lease_since
    }

    /// How much later than planned a renewal is confirmed at `now`: it is due at a third of the lease, give or take a tenth.
    pub(crate) fn late(&self, now: Now) -> Duration {
        const LATEST: u64 = 200;
        let lease = if self.is_short {
            self.lease
        } else {
            self.terms.lease
        };
        let planned = schedule::renewal(self.lease_since.monotonic, lease, LATEST);
        now.monotonic.saturating_duration_since(planned.at)
    }

    /// Why it is over, if it is.
    pub(crate) const fn over(&self) -> Option<LostReason> {
        match self.phase {
            Phase::Held => None,
            Phase::Over(reason) => Some(reason),
        }
    }

    /// Whether its last guard is gone.
    pub(crate) const fn is_released(&self) -> bool {
        self.guards == 0
    }

    pub(crate) const fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Notes its index in the schedule, unless it is over.
    pub(crate) fn schedule(&mut self, index: usize) -> bool {
        let held = self.phase == Phase::Held;
        if held {
            self.scheduled = Some(index);
        }
        held
    }

    /// Its index in the schedule, until it is over.
    pub(crate) const fn scheduled(&self) -> Option<usize> {
        self.scheduled
    }

    fn end(&mut self, reason: LostReason, release: bool) -> Ending {
        self.phase = Phase::Over(reason);
        Ending {
            reason,
            scheduled: self.scheduled.take(),
            release,
        }
    }

    /// Why it ran out: nothing renewed it, or `max_hold` allowed no more.
    fn ran_out(&self) -> LostReason {
        // The last lease ends with the longest hold, but is not trusted to its end and counted in whole milliseconds.
        let trusted_end = |max_hold: Duration| {
            let margin = (max_hold / 50 + Duration::from_millis(5)).min(max_hold);
            self.since.monotonic + max_hold - margin
        };
        let at_its_end = |max_hold| trusted_end(max_hold) <= self.deadline.monotonic();
        if self.terms.max_hold.is_some_and(at_its_end) {
            LostReason::MaxHold
        } else {
            LostReason::Expired
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Replicas;

    const LEASE: Duration = Duration::from_secs(1);

    fn terms(max_hold: Option<Duration>) -> Terms {
        Terms {
            lease: LEASE,
            renew: true,
            max_hold,
            at_least: None,
            replicas: Replicas::None,
        }
    }

    fn new_hold(terms: Terms, start: Now) -> HoldState {
        HoldState::new(terms, 0, start, start, LEASE)
    }

    fn after(now: Now, millis: u64) -> Now {
        let by = Duration::from_millis(millis);
        Now {
            monotonic: now.monotonic + by,
            wall: now.wall + by,
        }
    }

    fn nest(hold: &mut HoldState) -> Nest {
        hold.nest(&terms(None), 0, Now::read())
    }

    #[test]
    fn the_last_guard_asks_for_a_release_and_gives_up_the_schedule() {
        let mut hold = new_hold(terms(None), Now::read());
        assert!(hold.schedule(7));
        assert_eq!(nest(&mut hold), Nest::Nested);
        assert!(matches!(hold.leave(0), Leave::Nested));
        let Leave::Last(ending) = hold.leave(0) else {
            panic!("the last guard has gone");
        };
        let expected = Ending {
            reason: LostReason::Released,
            scheduled: Some(7),
            release: true,
        };
        assert_eq!(ending, expected);
        assert_eq!(nest(&mut hold), Nest::Over);
        assert!(!hold.schedule(8), "nothing is renewed after the end");
    }

    #[test]
    fn permits_are_given_back_in_parts_and_the_rest_with_the_last_guard() {
        let start = Now::read();
        let mut hold = HoldState::new(terms(None), 6, start, start, LEASE);
        hold.split();
        hold.split();
        assert!(matches!(hold.leave(2), Leave::Part { left: 4 }));
        assert!(hold.forget(1).is_none());
        assert_eq!(hold.permits(), 3);
        hold.split();
        hold.merge();
        let Leave::Last(ending) = hold.leave(3) else {
            panic!("the last guard has gone");
        };
        assert!(ending.release);
        assert_eq!(hold.permits(), 3, "these are to be released");

        let mut lost = HoldState::new(terms(None), 2, start, start, LEASE);
        lost.split();
        assert!(!lost.lose(LostReason::Stolen).unwrap().release);
        assert!(matches!(lost.leave(1), Leave::PartOver));
        let ending = lost.forget(1).expect("the last guard has gone");
        assert_eq!((ending.reason, ending.release), (LostReason::Stolen, false));
    }

    #[test]
    fn a_hold_ends_once_and_keeps_its_first_reason() {
        let start = Now::read();
        let mut hold = new_hold(terms(None), start);
        assert!(!hold.lose(LostReason::Stolen).unwrap().release);
        assert_eq!(hold.lose(LostReason::Closed), Err(LostReason::Stolen));
        assert!(matches!(
            hold.check(after(start, 9_000)),
            Status::Over(LostReason::Stolen)
        ));
        assert!(!hold.renewed(start, LEASE, start));
        assert_eq!(nest(&mut hold), Nest::Lost(LostReason::Stolen));
        assert!(matches!(
            hold.leave(0),
            Leave::Last(Ending { release: false, .. })
        ));
    }

    #[test]
    fn what_ran_out_is_released_all_the_same() {
        let start = Now::read();
        let mut hold = new_hold(terms(None), start);
        assert!(matches!(hold.check(after(start, 500)), Status::Held));
        let Status::Ended(ending) = hold.check(after(start, 999)) else {
            panic!("the lease is over");
        };
        assert_eq!(
            (ending.reason, ending.release),
            (LostReason::Expired, false)
        );
        assert!(matches!(
            hold.leave(0),
            Leave::Last(Ending { release: true, .. })
        ));
    }

    #[test]
    fn the_longest_hold_has_a_reason_of_its_own() {
        let start = Now::read();
        let mut hold = new_hold(terms(Some(Duration::from_millis(1_500))), start);
        let lease = hold.next_lease(after(start, 800)).expect("some is left");
        assert_eq!(lease, Duration::from_millis(700));
        let sent = after(start, 800);
        assert!(hold.renewed(sent, lease, after(start, 801)));
        assert_eq!(hold.next_lease(after(start, 1_500)), None);
        let Status::Ended(ending) = hold.check(after(start, 1_500)) else {
            panic!("it is over");
        };
        assert_eq!(ending.reason, LostReason::MaxHold);
    }

    #[test]
    fn a_renewal_that_is_confirmed_too_late_revives_nothing() {
        let start = Now::read();
        let mut hold = new_hold(terms(None), start);
        assert!(!hold.renewed(after(start, 300), LEASE, after(start, 1_001)));
        assert!(matches!(hold.check(after(start, 1_001)), Status::Ended(_)));
    }

    #[test]
    fn reads_share_a_hold_while_half_of_its_lease_is_left() {
        let start = Now::read();
        let mut hold = new_hold(terms(None), start);
        assert!(hold.share(&terms(None), 0, start));
        assert!(hold.share(&terms(None), 0, after(start, 300)));
        assert!(!hold.share(&terms(None), 0, after(start, 600)));
        let confirmed = Terms {
            replicas: Replicas::All,
            ..terms(None)
        };
        assert!(!hold.share(&confirmed, 0, start), "no replica has it");
        assert!(matches!(hold.leave(0), Leave::Nested));
        assert!(matches!(hold.leave(0), Leave::Nested));
        assert!(matches!(hold.leave(0), Leave::Last(_)));
        assert!(!hold.share(&terms(None), 0, start));
    }

    #[test]
    fn nobody_joins_a_hold_that_is_being_converted() {
        let start = Now::read();
        let mut hold = new_hold(terms(None), start);
        assert!(hold.share(&terms(None), 0, start));
        assert!(!hold.seal(), "there are two guards");
        assert!(matches!(hold.leave(0), Leave::Nested));
        assert!(hold.seal());
        assert!(!hold.share(&terms(None), 0, start));
        assert!(matches!(nest(&mut hold), Nest::Refused(_)));
        hold.unseal();
        assert!(hold.share(&terms(None), 0, start));
    }

    #[test]
    fn the_rest_of_a_hold_is_a_whole_lease_where_it_is_renewed() {
        let start = Now::read();
        let now = after(start, 400);
        assert_eq!(new_hold(terms(None), start).rest(now), Some(LEASE));
        let fixed = Terms {
            renew: false,
            ..terms(None)
        };
        let rest = Duration::from_millis(600);
        assert_eq!(new_hold(fixed, start).rest(now), Some(rest));
        assert_eq!(new_hold(fixed, start).rest(after(start, 1_000)), None);
    }

    #[test]
    fn a_fixed_lease_is_never_renewed() {
        let start = Now::read();
        let fixed = Terms {
            renew: false,
            ..terms(None)
        };
        assert_eq!(new_hold(fixed, start).next_lease(start), None);
    }
}
