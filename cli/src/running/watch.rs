//! The decisions of the watchdog: when a command gets its signals. Pure; time is an argument, since the machine was started.

use std::time::Duration;

use super::limits::{Limits, OnLost};

/// Between two SIGKILLs to what is left: a process may have started another one in the same instant.
const AGAIN: Duration = Duration::from_millis(20);

/// Known state of a command and its lock.
#[derive(Debug)]
pub(super) struct Watch {
    limits: Limits,
    /// Until when the lock is held, as far as the supervisor has told.
    deadline: Duration,
    /// When the first signal is due: less than the grace before a deadline that is near when it is told, as that of a grant that
    /// no renewal has made a whole lease yet.
    first_at: Duration,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// It got its first signal.
    Ending {
        kill_at: Duration,
    },
    /// It got SIGKILL, and gets it again then.
    Killing {
        again_at: Duration,
    },
}

/// The action that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Signal(i32),
    Kill,
}

impl Watch {
    pub(super) fn new(limits: Limits, deadline: Duration, now: Duration) -> Self {
        let mut this = Self {
            limits,
            deadline: Duration::ZERO,
            first_at: Duration::ZERO,
            phase: Phase::Running,
        };
        this.told(deadline, now);
        this
    }

    /// The supervisor says that the lock is held until `deadline`: later than before after a renewal, and in the past if it is lost.
    pub(super) fn told(&mut self, deadline: Duration, now: Duration) {
        if deadline == self.deadline {
            return;
        }
        self.deadline = deadline;
        let left = deadline.saturating_sub(now);
        self.first_at = deadline.saturating_sub(self.limits.grace.min(left / 2));
        if let Phase::Ending { kill_at } = &mut self.phase {
            // A command that was told to end is not allowed more time than it was told.
            *kill_at = (*kill_at).min(deadline.saturating_sub(self.limits.margin));
        }
    }

    /// Whether a command that begins now would be killed at once.
    pub(super) fn is_too_late(&self, now: Duration) -> bool {
        now >= self.latest_begin()
    }

    /// From when on it is.
    pub(super) fn latest_begin(&self) -> Duration {
        self.deadline.saturating_sub(self.limits.margin)
    }

    /// The supervisor is gone: nothing renews the lock any more. Returns the first signal, if the command is to have it now.
    pub(super) fn abandoned(&mut self, now: Duration) -> Due {
        match self.limits.on_lost {
            OnLost::Ignore => Due::Nothing,
            OnLost::Signal(signal) if self.phase == Phase::Running => self.end(signal, now),
            OnLost::Signal(_) => Due::Nothing,
            OnLost::Kill => self.kill(now),
        }
    }

    /// The command is to end: it gets `signal` now and SIGKILL after the grace, or in time for the deadline.
    pub(super) fn end(&mut self, signal: i32, now: Duration) -> Due {
        let kill_at = (now + self.limits.grace).min(self.kill_at());
        self.phase = Phase::Ending { kill_at };
        Due::Signal(signal)
    }

    /// The action that is due now.
    pub(super) fn due(&mut self, now: Duration) -> Due {
        match self.phase {
            Phase::Running if self.limits.on_lost == OnLost::Ignore => Due::Nothing,
            Phase::Running if now >= self.kill_at() => self.kill(now),
            Phase::Running => match self.limits.on_lost {
                OnLost::Signal(signal) if now >= self.first_at => {
                    let kill_at = self.kill_at();
                    self.phase = Phase::Ending { kill_at };
                    Due::Signal(signal)
                }
                _ => Due::Nothing,
            },
            Phase::Ending { kill_at } if now >= kill_at => self.kill(now),
            Phase::Killing { again_at } if now >= again_at => self.kill(now),
            Phase::Ending { .. } | Phase::Killing { .. } => Due::Nothing,
        }
    }

