//! Fairness between processes: when this one stands back from a lock that others wait for.
//!
//! An acquire that follows a release on the same connection always wins against a process that first has to be told of
//! the release. That makes a hand-off inside a process one round trip, and would starve all other processes.
//!
//! So a process that has had the lock some times in a row stands back until another holder was seen, for a bounded time:
//! as many times as others had it in their last turn, as far as it could see, and at most [`MAX_PASSES`]. Others are known
//! by the receivers of a release, and by having been seen to hold it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Upper bound on grants in a row before other processes get their turn.
const MAX_PASSES: u32 = 32;
/// Upper bound on the time to stand back: a wake-up and an acquire of a process that is about 100 ms away.
const STAND_BACK: Duration = Duration::from_millis(250);
/// The same where no other process is subscribed, which one that has just had the lock may not be yet.
const SHORT_STAND_BACK: Duration = Duration::from_millis(100);
/// Doublings of the pause before this process stands back again after nobody came: a subscriber that never takes the lock,
/// because it is frozen, costs 3 % of the time and not nearly all of it.
const MAX_DOUBLINGS: u32 = 5;
/// Ends of one lease differ by less than this, as attempts that take different times see them.
const SAME_LEASE: Duration = Duration::from_millis(3);
/// How long another holder that was seen counts as one that wants the lock again, also if it is not subscribed: loops of
/// `try_lock` are not.
const SEEN_COUNTS: Duration = Duration::from_secs(10);
/// Upper bound on the names that are remembered.
const MAX_NAMES: usize = 4096;
/// A name that was not used for this long is forgotten when room is needed.
const FORGET_AFTER: Duration = Duration::from_secs(1);

/// Counts by the hash of the name, of locks that other processes want. They outlive the moment in which no task here holds
/// or wants the lock: one task that locks in a loop leaves such a moment after every release.
#[derive(Debug)]
pub(crate) struct Fairness {
    names: HashMap<u64, Entry>,
    /// When room was made last.
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    /// Grants in a row without another holder in between.
    passes: u32,
    /// How many grants in a row this process may have.
    quota: u32,
    /// Holders that were met since the last grant here.
    met: u32,
    /// When the lease of the holder ends that was met last: by this holders differ.
    met_until: Option<Instant>,
    /// Connections of others that received the last release.
    others: u64,
    /// When another holder was seen, unless this process has stood back in vain since then.
    seen: Option<Instant>,
    /// The fencing token of the last grant here.
    token: u64,
    /// Until when this process stands back, if it does.
    until: Option<Instant>,
    /// How often in a row it stood back in vain.
    in_vain: u32,
    /// It does not stand back before this.
    not_before: Option<Instant>,
    /// When it was used last.
    used: Instant,
}

/// This process stands back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StandBack {
    /// Until when, unless another holder is seen before.
    pub(crate) until: Instant,
    /// The fencing token of the last grant here, by which a later one of another process is recognized.
    pub(crate) token: u64,
}

impl Fairness {
    pub(crate) fn new() -> Self {
        Self {
            names: HashMap::new(),
            swept: None,
        }
    }

    /// Whether to stand back instead of asking for the lock now.
    pub(crate) fn stand_back(&mut self, hash: u64, now: Instant) -> Option<StandBack> {
        let entry = self.names.get_mut(&hash)?;
        entry.used = now;
        match entry.until {
            Some(until) if now < until => {}
            Some(_) => {
                entry.nobody_came(now);
                return None;
            }
            None => entry.until = Some(now + entry.due(now)?),
        }
        let token = entry.token;
        entry.until.map(|until| StandBack { until, token })
    }

    /// The lock was granted, with this fencing token.
    pub(crate) fn granted(&mut self, hash: u64, token: u64) {
        if let Some(entry) = self.names.get_mut(&hash) {
            entry.passes = entry.passes.saturating_add(1);
            if entry.met > 0 {
                // A quarter more, so that turns which something cut short grow again.
                entry.quota = entry.met.saturating_add(entry.met / 4).min(MAX_PASSES);
                entry.met = 0;
            }
            entry.token = token;
        }
    }

