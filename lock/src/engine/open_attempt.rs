//! An attempt without an outcome yet: unless it is settled, what it may have left on the server is taken back.

use std::sync::Arc;

use leasehold_cluster::Unanswered;

use super::hold::Hold;
use super::queue::Place;
use super::release;
use super::request::Request;
use super::work_queue::Unfinished;
use crate::state::id::HoldId;
use crate::state::ticket::{Ask, TicketText};
use crate::state::waiters::Closed;

/// An attempt under way. A request that timed out, or whose future was dropped, may still run later: then a release of the
/// same hold follows it, and of its ticket, which the next waiter here does not inherit.
pub(super) struct OpenAttempt<'a> {
    request: &'a Request,
    id: HoldId,
    /// The ticket that it is made with.
    ticket: Option<TicketText>,
    /// Where it was sent without an answer.
    unanswered: Unanswered,
    /// Until it has its outcome. A shutdown waits for it, also if it takes the ticket out of the line meanwhile.
    unfinished: Option<Unfinished>,
}

impl<'a> OpenAttempt<'a> {
    pub(super) fn begin(request: &'a Request, ask: Ask) -> Self {
        let context = &request.context;
        let in_line = if matches!(ask, Ask::TakeOver | Ask::Try) {
            None
        } else {
            let table = &context.registry.table;
            table.with_standing(&request.name, |standing| {
                let unanswered = std::mem::take(&mut standing.unanswered);
                (
                    *standing.ticket.id(),
                    Some(standing.ticket.text()),
                    unanswered,
                )
            })
        };
        let new = || {
            (
                context.next_hold(request.owner.as_deref()),
                None,
                Unanswered::default(),
            )
        };
        let (id, ticket, unanswered) = in_line.unwrap_or_else(new);
        Self {
            request,
            id,
            ticket,
            unanswered,
            unfinished: Some(context.registry.work.unfinished()),
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
            let in_line = table.with_standing(&self.request.name, |standing| {
                standing.unanswered = std::mem::take(&mut self.unanswered);
            });
            if in_line.is_none() {
                return;
            }
        }
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
        place.grant(hold, self.ticket.is_some())?;
        self.unfinished = None;
        Ok(())
    }

    /// Takes the ticket away from the waiters here.
    fn leave_line(&self) {
        if self.ticket.is_some() {
            let table = &self.request.context.registry.table;
            drop(table.take_standing(&self.request.name));
        }
    }
}

impl Drop for OpenAttempt<'_> {
    fn drop(&mut self) {
        let Some(unfinished) = self.unfinished.take() else {
            return;
        };
        self.leave_line();
        let Request {
            context,
            protocol,
            name,
            permits,
            terms,
            ..
        } = self.request;
        release::withdraw(
            context,
            release::Withdrawn {
                protocol,
                name: Arc::clone(name),
                id: self.id,
                permits: *permits,
                ticket: self.ticket,
                lease: terms.first_lease(),
            },
            std::mem::take(&mut self.unanswered),
            unfinished,
        );
    }
}
