//! A waiter of a latch: a state machine without time or I/O.
//!
//! A latch can be opened and set again between two looks. Each opening is noted at the server, so a waiter also goes on when
//! the count that it waited for is no longer the one that it finds.

use std::time::Duration;

/// The state of a latch, as its server had it at one instant.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let pages = locks.latch("pages");
/// pages.try_set_count(3).await?;
/// pages.count_down_as("page-1").await?;
///
/// let state = pages.inspect().await?;
/// assert_eq!((state.count(), state.remaining()), (2, None));
/// assert_eq!(state.participants(), ["page-1"]);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatchInspection {
    pub(crate) count: u64,
    pub(crate) remaining: Option<Duration>,
    pub(crate) participants: Vec<String>,
}

/// How far a latch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) count: u64,
    /// The latest opening that is noted, a number that only grows; 0 for none, `None` if the notes could not be read.
    pub(crate) opened: Option<u64>,
    /// Whether Redisson has opened it and set it again since it was noted.
    pub(crate) anew: bool,
    /// Whether it vanished before it was counted down.
    pub(crate) lost: bool,
    /// Whether nothing at all is known of it, and the server may have lost that.
    pub(crate) doubtful: bool,
}

/// The next step of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Open,
    Closed,
    Lost,
}

impl LatchInspection {
    /// The count; 0 if it is open.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// When it vanishes, if it was set with an expiry.
    #[must_use]
    pub const fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// The participants that were counted since it was set. Of more than a hundred, a hundred.
    #[must_use]
    pub fn participants(&self) -> &[String] {
        &self.participants
    }
}

/// One waiter.
#[derive(Debug)]
pub(crate) struct LatchWaiter {
    /// Whether nobody but us opens it, so that each opening is noted.
    notes_all: bool,
    /// Whether a latch of which nothing is known must be known to be open.
    needs_proof: bool,
    /// The opening before the count that it waits for, as far as it is known, and whether that count is Redisson's.
    since: Option<(u64, bool)>,
    /// Whether it has seen a count, and the notes beside it.
    has_seen_count: bool,
}

impl LatchWaiter {
    pub(crate) const fn new(notes_all: bool, needs_proof: bool) -> Self {
        Self {
            notes_all,
            needs_proof,
            since: None,
            has_seen_count: false,
        }
    }

    /// Judges what was seen after it began to wait, or after what it judged last.
    pub(crate) fn judge(&mut self, view: &View) -> Verdict {
        if view.lost {
            return Verdict::Lost;
        }
        if self.needs_proof && view.doubtful {
            return Verdict::Closed;
        }
        if self.has_opened(view) {
            return Verdict::Open;
        }
        if view.count > 0 {
            self.has_seen_count |= view.opened.is_some();
            return Verdict::Closed;
        }
        match view.opened {
            // In a slot that is migrating: the notes, which tell an opening from a loss, are somewhere else.
            None if self.notes_all => Verdict::Closed,
            // Count and notes vanished together.
            Some(_) if self.notes_all && self.has_seen_count => Verdict::Lost,
            _ => Verdict::Open,
        }
    }

    /// Whether an opening was noted since the first look.
    fn has_opened(&mut self, view: &View) -> bool {
        let Some(opened) = view.opened else {
            return false;
        };
        match self.since {
            None => self.since = Some((opened, view.anew)),
            // The notes were lost, and say nothing of before.
            Some(_) if opened == 0 && !view.anew => {}
            Some((known, by_redisson)) if opened != known => {
                if !by_redisson {
                    return true;
                }
                // It is the one before the count that was already there.
                self.since = Some((opened, view.anew));
            }
            Some((_, by_redisson)) => return view.anew && !by_redisson,
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn view(count: u64, opened: u64) -> View {
        View {
            count,
            opened: Some(opened),
            anew: false,
            lost: false,
            doubtful: false,
        }
    }

    const fn anew(count: u64, opened: u64) -> View {
        View {
            anew: true,
            ..view(count, opened)
        }
    }

    const fn alone(count: u64) -> View {
        View {
            opened: None,
            ..view(count, 0)
        }
    }

    fn judged<const N: usize>(notes_all: bool, views: [View; N]) -> [Verdict; N] {
        let mut waiter = LatchWaiter::new(notes_all, false);
        views.map(|view| waiter.judge(&view))
    }

    use Verdict::{Closed, Lost, Open};

    #[test]
    fn it_opens_at_zero() {
        for notes_all in [false, true] {
            assert_eq!(judged(notes_all, [view(0, 0)]), [Open]);
            assert_eq!(
                judged(notes_all, [view(2, 5), view(1, 5), view(0, 9)]),
                [Closed, Closed, Open]
            );
        }
    }

    #[test]
    fn an_opening_between_two_looks_is_not_missed() {
        assert_eq!(judged(true, [view(2, 5), view(3, 9)]), [Closed, Open]);
        assert_eq!(
            judged(true, [view(2, 0), view(3, 9)]),
            [Closed, Open],
            "the first"
        );
        assert_eq!(judged(false, [view(2, 5), anew(3, 5)]), [Closed, Open]);
    }

    #[test]
    fn noting_redissons_count_is_no_opening() {
        assert_eq!(
            judged(false, [anew(3, 5), view(2, 9), view(2, 9), view(1, 12)]),
            [Closed, Closed, Closed, Open]
        );
    }

    #[test]
    fn lost_notes_open_nothing() {
        assert_eq!(
            judged(true, [view(2, 5), view(2, 0), view(1, 5)]),
            [Closed, Closed, Closed]
        );
        assert_eq!(judged(true, [view(2, 5), view(1, 0), view(0, 9)])[2], Open);
    }

    #[test]
    fn what_vanishes_unnoted_is_lost_unless_redisson_may_have_opened_it() {
        assert_eq!(judged(true, [view(2, 5), view(0, 5)]), [Closed, Lost]);
        assert_eq!(judged(true, [view(2, 5), view(0, 0)]), [Closed, Lost]);
        assert_eq!(judged(false, [view(2, 5), view(0, 0)]), [Closed, Open]);
        let lost = View {
            lost: true,
            ..view(0, 5)
        };
        assert_eq!(judged(false, [lost]), [Lost], "it expired");
    }

    #[test]
    fn what_the_server_may_have_lost_opens_nothing_where_that_must_be_proven() {
        let doubtful = View {
            doubtful: true,
            ..view(0, 0)
        };
        for seen in [&[doubtful, view(2, 5)][..], &[view(2, 5), doubtful]] {
            let mut waiter = LatchWaiter::new(true, true);
            for view in seen {
                assert_eq!(waiter.judge(view), Closed);
            }
            assert_eq!(waiter.judge(&view(0, 9)), Open);
        }
        assert_eq!(LatchWaiter::new(true, true).judge(&view(0, 0)), Open);
        assert_eq!(LatchWaiter::new(true, false).judge(&doubtful), Open);
    }

    #[test]
    fn without_the_notes_zero_is_believed_only_where_redisson_opens_too() {
        assert_eq!(judged(false, [alone(1), alone(0)]), [Closed, Open]);
        assert_eq!(
            judged(true, [alone(1), alone(0), view(0, 9)]),
            [Closed, Closed, Open]
        );
    }
}
