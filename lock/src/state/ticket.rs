//! The ticket of this process in the line for one lock: a state machine without clocks or I/O.
//!
//! The first waiter of a process has a ticket in a line on the server. A release makes the first ticket the holder, under a
//! short grant lease, and tells its process alone. Messages get lost, so a ticket is looked after: rarely, by its place.

use std::time::{Duration, Instant};

use leasehold_cluster::Source;

use super::backoff::Backoff;
use super::deadline::{Deadline, Now, millis};
use super::id::{Digits, HoldId};
use super::lane_order::Rank;

/// The usual lease of a grant: long enough for the message to arrive and the confirmation to follow, short enough for those
/// behind a process that died.
const GRANT_LEASE: Duration = Duration::from_secs(1);

/// A grant lease is this many round trips at least.
const ROUND_TRIPS: u32 = 4;

/// Round trips that are longer than this do not lengthen a grant lease any more.
const LONGEST_ROUND_TRIP: Duration = Duration::from_secs(5);

/// Looks are this far apart at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// The same for fair tickets: by them Redisson knows that they are alive, and they pass a waiter that died no later.
const LONGEST_FAIR_PAUSE: Duration = Duration::from_secs(2);

/// Behind the end of the holder's lease, the first in line looks after this long, and each behind it so much later.
const AFTER_EXPIRY: Duration = Duration::from_millis(20);
/// Places beyond this one look together.
const SPREAD_PLACES: u64 = 16;

/// After a release by Redisson, the first in line looks after this long, and each behind it so much later: its own waiters
/// have had their turn by then.
const AFTER_REDISSON: Duration = Duration::from_millis(5);

/// Pause between looks while the slot of the lock is migrating, and of a user without rights to the line: there nothing is
/// granted.
const OUT_OF_LINE: Duration = Duration::from_millis(250);

/// A grant that seems to be younger than its message by more than this was dated by a clock that stepped.
const CLOCK_STEP: Duration = Duration::from_millis(5);

/// A ticket, which is the hold that it becomes.
#[derive(Debug)]
pub(crate) struct Ticket {
    id: HoldId,
    /// The id, with the grant lease behind it where that is not the usual one, a plus for a block of tokens, and its mark.
    text: TicketText,
    grant_lease: Duration,
    /// The pauses between its looks and how many there were, if it is granted without a message.
    polling: Option<(Backoff, u32)>,
    /// Its place among all tickets, as the server told it. It comes back with that if it gets lost.
    score: Option<u64>,
    /// How many tickets were ahead at the last look.
    place: u64,
    /// Its run beside Redisson's queue, as the server told it.
    run: Option<u8>,
    /// Looks are this far apart at most.
    longest_pause: Duration,
    /// Looks in a row before which it was missing, without a reason known here.
    missed: u32,
    /// When it was told to look, by the server's time in microseconds: a look that comes too late finds it missing.
    told_to_look: Option<u64>,
    /// Whether it is granted with a block of tokens.
    with_block: bool,
    mark: Mark,
    /// Whether it may be in line.
    joined: bool,
    sample: Option<Sample>,
    /// The subscription to grants that its latest request was sent behind.
    behind: Option<Source>,
    /// Where that was confirmed after the latest request was sent: the answer may be older.
    confirmed: Option<Source>,
    /// The highest token that an answer told for it.
    token: u64,
    /// When to look.
    look_at: Instant,
    /// Whether that concerns this ticket alone: then no other one of this process looks for it.
    looks_itself: bool,
    /// Whether the server would not put it in line when it was asked last.
    is_out: bool,
    /// When to look because of what was heard since the latest request was sent: the answer may be older.
    called: Option<Instant>,
    grant: Option<Grant>,
    /// The hold that it became already, if a waiter before passed that on.
    passed: Option<Passed>,
}

/// A hold that is passed on: the lease that it has, and the token for the next guard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) since: Now,
    pub(crate) lease: Duration,
    pub(crate) token: u64,
}

