//! Passing a hold on within the process: how often, for how long, and with which tokens.
//!
//! A release with waiters here needs no command: the next one goes on with the same hold on the server, under a fencing token of
//! its own. The tokens come from a block that was reserved when the hold was granted, so they grow over all processes whatever
//! happens to the hold meanwhile.

use std::time::{Duration, Instant};

/// Tokens that are reserved for a hold that is to be passed on. Every one of them is used once at most.
pub(crate) const BLOCK: u64 = 64;

/// A hold is passed on for this long after it was granted. Then the server is asked again: others may wait elsewhere, or
/// somebody may have removed the lock.
const LONGEST: Duration = Duration::from_millis(10);

/// The further use of a hold, seen from its present guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The token after the present one.
    next: u64,
    /// The first token that is not of the block.
    end: u64,
    until: Instant,
    /// The changes of the nodes that were known when the hold was granted: another one, and the server may have forgotten it.
    changes: u64,
}

impl Chain {
    /// The chain of a hold that was granted by now with `token`, the first one of a block.
    pub(crate) fn begin(token: u64, now: Instant, changes: u64) -> Self {
        Self {
            next: token + 1,
            end: token + BLOCK,
            until: now + LONGEST,
            changes,
        }
    }

    /// Passes the hold on, of whose `lease` so much is `left`: the token of the next guard, and the chain from there.
    pub(crate) fn pass(
        self,
        now: Instant,
        left: Duration,
        lease: Duration,
        changes: u64,
    ) -> Option<(u64, Self)> {
        let may_pass = self.next < self.end
            && now < self.until
            && left >= lease / 2
            && changes == self.changes;
        let rest = Self {
            next: self.next + 1,
            ..self
        };
        may_pass.then_some((self.next, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(1);

    #[test]
    fn a_block_is_used_up_once() {
        let now = Instant::now();
        let mut chain = Chain::begin(100, now, 7);
        let mut tokens = Vec::new();
        while let Some((token, rest)) = chain.pass(now, LEASE, LEASE, 7) {
            tokens.push(token);
            chain = rest;
        }
        let expected: Vec<u64> = (101..100 + BLOCK).collect();
        assert_eq!(tokens, expected);
    }

    #[test]
    fn nothing_is_passed_on_that_may_be_gone_or_wanted_elsewhere() {
        let now = Instant::now();
        let chain = Chain::begin(100, now, 7);
        assert!(chain.pass(now, LEASE / 2, LEASE, 7).is_some());
        assert!(chain.pass(now + LONGEST, LEASE, LEASE, 7).is_none());
        assert!(chain.pass(now, LEASE / 2 - LONGEST, LEASE, 7).is_none());
        assert!(chain.pass(now, LEASE, LEASE, 8).is_none());
    }
}