    /// Another process holds the lock, or has held it since the last grant here.
    pub(crate) fn seen(&mut self, hash: u64, now: Instant) {
        if let Some(entry) = self.entry(hash, now) {
            entry.passes = 0;
            entry.seen = Some(now);
            if entry.until.take().is_some() {
                // It was for something.
                entry.in_vain = 0;
                entry.not_before = None;
            }
        }
    }

    /// An attempt met another holder, whose lease ends at `until`, after so many messages of releases.
    pub(crate) fn met(&mut self, hash: u64, until: Instant, messages: u64, now: Instant) {
        self.seen(hash, now);
        if let Some(entry) = self.names.get_mut(&hash) {
            let differs = |known: Instant| {
                let [earlier, later] = if known < until {
                    [known, until]
                } else {
                    [until, known]
                };
                later - earlier > SAME_LEASE
            };
            let holders = messages.max(u64::from(entry.met_until.is_none_or(differs)));
            entry.met = entry
                .met
                .saturating_add(u32::try_from(holders).unwrap_or(u32::MAX));
            entry.met_until = Some(until);
        }
    }

    /// The lock was released, and so many connections of `others` received the message.
    pub(crate) fn released(&mut self, hash: u64, others: u64, now: Instant) {
        if others == 0 {
            let forgettable = |entry: &Entry| entry.seen.is_none() && entry.until.is_none();
            if self.names.get(&hash).is_some_and(forgettable) {
                self.names.remove(&hash);
                return;
            }
            if !self.names.contains_key(&hash) {
                return;
            }
        }
        if let Some(entry) = self.entry(hash, now)
            && entry.others != others
        {
            entry.others = others;
            // Another one may be among them.
            entry.in_vain = 0;
            entry.not_before = None;
        }
    }

    /// The entry of a name that others want; `None` if there is no room for another one.
    fn entry(&mut self, hash: u64, now: Instant) -> Option<&mut Entry> {
        if self.names.len() >= MAX_NAMES && !self.names.contains_key(&hash) {
            self.make_room(now);
            if self.names.len() >= MAX_NAMES {
                return None;
            }
        }
        let entry = self.names.entry(hash).or_insert(Entry {
            passes: 0,
            quota: MAX_PASSES,
            met: 0,
            met_until: None,
            others: 0,
            seen: None,
            token: 0,
            until: None,
            in_vain: 0,
            not_before: None,
            used: now,
        });
        entry.used = now;
        Some(entry)
    }

    /// Forgets names that were not used of late; looks for them at most once in the time that makes them old.
    fn make_room(&mut self, now: Instant) {
        let is_old = |at: Instant| now.saturating_duration_since(at) >= FORGET_AFTER;
        if self.swept.is_none_or(is_old) {
            self.swept = Some(now);
            self.names.retain(|_, entry| !is_old(entry.used));
        }
    }
}

impl Entry {
    /// For how long to stand back, if that is due.
    fn due(&self, now: Instant) -> Option<Duration> {
        if self.passes < self.quota || self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        if self.others > 0 {
            return Some(STAND_BACK);
        }
        let is_recent = |at: Instant| now.saturating_duration_since(at) < SEEN_COUNTS;
        (self.seen.is_some_and(is_recent)).then_some(SHORT_STAND_BACK)
    }