/// The text of a ticket on the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TicketText {
    bytes: [u8; LONGEST_TEXT],
    len: u8,
}

/// An id has 57 bytes at most, a grant lease 5, a mark 1, and permits 10; and each of a bar, a plus and a zero.
const LONGEST_TEXT: usize = 77;

/// The suffix that tells a ticket from those of other kinds in the same line: nothing, or a letter, and how many permits it is
/// for if they are counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    pub(crate) letter: &'static str,
    pub(crate) permits: u32,
}

/// A server's time, and an instant here before it.
#[derive(Clone, Copy, Debug)]
struct Sample {
    sent: Now,
    /// In microseconds.
    server_time: u64,
    source: Source,
}

/// The server's answer to a ticket that is in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The rest of the holder's lease.
    pub(crate) held: Duration,
    /// How many tickets are ahead.
    pub(crate) place: u64,
    pub(crate) score: u64,
    /// The server's time, in microseconds.
    pub(crate) server_time: u64,
    /// Whether it was not there before.
    pub(crate) missing: bool,
    /// Its run beside Redisson's queue, if that is kept.
    pub(crate) run: Option<u8>,
}

/// Tickets that the first one of a process looks for beside itself: others in line, or also those which the server would not put
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookout {
    out: bool,
}

impl Lookout {
    /// Of one in line that has just looked instead of the first.
    pub(crate) const STAND_IN: Self = Self { out: false };
}

/// A message that a ticket became the holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    /// The server's time of the grant, in microseconds.
    pub(crate) at: u64,
    pub(crate) lease: Duration,
    /// When it arrived, and over which connection.
    pub(crate) receipt: Now,
    pub(crate) source: Source,
}

/// A question to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// To take over the hold of an owner of another process.
    TakeOver,
    /// To take the lock now.
    Try,
    /// The same, and to put the ticket in line if it is held.
    Join,
    /// Whether the ticket became the holder, or the lock came free unnoticed.
    Look,
    /// Whether the ticket, which a message named, is the holder.
    Confirm,
}

/// How a waiter acts on a grant.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It holds the lock: `lease` counts from `since`.
    Start {
        since: Now,
        lease: Duration,
        token: u64,
    },
    /// It holds the lock if the server confirms it.
    Confirm,
    /// The grant is over: look.
    Look,
    /// The hold that was passed on is over. Its token is the last of it: it is not asked for again.
    Over,
    /// The message is older than what is known.
    Ignore,
}

impl Ticket {
    /// A ticket that is to be put in line at `look_at`. `with_block` if it is granted with a block of tokens.
    pub(crate) fn new(
        id: HoldId,
        grant_lease: Duration,
        with_block: bool,
        mark: Mark,
        look_at: Instant,
    ) -> Self {
        Self {
            id,
            text: TicketText::new(&id, grant_lease, with_block, mark, false),
            mark,
            with_block,
            grant_lease,
            polling: None,
            score: None,
            place: 0,
            run: None,
            longest_pause: LONGEST_PAUSE,
            missed: 0,
            told_to_look: None,
            joined: false,
            sample: None,
            behind: None,
            confirmed: None,
            token: 0,
            look_at,
            looks_itself: true,
            is_out: false,
            called: None,
            grant: None,
            passed: None,
        }
    }

    /// The same ticket, of a fair lock.
    pub(crate) fn fair(self) -> Self {
        Self {
            longest_pause: LONGEST_FAIR_PAUSE,
            ..self
        }
    }

    /// The same, granted without a message if there are pauses between its looks.
    pub(crate) fn polled(mut self, polling: Option<Backoff>) -> Self {
        if let Some(backoff) = polling {
            self.text =
                TicketText::new(&self.id, self.grant_lease, self.with_block, self.mark, true);
            self.polling = Some((backoff, 0));
        }
        self
    }

