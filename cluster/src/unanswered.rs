//! Scripts that were sent and got no answer, and how to see to it that they run no more.
//!
//! A request that timed out may still be retransmitted, or wait in the receive buffer of a frozen server. What is sent
//! over another connection, a release most of all, runs before it then, and whatever the late request does stays. It is
//! over only when the server has ended the connection that it was sent on: by `CLIENT KILL ID`, or with the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_resp::{Command, Connection, ConnectionId, Error, Reply, Value};

use crate::node::Node;

/// Connections over which a script may still arrive although nobody waits for its answer.
#[derive(Clone, Debug, Default)]
pub struct Unanswered(Vec<Sent>);

/// One of them.
#[derive(Clone, Debug)]
struct Sent {
    node: Arc<Node>,
    /// Absent if the server did not tell.
    connection: Option<ConnectionId>,
    /// Whether it went to a node that does not serve the slot yet.
    asking: bool,
}

/// The state of one of them, as far as another connection to the server that serves the key now can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is that connection: what follows runs after it.
    InOrder,
    /// The server process is gone, or does not serve the key any more.
    Over,
    /// It is to be killed.
    Kill(i64),
    /// It can only be outlived.
    Unclear,
}

/// Connections that are being killed; the replies come before those of whatever is submitted next.
#[derive(Debug)]
pub(crate) struct Kills {
    refused: Arc<AtomicBool>,
    /// Those that no kill was sent for and that are not over.
    unclear: Vec<Sent>,
}

impl Unanswered {
    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A script was sent to `node`.
    pub(crate) fn note(
        &mut self,
        node: &Arc<Node>,
        connection: Option<ConnectionId>,
        asking: bool,
    ) {
        self.0.push(Sent {
            node: Arc::clone(node),
            connection,
            asking,
        });
    }

    /// The script that was noted last was answered.
    pub(crate) fn answered(&mut self) {
        self.0.pop();
    }

    /// Has those ended that the server behind `connection`, of the node that serves the key, still knows. What is
    /// submitted there next runs after all that could be ended.
    pub(crate) fn kill(&self, node: &Arc<Node>, connection: &Connection) -> Kills {
        let refused = Arc::new(AtomicBool::new(false));
        let here = connection.id();
        let mut unclear = Vec::new();
        for sent in &self.0 {
            match sent.fate(node, here.as_ref()) {
                Fate::InOrder | Fate::Over => {}
                Fate::Unclear => unclear.push(sent.clone()),
                Fate::Kill(id) => {
                    let refused = Arc::clone(&refused);
                    connection.submit(&kill(id)).detach(move |outcome| {
                        if !is_killed(&outcome) {
                            refused.store(true, Ordering::Release);
                        }
                    });
                }
            }
        }
        Kills { refused, unclear }
    }

    /// Takes note of how the kills went, if `outcome`, of what was submitted behind them, is a reply: they were answered
    /// then.
    pub(crate) fn settle_after(&mut self, kills: Option<Kills>, outcome: &Result<Value, Error>) {
        let is_answered = match outcome {
            Ok(_) => true,
            Err(error) => error.as_server().is_some(),
        };
        if let Some(kills) = kills.filter(|_| is_answered) {
            self.settle(kills);
        }
    }

    /// Takes note of how the kills went, which were answered.
    pub(crate) fn settle(&mut self, kills: Kills) {
        if !kills.refused.load(Ordering::Acquire) {
            self.0 = kills.unclear;
        }
    }
}

impl Sent {
    fn fate(&self, node: &Arc<Node>, here: Option<&ConnectionId>) -> Fate {
        if !Arc::ptr_eq(&self.node, node) && self.node.address != node.address {
            // Where the key is now it cannot arrive, and a master that was replaced gives up its data. A node that is
            // importing the slot keeps them.
            return if self.asking {
                Fate::Unclear
            } else {
                Fate::Over
            };
        }
        let (Some(sent), Some(here)) = (&self.connection, here) else {
            return Fate::Unclear;
        };
        match (&sent.run_id, &here.run_id) {
            _ if sent == here && Arc::ptr_eq(&self.node, node) => Fate::InOrder,
            (Some(before), Some(now)) if before != now => Fate::Over,
            (Some(_), Some(_)) => Fate::Kill(sent.client_id),
            // Without the run id it might be another process, where the same number is another client's.
            _ => Fate::Unclear,
        }
    }
}

/// A reply under way. Dropped without an answer, it notes its connection.
pub(crate) struct Pending<'a> {
    reply: Option<Reply>,
    node: &'a Arc<Node>,
    asking: bool,
    unanswered: &'a mut Unanswered,
}

impl<'a> Pending<'a> {
    pub(crate) fn new(
        reply: Reply,
        node: &'a Arc<Node>,
        asking: bool,
        unanswered: &'a mut Unanswered,
    ) -> Self {
        Self {
            reply: Some(reply),
            node,
            asking,
            unanswered,
        }
    }

    /// The outcome.
    pub(crate) async fn outcome(mut self) -> Result<Value, Error> {
        let Some(reply) = &mut self.reply else {
            return Err(Error::config("the reply was taken before"));
        };
        let outcome = (&mut *reply).await;
        let connection = reply.connection();
        self.reply = None;
        if let Err(error) = &outcome
            && error.as_server().is_none()
            && error.may_have_executed()
        {
            let connection = error.connection().cloned().or(connection);
            self.unanswered.note(self.node, connection, self.asking);
        }
        outcome
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            let connection = reply.connection();
            self.unanswered.note(self.node, connection, self.asking);
        }
    }
}

fn kill(client_id: i64) -> Command {
    Command::new("CLIENT")
        .arg("KILL")
        .arg("ID")
        .arg_int(client_id)
}

/// Whether the connection is gone: killed now, or unknown to the server.
fn is_killed(outcome: &Result<Value, Error>) -> bool {
    outcome.as_ref().is_ok_and(|reply| reply.as_int().is_some())
}
