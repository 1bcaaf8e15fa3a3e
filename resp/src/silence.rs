//! Noticing that a server says nothing although something waits for it. Pure.
//!
//! A frozen server keeps its connections open and takes whatever is written to it, so only the clock tells. One look at
//! the clock for all that is in flight: a timer for each command costs more than the command's encoding.

use std::time::{Duration, Instant};

/// While a server is silent its observer is told so many times in each period of silence.
const REMINDERS: u32 = 5;

/// Watches one connection, which reports when it looks at the clock anyway.
#[derive(Debug)]
pub(crate) struct Silence {
    /// How long is too long; never, if absent.
    patience: Option<Duration>,
    /// When the clock was looked at last.
    checked: Instant,
    /// Whether the clock is looked at often enough.
    watching: bool,
}

/// What a look at the clock said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// Whether the server is silent.
    pub(crate) silent: bool,
    /// When to look again, at the latest. `None`: when something is sent, see [`Silence::resume`].
    pub(crate) next: Option<Instant>,
}

impl Silence {
    pub(crate) const fn new(patience: Option<Duration>, now: Instant) -> Self {
        Self {
            patience,
            checked: now,
            watching: false,
        }
    }

    /// A look at the clock: the oldest command has been `waiting` since then, and the server said something last at
    /// `heard`.
    pub(crate) fn look(&mut self, waiting: Option<Instant>, heard: Instant, now: Instant) -> Look {
        let quiet = heard <= std::mem::replace(&mut self.checked, now);
        let mut look = Look {
            silent: false,
            next: None,
        };
        if let Some(patience) = self.patience {
            look.next = match waiting {
                Some(since) => {
                    let due = since.max(heard) + patience;
                    look.silent = due <= now;
                    Some(if look.silent {
                        now + patience / REMINDERS
                    } else {
                        due
                    })
                }
                // What is sent in a moment must be noticed as well. An idle client is left alone.
                None => (!quiet).then(|| now + patience),
            };
        }
        self.watching = look.next.is_some();
        look
    }

    pub(crate) const fn is_watching(&self) -> bool {
        self.watching
    }

    /// Something was sent while nobody watched: when to look at the clock.
    pub(crate) fn resume(&mut self, now: Instant) -> Option<Instant> {
        self.watching = true;
        self.patience.map(|patience| now + patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(250);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_server_that_answers_nothing_for_too_long_is_silent_and_stays_so_until_it_speaks() {
        let start = Instant::now();
        let mut silence = Silence::new(Some(PATIENCE), start);
        assert_eq!(silence.resume(start + ms(10)), Some(start + ms(260)));
        assert!(silence.is_watching());
        let waiting = Some(start + ms(10));
        let look = silence.look(waiting, start, start + ms(260));
        assert_eq!(
            look,
            Look {
                silent: true,
                next: Some(start + ms(310))
            }
        );
        assert!(silence.look(waiting, start, start + ms(310)).silent);
        let look = silence.look(waiting, start + ms(320), start + ms(360));
        assert_eq!(
            look,
            Look {
                silent: false,
                next: Some(start + ms(570))
            },
            "it said something else meanwhile"
        );
    }

    #[test]
    fn an_idle_connection_is_left_alone_once_a_period_has_passed() {
        let start = Instant::now();
        let mut silence = Silence::new(Some(PATIENCE), start);
        let look = silence.look(None, start + ms(100), start + ms(250));
        assert_eq!(
            look.next,
            Some(start + ms(500)),
            "there was something to hear in this period"
        );
        let look = silence.look(None, start + ms(100), start + ms(500));
        assert_eq!(
            look,
            Look {
                silent: false,
                next: None
            }
        );
        assert!(!silence.is_watching());
        assert_eq!(silence.resume(start + ms(900)), Some(start + ms(1_150)));
    }

    #[test]
    fn without_patience_nothing_is_ever_silent() {
        let start = Instant::now();
        let mut silence = Silence::new(None, start);
        assert_eq!(silence.resume(start), None);
        assert_eq!(
            silence.look(Some(start), start, start + ms(60_000)),
            Look {
                silent: false,
                next: None
            }
        );
    }
}
