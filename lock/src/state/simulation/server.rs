//! A model of the server: the data of one lock, and its scripts with their arguments and replies.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use super::call::{Call, HoldKey, JAVA, Line, Message, Note, Reply, TicketKey};
use super::executor::Micros;
use super::profile::{Broken, Profile};
use crate::protocol::{Announced, Answer};
use crate::state::chain::BLOCK;
use crate::state::ticket::Placed;
use crate::state::token::FencingToken;

/// A line is kept this long after its last use, in milliseconds.
const LINE_TTL: u64 = 60_000;
/// So many writes can be undone.
const HISTORY: usize = 16;

#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    /// The holder, and the last millisecond of its lease.
    pub(super) lock: Option<(HoldKey, u64)>,
    counter: u64,
    pub(super) line: BTreeMap<(u64, TicketKey), ()>,
    line_until: u64,
}

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) data: Data,
    /// True time of the script that runs.
    now: Micros,
    /// Of the server's clock, in microseconds.
    pub(super) offset: i64,
    broken: Option<Broken>,
    /// Whether the count of receivers says nothing.
    uncounted: bool,
    redisson: bool,
    pub(super) migrating: bool,
    pub(super) down_until: Micros,
    /// Connections that listen to the grants of a process.
    pub(super) grants: Vec<(usize, u64)>,
    /// Connections that listen to Redisson's channel.
    pub(super) releases: Vec<u64>,
    /// Redisson's waiters that listen.
    pub(super) java: u64,
    killed: HashSet<u64>,
    /// Requests of older connections went to a master that was replaced.
    pub(super) oldest_session: u64,
    /// States after each of the last writes.
    history: VecDeque<(u64, Data)>,
    pub(super) writes: u64,
    /// The state that replicas have for certain.
    pub(super) acknowledged: u64,
    /// Messages by connection; that of Redisson's clients is 0.
    pub(super) outbox: Vec<(u64, Message)>,
    pub(super) notes: Vec<Note>,
}

impl Server {
    /// With an empty lock, and a clock that is ahead by so much.
    pub(super) fn new(offset: i64, profile: &Profile, broken: Option<Broken>) -> Self {
        Self {
            offset,
            broken,
            uncounted: profile.uncounted,
            redisson: profile.redisson,
            ..Self::default()
        }
    }

    /// Runs a script for a connection of a process.
    pub(super) fn run(&mut self, now: Micros, from: (usize, u64), call: &Call) -> Reply {
        self.begin(now);
        // No two scripts run at the same time.
        self.offset += 1;
        let reply = match *call {
            Call::Acquire {
                hold,
                lease,
                line,
                block,
            } => self.acquire(hold, lease, line, block),
            Call::AcquireAlone {
                hold,
                lease,
                highest,
            } => self.acquire_alone(hold, lease, highest),
            Call::Look {
                hold,
                lease,
                ticket,
                score,
            } => self.look(hold, lease, ticket, score),
            Call::Confirm { hold, lease } => self.confirm(hold, lease),
            Call::ConfirmAlone {
                hold,
                lease,
                highest,
            } => self.confirm_alone(hold, lease, highest),
            Call::Renew { hold, lease } => self.renew(hold, lease),
            Call::Release {
                hold,
                ticket,
                redisson,
            } => self.release(hold, ticket, redisson),
            Call::ReleaseAlone { hold } => self.release_alone(hold),
            Call::ForceUnlock => self.force_unlock(),
            Call::Subscribe | Call::Listen | Call::Unlisten | Call::Kill(_) => {
                self.control(from, call);
                return Reply::Done;
            }
        };
        self.writes += 1;
        self.history.push_back((self.writes, self.data.clone()));
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        reply
    }

    /// Subscriptions, and the ends of connections.
    fn control(&mut self, from: (usize, u64), call: &Call) {
        match *call {
            Call::Subscribe => self.grants.push(from),
            Call::Listen => self.releases.push(from.1),
            Call::Unlisten => {
                if let Some(at) = self.releases.iter().position(|&one| one == from.1) {
                    self.releases.remove(at);
                }
            }
            Call::Kill(session) => {
                self.killed.insert(session);
                self.forget(session);
            }
            _ => {}
        }
    }