    /// When something is due next, unless something else happens.
    pub(super) fn next(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running => match self.limits.on_lost {
                OnLost::Ignore => None,
                OnLost::Kill => Some(self.kill_at()),
                OnLost::Signal(_) => Some(self.first_at.min(self.kill_at())),
            },
            Phase::Ending { kill_at } => Some(kill_at),
            Phase::Killing { again_at } => Some(again_at),
        }
    }

    /// When the command is to learn that its lock is lost or about to be: with the first signal. One that gets SIGKILL alone
    /// learns it when that signal would come, and one that is spared at the deadline.
    pub(super) const fn lost_at(&self) -> Duration {
        match self.limits.on_lost {
            OnLost::Ignore => self.deadline,
            OnLost::Signal(_) | OnLost::Kill => self.first_at,
        }
    }

    /// Whether the command was told to end.
    pub(super) fn is_ending(&self) -> bool {
        self.phase != Phase::Running
    }

    fn kill(&mut self, now: Duration) -> Due {
        self.phase = Phase::Killing {
            again_at: now + AGAIN,
        };
        Due::Kill
    }

    /// When SIGKILL is due for the lock's sake.
    fn kill_at(&self) -> Duration {
        match self.limits.on_lost {
            OnLost::Ignore => Duration::MAX,
            _ => self.deadline.saturating_sub(self.limits.margin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: i32 = 15;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn limits(on_lost: OnLost) -> Limits {
        Limits {
            on_lost,
            grace: s(5),
            margin: s(1),
        }
    }

    /// A lease of 30 s from 100 on.
    fn watch(on_lost: OnLost) -> Watch {
        Watch::new(limits(on_lost), s(130), s(100))
    }

    #[test]
    fn without_a_renewal_the_signals_come_before_the_deadline() {
        let mut watch = watch(OnLost::Signal(TERM));
        assert_eq!(watch.next(), Some(s(125)));
        assert_eq!(watch.due(s(124)), Due::Nothing);
        assert_eq!(watch.due(s(125)), Due::Signal(TERM));
        assert_eq!(watch.due(s(125)), Due::Nothing);
        assert_eq!(watch.next(), Some(s(129)));
        assert_eq!(watch.due(s(128)), Due::Nothing);
        assert_eq!(watch.due(s(129)), Due::Kill);
        assert_eq!(watch.next(), Some(s(129) + AGAIN));
        assert_eq!(watch.due(s(129)), Due::Nothing);
        assert_eq!(watch.due(s(130)), Due::Kill, "what is left gets it again");
    }

    #[test]
    fn a_renewal_moves_them() {
        let mut watch = watch(OnLost::Signal(TERM));
        watch.told(s(140), s(110));
        assert_eq!(watch.next(), Some(s(135)));
        watch.told(s(140), s(134));
        assert_eq!(watch.next(), Some(s(135)), "the same deadline again");
        assert_eq!(watch.due(s(134)), Due::Nothing);
    }

    #[test]
    fn a_renewal_after_the_first_signal_gives_no_more_time_and_a_loss_less() {
        let mut watch = watch(OnLost::Signal(TERM));
        assert_eq!(watch.due(s(125)), Due::Signal(TERM));
        watch.told(s(156), s(126));
        assert_eq!(watch.next(), Some(s(129)));
        watch.told(s(127), s(127));
        assert_eq!(watch.due(s(127)), Due::Kill);
    }

    #[test]
    fn a_lock_that_is_lost_already_leaves_no_time() {
        for on_lost in [OnLost::Signal(TERM), OnLost::Kill] {
            let mut watch = watch(on_lost);
            watch.told(s(110), s(110));
            assert_eq!(watch.due(s(110)), Due::Kill);
        }
    }

    #[test]
    fn a_loss_is_told_with_the_first_signal_and_to_who_is_spared_at_the_deadline() {
        for (on_lost, before, after) in [
            (OnLost::Signal(TERM), s(125), s(195)),
            (OnLost::Kill, s(125), s(195)),
            (OnLost::Ignore, s(130), s(200)),
        ] {
            let mut watch = watch(on_lost);
            assert_eq!(watch.lost_at(), before, "{on_lost:?}");
            watch.told(s(200), s(110));
            assert_eq!(watch.lost_at(), after, "{on_lost:?}");
            // The supervisor says that it is lost.
            watch.told(s(111), s(111));
            assert_eq!(watch.lost_at(), s(111), "{on_lost:?}");
        }
    }

    #[test]
    fn no_command_begins_under_a_lock_that_has_ended() {
        let watch = watch(OnLost::Ignore);
        assert!(!watch.is_too_late(s(100)));
        assert!(watch.is_too_late(s(129)));
        assert!(watch.is_too_late(s(140)));
    }

    #[test]
    fn a_deadline_that_is_near_when_it_is_told_leaves_half_of_the_time() {
        let watch = Watch::new(limits(OnLost::Signal(TERM)), s(104), s(100));
        assert_eq!(watch.next(), Some(s(102)));
    }

    #[test]
    fn a_supervisor_that_is_gone_ends_the_command_with_its_grace() {
        let mut watch = watch(OnLost::Signal(TERM));
        assert_eq!(watch.abandoned(s(110)), Due::Signal(TERM));
        assert_eq!(watch.abandoned(s(110)), Due::Nothing);
        assert_eq!(watch.next(), Some(s(115)));
        assert_eq!(watch.due(s(115)), Due::Kill);

        let mut late = self::watch(OnLost::Signal(TERM));
        assert_eq!(late.abandoned(s(124)), Due::Signal(TERM));
        assert_eq!(late.next(), Some(s(129)), "not beyond the deadline");

        assert_eq!(self::watch(OnLost::Kill).abandoned(s(110)), Due::Kill);
    }

    #[test]
    fn ignoring_a_loss_sends_nothing() {
        let mut watch = watch(OnLost::Ignore);
        assert_eq!(watch.due(s(1_000)), Due::Nothing);
        assert_eq!(watch.abandoned(s(1_000)), Due::Nothing);
        assert_eq!(watch.next(), None);
        assert_eq!(watch.end(TERM, s(1_000)), Due::Signal(TERM));
        assert_eq!(
            watch.next(),
            Some(s(1_005)),
            "what is left over after it has ended"
        );
    }
}
