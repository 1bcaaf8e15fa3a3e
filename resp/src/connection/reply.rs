//! The reply to come of a command on a shared connection.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::{self, Handle};
use tokio::time::{Sleep, sleep_until};

use crate::connection::pipeline::{Callback, Outcome, RequestId};
use crate::connection::shared::{Queued, Shared};
use crate::error::{Error, ErrorKind};
use crate::protocol::greeting::ConnectionId;
use crate::protocol::value::Value;
use crate::timer::timer_at;

/// The reply to come of a submitted command.
///
/// # Cancel safety
///
/// Dropping it abandons the reply. The command was sent or will be: dropping takes nothing back.
#[must_use = "the outcome of a command is in its reply"]
pub struct Reply(State);

enum State {
    Queued(Waiting),
    Failed(Option<Error>),
    Done,
}

/// A command in the queue, or its outcome.
struct Waiting {
    shared: Arc<Shared>,
    id: RequestId,
    deadline: Deadline,
    /// Whether the task that polls next is registered already, so that there is nothing to look for yet.
    is_registered: bool,
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
        Self(State::Queued(Waiting {
            shared,
            id,
            deadline: Deadline::Undecided,
            is_registered: false,
        }))
    }

    /// The reply to a command that was queued with the waker of the task that polls it next.
    pub(crate) fn registered(shared: Arc<Shared>, queued: Queued) -> Self {
        let Queued {
            id,
            deadline,
            driver_runtime,
        } = queued;
        Self(State::Queued(Waiting {
            shared,
            id,
            deadline: Deadline::decide(Some(deadline), driver_runtime),
            is_registered: true,
        }))
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
            State::Queued(waiting) => {
                let state = waiting.shared.lock();
                state.pipeline.connection_of(waiting.id)
            }
            State::Failed(_) | State::Done => None,
        }
    }

    /// Gives the outcome to a function instead, which runs on the connection's task (or right here, if the outcome is
    /// known already): for `Drop`, which cannot wait.
    pub fn detach(mut self, callback: impl FnOnce(Outcome) + Send + 'static) {
        match std::mem::replace(&mut self.0, State::Done) {
            State::Queued(Waiting { shared, id, .. }) => {
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
            State::Queued(waiting) => {
                let Some(outcome) = waiting.poll(cx) else {
                    return Poll::Pending;
                };
                let outcome = checked(outcome, &waiting.shared);
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

impl Waiting {
    fn poll(&mut self, cx: &mut Context<'_>) -> Option<Outcome> {
        let Self { shared, id, .. } = self;
        if !std::mem::take(&mut self.is_registered) {
            let mut state = shared.lock();
            let ready = state.pipeline.poll(*id, cx.waker());
            if ready.is_some() {
                return ready;
            }
            if matches!(self.deadline, Deadline::Undecided) {
                let (deadline, home) = (state.pipeline.deadline_of(*id), state.driver_runtime);
                drop(state);
                self.deadline = Deadline::decide(deadline, home);
            }
        }
        if self.deadline.has_passed(cx) {
            shared.expire();
            let ready = shared.lock().pipeline.poll(*id, cx.waker());
            return ready.map(|outcome| outcome.map_err(undriven));
        }
        None
    }
}

impl Deadline {
    /// Whether the caller has to fail what is due itself. Otherwise it will be woken.
    fn has_passed(&mut self, cx: &mut Context<'_>) -> bool {
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
                Self::Caller(Box::pin(sleep_until(timer_at(deadline + GRACE))))
            }
            _ => Self::Driver,
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let State::Queued(waiting) = &self.0 {
            waiting.shared.lock().pipeline.abandon(waiting.id);
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