    /// Ends the leases that are over.
    pub(super) fn begin(&mut self, now: Micros) {
        self.now = now;
        let ms = self.time() / 1000;
        if self.data.lock.is_some_and(|(_, until)| until < ms) {
            self.data.lock = None;
            self.notes.push(Note::Skipped);
        }
        if self.data.line_until < ms {
            self.data.line.clear();
        }
    }

    /// True time at which the lease of the lock is over.
    pub(super) fn lease_end(&self) -> Option<Micros> {
        let (_, until) = self.data.lock?;
        ((until + 1) * 1000).checked_add_signed(-self.offset)
    }

    /// Whether nothing runs any more that this connection brings.
    pub(super) fn is_over(&self, session: u64, now: Micros) -> bool {
        self.killed.contains(&session) || session < self.oldest_session || now < self.down_until
    }

    /// The connection is gone.
    pub(super) fn forget(&mut self, session: u64) {
        self.grants.retain(|&(_, one)| one != session);
        self.releases.retain(|&one| one != session);
    }

    /// Undoes so many writes that were not acknowledged.
    pub(super) fn fail_over(&mut self, lost: u64) {
        let target = self.writes.saturating_sub(lost).max(self.acknowledged);
        if let Some((_, data)) = self.history.iter().find(|(write, _)| *write == target) {
            self.data = data.clone();
            self.history.retain(|(write, _)| *write <= target);
            self.writes = target;
        }
        self.grants.clear();
        self.releases.clear();
    }

    pub(super) fn stands(&self, ticket: TicketKey) -> bool {
        self.data.line.keys().any(|(_, one)| *one == ticket)
    }

    /// `acquire.lua`.
    fn acquire(&mut self, hold: HoldKey, lease: u64, line: Line, block: u64) -> Reply {
        let Some((holder, until)) = self.data.lock else {
            if self.redisson && !self.data.line.is_empty() {
                match line {
                    Line::Passed => {}
                    Line::Kept => return Reply::Answer(Answer::Held(ms(0))),
                    Line::Joined(ticket) => {
                        return Reply::Answer(Answer::Placed(self.join(ticket, None, 0)));
                    }
                }
            }
            let token = self.next_token(block);
            self.take(hold, lease, None);
            return granted(token, None);
        };
        if holder == hold {
            return self.held_by_us(self.left(until));
        }
        let left = self.left(until);
        match line {
            Line::Passed | Line::Kept => Reply::Answer(Answer::Held(ms(left))),
            Line::Joined(ticket) => Reply::Answer(Answer::Placed(self.join(ticket, None, left))),
        }
    }

    /// `acquire_alone.lua`.
    fn acquire_alone(&mut self, hold: HoldKey, lease: u64, highest: u64) -> Reply {
        let token = self.time().max(highest + 1);
        let Some((holder, until)) = self.data.lock else {
            self.notes.push(Note::Issued(token, token));
            self.take(hold, lease, None);
            return granted(token, Some(lease));
        };
        let left = self.left(until);
        if holder == hold {
            let left = left.max(1);
            self.set_expiry(left);
            return granted(token, Some(left));
        }
        Reply::Answer(Answer::Held(ms(left)))
    }

    /// `look.lua`.
    fn look(&mut self, hold: HoldKey, lease: u64, ticket: TicketKey, score: Option<u64>) -> Reply {
        if let Some((holder, until)) = self.data.lock {
            let left = self.left(until);
            if holder == hold {
                self.remove(ticket);
                return self.held_by_us(left);
            }
            return Reply::Answer(Answer::Placed(self.join(ticket, score, left)));
        }
        let mut placed = self.join(ticket, score, 0);
        if self.broken == Some(Broken::LookJumps) {
            self.remove(ticket);
            self.note_jump(placed.score, ticket);
            let token = self.next_token(1);
            self.take(hold, lease, Some(placed.score));
            return granted(token, Some(lease));
        }
        match self.grant(Some((ticket, lease))) {
            Some((served, token, lease)) if served == ticket => granted(token, Some(lease)),
            served => {
                placed.held = ms(served.map_or(1000, |(_, _, lease)| lease));
                placed.place = self.place(ticket);
                Reply::Answer(Answer::Placed(placed))
            }
        }
    }

