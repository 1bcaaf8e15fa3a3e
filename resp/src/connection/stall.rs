//! Detects that a server sends nothing although a command waits for it. Pure.
//!
//! A frozen server keeps its connections open and takes whatever is written to it, so only the clock tells. The clock is
//! read once for all that is in flight: a timer for each command costs more than the command's encoding.

use std::time::{Duration, Instant};

/// Events in each further period of [`Endpoint::stall_after`](crate::Endpoint::stall_after) while a server is stalled.
const REMINDERS: u32 = 5;

/// Detects stalls of one connection, which reports to it whenever it reads the clock anyway.
#[derive(Debug)]
pub(crate) struct StallDetector {
    /// Longest period without a byte from the server; unlimited if absent.
    limit: Option<Duration>,
    /// When the clock was last read.
    checked: Instant,
    /// Whether the clock is read often enough.
    watching: bool,
}

/// The result of one reading of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Whether the server is stalled.
    pub(crate) is_stalled: bool,
    /// The latest instant for the next reading. `None`: when something is sent, see [`StallDetector::resume`].
    pub(crate) next: Option<Instant>,
}

impl StallDetector {
    pub(crate) const fn new(limit: Option<Duration>, now: Instant) -> Self {
        Self {
            limit,
            checked: now,
            watching: false,
        }
    }

    /// Judges at `now`: the oldest command has been `waiting` since then, and the last bytes came at `last_read`.
    pub(crate) fn check(
        &mut self,
        waiting: Option<Instant>,
        last_read: Instant,
        now: Instant,
    ) -> Verdict {
        let is_idle = last_read <= std::mem::replace(&mut self.checked, now);
        let mut verdict = Verdict {
            is_stalled: false,
            next: None,
        };
        if let Some(limit) = self.limit {
            verdict.next = match waiting {
                Some(since) => {
                    let due = since.max(last_read) + limit;
                    verdict.is_stalled = due <= now;
                    Some(if verdict.is_stalled {
                        now + limit / REMINDERS
                    } else {
                        due
                    })
                }
                // Commands sent soon must be watched as well. An idle client is left alone.
                None => (!is_idle).then(|| now + limit),
            };
        }
        self.watching = verdict.next.is_some();
        verdict
    }

    pub(crate) const fn is_watching(&self) -> bool {
        self.watching
    }

    /// Something was sent while the clock was not being read: the instant at which to read it.
    pub(crate) fn resume(&mut self, now: Instant) -> Option<Instant> {
        self.watching = true;
        self.limit.map(|limit| now + limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(250);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_server_that_sends_nothing_for_too_long_is_stalled_until_it_sends_something() {
        let start = Instant::now();
        let mut detector = StallDetector::new(Some(LIMIT), start);
        assert_eq!(detector.resume(start + ms(10)), Some(start + ms(260)));
        assert!(detector.is_watching());
        let waiting = Some(start + ms(10));
        let verdict = detector.check(waiting, start, start + ms(260));
        assert_eq!(
            verdict,
            Verdict {
                is_stalled: true,
                next: Some(start + ms(310))
            }
        );
        assert!(detector.check(waiting, start, start + ms(310)).is_stalled);
        let verdict = detector.check(waiting, start + ms(320), start + ms(360));
        assert_eq!(
            verdict,
            Verdict {
                is_stalled: false,
                next: Some(start + ms(570))
            },
            "other bytes came meanwhile"
        );
    }

    #[test]
    fn an_idle_connection_is_not_watched_after_one_period() {
        let start = Instant::now();
        let mut detector = StallDetector::new(Some(LIMIT), start);
        let verdict = detector.check(None, start + ms(100), start + ms(250));
        assert_eq!(
            verdict.next,
            Some(start + ms(500)),
            "bytes came in this period"
        );
        let verdict = detector.check(None, start + ms(100), start + ms(500));
        assert_eq!(
            verdict,
            Verdict {
                is_stalled: false,
                next: None
            }
        );
        assert!(!detector.is_watching());
        assert_eq!(detector.resume(start + ms(900)), Some(start + ms(1_150)));
    }

    #[test]
    fn without_a_limit_no_server_is_ever_stalled() {
        let start = Instant::now();
        let mut detector = StallDetector::new(None, start);
        assert_eq!(detector.resume(start), None);
        assert_eq!(
            detector.check(Some(start), start, start + ms(60_000)),
            Verdict {
                is_stalled: false,
                next: None
            }
        );
    }
}
