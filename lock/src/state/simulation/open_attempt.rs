//! An attempt without an outcome: as the engine's `open_attempt`.

use std::rc::Rc;

use super::acquire::Request;
use super::call::{HoldKey, TicketKey};
use super::connection::Unanswered;
use super::process::Hold;
use super::queue::Place;
use super::release::{self, Withdrawn};
use crate::state::ticket::Ask;
use crate::state::waiters::Closed;

pub(super) struct OpenAttempt<'a> {
    request: &'a Request,
    key: HoldKey,
    ticket: Option<TicketKey>,
    unanswered: Unanswered,
    is_open: bool,
}

impl<'a> OpenAttempt<'a> {
    pub(super) fn begin(request: &'a Request, ask: Ask) -> Self {
        let process = &request.process;
        let in_line = if ask == Ask::Try {
            None
        } else {
            process.with_line(|line| {
                let standing = line.standing.as_mut()?;
                let unanswered = std::mem::take(&mut standing.unanswered);
                Some((process.ticket_key(&standing.ticket), unanswered))
            })
        };
        let (key, ticket, unanswered) = match in_line.flatten() {
            Some((ticket, unanswered)) => (ticket.hold, Some(ticket), unanswered),
            None => (process.key(process.next_hold().number()), None, Vec::new()),
        };
        Self {
            request,
            key,
            ticket,
            unanswered,
            is_open: true,
        }
    }

    pub(super) const fn key(&self) -> HoldKey {
        self.key
    }

    pub(super) const fn ticket(&self) -> Option<TicketKey> {
        self.ticket
    }

    pub(super) const fn unanswered(&mut self) -> &mut Unanswered {
        &mut self.unanswered
    }

    pub(super) fn settle(&mut self) {
        if self.ticket.is_none() {
            self.is_open = false;
            return;
        }
        self.request.process.with_line(|line| {
            if let Some(standing) = &mut line.standing {
                standing.unanswered = std::mem::take(&mut self.unanswered);
                self.is_open = false;
            }
        });
    }

    pub(super) fn settle_unless_in_line(&mut self) {
        if self.ticket.is_none() {
            self.settle();
        }
    }

    /// The place and the ticket become `hold`.
    pub(super) fn grant(&mut self, place: &mut Place, hold: &Rc<Hold>) -> Result<(), Closed> {
        self.leave_line();
        place.grant(hold)?;
        self.is_open = false;
        Ok(())
    }

    fn leave_line(&self) {
        if self.ticket.is_none() {
            return;
        }
        let process = &self.request.process;
        let standing = process.with_line(|line| line.standing.take());
        process.waiters.borrow_mut().unstand(self.key.number);
        drop(standing);
    }
}

impl Drop for OpenAttempt<'_> {
    fn drop(&mut self) {
        if !self.is_open || !self.request.process.alive.get() {
            return;
        }
        self.leave_line();
        let withdrawn = Withdrawn {
            hold: self.key,
            ticket: self.ticket,
            lease: self.request.terms.first_lease(),
        };
        let unanswered = std::mem::take(&mut self.unanswered);
        release::withdraw(&self.request.process, withdrawn, unanswered);
    }
}
