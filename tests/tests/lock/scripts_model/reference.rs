//! A reference of the mutex's scripts: the state of one lock, and the only reply that each request may have.

use std::collections::BTreeSet;
use std::time::Instant;

use leasehold_testkit::RawValue;

use super::listeners::{Heard, Mode};
use super::requests::{Event, Form, Op, Redisson};
use crate::scripts::{hold_of, place};

/// A message that the server has published.
#[derive(Debug)]
pub(super) enum Sent {
    Grant {
        client: String,
        number: String,
        token: i64,
        after: i64,
        lease: i64,
        mode: Mode,
    },
    Redisson {
        mode: Mode,
    },
}

/// The server's state behind a request.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) holders: Vec<(String, String)>,
    pub(super) line: Vec<(i64, String)>,
    pub(super) counter: Option<i64>,
    /// Remaining milliseconds of the lock, the counter and the line; -2 for a key that is absent.
    pub(super) ttls: [i64; 3],
}

/// When a batch of requests ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// An instant before.
    pub(super) since: Instant,
    /// The server's time behind it, in microseconds.
    pub(super) end: i64,
}

/// One lock.
#[derive(Debug, Default)]
pub(super) struct Reference {
    hold: Option<Hold>,
    line: BTreeSet<(i64, String)>,
    /// The latest token, unless the counter was lost.
    counter: Option<i64>,
    /// A lower bound of the server's time.
    time: i64,
    sent: Vec<Sent>,
}

#[derive(Debug)]
struct Hold {
    id: String,
    lease: i64,
    since: Instant,
}

impl Reference {
    /// Follows one request, and checks its reply and what it left.
    pub(super) fn follow(
        &mut self,
        op: &Op,
        reply: &RawValue,
        seen: &Seen,
        hearing: &Heard,
        span: Span,
    ) {
        let now = Now {
            seen,
            span,
            hearing,
        };
        match op {
            Op::Acquire { hold, lease, block } => {
                self.acquire(hold, *lease, *block, None, reply, &now);
            }
            Op::Join {
                ticket,
                lease,
                block,
            } => {
                self.acquire(hold_of(ticket), *lease, *block, Some(ticket), reply, &now);
            }
            Op::AcquireAlone {
                hold,
                lease,
                highest,
            } => {
                self.acquire_alone(hold, *lease, *highest, reply, &now);
            }
            Op::Look {
                ticket,
                score,
                lease,
                mode,
            } => {
                self.look(ticket, *score, *lease, *mode, reply, &now);
            }
            Op::Confirm { hold, lease } => self.confirm(hold, *lease, None, reply, &now),
            Op::ConfirmAlone {
                hold,
                lease,
                highest,
            } => {
                self.confirm(hold, *lease, Some(*highest), reply, &now);
            }
            Op::Renew { hold, lease, form } => {
                let is_held = self.extend(hold, *lease, span);
                let held = RawValue::Int(is_held.into());
                match form {
                    Form::Many if is_held => assert_eq!(*reply, held),
                    Form::One => assert_eq!(*reply, held),
                    Form::Many | Form::Replicated => assert_eq!(reply.array(), [held]),
                }
            }
            Op::Event(event) => self.happen(event),
            _ => self.end(op, reply, &now),
        }
        self.check(&now);
    }

    /// The score of a ticket in line.
    pub(super) fn score(&self, ticket: &str) -> Option<i64> {
        let place = self.line.iter().find(|(_, lined)| lined == ticket);
        place.map(|(score, _)| *score)
    }