    /// `confirm.lua`.
    fn confirm(&mut self, hold: HoldKey, lease: u64) -> Reply {
        let until = match self.data.lock {
            Some((holder, until)) if holder == hold => until,
            None if self.broken == Some(Broken::ConfirmCreates) => {
                self.take(hold, lease, None);
                0
            }
            _ => return Reply::Answer(Answer::Held(Duration::ZERO)),
        };
        self.held_by_us(self.left(until).max(lease))
    }

    /// `confirm_alone.lua`.
    fn confirm_alone(&mut self, hold: HoldKey, lease: u64, highest: u64) -> Reply {
        match self.data.lock {
            Some((holder, until)) if holder == hold => {
                let lease = self.left(until).max(lease);
                self.set_expiry(lease);
                granted(self.time().max(highest + 1), Some(lease))
            }
            _ => Reply::Answer(Answer::Held(Duration::ZERO)),
        }
    }

    /// `renew_one.lua`.
    fn renew(&mut self, hold: HoldKey, lease: u64) -> Reply {
        let is_held = match self.data.lock {
            Some((holder, until)) if holder == hold => {
                self.set_expiry(self.left(until).max(lease));
                true
            }
            _ => false,
        };
        Reply::Renewed(is_held)
    }

    /// `release.lua`.
    fn release(
        &mut self,
        hold: HoldKey,
        ticket: Option<TicketKey>,
        redisson: Option<Announced>,
    ) -> Reply {
        if let Some(ticket) = ticket {
            self.remove(ticket);
        }
        let is_held = self.data.lock.is_some_and(|(holder, _)| holder == hold);
        let by_anybody = self.broken == Some(Broken::ReleaseByAnybody) && self.data.lock.is_some();
        if !is_held && !by_anybody {
            return Reply::Ended(0);
        }
        self.data.lock = None;
        if self.data.line.is_empty() {
            self.announce(redisson);
            return Reply::Ended(1);
        }
        if !self.redisson_waits(redisson) && self.grant(None).is_some() {
            return Reply::Ended(2);
        }
        self.announce(redisson);
        Reply::Ended(1)
    }

    /// `release_alone.lua`.
    fn release_alone(&mut self, hold: HoldKey) -> Reply {
        if self.data.lock.is_none_or(|(holder, _)| holder != hold) {
            return Reply::Ended(0);
        }
        self.data.lock = None;
        self.announce(self.redisson.then_some(Announced::IfFree));
        Reply::Ended(1)
    }

    /// `force_unlock.lua`.
    fn force_unlock(&mut self) -> Reply {
        let Some((holder, _)) = self.data.lock.take() else {
            return Reply::Ended(0);
        };
        self.notes.push(Note::Forced(holder));
        if self.grant(None).is_none() {
            self.announce(self.redisson.then_some(Announced::IfFree));
        }
        Reply::Ended(1)
    }

    /// Redisson's own attempt: as our `acquire` without a token.
    pub(super) fn java_acquire(&mut self, now: Micros, number: u64, lease: u64) -> bool {
        self.begin(now);
        if self.data.lock.is_some() {
            return false;
        }
        let hold = HoldKey {
            process: JAVA,
            number,
        };
        self.take(hold, lease, None);
        self.writes += 1;
        self.history.push_back((self.writes, self.data.clone()));
        true
    }

    /// Redisson's own release.
    pub(super) fn java_release(&mut self, now: Micros, number: u64) {
        self.begin(now);
        let is_held =
            |(holder, _): (HoldKey, u64)| holder.process == JAVA && holder.number == number;
        if self.data.lock.is_some_and(is_held) {
            self.data.lock = None;
            self.announce(Some(Announced::IfFree));
        }
    }

    /// `grant.lua`. Returns the ticket, its token and its lease.
    fn grant(&mut self, own: Option<(TicketKey, u64)>) -> Option<(TicketKey, u64, u64)> {
        let (mut known, mut block) = (None, 1);
        for _ in 0..64 {
            let ((score, ticket), ()) = self.data.line.pop_first()?;
            let token = match known {
                Some(token) if block > 1 || !ticket.with_block => token,
                _ => {
                    block = if ticket.with_block { BLOCK } else { 1 };
                    self.next_token(block)
                }
            };
            known = Some(token);
            let mut lease = ticket.lease;
            let mut heard = 1;
            match own {
                Some((own, whole)) if own == ticket => lease = whole,
                _ => {
                    let at = self.time();
                    heard = self.publish(Message::Grant {
                        hold: ticket.hold,
                        token,
                        at,
                        lease,
                    });
                }
            }
            if heard > 0 || self.uncounted {
                self.take(ticket.hold, lease, Some(score));
                return Some((ticket, token, lease));
            }
            self.notes.push(Note::Skipped);
        }
        None
    }

