//! A place in the queue of a process: as the engine's `queue`.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::acquire::{Request, Wait};
use super::broken;
use super::connection::Failure;
use super::process::{Hold, Process};
use super::release;
use crate::options::Terms;
use crate::state::waiters::{Access, Claim, Closed, Held, Position};

/// A place in the queue. Dropping it gives it up.
pub(super) struct Place {
    process: Rc<Process>,
    number: Option<u64>,
}

pub(super) enum Wake {
    Granted,
    Look,
    TimeUp,
}

/// Joins the queue.
pub(super) fn enter(request: &Request) -> Result<Option<(Place, Option<Instant>)>, Closed> {
    let Request { process, .. } = request;
    let now = process.now();
    let until = match request.wait {
        Wait::None => {
            let holds = process.waiters.borrow().holds(&process.world.name);
            for hold in holds {
                release::check(process, &hold);
            }
            None
        }
        Wait::For(time) => Some(now.monotonic + time),
        Wait::Endless => None,
    };
    let (name, claim) = (&process.world.name, claim(request.terms));
    let mut waiters = process.waiters.borrow_mut();
    let number = match request.wait {
        Wait::None => waiters.enter_if_free(name, claim, |hold| hold.is_live(now))?,
        _ => Some(waiters.enter(name, claim)?),
    };
    drop(waiters);
    let Some(number) = number else {
        return Ok(None);
    };
    let place = Place {
        process: Rc::clone(process),
        number: Some(number),
    };
    Ok(Some((place, until)))
}

const fn claim(terms: Terms) -> Claim {
    Claim {
        access: Access::Exclusive,
        owner: None,
        replicas: terms.replicas,
    }
}

impl Place {
    /// Waits until this is the head and no hold of this process excludes it; `false` if the time is up before.
    pub(super) async fn turn(&self, until: Option<Instant>) -> Result<bool, Failure> {
        let process = &self.process;
        poll_fn(|cx| {
            loop {
                let check_at = match self.position(cx.waker()) {
                    Position::Free => return Poll::Ready(Ok(true)),
                    Position::Failed(failure) => return Poll::Ready(Err(failure)),
                    Position::Closed | Position::Nested(_) => {
                        return Poll::Ready(Err(Failure::Closed));
                    }
                    Position::Queued => None,
                    Position::Behind(hold) => {
                        if release::check(process, &hold).is_some() {
                            process.end(&hold);
                            continue;
                        }
                        let now = process.now();
                        let left = hold.left(now).min(Duration::from_secs(1));
                        Some(now.monotonic + left)
                    }
                };
                let now = process.now().monotonic;
                if until.is_some_and(|until| until <= now) {
                    return Poll::Ready(Ok(false));
                }
                if let Some(at) = check_at.into_iter().chain(until).min() {
                    if at <= now {
                        continue;
                    }
                    process.wake_at(at, cx.waker());
                }
                return Poll::Pending;
            }
        })
        .await
    }

    /// Waits for the grant of the ticket, for the time of its next look, or until `until`.
    pub(super) async fn wait(&self, until: Option<Instant>) -> Result<Wake, Closed> {
        let process = &self.process;
        poll_fn(|cx| {
            if matches!(self.position(cx.waker()), Position::Closed) {
                return Poll::Ready(Err(Closed));
            }
            let state = process.with_line(|line| {
                let ticket = &line.standing.as_ref()?.ticket;
                let never = broken::never_looks(process.world.broken, ticket);
                let look_at = Some(ticket.look_at()).filter(|_| !never);
                Some((ticket.has_grant(), look_at))
            });
            let Some((has_grant, look_at)) = state.flatten() else {
                return Poll::Ready(Err(Closed));
            };
            if has_grant {
                return Poll::Ready(Ok(Wake::Granted));
            }
            let now = process.now().monotonic;
            if until.is_some_and(|until| until <= now) {
                return Poll::Ready(Ok(Wake::TimeUp));
            }
            if look_at.is_some_and(|at| at <= now) {
                return Poll::Ready(Ok(Wake::Look));
            }
            if let Some(at) = look_at.into_iter().chain(until).min() {
                process.wake_at(at, cx.waker());
            }
            Poll::Pending
        })
        .await
    }

    pub(super) fn fail_others(&self, terms: Terms, failure: Failure) {
        let shared = match failure {
            Failure::Unavailable | Failure::Unknown => Failure::Unavailable,
            Failure::NotReplicated => failure,
            _ => return,
        };
        let name = &self.process.world.name;
        let after = self
            .process
            .waiters
            .borrow_mut()
            .fail(name, terms.replicas, || shared);
        after.run();
    }

    /// The place becomes `hold`.
    pub(super) fn grant(&mut self, hold: &Rc<Hold>) -> Result<(), Closed> {
        let held = Held {
            number: hold.key.number,
            claim: claim(hold.terms),
            hold: Rc::clone(hold),
        };
        let place = self.number.ok_or(Closed)?;
        let name = &self.process.world.name;
        let after = self.process.waiters.borrow_mut().grant(name, place, held)?;
        after.run();
        self.number = None;
        Ok(())
    }

    fn position(&self, waker: &Waker) -> Position<Rc<Hold>, Failure> {
        let name = &self.process.world.name;
        self.number.map_or(Position::Closed, |number| {
            let mut waiters = self.process.waiters.borrow_mut();
            waiters.position(name, number, waker)
        })
    }
}

impl From<Closed> for Failure {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let process = &self.process;
        let Some(number) = self.number.take().filter(|_| process.alive.get()) else {
            return;
        };
        let mut after = process
            .waiters
            .borrow_mut()
            .leave(&process.world.name, number);
        let line = after.take_line();
        after.run();
        if let Some(line) = line {
            release::abandon(process, line);
        }
    }
}