    /// The messages since the last call.
    pub(super) fn take_sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sent)
    }

    fn acquire(
        &mut self,
        id: &str,
        lease: i64,
        block: Option<i64>,
        ticket: Option<&str>,
        reply: &RawValue,
        now: &Now<'_>,
    ) {
        match &self.hold {
            None => {
                self.draw(reply.int(), block.unwrap_or(1), 1, now);
                self.enter(id, lease, now);
            }
            Some(hold) if hold.id == id => {
                self.told_token(reply.array()[0].int(), now);
                self.left(reply.array()[1].int());
            }
            Some(_) => match ticket {
                None => self.left(-1 - reply.int()),
                Some(ticket) => {
                    self.join(ticket, None, reply, now);
                    self.left(self.place(ticket, reply));
                }
            },
        }
    }

    fn acquire_alone(
        &mut self,
        id: &str,
        lease: i64,
        highest: i64,
        reply: &RawValue,
        now: &Now<'_>,
    ) {
        match &self.hold {
            None => {
                self.token_alone(reply.array()[0].int(), highest, now);
                assert_eq!(reply.array()[1].int(), lease);
                self.enter(id, lease, now);
            }
            Some(hold) if hold.id == id => {
                self.token_alone(reply.array()[0].int(), highest, now);
                self.left(reply.array()[1].int());
            }
            Some(_) => self.left(-1 - reply.int()),
        }
    }

    /// A confirmation; by the lock's key alone with the highest token that the client knows.
    fn confirm(
        &mut self,
        id: &str,
        lease: i64,
        highest: Option<i64>,
        reply: &RawValue,
        now: &Now<'_>,
    ) {
        if !self.extend(id, lease, now.span) {
            assert_eq!(*reply, RawValue::Int(0));
            return;
        }
        let token = reply.array()[0].int();
        match highest {
            None => self.told_token(token, now),
            Some(highest) => self.token_alone(token, highest, now),
        }
        self.left(reply.array()[1].int());
    }

    fn look(
        &mut self,
        ticket: &str,
        score: Option<i64>,
        lease: i64,
        mode: Mode,
        reply: &RawValue,
        now: &Now<'_>,
    ) {
        let id = hold_of(ticket);
        match &self.hold {
            Some(hold) if hold.id == id => {
                self.line.retain(|(_, lined)| lined != ticket);
                self.told_token(reply.array()[0].int(), now);
                self.left(reply.array()[1].int());
            }
            Some(_) => {
                self.join(ticket, score, reply, now);
                self.left(self.place(ticket, reply));
            }
            None => {
                self.join(ticket, score, reply, now);
                match self.grant(mode, Some((ticket, lease)), now) {
                    Some((granted, token)) if granted == ticket => {
                        let taken = [token, lease].map(RawValue::Int);
                        assert_eq!(reply.array(), taken, "its own turn");
                    }
                    granted => {
                        let ms = granted.map_or(1_000, |(granted, _)| grant_lease(&granted));
                        assert_eq!(self.place(ticket, reply), ms);
                    }
                }
            }
        }
    }

    fn end(&mut self, op: &Op, reply: &RawValue, now: &Now<'_>) {
        match op {
            Op::Release {
                hold,
                ticket,
                mode,
                redisson,
            } => {
                let ended = self.release(hold, ticket.as_deref(), *mode, *redisson, now);
                assert_eq!(*reply, RawValue::Int(ended));
            }
            Op::ReleaseAlone {
                hold,
                mode,
                redisson,
            } => {
                let held = self.hold.take_if(|held| held.id == *hold).is_some();
                assert_eq!(*reply, RawValue::Int(held.into()));
                if held && *redisson {
                    self.tell_redisson(*mode, now);
                }
            }
            Op::ForceUnlock { mode, redisson } => {
                let held = self.hold.take().is_some();
                assert_eq!(*reply, RawValue::Int(held.into()));
                if held && self.grant(*mode, None, now).is_none() && *redisson {
                    self.tell_redisson(*mode, now);
                }
            }
            _ => panic!("{op:?} ends no hold"),
        }
    }

    fn release(
        &mut self,
        id: &str,
        ticket: Option<&str>,
        mode: Mode,
        redisson: Redisson,
        now: &Now<'_>,
    ) -> i64 {
        if let Some(ticket) = ticket {
            self.line.retain(|(_, lined)| lined != ticket);
        }
        if self.hold.take_if(|held| held.id == id).is_none() {
            return 0;
        }
        let open = match redisson {
            Redisson::Open { own } => {
                let waiting = self.line.len() as i64;
                mode == Mode::Cluster || now.hearing.redisson(mode) - waiting - own > 0
            }
            Redisson::Off | Redisson::Told => false,
        };
        if !open && self.grant(mode, None, now).is_some() {
            return 2;
        }
        if !matches!(redisson, Redisson::Off) {
            self.tell_redisson(mode, now);
        }
        1
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Expire => self.hold = None,
            Event::LoseTicket { ticket } => self.line.retain(|(_, lined)| lined != ticket),
            Event::LoseLine => self.line.clear(),
            Event::LoseCounter => self.counter = None,
            Event::Counter { value } => self.counter = Some(*value),
            Event::Tickets { places } => {
                for (score, ticket) in places {
                    self.line.retain(|(_, lined)| lined != ticket);
                    self.line.insert((*score, ticket.clone()));
                }
            }
        }
    }

    /// Makes the first that can be told the holder, and names its ticket and token.
    fn grant(
        &mut self,
        mode: Mode,
        own: Option<(&str, i64)>,
        now: &Now<'_>,
    ) -> Option<(String, i64)> {
        let after = self.time;
        let (mut block, mut draws, mut granted) = (1, 0, None);
        for _ in 0..64 {
            let Some((_, ticket)) = self.line.pop_first() else {
                break;
            };
            if draws == 0 || block == 1 && ticket.ends_with('+') {
                draws += 1;
                block = if ticket.ends_with('+') { 64 } else { 1 };
            }
            let Some((client, _)) = parts(&ticket) else {
                continue;
            };
            let own = own.filter(|(own, _)| *own == ticket);
            let heard = own.is_none() && now.hearing.client(client, mode);
            if heard || own.is_some() || mode != Mode::Plain {
                let lease = own.map_or_else(|| grant_lease(&ticket), |(_, lease)| lease);
                granted = Some((ticket, lease, heard));
                break;
            }
        }
        if draws == 0 {
            return None;
        }
        let token = now.seen.counter.expect("a counter") - (block - 1);
        self.draw(token, block, draws, now);
        let (ticket, lease, heard) = granted?;
        self.enter(hold_of(&ticket), lease, now);
        if heard && let Some((client, number)) = parts(&ticket) {
            self.sent.push(Sent::Grant {
                client: client.to_owned(),
                number: number.to_owned(),
                token,
                after,
                lease,
                mode,
            });
        }
        Some((ticket, token))
    }

    fn join(&mut self, ticket: &str, score: Option<i64>, reply: &RawValue, now: &Now<'_>) {
        let last = self.line.last().map(|(score, _)| *score);
        let known = self.score(ticket);
        // The request that takes the lock tells no place.
        let told = matches!(reply, RawValue::Bulk(_)).then(|| {
            let told = place(reply);
            let time = told.now;
            assert!((self.time..=now.span.end).contains(&time), "{time}");
            self.time = time;
            assert_eq!(told.new, known.is_none(), "whether it was missing");
            let end = last.map_or(time, |last| time.max(last + 1));
            (told.score, end)
        });
        let end = told.map_or_else(|| last.map_or(0, |last| last + 1), |(_, end)| end);
        let score = known.or(score).unwrap_or(end);
        assert_eq!(told.map_or(score, |(told, _)| told), score, "its place");
        if known.is_none() {
            self.line.insert((score, ticket.to_owned()));
        }
    }

    /// Checks the number of tickets ahead that was told; returns the milliseconds that were.
    fn place(&self, ticket: &str, reply: &RawValue) -> i64 {
        let ahead = self.line.iter().position(|(_, lined)| lined == ticket);
        let ahead = ahead.expect("it is in line") as i64;
        let told = place(reply);
        assert_eq!(told.ahead, ahead, "tickets ahead");
        told.ms
    }

    /// The first token of a new block: it rises, from the time or from the counter before. Of several `draws` only the last
    /// is used.
    fn draw(&mut self, token: i64, block: i64, draws: i64, now: &Now<'_>) {
        let before = self.counter.unwrap_or(0);
        assert!(token > before, "{token} does not rise");
        assert!(token >= self.time, "{token} is behind the time");
        if token > before + draws {
            assert!(token <= now.span.end, "{token} is ahead of the time");
            self.time = token;
        }
        self.counter = Some(token + block - 1);
    }

    /// The token of a hold that is there: a new one only if the counter was lost.
    fn told_token(&mut self, token: i64, now: &Now<'_>) {
        match self.counter {
            Some(counter) => assert_eq!(token, counter),
            None => self.draw(token, 1, 1, now),
        }
    }

    fn token_alone(&self, token: i64, highest: i64, now: &Now<'_>) {
        let times = self.time.max(highest + 1)..=now.span.end.max(highest + 1);
        assert!(times.contains(&token), "{token}");
    }

    fn enter(&mut self, id: &str, lease: i64, now: &Now<'_>) {
        self.hold = Some(Hold {
            id: id.to_owned(),
            lease,
            since: now.span.since,
        });
    }

    /// Whether `id` holds the lock; its lease is at least `lease` from now on.
    fn extend(&mut self, id: &str, lease: i64, span: Span) -> bool {
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.id == id) else {
            return false;
        };
        if lease >= hold.lease {
            hold.lease = lease;
            hold.since = span.since;
        }
        true
    }

    /// Checks the remaining lease that was told.
    fn left(&self, ms: i64) {
        let hold = self.hold.as_ref().expect("held");
        let passed = hold.since.elapsed().as_millis() as i64 + 2;
        let left = hold.lease - passed..=hold.lease;
        assert!(left.contains(&ms), "{ms} ms of {hold:?}");
    }

    fn tell_redisson(&mut self, mode: Mode, now: &Now<'_>) {
        if now.hearing.redisson(mode) > 0 {
            self.sent.push(Sent::Redisson { mode });
        }
    }

    /// Compares the whole state.
    fn check(&self, now: &Now<'_>) {
        let seen = now.seen;
        let holders: Vec<_> = self
            .hold
            .iter()
            .map(|hold| (hold.id.clone(), "1".into()))
            .collect();
        assert_eq!(seen.holders, holders, "the holder");
        let line: Vec<_> = self.line.iter().cloned().collect();
        assert_eq!(seen.line, line, "the line");
        assert_eq!(seen.counter, self.counter, "the counter");
        let [lock, counter, line] = seen.ttls;
        if self.hold.is_some() {
            self.left(lock);
        }
        assert!(self.counter.is_none() || (1..=600_000).contains(&counter));
        assert!(
            self.line.is_empty() || (1..=60_000).contains(&line),
            "{line}"
        );
    }
}

/// What a request met.
struct Now<'a> {
    seen: &'a Seen,
    span: Span,
    hearing: &'a Heard,
}

/// The client and the number of a ticket of ours.
fn parts(ticket: &str) -> Option<(&str, &str)> {
    let (client, number) = hold_of(ticket).rsplit_once(':')?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let lease = (1..=60_000).contains(&grant_lease(ticket));
    (digits && !client.is_empty() && lease).then_some((client, number))
}

fn grant_lease(ticket: &str) -> i64 {
    match ticket.split_once('|') {
        Some((_, lease)) => lease.trim_end_matches('+').parse().unwrap_or(-1),
        None => 1_000,
    }
}