    /// `token.lua`.
    fn next_token(&mut self, block: u64) -> u64 {
        let next = self.data.counter + 1;
        let token = match self.broken {
            Some(Broken::NoTimeFloor) => next,
            _ => next.max(self.time()),
        };
        self.data.counter = token + block - 1;
        self.notes.push(Note::Issued(token, self.data.counter));
        token
    }

    /// `mine.lua`.
    fn held_by_us(&mut self, left: u64) -> Reply {
        let left = left.max(1);
        self.set_expiry(left);
        granted(self.data.counter, Some(left))
    }

    /// `join.lua`.
    fn join(&mut self, ticket: TicketKey, score: Option<u64>, left: u64) -> Placed {
        let now = self.time();
        let known = self.data.line.keys().find(|(_, one)| *one == ticket);
        let known = known.map(|(score, _)| *score);
        let last = self.data.line.keys().next_back().map(|(score, _)| *score);
        let at_end = last.map_or(now, |last| now.max(last + 1));
        let score_now = known.or(score).unwrap_or(at_end);
        self.data.line.insert((score_now, ticket), ());
        self.data.line_until = now / 1000 + LINE_TTL;
        Placed {
            held: ms(left),
            place: self.place(ticket),
            score: score_now,
            server_time: now,
            missing: known.is_none(),
            run: None,
        }
    }

    fn redisson_waits(&self, redisson: Option<Announced>) -> bool {
        let Some(Announced::Open { own }) = redisson else {
            return false;
        };
        let heard = self.java + self.releases.len() as u64;
        self.uncounted || heard > self.data.line.len() as u64 + own
    }

    fn announce(&mut self, redisson: Option<Announced>) {
        if redisson.is_some() {
            self.publish(Message::Released);
        }
    }

    /// Returns how many receive it.
    fn publish(&mut self, message: Message) -> usize {
        let receivers: Vec<u64> = match message {
            Message::Grant { hold, .. } => {
                let grants = self.grants.iter();
                let own = grants.filter(|(process, _)| *process == hold.process);
                own.map(|(_, session)| *session).collect()
            }
            Message::Released => self.releases.iter().copied().chain([0]).collect(),
        };
        let count = receivers.len();
        self.outbox
            .extend(receivers.into_iter().map(|session| (session, message)));
        count
    }

    fn take(&mut self, hold: HoldKey, lease: u64, score: Option<u64>) {
        if let Some(score) = score {
            self.note_jump(
                score,
                TicketKey {
                    hold,
                    lease: u64::MAX,
                    with_block: true,
                },
            );
        }
        self.data.lock = Some((hold, self.time() / 1000 + lease));
        self.notes.push(Note::Took(hold, score));
    }

    fn note_jump(&mut self, score: u64, ticket: TicketKey) {
        let first = self.data.line.keys().next();
        if first.is_some_and(|first| *first < (score, ticket)) {
            self.notes.push(Note::Jumped);
        }
    }

    fn remove(&mut self, ticket: TicketKey) {
        self.data.line.retain(|(_, one), ()| *one != ticket);
    }

    fn place(&self, ticket: TicketKey) -> u64 {
        let place = self.data.line.keys().position(|(_, one)| *one == ticket);
        place.unwrap_or(0) as u64
    }

    fn set_expiry(&mut self, left: u64) {
        let until = self.time() / 1000 + left;
        if let Some((_, expiry)) = &mut self.data.lock {
            *expiry = until;
        }
    }

    fn left(&self, until: u64) -> u64 {
        until.saturating_sub(self.time() / 1000)
    }

    /// `TIME`, in microseconds.
    fn time(&self) -> u64 {
        self.now.saturating_add_signed(self.offset)
    }
}

fn granted(token: u64, left: Option<u64>) -> Reply {
    Reply::Answer(Answer::Granted {
        token: Some(FencingToken::new(token)),
        left: left.map(ms),
        contended: false,
    })
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
