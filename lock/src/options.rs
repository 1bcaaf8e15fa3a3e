//! Options and conditions of locks.

use std::time::{Duration, Instant};

use leasehold_cluster::Quorum;

use crate::state::deadline::{is_good_lease, millis, token_ttl};

/// Other libraries that use the same locks.
///
/// ```
/// # leasehold_testkit::example::with_url(async |url| {
/// use leasehold::{Interop, Locks};
///
/// let locks = Locks::builder(url).interop(Interop::Redisson).connect().await?;
/// let guard = locks.mutex("order:42").lock().await?; // `redisson.getLock("order:42").lock()`
/// # drop(guard);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interop {
    /// None. Every key has an expiry, the counters of fencing tokens too. Redisson's locks and ours exclude each other
    /// all the same.
    #[default]
    Off,
    /// Redisson: each wakes the waiters of the other, fair locks have one order, permits of semaphores are shared, and the
    /// counters of fencing tokens have no expiry, as it expects. See [`from_redisson`](crate::guides::from_redisson).
    Redisson,
}

impl Interop {
    /// How long to keep the counter of fencing tokens of a lock with `lease`; `None` for ever, as Redisson expects.
    pub(crate) fn counter_ttl(self, lease: Duration) -> Option<Duration> {
        match self {
            Self::Off => Some(token_ttl(lease)),
            Self::Redisson => None,
        }
    }
}

/// Which replicas must have a lock before it counts, and each renewal before it extends the lease. Releases never wait.
///
/// A lock that only the master knows is granted a second time when the master fails before its replicas have it, or is
/// frozen, replaced and wakes up. `All` closes that for any single fault, if every user of the lock asks for it. Two at
/// once, and clocks that jump, it does not: [`Guard::token`](crate::Guard::token) is for those.
///
/// A master whose data are younger than the longest lease grants nothing in either mode, as they may have lost locks: see
/// [`LocksBuilder::restart_guard`](crate::LocksBuilder::restart_guard). The user needs the rights to call `INFO` and
/// `WAIT`, and in a cluster `CLUSTER MYID`, `REPLICAS` and `NODES`.
///
/// ```
/// # leasehold_testkit::example::with_replicas(async |url| {
/// use leasehold::{Locks, Replicas};
///
/// let locks = Locks::builder(url)
///     .replicated(Replicas::All)
/// #   .lease(std::time::Duration::from_secs(1)) // a fresh server grants nothing for as long
///     .connect()
///     .await?;
/// let guard = locks.mutex("order:42").lock().await?;
/// assert_eq!(guard.acknowledged(), 2); // both
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Replicas {
    /// None: the fast mode.
    #[default]
    None,
    /// This many of those that are listed for the master. Fewer than all are not safe across a failover: they may be those
    /// that are not promoted. As many as there are work like `All`, but grant nothing while one of them is down. More than
    /// there are is an error at once.
    AtLeast(usize),
    /// All that are listed for the master: by the sentinels, less those that a majority of them holds to be down
    /// (`s_down`); by the cluster's nodes, less those that are marked `fail`; and for a single server all it was ever seen
    /// with since these locks connected. A replica that is merely disconnected must confirm, since it may be the one that
    /// takes over. With none listed nothing is granted.
    All,
}

impl Replicas {
    /// The number that must confirm, if any must.
    pub(crate) const fn quorum(self) -> Option<Quorum> {
        match self {
            Self::None | Self::AtLeast(0) => None,
            Self::AtLeast(n) => Some(Quorum::AtLeast(n)),
            Self::All => Some(Quorum::All),
        }
    }
}

/// The conditions of one acquisition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Of the acquire and of every renewal.
    pub(crate) lease: Duration,
    /// Whether the lease is renewed.
    pub(crate) renew: bool,
    /// Upper bound on the whole hold, however often it is renewed.
    pub(crate) max_hold: Option<Duration>,
    /// How long the lock stays taken at least, also when it is released before.
    pub(crate) at_least: Option<Duration>,
    /// Which replicas must confirm the acquire and each renewal.
    pub(crate) replicas: Replicas,
}

