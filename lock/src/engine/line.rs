//! The waiters of a name as the server has them: a ticket in line, and the subscriptions through which they hear of grants.

use std::sync::Arc;
use std::time::Duration;

use leasehold_cluster::{Subscription, Unanswered};

use super::hold::Hold;
use super::work_queue::Unfinished;
use crate::options::Replicas;
use crate::protocol::permits::Permits;
use crate::protocol::{Announced, Protocol};
use crate::state::chain::Chain;
use crate::state::readers::Gate;
use crate::state::ticket::Ticket;

/// Of one name. The next waiter goes on with it.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// In a box: most locks that are taken are not waited for, and each takes a line along.
    pub(crate) standing: Option<Box<Standing>>,
    /// To the channel of this name's grants, where channels belong to slots.
    pub(super) grants: Option<Subscription>,
    /// To Redisson's channel of releases.
    pub(super) releases: Option<Subscription>,
    /// To the channels of the runs beside Redisson's fair queue.
    pub(super) runs: Vec<(u8, Subscription)>,
    /// To the reads of this process.
    pub(super) gate: Gate<Arc<Hold>>,
}

/// A ticket, and what its requests may have left behind.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) protocol: &'static Protocol,
    pub(crate) ticket: Ticket,
    pub(crate) permits: Permits,
    /// The number of the owner of the hold that it becomes.
    pub(crate) owner: Option<u64>,
    /// The lease that its requests ask for.
    pub(crate) lease: Duration,
    /// The changes of servers and connections before its latest request.
    pub(crate) changes: u64,
    /// Connections over which a request may still arrive late.
    pub(crate) unanswered: Unanswered,
    /// Of a hold that a waiter before passed on.
    pub(crate) passed: Option<PassedOn>,
    /// A shutdown waits until the ticket is used or taken back.
    pub(crate) unfinished: Unfinished,
}

/// The part of a hold that is passed on which its ticket does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassedOn {
    pub(crate) chain: Chain,
    /// The replicas that had to confirm it, and how many did.
    pub(crate) replicas: Replicas,
    pub(crate) acknowledged: usize,
}

impl Line {
    /// How a release is announced to Redisson while these wait here.
    pub(crate) fn announced(&self, is_open: bool) -> Announced {
        if !is_open {
            return Announced::IfFree;
        }
        Announced::Open {
            own: u64::from(self.releases.is_some() && self.standing.is_none()),
        }
    }
}
