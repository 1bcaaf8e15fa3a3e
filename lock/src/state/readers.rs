//! The hold that reads of one process share: a state machine without clocks, I/O or wake-ups.
//!
//! A read of a process that reads already takes part in the hold that it has, without a command, while nobody waits to write. A
//! writer that waits closes the gate: those inside finish, whoever comes later stands in line behind it. So a writer waits for
//! the reads that have begun, and for no others.

use std::time::{Duration, Instant};

use leasehold_cluster::Source;

/// A hold of which it is not known whether somebody waits to write is shared for so long.
const UNCONFIRMED: Duration = Duration::from_millis(100);

/// The gate to the reads of one name. `H` is a hold.
#[derive(Debug)]
pub(crate) struct Gate<H> {
    open: Option<Open<H>>,
    /// The highest number of a hold for which a waiting writer was announced: the message may be here before the answer that
    /// grants the hold.
    told: u64,
}

/// A hold that may be shared.
#[derive(Debug)]
pub(crate) struct Open<H> {
    number: u64,
    hold: H,
    /// `None` once it was known that nobody waits, and the next one who does is heard of.
    until: Option<Instant>,
    /// The connection over which it was asked for, behind the subscription to notices.
    behind: Option<Source>,
}

/// Knowledge about waiting writers when a hold began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// No writer waited, and the next one is heard of over this connection: it was asked for behind the subscription.
    Nobody(Source),
    /// Not whether somebody waits, but whoever does next is heard of.
    Unclear,
}

impl<H> Gate<H> {
    /// A hold with this `number` has begun. Later reads share it, unless a writer was announced meanwhile; one that was shared so
    /// far, no more. Returns what is to be dropped.
    pub(crate) fn admit(&mut self, number: u64, hold: H, known: Known, now: Instant) -> Option<H> {
        if number <= self.told {
            return Some(hold);
        }
        let (until, behind) = match known {
            Known::Nobody(source) => (None, Some(source)),
            Known::Unclear => (Some(now + UNCONFIRMED), None),
        };
        let open = Open {
            number,
            hold,
            until,
            behind,
        };
        self.open.replace(open).map(|former| former.hold)
    }

    /// The hold that a read may share now.
    pub(crate) fn shared(&self, now: Instant) -> Option<&H> {
        let open = self.open.as_ref()?;
        let is_known = open.until.is_none_or(|until| now < until);
        is_known.then_some(&open.hold)
    }

    /// The server said that nobody waits while the hold with this number lasts.
    pub(crate) fn confirm(&mut self, number: u64) {
        if let Some(open) = self.open.as_mut().filter(|open| open.number == number) {
            open.until = None;
        }
    }

    /// A writer waits for the hold with this number, and so for all before it. Returns what is to be dropped.
    pub(crate) fn close(&mut self, number: u64) -> Option<H> {
        self.told = self.told.max(number);
        self.take(number).map(|open| open.hold)
    }

    /// A writer waits. Returns what is to be dropped.
    pub(crate) fn close_all(&mut self) -> Option<H> {
        self.open.take().map(|open| open.hold)
    }

    /// The subscription to notices was confirmed over `source`: those before it were missed. Returns what is to be dropped.
    pub(crate) fn subscribed(&mut self, source: Source) -> Option<H> {
        let open = self.open.take_if(|open| open.behind != Some(source));
        open.map(|open| open.hold)
    }

    /// Takes the hold with this number away, or one before it, for the time that it may become one that writes.
    pub(crate) fn take(&mut self, number: u64) -> Option<Open<H>> {
        self.open.take_if(|open| open.number <= number)
    }

    /// It stays one that reads: it is shared again, unless a writer was announced or another hold is shared by now. Returns what
    /// is to be dropped.
    pub(crate) fn put_back(&mut self, open: Open<H>) -> Option<H> {
        if self.open.is_some() || open.number <= self.told {
            return Some(open.hold);
        }
        self.open = Some(open);
        None
    }
}

