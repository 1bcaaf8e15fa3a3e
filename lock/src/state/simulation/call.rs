//! Requests, replies and messages of the model of the server.

use crate::protocol::{Announced, Answer};

/// The process that stands for Redisson.
pub(super) const JAVA: usize = usize::MAX;

/// The id of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HoldKey {
    pub(super) process: usize,
    pub(super) number: u64,
}

/// A ticket: the hold that it becomes, the grant lease in milliseconds, and the plus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TicketKey {
    pub(super) hold: HoldKey,
    pub(super) lease: u64,
    /// Whether it is granted with a block of tokens.
    pub(super) with_block: bool,
}

/// How an acquire uses the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Not at all.
    Passed,
    /// A free lock is left to those in it.
    Kept,
    /// The same, beside Redisson; and a lock that is held is waited for with this ticket.
    Joined(TicketKey),
}

#[derive(Clone, Debug)]
pub(super) enum Call {
    Acquire {
        hold: HoldKey,
        lease: u64,
        line: Line,
        /// How many tokens to reserve.
        block: u64,
    },
    AcquireAlone {
        hold: HoldKey,
        lease: u64,
        highest: u64,
    },
    Look {
        hold: HoldKey,
        lease: u64,
        ticket: TicketKey,
        score: Option<u64>,
    },
    Confirm {
        hold: HoldKey,
        lease: u64,
    },
    ConfirmAlone {
        hold: HoldKey,
        lease: u64,
        highest: u64,
    },
    Renew {
        hold: HoldKey,
        lease: u64,
    },
    Release {
        hold: HoldKey,
        ticket: Option<TicketKey>,
        redisson: Option<Announced>,
    },
    ReleaseAlone {
        hold: HoldKey,
    },
    ForceUnlock,
    /// To the grants of a process.
    Subscribe,
    /// To Redisson's channel.
    Listen,
    Unlisten,
    /// Ends a connection.
    Kill(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    Answer(Answer),
    Ended(u8),
    Renewed(bool),
    Done,
    /// Some of the keys are elsewhere.
    TryAgain,
    NoPermission,
}

/// A message on its way to a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    Grant {
        hold: HoldKey,
        token: u64,
        at: u64,
        lease: u64,
    },
    /// Redisson's `0`.
    Released,
}

/// Events that the checks record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Note {
    /// The first and the last of a block.
    Issued(u64, u64),
    /// Somebody has the lock now, whose ticket had this score.
    Took(HoldKey, Option<u64>),
    /// A ticket was passed over since its process does not listen, or a lease ran out.
    Skipped,
    /// A ticket was served although another one was ahead.
    Jumped,
    Forced(HoldKey),
}
