//! When to look for a newer map: often at the beginning of trouble, rarely when it lasts. Pure.
//!
//! All clients of a cluster look at the same time, and each asks several nodes. A failover is over within seconds and is to
//! be noticed at once; an outage of minutes must not cost the nodes that still work more than a question a second from
//! each process.

use std::time::{Duration, Instant};

use crate::random::jittered;

/// The longest pause between two looks at the beginning of trouble.
const QUICK_PAUSE: Duration = Duration::from_millis(40);

/// How long the beginning lasts. A cluster with a node timeout of one second has elected a new master by then.
const QUICK_FOR: Duration = Duration::from_secs(5);

/// The longest pause of all: a second on average, with the jitter.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_250);

/// Time without a look after which the next one begins new trouble.
const CALM_AFTER: Duration = Duration::from_secs(3);

/// How much one look may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// As many nodes as it takes to be sure.
    Several,
    /// A single one, to see whether anything has changed.
    One,
}

/// Spaces the looks of one client.
#[derive(Debug)]
pub(crate) struct Pacing {
    /// The beginning of the present trouble.
    since: Option<Instant>,
    /// The end of the latest look.
    looked: Option<Instant>,
    pause: Duration,
}

impl Pacing {
    pub(crate) const fn new() -> Self {
        Self {
            since: None,
            looked: None,
            pause: QUICK_PAUSE,
        }
    }

    /// When the look that is asked for `now` may begin.
    pub(crate) fn next(&mut self, now: Instant) -> Instant {
        let Some(looked) = self.looked.filter(|looked| now < *looked + CALM_AFTER) else {
            self.restart(now);
            return now;
        };
        if now >= *self.since.get_or_insert(now) + QUICK_FOR {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        looked + jittered(self.pause)
    }

    /// A look has ended.
    pub(crate) const fn looked(&mut self, now: Instant) {
        self.looked = Some(now);
    }

    /// How much the next look may ask.
    pub(crate) fn effort(&self) -> Effort {
        if self.pause == LONGEST_PAUSE {
            Effort::One
        } else {
            Effort::Several
        }
    }

    /// Something has changed: what happens next is to be noticed quickly.
    pub(crate) const fn restart(&mut self, now: Instant) {
        self.since = Some(now);
        self.pause = QUICK_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The instants of looks that are wanted all the time from `start` on and take a millisecond each.
    fn looks(pacing: &mut Pacing, start: Instant, time: Duration) -> Vec<Duration> {
        let (mut now, mut looks) = (start, Vec::new());
        while now < start + time {
            now = pacing.next(now).max(now);
            looks.push(now - start);
            now += ms(1);
            pacing.looked(now);
        }
        looks
    }

    #[test]
    fn the_first_look_is_at_once_and_the_beginning_is_quick() {
        let looks = looks(&mut Pacing::new(), Instant::now(), QUICK_FOR);
        assert_eq!(looks[0], Duration::ZERO);
        for pair in looks.windows(2) {
            assert!(pair[1] - pair[0] <= QUICK_PAUSE + ms(1), "{pair:?}");
        }
    }

    #[test]
    fn lasting_trouble_costs_about_a_look_a_second() {
        let mut pacing = Pacing::new();
        let looks = looks(&mut pacing, Instant::now(), Duration::from_secs(60));
        let late = looks
            .iter()
            .filter(|at| **at >= Duration::from_secs(10))
            .count();
        assert!((40..=67).contains(&late), "{late} looks in 50 s");
        assert_eq!(pacing.effort(), Effort::One);
    }

    #[test]
    fn news_and_calm_make_it_quick_again() {
        let start = Instant::now();
        let mut pacing = Pacing::new();
        looks(&mut pacing, start, Duration::from_secs(20));
        let now = start + Duration::from_secs(20);
        pacing.restart(now);
        pacing.looked(now);
        assert!(pacing.next(now) <= now + QUICK_PAUSE);
        assert_eq!(pacing.effort(), Effort::Several);

        looks(&mut pacing, now, Duration::from_secs(20));
        let later = now + Duration::from_secs(20) + LONGEST_PAUSE + CALM_AFTER;
        assert_eq!(pacing.next(later), later);
        assert_eq!(pacing.effort(), Effort::Several);
    }

    #[test]
    fn pauses_differ() {
        let start = Instant::now();
        let pauses: Vec<_> = (0..20)
            .map(|_| {
                let mut pacing = Pacing::new();
                pacing.looked(start);
                pacing.next(start) - start
            })
            .collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
        assert!(
            pauses
                .iter()
                .all(|pause| *pause >= QUICK_PAUSE.mul_f64(0.59))
        );
    }
}
