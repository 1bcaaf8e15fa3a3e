//! Scripts whose effect replicas must confirm before it counts.
//!
//! `WAIT` confirms what was written *on its own connection*, so the script and its `WAIT` share an exclusive one, and a
//! script that may have run is never sent again here: a repetition on another connection may have nothing to write, and
//! its `WAIT` would confirm nothing and say so of all replicas.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use leasehold_resp::pool::Exclusive;
use leasehold_resp::{Command, Error, ErrorKind, ServerErrorKind, Value};

use crate::client::{Client, Evaluated};
use crate::node::Node;
use crate::redirect::{RetryState, Step};
use crate::role::master_shard;
use crate::script::ScriptCall;

/// What a `WAIT` may take longer than it was told to.
const GRACE: Duration = Duration::from_millis(200);

/// How many replicas must confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// All that the master is expected to have: the most it was ever known to have, before the request.
    All,
    /// So many.
    AtLeast(usize),
}

/// What became of a script that was to be confirmed.
#[derive(Debug)]
pub struct Confirmed {
    /// What it replied.
    pub evaluated: Evaluated,
    /// How many replicas have it; or the server's refusal to let this user ask.
    pub acknowledged: Result<usize, Error>,
    /// How many had to.
    pub required: usize,
}

impl Client {
    /// Runs a script and waits until replicas have what it wrote, if `wrote` says of the reply that it wrote; all by
    /// `deadline`. Fewer confirmations than required, or no right to ask for any, are no error: see [`Confirmed`].
    ///
    /// # Errors
    ///
    /// As of [`eval`](Self::eval), but the script is never sent again once it may have run. An error of the `WAIT` comes
    /// back as an error that may have executed: a node that is a replica by now says no more than that.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent, and closes the connection it was sent on.
    pub async fn eval_replicated(
        &self,
        call: &ScriptCall<'_>,
        quorum: Quorum,
        deadline: Instant,
        wrote: impl Fn(&Value) -> bool,
    ) -> Result<Confirmed, Error> {
        let mut call = *call;
        let mut retry = RetryState::new(deadline, false);
        let mut asked: Option<Arc<Node>> = None;
        loop {
            let (node, asking) = match asked.take() {
                Some(node) => (node, true),
                None => (self.node_for(call.key(), &retry).await?, false),
            };
            let error = match self
                .attempt(&node, asking, &call, quorum, &retry, &wrote)
                .await
            {
                Ok(confirmed) => return Ok(confirmed),
                Err(error) => error,
            };
            if let Some(single) = call.fallback_after(&error) {
                call = single;
                continue;
            }
            node.note(&error, call.script().bit());
            match retry.failed(error, &node.address.host, Instant::now())? {
                Step::Ask(address) => asked = Some(self.router().node_at(&address)),
                step => self.take(step, call.key(), &node).await,
            }
        }
    }

    async fn attempt(
        &self,
        node: &Arc<Node>,
        asking: bool,
        call: &ScriptCall<'_>,
        quorum: Quorum,
        retry: &RetryState,
        wrote: &impl Fn(&Value) -> bool,
    ) -> Result<Confirmed, Error> {
        let mut connection = node.pool.exclusive().await?;
        let left = || retry.deadline().saturating_duration_since(Instant::now());
        let required = match quorum {
            Quorum::AtLeast(n) => n,
            Quorum::All => {
                // Before the request, from the master itself: a map may not know them yet. `CLUSTER SLOTS` of a young
                // cluster leaves out the replicas that have received nothing so far.
                match connection.call(&Command::new("ROLE"), left()).await {
                    Ok(role) => {
                        if let Some(shard) = master_shard(&role, &node.address) {
                            self.router()
                                .expect_replicas(call.key(), shard.replicas.len());
                        }
                    }
                    // A user without the right to ask has what the maps said.
                    Err(error)
                        if self.router().is_dynamic() && error.kind() == ErrorKind::Server => {}
                    Err(error) => return Err(error),
                }
                // With none known, "all" would confirm nothing.
                self.router().expected_replicas(call.key()).max(1)
            }
        };
        if asking {
            connection.call(&Command::new("ASKING"), left()).await?;
        }
        let (sent, sent_wall) = (Instant::now(), SystemTime::now());
        let value = if node.known.has(call.script().bit()) && !retry.needs_source() {
            connection.call(call, left()).await?
        } else {
            connection.call(&call.with_source(), left()).await?
        };
        node.known.learn(call.script().bit());
        let acknowledged = if wrote(&value) {
            wait(&mut connection, required, left()).await?
        } else {
            Ok(0)
        };
        if let Ok(count) = acknowledged {
            // A replica that has just connected may confirm before its master names it, and is missed from now on.
            self.router().expect_replicas(call.key(), count);
        }
        let evaluated = Evaluated {
            value,
            sent,
            sent_wall,
            repeated: false,
            migrating: asking,
        };
        Ok(Confirmed {
            evaluated,
            acknowledged,
            required,
        })
    }
}

/// How many replicas confirm, of `required`, within `time`. Inside is what the server says of a user who may not ask: that
/// is no doubt about the script.
async fn wait(
    connection: &mut Exclusive,
    required: usize,
    time: Duration,
) -> Result<Result<usize, Error>, Error> {
    let ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1);
    let count = i64::try_from(required).unwrap_or(i64::MAX);
    let command = Command::new("WAIT").arg_int(count).arg_int(ms);
    let failed = |error: Error| {
        let detail = format!(
            "the script ran, but its replication could not be confirmed: {}",
            error.detail()
        );
        Error::unknown(&error.node().into(), detail)
    };
    match connection.call(&command, time + GRACE).await {
        Ok(reply) => Ok(Ok(reply
            .as_int()
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(0))),
        Err(error) if is_denied(&error) => Ok(Err(error)),
        Err(error) => Err(failed(error)),
    }
}

fn is_denied(error: &Error) -> bool {
    error
        .as_server()
        .is_some_and(|server| *server.kind() == ServerErrorKind::NoPerm)
}