impl<H> Default for Gate<H> {
    fn default() -> Self {
        Self {
            open: None,
            told: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Known = Known::Nobody(Source::for_tests(1));

    fn shared(gate: &Gate<&'static str>, now: Instant) -> Option<&'static str> {
        gate.shared(now).copied()
    }

    #[test]
    fn a_hold_is_shared_until_a_writer_is_announced() {
        let now = Instant::now();
        let mut gate = Gate::default();
        assert_eq!(shared(&gate, now), None);
        assert_eq!(gate.admit(7, "seven", NOBODY, now), None);
        assert_eq!(shared(&gate, now + Duration::from_secs(9)), Some("seven"));
        assert_eq!(gate.close(6), None, "of a hold that is over");
        assert_eq!(shared(&gate, now), Some("seven"));
        assert_eq!(gate.close(7), Some("seven"));
        assert_eq!(shared(&gate, now), None);
        assert_eq!(gate.admit(8, "eight", NOBODY, now), None);
        assert_eq!(shared(&gate, now), Some("eight"), "a later one is open");
    }

    #[test]
    fn a_writer_that_is_announced_before_the_answer_closes_the_gate() {
        let now = Instant::now();
        let mut gate = Gate::default();
        assert_eq!(gate.close(7), None);
        assert_eq!(gate.admit(7, "seven", NOBODY, now), Some("seven"));
        assert_eq!(shared(&gate, now), None);
    }

    #[test]
    fn the_latest_hold_is_shared() {
        let now = Instant::now();
        let mut gate = Gate::default();
        assert_eq!(gate.admit(1, "one", NOBODY, now), None);
        assert_eq!(gate.admit(2, "two", NOBODY, now), Some("one"));
        assert_eq!(shared(&gate, now), Some("two"));
        assert_eq!(gate.close_all(), Some("two"));
        assert_eq!(gate.close_all(), None);
    }

    #[test]
    fn notices_that_may_have_been_missed_close_the_gate() {
        let now = Instant::now();
        let mut gate = Gate::default();
        assert_eq!(gate.admit(1, "one", NOBODY, now), None);
        let behind = Source::for_tests(1);
        assert_eq!(gate.subscribed(behind), None, "it was asked behind that");
        assert_eq!(gate.subscribed(Source::for_tests(2)), Some("one"));
        assert_eq!(gate.admit(2, "two", Known::Unclear, now), None);
        assert_eq!(gate.subscribed(behind), Some("two"));
    }

    #[test]
    fn a_hold_that_was_granted_is_shared_for_a_moment_until_it_is_confirmed() {
        let now = Instant::now();
        let later = now + UNCONFIRMED;
        let mut gate = Gate::default();
        assert_eq!(gate.admit(1, "one", Known::Unclear, now), None);
        assert_eq!(shared(&gate, now), Some("one"));
        assert_eq!(shared(&gate, later), None);
        gate.confirm(2);
        assert_eq!(shared(&gate, later), None, "that was another one");
        gate.confirm(1);
        assert_eq!(shared(&gate, later), Some("one"));
    }

    #[test]
    fn a_hold_that_was_not_upgraded_is_shared_again() {
        let now = Instant::now();
        let mut gate = Gate::default();
        assert_eq!(gate.admit(1, "one", NOBODY, now), None);
        let open = gate.take(1).unwrap();
        assert_eq!(shared(&gate, now), None);
        assert_eq!(gate.put_back(open), None);
        assert_eq!(shared(&gate, now), Some("one"));

        let open = gate.take(1).unwrap();
        gate.close(1);
        assert_eq!(gate.put_back(open), Some("one"), "a writer came meanwhile");
        assert_eq!(gate.admit(2, "two", NOBODY, now), None);
        let open = gate.take(2).unwrap();
        assert_eq!(gate.admit(3, "three", NOBODY, now), None);
        assert_eq!(gate.put_back(open), Some("two"));
        assert_eq!(shared(&gate, now), Some("three"));
    }
}
