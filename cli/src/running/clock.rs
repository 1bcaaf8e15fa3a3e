//! The clock that the supervisor and its watchdog share: it goes on while the machine sleeps, and nobody can set it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// The time since the machine was started.
pub(super) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(
        time.tv_sec.cast_unsigned(),
        time.tv_nsec.cast_unsigned() as u32,
    )
}

/// A descriptor that becomes readable at a time of this clock. After the machine has slept, it is at once.
#[derive(Debug)]
pub(super) struct Alarm(OwnedFd);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Sets it to `at`, instead of what it was set to; to nothing with `None`.
    pub(super) fn set(&self, at: Option<Duration>) -> io::Result<()> {
        let value = match at {
            // Zero would switch it off.
            Some(at) => timespec(at.max(Duration::from_nanos(1))),
            None => timespec(Duration::ZERO),
        };
        let timer = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: value,
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &timer)?;
        Ok(())
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    }
}
