//! Ending what a script may have begun: a release that counts only once nothing that was sent before can undo it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use leasehold_resp::{Error, Value};

use crate::client::{Client, Evaluated};
use crate::redirect::RetryState;
use crate::script::ScriptCall;
use crate::submitted::Submitted;
use crate::unanswered::{Kills, Unanswered};

/// The outcome of a script that ends something.
#[derive(Debug)]
pub struct Ended {
    /// Its reply.
    pub outcome: Result<Value, Error>,
    /// Scripts that were sent before and may still run after it. Empty: the end is final.
    pub unanswered: Unanswered,
}

/// A script that ends something, under way.
///
/// # Cancel safety
///
/// Dropping it abandons the reply and takes nothing back.
#[must_use = "whether it is over is in its outcome"]
#[derive(Debug)]
pub struct Ending {
    submitted: Submitted,
    unanswered: Unanswered,
    kills: Option<Kills>,
}

impl Client {
    /// One attempt at a script that ends what the scripts of `unanswered` may have begun or may still begin, queued at
    /// once. The connections they were sent over are killed first, except those that it follows in order.
    pub fn submit_end(&self, call: &ScriptCall<'_>, unanswered: Unanswered) -> Ending {
        let kills = (!unanswered.is_empty())
            .then(|| self.router().node_of(call.key()))
            .flatten()
            .map(|node| unanswered.kill(&node, node.connection()));
        Ending {
            submitted: self.submit(call),
            unanswered,
            kills,
        }
    }

    /// The same, with repetitions until `deadline`, and following the slot. What turns out to be over is taken out of
    /// `unanswered`.
    ///
    /// # Errors
    ///
    /// As of [`eval`](Self::eval).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn end(
        &self,
        call: &ScriptCall<'_>,
        unanswered: &mut Unanswered,
        deadline: Instant,
    ) -> Result<Evaluated, Error> {
        let mut kills = None;
        if !unanswered.is_empty() {
            let retry = RetryState::new(deadline, true);
            let node = self.node_for(call.key(), &retry).await?;
            node.connection().ready(deadline).await?;
            kills = Some(unanswered.kill(&node, node.connection()));
        }
        let evaluated = self.eval(call, deadline).await?;
        if let Some(kills) = kills {
            unanswered.settle(kills);
        }
        Ok(evaluated)
    }
}

impl Ending {
    /// Gives the outcome to a function instead; see [`Reply::detach`](leasehold_resp::Reply::detach).
    pub fn detach(self, callback: impl FnOnce(Ended) + Send + 'static) {
        let Self {
            submitted,
            unanswered,
            kills,
        } = self;
        submitted.detach(move |outcome| callback(ended(outcome, unanswered, kills)));
    }
}

impl Future for Ending {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.submitted).poll(cx));
        let unanswered = std::mem::take(&mut self.unanswered);
        Poll::Ready(ended(outcome, unanswered, self.kills.take()))
    }
}

fn ended(outcome: Result<Value, Error>, mut unanswered: Unanswered, kills: Option<Kills>) -> Ended {
    unanswered.settle_after(kills, &outcome);
    Ended {
        outcome,
        unanswered,
    }
}
