//! An attempt without an outcome yet: unless it is settled, what it may have left on the server is taken back.

use std::sync::Arc;

use leasehold_cluster::Unanswered;

use super::hold::Hold;
use super::queue::Place;
use super::release;
use super::request::Request;
use super::work_queue::Unfinished;
use crate::state::id::HoldId;
use crate::state::ticket::TicketText;
use crate::state::waiters::Closed;

/// What is asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// To take the lock now.
    Try,
    /// The same, and to put the ticket in line if it is held.
    Join,
    /// Whether the ticket became the holder, or the lock came free unnoticed.
    Look,
    /// Whether the ticket, which a message named, is the holder.
    Confirm,
}

/// An attempt under way. A request that timed out, or whose future was dropped, may still run later: then a release of the
/// same hold follows it, and of its ticket, which the next waiter here does not inherit.
pub(super) struct OpenAttempt<'a> {
    request: &'a Request,
    id: HoldId,
    /// The ticket that it is made with.
    ticket: Option<TicketText>,
    /// Where it was sent without an answer.
    unanswered: Unanswered,
    /// A shutdown waits for it, also if it takes the ticket out of the line meanwhile.
    unfinished: Option<Unfinished>,
    is_open: bool,
}

impl<'a> OpenAttempt<'a> {
    pub(super) fn begin(request: &'a Request, ask: Ask) -> Self {
        let context = &request.context;
        let in_line = if ask == Ask::Try {
            None
        } else {
            context.registry.table.with_line(&request.name, |line| {
                let standing = line.standing.as_mut()?;
                let unanswered = std::mem::take(&mut standing.unanswered);
                Some((*standing.ticket.id(), standing.ticket.text(), unanswered))
            })
        };
        if let Some((id, ticket, unanswered)) = in_line.flatten() {
            return Self {
                request,
                id,
                ticket: Some(ticket),
                unanswered,
                unfinished: Some(context.registry.work.unfinished()),
                is_open: true,
            };
        }
        Self {
            request,
            id: context.next_hold(),
            ticket: None,
            unanswered: Unanswered::default(),
            unfinished: Some(context.registry.work.unfinished()),
            is_open: true,
        }
    }

    /// The hold that it is to become.
    pub(super) const fn id(&self) -> HoldId {
        self.id
    }

    pub(super) const fn ticket(&self) -> Option<TicketText> {
        self.ticket
    }

    pub(super) const fn unanswered(&mut self) -> &mut Unanswered {
        &mut self.unanswered
    }

    /// It has its outcome: nothing is left on the server, or only the ticket, which stays in line. But if a shutdown took that
    /// back meanwhile, its release may have been overtaken by what was answered just now, and the attempt stays open.
    pub(super) fn settle(&mut self) {
        if self.ticket.is_some() {
            let table = &self.request.context.registry.table;
            let is_in_line = table.with_line(&self.request.name, |line| {
                let standing = line.standing.as_mut()?;
                standing.unanswered = std::mem::take(&mut self.unanswered);
                Some(())
            });
            if is_in_line.flatten().is_none() {
                return;
            }
        }
        self.is_open = false;
        self.unfinished = None;
    }

    /// The same for an attempt that fails: its ticket does not stay in line.
    pub(super) fn settle_unless_in_line(&mut self) {
        if self.ticket.is_none() {
            self.settle();
        }
    }

    /// The place and the ticket become `hold`.
    pub(super) fn grant(&mut self, place: &mut Place, hold: &Arc<Hold>) -> Result<(), Closed> {
        // First, so that the next head does not inherit it.
        let unfinished = self.leave_line();
        if let Err(closed) = place.grant(hold) {
            self.unfinished = self.unfinished.take().or(unfinished);
            return Err(closed);
        }
        self.is_open = false;
        self.unfinished = None;
        Ok(())
    }

    /// Takes the ticket away from the waiters here.
    fn leave_line(&self) -> Option<Unfinished> {
        self.ticket?;
        let table = &self.request.context.registry.table;
        let standing = table.with_line(&self.request.name, |line| line.standing.take());
        table.unstand(self.id.number());
        standing.flatten().map(|standing| standing.unfinished)
    }
}

impl Drop for OpenAttempt<'_> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let in_line = self.leave_line();
        let Request {
            context,
            protocol,
            name,
            terms,
            ..
        } = self.request;
        let unfinished = self.unfinished.take().or(in_line);
        release::withdraw(
            context,
            release::Withdrawn {
                protocol,
                name: Arc::clone(name),
                id: self.id,
                ticket: self.ticket,
                lease: terms.first_lease(),
            },
            std::mem::take(&mut self.unanswered),
            unfinished.unwrap_or_else(|| context.registry.work.unfinished()),
        );
    }
}
