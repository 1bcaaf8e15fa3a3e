//! How long a master grants nothing because its data may be younger than the locks they should hold. Pure.
//!
//! A server that restarts without its data has forgotten its locks, and so have the replicas that copy it; one of those
//! may be promoted next, although its process is old. So the guard follows the data, by the ids of their history, and not
//! the process.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use std::time::{Duration, Instant};

use crate::replication_info::ReplicationInfo;

/// Histories that are remembered. Those used least recently are forgotten first, and looked at anew when they are back.
const MAX_KNOWN: usize = 4096;

/// The histories that were met, each with the instant before which locks may have been lost from it.
#[derive(Debug, Default)]
pub(crate) struct DataGuard {
    /// The latest used last.
    known: Vec<(Box<str>, Option<Instant>)>,
}

/// The guard's judgement of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Its data have been complete for longer than the guard time.
    Complete,
    /// They will have been in this time.
    In(Duration),
    /// It has been promoted, and nothing is known of its data: since when it has been a master decides.
    AskMastership,
}

impl DataGuard {
    /// Whether a master may grant at `now`. Its process was started at `started` at the latest, and has been a master at
    /// least since `master_since`, each `None` if that is before this machine's clock or not known.
    ///
    /// `guard` is the longest lease that anybody uses there.
    pub(crate) fn check(
        &mut self,
        info: &ReplicationInfo,
        started: Option<Instant>,
        master_since: Option<Mastership>,
        guard: Duration,
        now: Instant,
    ) -> Trust {
        let former = info.former_history.as_deref();
        let complete_since = match self.find(&info.history).or_else(|| self.find(former?)) {
            Some(known) => known,
            None if former.is_none() => started,
            None => match master_since {
                None => return Trust::AskMastership,
                Some(Mastership::Since(since)) => since,
                // Since when is not known: not before the first look at it.
                Some(Mastership::Unknown) => Some(now),
            },
        };
        // A process that was restarted has what it saved at most, and so have those that copy it.
        let complete_since = complete_since.max(started);
        self.remember(&info.history, complete_since);
        let opens = complete_since.and_then(|at| at.checked_add(guard));
        match opens.and_then(|at| at.checked_duration_since(now)) {
            Some(left) if !left.is_zero() => Trust::In(left),
            _ => Trust::Complete,
        }
    }

    fn find(&self, history: &str) -> Option<Option<Instant>> {
        let known = self.known.iter().rev().find(|(id, _)| **id == *history);
        known.map(|(_, since)| *since)
    }

    fn remember(&mut self, history: &str, complete_since: Option<Instant>) {
        if let Some(at) = self.known.iter().position(|(id, _)| **id == *history) {
            // To the end; most clients know one history or a few.
            self.known.remove(at);
        }
        if self.known.len() >= MAX_KNOWN {
            self.known.remove(0);
        }
        self.known.push((history.into(), complete_since));
    }
}

/// Since when a server has been a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mastership {
    /// Since then, or earlier; `None` if that is before this machine's clock.
    Since(Option<Instant>),
    /// No source tells.
    Unknown,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects, reason = "tests")]

    use super::*;

    const G: Duration = Duration::from_secs(30);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn info(history: &str, former: Option<&str>) -> ReplicationInfo {
        ReplicationInfo {
            is_master: true,
            history: history.into(),
            former_history: former.map(Into::into),
            offset: 0,
            replicas: Vec::new(),
        }
    }

    fn start() -> Instant {
        Instant::now() + secs(100_000)
    }

    #[test]
    fn a_young_server_waits_until_it_is_older_than_the_longest_lease() {
        let (mut guard, now) = (DataGuard::default(), start());
        let info = info("a", None);
        let started = Some(now - secs(10));
        assert_eq!(
            guard.check(&info, started, None, G, now),
            Trust::In(secs(20))
        );
        let later = now + secs(20);
        assert_eq!(guard.check(&info, started, None, G, later), Trust::Complete);
        let mut fresh = DataGuard::default();
        assert_eq!(fresh.check(&info, None, None, G, now), Trust::Complete);
    }

    #[test]
    fn a_promoted_replica_with_the_data_that_were_known_goes_on_at_once() {
        let (mut guard, now) = (DataGuard::default(), start());
        let old = Some(now - secs(1000));
        assert_eq!(
            guard.check(&info("a", None), old, None, G, now),
            Trust::Complete
        );
        assert_eq!(
            guard.check(&info("b", Some("a")), old, None, G, now + secs(1)),
            Trust::Complete
        );
        assert_eq!(
            guard.check(&info("c", Some("b")), old, None, G, now + secs(2)),
            Trust::Complete
        );
    }

    /// The master came back empty at once, its replicas copied that, and one of them was promoted.
    #[test]
    fn a_promoted_replica_that_copied_an_empty_master_waits() {
        let (mut guard, now) = (DataGuard::default(), start());
        let old = Some(now - secs(1000));
        guard.check(&info("a", None), old, None, G, now);
        let emptied = info("c", Some("b"));
        assert_eq!(
            guard.check(&emptied, old, None, G, now),
            Trust::AskMastership
        );
        let since = Some(Mastership::Since(Some(now - secs(2))));
        assert_eq!(
            guard.check(&emptied, old, since, G, now),
            Trust::In(secs(28))
        );
        // From now on that is known, whatever is said of the mastership.
        assert_eq!(
            guard.check(&emptied, old, None, G, now + secs(27)),
            Trust::In(secs(1))
        );
        assert_eq!(
            guard.check(&info("d", Some("c")), old, None, G, now + secs(20)),
            Trust::In(secs(8)),
            "the doubt goes along with the data"
        );
    }

    #[test]
    fn a_promotion_that_nobody_can_date_begins_with_the_first_look() {
        let (mut guard, now) = (DataGuard::default(), start());
        let old = Some(now - secs(1000));
        let promoted = info("b", Some("a"));
        let unknown = Some(Mastership::Unknown);
        assert_eq!(guard.check(&promoted, old, unknown, G, now), Trust::In(G));
        assert_eq!(
            guard.check(&promoted, old, None, G, now + secs(29)),
            Trust::In(secs(1))
        );
    }

    #[test]
    fn an_old_promotion_is_trusted_at_once() {
        let (mut guard, now) = (DataGuard::default(), start());
        let old = Some(now - secs(1000));
        for since in [Some(now - secs(31)), None] {
            let since = Some(Mastership::Since(since));
            let promoted = info("b", Some("a"));
            assert_eq!(
                DataGuard::default().check(&promoted, old, since, G, now),
                Trust::Complete
            );
        }
        // A server that was restarted is young whatever it knows.
        let young = Some(now - secs(1));
        guard.check(&info("a", None), old, None, G, now);
        assert_eq!(
            guard.check(&info("a", None), young, None, G, now),
            Trust::In(secs(29))
        );
        assert_eq!(
            guard.check(&info("b", Some("a")), old, None, G, now),
            Trust::In(secs(29)),
            "and so is what is copied from it"
        );
    }

    #[test]
    fn a_longer_lease_lengthens_the_wait() {
        let (mut guard, now) = (DataGuard::default(), start());
        let started = Some(now - secs(40));
        let info = info("a", None);
        assert_eq!(guard.check(&info, started, None, G, now), Trust::Complete);
        assert_eq!(
            guard.check(&info, started, None, secs(60), now),
            Trust::In(secs(20))
        );
    }
}