    /// The ticket of a hold that is passed on to the next waiter here. It is in line no more.
    pub(crate) fn of_hold(id: HoldId, passed: Passed, now: Instant) -> Self {
        Self {
            joined: true,
            passed: Some(passed),
            ..Self::new(id, passed.lease, false, Mark::default(), now)
        }
    }

    pub(crate) const fn id(&self) -> &HoldId {
        &self.id
    }

    pub(crate) const fn text(&self) -> TicketText {
        self.text
    }

    /// The lease under which it is granted.
    pub(crate) const fn grant_lease(&self) -> Duration {
        self.grant_lease
    }

    /// Whether it is granted without a message.
    pub(crate) const fn is_polled(&self) -> bool {
        self.polling.is_some()
    }

    /// Whether it is granted with a block of tokens.
    pub(crate) const fn has_block(&self) -> bool {
        self.with_block
    }

    /// Whether it may be in line.
    pub(crate) const fn has_joined(&self) -> bool {
        self.joined
    }

    /// The question to ask with it when it is time to look.
    pub(crate) const fn next_ask(&self) -> Ask {
        if self.joined { Ask::Look } else { Ask::Join }
    }

    /// The score to look with; `None` for a new one. A ticket that goes missing again and again is of a process that is too slow
    /// for its grants: from the end of the line it holds up nobody else.
    pub(crate) const fn score(&self) -> Option<u64> {
        if self.missed > 0 { None } else { self.score }
    }

    /// The run to look with.
    pub(crate) const fn run(&self) -> Option<u8> {
        self.run
    }

    /// A request for it is sent, behind the subscription to grants over the connection `behind`, if there is one.
    pub(crate) fn asks(&mut self, behind: Option<Source>) {
        self.joined = true;
        self.behind = behind;
        self.confirmed = None;
        self.called = None;
    }

    /// The request that was sent at `sent` was answered over `source`. `jitter` is below 100, in per mille. Returns whether it
    /// had been lost from the line without a reason known here.
    pub(crate) fn placed(
        &mut self,
        placed: Placed,
        sent: Now,
        source: Option<Source>,
        now: Instant,
        jitter: u64,
    ) -> bool {
        let was_there = self.score.is_some();
        let was_lost = was_there && placed.missing && self.told_to_look.is_none();
        self.told_to_look = self.told_to_look.filter(|at| *at >= placed.server_time);
        self.missed = if was_lost { self.missed + 1 } else { 0 };
        self.score = Some(placed.score);
        self.place = placed.place;
        self.run = placed.run;
        self.sample = source.map(|source| Sample {
            sent,
            server_time: placed.server_time,
            source,
        });
        // A grant that arrived before the answer is newer than it only if it was made later.
        let by_place = pause(placed.place, jitter).min(self.longest_pause);
        let places = placed.place.min(SPREAD_PLACES) as u32;
        let at_end = placed.held.saturating_add(AFTER_EXPIRY * (1 + places));
        self.look_at = now + by_place.min(at_end);
        (self.looks_itself, self.is_out) = (false, false);
        if self.confirmed.take().is_some_and(|at| source != Some(at)) {
            // Over one connection the answer of what ran before comes before the confirmation.
            self.look_by(now);
        }
        if let Some(at) = self.called.take() {
            self.look_by(at);
        }
        self.poll(now, jitter);
        was_lost
    }

    /// The lock is taken, and the server would not put the ticket in line: looks again soon.
    pub(crate) fn not_placed(&mut self, held: Duration, now: Instant) {
        self.sample = None;
        (self.looks_itself, self.is_out) = (false, true);
        self.look_at = now + OUT_OF_LINE.min(held.saturating_add(AFTER_EXPIRY));
        self.poll(now, 0);
    }

    /// Looks after the pause of the backoff, if it is polled.
    fn poll(&mut self, now: Instant, jitter: u64) {
        if let Some((backoff, looks)) = &mut self.polling {
            self.look_at = now + backoff.pause(*looks, jitter);
            *looks += 1;
        }
    }