    /// The time to stand back is over, and no other holder was seen.
    fn nobody_came(&mut self, now: Instant) {
        self.until = None;
        self.passes = 0;
        self.seen = None;
        self.quota = MAX_PASSES;
        self.in_vain = (self.in_vain + 1).min(MAX_DOUBLINGS);
        self.not_before = Some(now + STAND_BACK * 2_u32.pow(self.in_vain));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One pass: a grant and a release that `others` receive.
    fn pass(fairness: &mut Fairness, hash: u64, others: u64, now: Instant) {
        fairness.granted(hash, 5);
        fairness.released(hash, others, now);
    }

    /// Passes until it is time to stand back.
    fn contended(hash: u64, now: Instant) -> Fairness {
        let mut fairness = Fairness::new();
        for _ in 0..=MAX_PASSES {
            assert_eq!(fairness.stand_back(hash, now), None);
            pass(&mut fairness, hash, 1, now);
        }
        fairness
    }

    #[test]
    fn a_process_alone_never_stands_back_and_costs_no_memory() {
        let (mut fairness, now) = (Fairness::new(), Instant::now());
        for _ in 0..1000 {
            assert_eq!(fairness.stand_back(7, now), None);
            pass(&mut fairness, 7, 0, now);
        }
        assert!(fairness.names.is_empty());
    }

    #[test]
    fn others_get_their_turn_until_one_is_seen() {
        let now = Instant::now();
        let mut fairness = contended(7, now);
        let stand_back = StandBack {
            until: now + STAND_BACK,
            token: 5,
        };
        for _ in 0..3 {
            assert_eq!(fairness.stand_back(7, now), Some(stand_back));
        }
        fairness.seen(7, now);
        assert_eq!(fairness.stand_back(7, now), None);
        // The count starts again.
        for _ in 0..MAX_PASSES {
            assert_eq!(fairness.stand_back(7, now), None);
            pass(&mut fairness, 7, 1, now);
        }
        assert!(fairness.stand_back(7, now).is_some());
    }

    #[test]
    fn a_turn_is_as_long_as_the_last_one_of_others() {
        let now = Instant::now();
        let mut fairness = contended(7, now);
        assert!(fairness.stand_back(7, now).is_some());
        for holder in 0..12 {
            // Each is met twice.
            let until = now + Duration::from_secs(30) + Duration::from_millis(holder * 20);
            fairness.met(7, until, 0, now);
            fairness.met(7, until + Duration::from_millis(1), 0, now);
        }
        for _ in 0..15 {
            assert_eq!(fairness.stand_back(7, now), None);
            pass(&mut fairness, 7, 1, now);
        }
        assert!(fairness.stand_back(7, now).is_some());
    }

    #[test]
    fn one_that_was_seen_but_does_not_subscribe_counts_once() {
        let (mut fairness, now) = (Fairness::new(), Instant::now());
        fairness.seen(7, now);
        for _ in 0..MAX_PASSES {
            pass(&mut fairness, 7, 0, now);
        }
        assert!(fairness.stand_back(7, now).is_some());
        let later = now + STAND_BACK;
        assert_eq!(fairness.stand_back(7, later), None, "nobody came");
        for _ in 0..1000 {
            pass(&mut fairness, 7, 0, later + STAND_BACK * 64);
        }
        assert!(fairness.names.is_empty());
    }

    #[test]
    fn a_subscriber_that_never_comes_is_waited_for_less_and_less() {
        let mut now = Instant::now();
        let mut fairness = contended(7, now);
        let (mut stood_back, began) = (Duration::ZERO, now);
        while now < began + Duration::from_secs(60) {
            if let Some(StandBack { until, .. }) = fairness.stand_back(7, now) {
                stood_back += until - now;
                now = until;
            } else {
                pass(&mut fairness, 7, 1, now);
                now += Duration::from_micros(100);
            }
        }
        assert!(stood_back < Duration::from_secs(4), "{stood_back:?}");
        assert!(stood_back > Duration::from_secs(2), "{stood_back:?}");

        // Another subscriber may be a live one.
        for _ in 0..=MAX_PASSES {
            pass(&mut fairness, 7, 2, now);
        }
        assert!(fairness.stand_back(7, now).is_some());
    }

    #[test]
    fn names_do_not_share_a_count_and_their_number_is_bounded() {
        let now = Instant::now();
        let mut fairness = contended(7, now);
        for hash in 8..20_000 {
            fairness.released(hash, 1, now);
            assert_eq!(fairness.stand_back(hash, now), None);
        }
        assert_eq!(fairness.names.len(), MAX_NAMES);
        assert!(fairness.stand_back(7, now).is_some(), "it is still known");
        fairness.released(99_999, 1, now + FORGET_AFTER);
        assert_eq!(fairness.names.len(), 1, "all others are old by now");
    }
}