impl Terms {
    /// Of a lock that asks for nothing else: renewed for as long as it is held.
    pub(crate) const fn renewed(lease: Duration, replicas: Replicas) -> Self {
        Self {
            lease,
            renew: true,
            max_hold: None,
            at_least: None,
            replicas,
        }
    }

    /// How many replicas must confirm the acquire and each renewal, if any must.
    pub(crate) const fn quorum(&self) -> Option<Quorum> {
        self.replicas.quorum()
    }

    /// The same hold in leases of at most `longest`, which are renewed: a fixed lease becomes the longest hold.
    pub(crate) fn in_leases_of(self, longest: Duration) -> Self {
        if self.lease <= longest {
            return self;
        }
        let fixed = (!self.renew).then_some(self.lease);
        Self {
            lease: longest,
            renew: true,
            max_hold: self.max_hold.into_iter().chain(fixed).min(),
            ..self
        }
    }

    /// The lease to acquire with. The lock stays taken for as long as it is to be, also if this process dies.
    pub(crate) fn first_lease(&self) -> Duration {
        let lease = self.whole_lease();
        self.max_hold.map_or(lease, |max_hold| max_hold.min(lease))
    }

    /// The longest of its leases, if nothing bounds it.
    pub(crate) fn whole_lease(&self) -> Duration {
        self.lease.max(self.at_least.unwrap_or_default())
    }

    /// Whether there will be anything to renew.
    pub(crate) fn needs_renewal(&self) -> bool {
        self.renew
            && self
                .max_hold
                .is_none_or(|max_hold| max_hold > self.whole_lease())
    }

    /// The rest of the first lease at `now`, for a hold whose request was sent at `since`, in whole milliseconds as the
    /// server counts; `None` if that is nothing.
    pub(crate) fn rest_of_first_lease(&self, since: Instant, now: Instant) -> Option<Duration> {
        let left = (since + self.first_lease()).saturating_duration_since(now);
        let whole = Duration::from_millis(millis(left));
        Some(whole).filter(|lease| !lease.is_zero())
    }

    /// The lease of a renewal that is sent at `now`, for a hold whose request was sent at `since` and which is to last for
    /// `at_least` longer; `None` if nothing is to be renewed or `max_hold` leaves nothing to renew.
    pub(crate) fn next_lease(
        &self,
        since: Instant,
        at_least: Duration,
        now: Instant,
    ) -> Option<Duration> {
        if !self.renew {
            return None;
        }
        let lease = self.lease.max(at_least);
        let left = self.max_hold.map_or(lease, |max_hold| {
            (since + max_hold).saturating_duration_since(now).min(lease)
        });
        // The server counts in whole milliseconds; less than one is nothing.
        let whole = Duration::from_millis(millis(left));
        Some(whole).filter(|lease| !lease.is_zero())
    }