    /// An answer said that it is the holder, with `token`. Returns the token to go by: where the counter could not be used, as
    /// while a slot migrates, a later answer tells an older one, which another hold had.
    pub(crate) fn told(&mut self, token: u64) -> u64 {
        self.token = self.token.max(token);
        self.token
    }

    /// Nothing is granted for `pause`.
    pub(crate) fn put_off(&mut self, pause: Duration, now: Instant) {
        self.look_at = now + pause;
        self.grant = None;
    }

    /// Looks at once, or when a request that is under way is answered.
    pub(crate) fn look_now(&mut self, now: Instant) {
        self.call(now);
    }

    /// Looks at `at` at the latest, whatever the answer to a request that is under way says.
    fn call(&mut self, at: Instant) {
        self.look_by(at);
        self.called = Some(self.called.map_or(at, |known| known.min(at)));
    }

    /// Looks at `at` at the latest, for itself.
    fn look_by(&mut self, at: Instant) {
        self.look_at = self.look_at.min(at);
        self.looks_itself = true;
    }

    /// Its place among those of this process.
    pub(crate) fn rank(&self) -> Rank {
        let run = self.run;
        self.score.map_or(Rank::NONE, |score| Rank { run, score })
    }

    /// The others it looks for, as the first ticket of its process. A waiter whose future is not polled does not look,
    /// and does not begin what it is granted.
    pub(crate) fn lookout(&self, now: Instant) -> Option<Lookout> {
        let looks = !self.has_grant() && now < self.look_at + GRANT_LEASE;
        looks.then_some(Lookout { out: self.is_out })
    }

    /// Whether nothing is to be looked for that concerns it alone.
    pub(crate) const fn may_rest(&self) -> bool {
        !self.looks_itself && !self.has_grant()
    }

    /// Rests for a pause if the one who looks ahead of it looks for it too. Returns whether it does.
    pub(crate) fn rest(&mut self, ahead: Lookout, now: Instant) -> bool {
        let rests = self.may_rest() && (ahead.out || !self.is_out);
        if rests {
            self.look_at = now + LONGEST_FAIR_PAUSE;
            self.poll(now, 0);
        }
        rests
    }

    /// The subscription to grants was confirmed over `source`. Returns whether grants may have been missed before: then it
    /// looks at once, or when a request that is under way is answered.
    pub(crate) fn subscribed(&mut self, source: Source, now: Instant) -> bool {
        if self.behind == Some(source) || !self.joined {
            return false;
        }
        self.missed = 0;
        self.confirmed = Some(source);
        self.look_by(now);
        true
    }

    /// Redisson has released the lock.
    pub(crate) fn released_by_redisson(&mut self, now: Instant) {
        let places = self.place.min(SPREAD_PLACES) as u32;
        self.call(now + AFTER_REDISSON * (1 + places));
    }

    /// Redisson has released permits. The first in line looks at once, to keep what others would take before it has enough;
    /// those behind it get nothing before it.
    pub(crate) fn permits_released(&mut self, now: Instant) {
        if self.place == 0 {
            self.call(now);
        }
    }

    /// The first in line cannot be served yet: it keeps what is free for a moment, `at` this time of the server, and its place if
    /// it looks meanwhile.
    pub(crate) fn told_to_look(&mut self, at: u64, now: Instant) {
        self.told_to_look = Some(at);
        self.call(now);
    }

    /// It is the first behind a ticket that was granted by now for `lease`.
    pub(crate) fn is_next(&mut self, lease: Duration, now: Instant) {
        self.call(now + lease + AFTER_EXPIRY);
    }

    /// When to look.
    pub(crate) const fn look_at(&self) -> Instant {
        self.look_at
    }

