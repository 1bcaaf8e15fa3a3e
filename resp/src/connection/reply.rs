//! The reply to come of a command on a shared connection.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::{self, Handle};
use tokio::time::{Sleep, sleep_until};

use crate::connection::pipeline::{Callback, Outcome, RequestId};
use crate::connection::shared::{self, Shared};
use crate::error::{Error, ErrorKind};
use crate::protocol::greeting::ConnectionId;
use crate::protocol::value::Value;

/// The reply to come of a submitted command.
///
/// # Cancel safety
///
/// Dropping it abandons the reply. The command was sent or will be: dropping takes nothing back.
#[must_use = "the outcome of a command is in its reply"]
pub struct Reply(State);

enum State {
    Queued(Arc<Shared>, RequestId, Deadline),
    Failed(Option<Error>),
    Done,
}

/// Decides which timer makes a reply fail at its deadline.
enum Deadline {
    /// Not decided before the first poll.
    Undecided,
    /// The driver: it lives on the same runtime, which runs, since the reply is being polled.
    Driver,
    /// A timer on the runtime of the caller: that of the driver may be blocked.
    Caller(Pin<Box<Sleep>>),
}

/// How much later than the driver a caller looks for itself.
const GRACE: Duration = Duration::from_millis(20);

impl Reply {
    /// The reply to a command that was queued.
    pub(crate) const fn queued(shared: Arc<Shared>, id: RequestId) -> Self {
        Self(State::Queued(shared, id, Deadline::Undecided))
    }

    /// A reply that is an error already, for a command that found nowhere to go.
    #[must_use = "it is there to be awaited"]
    pub const fn failed(error: Error) -> Self {
        Self(State::Failed(Some(error)))
    }

    /// Whether the command was not even queued, because the connection is down or its queue full: waiting until it is
    /// [`ready`](crate::Connection::ready) may help.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(&self.0, State::Failed(Some(error)) if error.kind() == ErrorKind::NotSent)
    }

    /// The connection that the command was sent over, or will be; absent if it was refused, if the server gave the
    /// connection no id, or once the reply was taken. [`Error::connection`] tells it of a command that has failed.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionId> {
        match &self.0 {
            State::Queued(shared, id, _) => shared.lock().pipeline.connection_of(*id),
            State::Failed(_) | State::Done => None,
        }
    }

    /// Gives the outcome to a function instead, which runs on the connection's task (or right here, if the outcome is
    /// known already): for `Drop`, which cannot wait.
    pub fn detach(mut self, callback: impl FnOnce(Outcome) + Send + 'static) {
        match std::mem::replace(&mut self.0, State::Done) {
            State::Queued(shared, id, _) => {
                let checking = Arc::clone(&shared);
                let callback: Callback =
                    Box::new(move |outcome| callback(checked(outcome, &checking)));
                let ready = shared.lock().pipeline.detach(id, callback);
                if let Some((callback, outcome)) = ready {
                    callback(outcome);
                }
            }
            State::Failed(Some(error)) => callback(Err(error)),
            State::Failed(None) | State::Done => {}
        }
    }
}

impl Future for Reply {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.0 {
            State::Queued(shared, id, deadline) => {
                let mut state = shared.lock();
                let ready = state.pipeline.poll(*id, cx.waker());
                let ready = if ready.is_some() {
                    drop(state);
                    ready
                } else if deadline.has_passed(state, *id, cx) {
                    shared.expire();
                    let ready = shared.lock().pipeline.poll(*id, cx.waker());
                    ready.map(|outcome| outcome.map_err(undriven))
                } else {
                    None
                };
                let Some(outcome) = ready else {
                    return Poll::Pending;
                };
                let outcome = checked(outcome, shared);
                self.0 = State::Done;
                Poll::Ready(outcome)
            }
            State::Failed(error) => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
            // Polled after completion: there is nothing to come.
            State::Done => Poll::Pending,
        }
    }
}

impl Deadline {
    /// Whether the caller has to fail what is due itself. Otherwise it will be woken.
    fn has_passed(
        &mut self,
        state: MutexGuard<'_, shared::State>,
        id: RequestId,
        cx: &mut Context<'_>,
    ) -> bool {
        if matches!(self, Self::Undecided) {
            let (deadline, home) = (state.pipeline.deadline_of(id), state.driver_runtime);
            drop(state);
            *self = Self::decide(deadline, home);
        } else {
            drop(state);
        }
        let Self::Caller(timer) = self else {
            return false;
        };
        let has_passed = timer.as_mut().poll(cx).is_ready();
        if has_passed {
            *self = Self::Driver;
        }
        has_passed
    }

    fn decide(deadline: Option<Instant>, home: Option<runtime::Id>) -> Self {
        let here = Handle::try_current().map(|runtime| runtime.id());
        match (here, deadline) {
            (Ok(here), Some(deadline)) if home != Some(here) => {
                Self::Caller(Box::pin(sleep_until((deadline + GRACE).into())))
            }
            _ => Self::Driver,
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let State::Queued(shared, id, _) = &self.0 {
            shared.lock().pipeline.abandon(*id);
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Queued(..) => "Reply(queued)",
            State::Failed(_) => "Reply(failed)",
            State::Done => "Reply(done)",
        })
    }
}

/// Adds to a timeout that the driver should have noticed first why it may not have.
fn undriven(error: Error) -> Error {
    if error.is_timeout() {
        error.with_detail("; the runtime that the connection lives on may be blocked")
    } else {
        error
    }
}

/// An error reply is an error.
pub(crate) fn checked(outcome: Outcome, shared: &Shared) -> Outcome {
    match outcome {
        Ok(Value::Error(line)) => Err(shared.endpoint.server_error(&shared.node, &line)),
        outcome => outcome,
    }
}