    /// The first condition that is asked for here and not met by a hold with the terms `held`, which `acknowledged` replicas confirmed and
    /// whose request was sent at `since`; `None` if that hold will do. Its lease may be another one.
    pub(crate) fn missing_in(
        &self,
        held: &Self,
        acknowledged: usize,
        since: Instant,
        now: Instant,
    ) -> Option<&'static str> {
        let confirmed = match self.replicas {
            Replicas::None => true,
            Replicas::AtLeast(n) => held.replicas == Replicas::All || acknowledged >= n,
            Replicas::All => held.replicas == Replicas::All,
        };
        if !confirmed {
            return Some(
                "`replicated`: fewer replicas had to confirm that hold than are asked for",
            );
        }
        let ends = match held.max_hold {
            Some(max_hold) => Some(since + max_hold),
            None => (!held.renew).then(|| since + held.lease),
        };
        let in_time = |max_hold| ends.is_some_and(|end| end <= now + max_hold);
        if !self.max_hold.is_none_or(in_time) {
            return Some("`max_hold`: that hold may last longer than is asked for");
        }
        let lasts = |at_least| ends.is_none_or(|end| end >= now + at_least);
        (!self.at_least.is_none_or(lasts))
            .then_some("`at_least`: that hold may end before the time that is asked for")
    }

    /// The duration that cannot be used, if there is one.
    pub(crate) fn bad_duration(&self) -> Option<&'static str> {
        let is_bad = |time: Option<Duration>| time.is_some_and(|time| !is_good_lease(time));
        if !is_good_lease(self.lease) {
            return Some("the lease");
        }
        if is_bad(self.max_hold) {
            return Some("the longest hold");
        }
        is_bad(self.at_least).then_some("the time of `at_least`")
    }

    /// The setting that contradicts `at_least`, if one does.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let at_least = self.at_least?;
        if self.max_hold.is_some_and(|max_hold| max_hold < at_least) {
            return Some("`at_least` is longer than `max_hold`");
        }
        (!self.renew && self.lease < at_least).then_some("`at_least` is longer than `lease`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(replicas: Replicas, max_hold: Option<u64>) -> Terms {
        Terms {
            lease: Duration::from_secs(30),
            renew: true,
            max_hold: max_hold.map(Duration::from_secs),
            at_least: None,
            replicas,
        }
    }

    #[test]
    fn a_hold_gives_what_is_asked_for_or_says_what_is_missing() {
        let since = Instant::now();
        let now = since + Duration::from_secs(5);
        let missing = |asked: Terms, held: Terms, acknowledged| {
            let missing = asked.missing_in(&held, acknowledged, since, now);
            missing.and_then(|missing| missing.split(':').next())
        };
        let plain = terms(Replicas::None, None);
        let safe = terms(Replicas::All, None);
        let two = terms(Replicas::AtLeast(2), None);
        assert_eq!(missing(plain, safe, 1), None);
        assert_eq!(missing(safe, safe, 1), None);
        assert_eq!(missing(two, safe, 1), None, "all there are");
        assert_eq!(missing(two, terms(Replicas::AtLeast(1), None), 2), None);
        assert_eq!(missing(two, plain, 0), Some("`replicated`"));
        assert_eq!(missing(safe, two, 2), Some("`replicated`"));

        let short = terms(Replicas::None, Some(10));
        assert_eq!(missing(short, plain, 0), Some("`max_hold`"));
        assert_eq!(missing(short, terms(Replicas::None, Some(15)), 0), None);
        assert_eq!(
            missing(short, terms(Replicas::None, Some(16)), 0),
            Some("`max_hold`")
        );
        let fixed = Terms {
            lease: Duration::from_secs(10),
            renew: false,
            ..plain
        };
        assert_eq!(missing(short, fixed, 0), None, "it ends in time");
        assert_eq!(missing(plain, short, 0), None);

        let kept = |secs| Terms {
            at_least: Some(Duration::from_secs(secs)),
            ..plain
        };
        assert_eq!(missing(kept(60), plain, 0), None, "it lasts");
        assert_eq!(missing(kept(5), fixed, 0), None);
        assert_eq!(missing(kept(6), fixed, 0), Some("`at_least`"));
        assert_eq!(missing(kept(6), short, 0), Some("`at_least`"));
    }

    #[test]
    fn the_first_lease_lasts_for_the_time_to_be_held_at_least() {
        let kept = |secs, max_hold| Terms {
            at_least: Some(Duration::from_secs(secs)),
            ..terms(Replicas::None, max_hold)
        };
        let secs = Duration::from_secs;
        assert_eq!(kept(10, None).first_lease(), secs(30));
        assert_eq!(kept(60, None).first_lease(), secs(60));
        assert_eq!(kept(60, Some(90)).first_lease(), secs(60));
        assert!(kept(60, Some(90)).needs_renewal());
        assert!(!kept(60, Some(60)).needs_renewal());
        let since = Instant::now();
        let next = |left: u64| kept(60, Some(90)).next_lease(since, secs(left), since);
        assert_eq!((next(50), next(10)), (Some(secs(50)), Some(secs(30))));
    }

    #[test]
    fn a_time_to_be_held_contradicts_what_ends_before() {
        let kept = |at_least, max_hold, renew| {
            Terms {
                at_least: Some(Duration::from_secs(at_least)),
                renew,
                ..terms(Replicas::None, max_hold)
            }
            .contradiction()
        };
        assert_eq!(kept(60, None, true), None, "it is renewed");
        assert_eq!(kept(60, Some(60), true), None);
        assert!(kept(60, Some(59), true).is_some_and(|text| text.contains("max_hold")));
        assert_eq!(kept(30, None, false), None);
        assert!(kept(31, None, false).is_some_and(|text| text.contains("`lease`")));
    }
}