    /// The message of a grant arrived.
    pub(crate) fn granted(&mut self, grant: Grant) {
        if self.grant.is_none_or(|known| known.at < grant.at) {
            self.grant = Some(grant);
        }
    }

    pub(crate) const fn has_grant(&self) -> bool {
        self.grant.is_some() || self.passed.is_some()
    }

    /// The hold that is passed on is gone from the server.
    pub(crate) const fn spoil(&mut self) {
        if let Some(passed) = &mut self.passed {
            passed.lease = Duration::ZERO;
        }
    }

    /// Judges the grant that arrived, if there is one. `strict` if the hold may begin only when the server has confirmed it.
    pub(crate) fn judge(&mut self, now: Now, strict: bool) -> Verdict {
        if let Some(passed) = self.passed.take() {
            let Passed {
                since,
                lease,
                token,
            } = passed;
            if Deadline::new(since, lease).left(now).is_zero() {
                return Verdict::Over;
            }
            return Verdict::Start {
                since,
                lease,
                token,
            };
        }
        let Some(grant) = self.grant.take() else {
            return Verdict::Ignore;
        };
        let Some(sample) = self.sample.filter(|sample| sample.source == grant.source) else {
            return Verdict::Confirm;
        };
        let Some(elapsed) = grant.at.checked_sub(sample.server_time) else {
            return Verdict::Ignore;
        };
        // The grant came this long after the answer by the server's clock, and so much less by a clock that is slower here.
        let elapsed = Duration::from_micros(elapsed);
        let dated = sample.sent.later_by(elapsed - elapsed / 100);
        let is_future = dated.monotonic > grant.receipt.monotonic + CLOCK_STEP;
        let since = if dated.monotonic < grant.receipt.monotonic {
            dated
        } else {
            grant.receipt
        };
        let left = Deadline::new(since, grant.lease).left(now);
        if left.is_zero() {
            return Verdict::Look;
        }
        if strict || is_future || left < grant.lease / 4 {
            return Verdict::Confirm;
        }
        Verdict::Start {
            since,
            lease: grant.lease,
            token: grant.token,
        }
    }
}

impl TicketText {
    fn new(
        id: &HoldId,
        grant_lease: Duration,
        with_block: bool,
        mark: Mark,
        is_polled: bool,
    ) -> Self {
        let mut this = Self {
            bytes: [0; LONGEST_TEXT],
            len: 0,
        };
        this.push(id.as_bytes());
        if is_polled {
            // A leading zero says that it is not told.
            this.push(b"|0");
        } else if grant_lease != GRANT_LEASE {
            this.push(b"|");
        }
        if is_polled || grant_lease != GRANT_LEASE {
            this.push(Digits::new(millis(grant_lease)).as_bytes());
        }
        if with_block {
            this.push(b"+");
        }
        this.push(mark.letter.as_bytes());
        if mark.permits > 0 {
            this.push(Digits::new(mark.permits.into()).as_bytes());
        }
        this
    }

    fn push(&mut self, part: &[u8]) {
        let start = usize::from(self.len);
        self.bytes[start..start + part.len()].copy_from_slice(part);
        self.len += part.len() as u8;
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The lease under which a hold with `lease` is granted, where a round trip takes about `round_trip`.
pub(crate) fn grant_lease(lease: Duration, round_trip: Duration) -> Duration {
    let trips = round_trip.min(LONGEST_ROUND_TRIP) * ROUND_TRIPS;
    let trips = Duration::from_millis(millis(trips));
    lease.min(GRANT_LEASE.max(trips))
}

/// How long the ticket with so many ahead waits for a message before it looks.
fn pause(place: u64, jitter: u64) -> Duration {
    let places = place.min(SPREAD_PLACES) as u32;
    let pause = (GRANT_LEASE + GRANT_LEASE * places / 2).min(LONGEST_PAUSE);
    pause + pause * jitter.min(100) as u32 / 1000
}

#[cfg(test)]
#[path = "ticket/tests.rs"]
mod tests;
