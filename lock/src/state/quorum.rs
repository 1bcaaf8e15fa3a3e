//! The votes of independent nodes on one hold, and until when a majority of them may be trusted: a state machine without clocks,
//! I/O or wake-ups.
//!
//! Each node has a deadline of its own, from the instant before its own request was written. The hold lasts until the one that is
//! the q-th largest, q being a majority: until then that many nodes grant it to nobody else.

use std::time::Duration;

use super::deadline::{Deadline, Now};
use crate::error::LostReason;
use crate::options::Terms;

/// The state of one acquisition at all nodes.
#[derive(Debug)]
pub(crate) struct Quorum {
    terms: Terms,
    votes: Box<[Vote]>,
    /// When the first request was sent: `max_hold` counts from here.
    since: Now,
    over: Option<LostReason>,
}

/// The state at one node.
#[derive(Clone, Copy, Debug)]
struct Vote {
    answer: Answer,
    /// Until when the node grants it to nobody else; `None` if it does not have the hold, as far as is known.
    deadline: Option<Deadline>,
    /// The node's counter as the grant wrote it.
    counter: u64,
    /// Whether the fencing token was written there while the hold was.
    is_fenced: bool,
}

/// The answer of a node to the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Awaited,
    Granted,
    Refused,
}

/// The state of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answers are awaited that can decide it.
    Open,
    /// A majority granted it, and it lasts.
    Granted,
    /// Too many refused, or the answers came too late.
    Impossible,
}

impl Quorum {
    /// An attempt at this many nodes, whose requests are sent from `since` on.
    pub(crate) fn new(nodes: usize, terms: Terms, since: Now) -> Self {
        let vote = Vote {
            answer: Answer::Awaited,
            deadline: None,
            counter: 0,
            is_fenced: false,
        };
        Self {
            terms,
            votes: vec![vote; nodes].into(),
            since,
            over: None,
        }
    }

    /// How many nodes are a majority.
    pub(crate) const fn needed(&self) -> usize {
        self.votes.len() / 2 + 1
    }

    /// The node granted the request that was sent at `sent` for `lease`, and its counter is `counter` since.
    pub(crate) fn granted(&mut self, node: usize, sent: Now, lease: Duration, counter: u64) {
        if self.over.is_none() {
            self.votes[node] = Vote {
                answer: Answer::Granted,
                deadline: Some(Deadline::new(sent, lease)),
                counter,
                is_fenced: false,
            };
        }
    }

    /// The node did not grant it, or was not reached in time.
    pub(crate) fn refused(&mut self, node: usize) {
        self.votes[node].answer = Answer::Refused;
    }

    /// The node renewed it by a request that was sent at `sent` for `lease`. An answer that comes too late revives nothing.
    ///
    /// Returns how much later than planned, if a majority has renewed it with that: its end has moved on by more than the
    /// nodes of one round differ.
    pub(crate) fn renewed(
        &mut self,
        node: usize,
        sent: Now,
        lease: Duration,
        now: Now,
    ) -> Option<Duration> {
        if self.check(now).is_some() {
            return None;
        }
        let left = self.left(now);
        let deadline = Deadline::new(sent, lease);
        let vote = &mut self.votes[node];
        vote.deadline = Some(
            vote.deadline
                .map_or(deadline, |known| known.extended(deadline)),
        );
        let has_moved = self.left(now).saturating_sub(left) >= lease / 6;
        let planned = lease * 11 / 30;
        has_moved.then(|| lease.saturating_sub(left).saturating_sub(planned))
    }

    /// The node does not have it any more. It may take it again, and counts once that was renewed.
    pub(crate) fn forgot(&mut self, node: usize) {
        self.votes[node].deadline = None;
    }

    /// The token was written at the node while it had the hold.
    pub(crate) fn fenced(&mut self, node: usize) {
        self.votes[node].is_fenced = true;
    }

    /// The state of the attempt.
    pub(crate) fn outcome(&self, now: Now) -> Outcome {
        let count = |answer| {
            self.votes
                .iter()
                .filter(|vote| vote.answer == answer)
                .count()
        };
        let (granted, awaited) = (count(Answer::Granted), count(Answer::Awaited));
        if self.over.is_some() || granted + awaited < self.needed() {
            Outcome::Impossible
        } else if granted < self.needed() {
            Outcome::Open
        } else if self.left(now).is_zero() {
            Outcome::Impossible
        } else {
            Outcome::Granted
        }
    }

    /// The nodes whose answers are awaited.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = usize> {
        self.with(Answer::Awaited)
    }

    /// The nodes that granted it.
    pub(crate) fn granting(&self) -> impl Iterator<Item = usize> {
        self.with(Answer::Granted)
    }

    /// The fencing token of a hold that a majority granted: above the counters of all that did.
    pub(crate) fn token(&self) -> u64 {
        let counters = self.votes.iter().map(|vote| vote.counter);
        counters.max().unwrap_or_default() + 1
    }

    /// Whether the token is written at a majority.
    pub(crate) fn is_fenced(&self) -> bool {
        self.votes.iter().filter(|vote| vote.is_fenced).count() >= self.needed()
    }

    /// How long it may be trusted; zero when it is over.
    pub(crate) fn left(&self, now: Now) -> Duration {
        if self.over.is_some() {
            return Duration::ZERO;
        }
        let left = |vote: &Vote| vote.deadline.map_or(Duration::ZERO, |end| end.left(now));
        let mut left: Vec<Duration> = self.votes.iter().map(left).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        left[self.needed() - 1]
    }

    /// Why it is over, if it is. It ends here if it has run out.
    pub(crate) fn check(&mut self, now: Now) -> Option<LostReason> {
        if self.over.is_none() && self.left(now).is_zero() && self.outcome(now) != Outcome::Open {
            self.over = Some(self.ran_out(now));
        }
        self.over
    }

    /// Ends it for `reason`. Returns false if it was over before.
    pub(crate) fn end(&mut self, reason: LostReason) -> bool {
        let is_first = self.over.is_none();
        self.over.get_or_insert(reason);
        is_first
    }

    /// The lease of a renewal that is sent at `now`; `None` if there is nothing to renew.
    pub(crate) fn next_lease(&self, now: Now) -> Option<Duration> {
        let (since, now) = (self.since.monotonic, now.monotonic);
        self.terms.next_lease(since, Duration::ZERO, now)
    }

    /// The nodes that gave this answer.
    fn with(&self, answer: Answer) -> impl Iterator<Item = usize> {
        let votes = self.votes.iter().enumerate();
        votes.filter_map(move |(node, vote)| (vote.answer == answer).then_some(node))
    }

    /// Why it ran out.
    fn ran_out(&self, now: Now) -> LostReason {
        // The last lease ends with the longest hold, but is not trusted to its end and counted in whole milliseconds.
        let is_longest = |max_hold: Duration| {
            let margin = (max_hold / 50 + Duration::from_millis(5)).min(max_hold);
            self.since.monotonic + max_hold - margin <= now.monotonic
        };
        if self.terms.max_hold.is_some_and(is_longest) {
            return LostReason::MaxHold;
        }
        let known = self.votes.iter().filter(|vote| vote.deadline.is_some());
        if known.count() < self.needed() {
            LostReason::NoMajority
        } else {
            LostReason::Expired
        }
    }
}

#[cfg(test)]
#[path = "quorum/tests.rs"]
mod tests;
