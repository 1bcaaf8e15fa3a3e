//! How much of a primitive a hold takes, where that is counted.

/// The most permits of one hold: the server writes each by itself, and does nothing else meanwhile, for about 5 µs each.
pub(crate) const MOST_PERMITS: u32 = 10_000;
/// The largest number of permits in all, which is Redisson's.
pub(crate) const LARGEST_CAPACITY: u32 = i32::MAX.cast_unsigned();

/// The permits of a request or a hold, and how many the caller believes there are in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permits {
    /// Index of the first within the hold.
    pub(crate) first: u32,
    /// In an end, 0 is all that the hold has.
    pub(crate) count: u32,
    pub(crate) capacity: u32,
}

/// Why permits cannot be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadPermits {
    #[error("a semaphore has 1 to {LARGEST_CAPACITY} permits, not {0}")]
    Capacity(u32),
    #[error("at least one permit is to be asked for")]
    NoneAsked,
    #[error(
        "{asked} permits were asked for, and there are {capacity} in all: it would wait for ever"
    )]
    TooMany { asked: u32, capacity: u32 },
    #[error("at most {MOST_PERMITS} permits can be asked for at once, not {0}: ask several times")]
    AtOnce(u32),
}

impl Permits {
    /// Nothing is counted.
    pub(crate) const NONE: Self = Self {
        first: 0,
        count: 0,
        capacity: 0,
    };

    /// A request for `count` of `capacity` permits.
    pub(crate) const fn of(count: u32, capacity: u32) -> Self {
        Self {
            first: 0,
            count,
            capacity,
        }
    }

    /// Why these cannot be asked for where at most `most` can be at once, if so.
    pub(crate) const fn bad(self, most: u32) -> Option<BadPermits> {
        let Self {
            count, capacity, ..
        } = self;
        if let Some(bad) = bad_capacity(capacity) {
            return Some(bad);
        }
        if count == 0 {
            return Some(BadPermits::NoneAsked);
        }
        if count > capacity {
            return Some(BadPermits::TooMany {
                asked: count,
                capacity,
            });
        }
        if count > most {
            return Some(BadPermits::AtOnce(count));
        }
        None
    }
}

/// Why a semaphore cannot have so many permits, if so.
pub(crate) const fn bad_capacity(capacity: u32) -> Option<BadPermits> {
    if capacity == 0 || capacity > LARGEST_CAPACITY {
        Some(BadPermits::Capacity(capacity))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_never_be_granted_is_refused() {
        assert_eq!(Permits::of(5, 5).bad(MOST_PERMITS), None);
        assert_eq!(
            Permits::of(0, 5).bad(MOST_PERMITS),
            Some(BadPermits::NoneAsked)
        );
        assert_eq!(
            Permits::of(1, 0).bad(MOST_PERMITS),
            Some(BadPermits::Capacity(0))
        );
        let too_many = BadPermits::TooMany {
            asked: 6,
            capacity: 5,
        };
        assert_eq!(Permits::of(6, 5).bad(MOST_PERMITS), Some(too_many));
        let (most, all) = (MOST_PERMITS, LARGEST_CAPACITY);
        assert_eq!(Permits::of(most, all).bad(most), None);
        assert_eq!(
            Permits::of(most + 1, all).bad(most),
            Some(BadPermits::AtOnce(most + 1))
        );
        assert_eq!(
            Permits::of(1, all + 1).bad(most),
            Some(BadPermits::Capacity(all + 1))
        );
    }
}
