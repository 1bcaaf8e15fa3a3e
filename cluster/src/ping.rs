//! Signs of life: of every master, and of the one server that there is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_resp::{Command, Error};

use crate::client::Client;
use crate::node::Node;
use crate::race::Race;

impl Client {
    /// Has every master answer a `PING`, all of them at once. Returns the longest round trip.
    ///
    /// # Errors
    ///
    /// Of a master that has not answered by `deadline`, or not like that; it names the master. At once if the system refuses to
    /// connect to it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn ping(&self, deadline: Instant) -> Result<Duration, Error> {
        self.contact().await?;
        let map = self.router().map();
        let mut asked = Race::new();
        for node in map.nodes() {
            asked.add(self.ping_node(node, deadline));
        }
        let mut longest = None;
        while let Some(answer) = asked.next().await {
            longest = longest.max(Some(answer?));
        }
        longest.ok_or_else(|| self.router().unserved(b""))
    }

    /// Whether the server is the only one and has refused connections for a whole command timeout, by which time one that is
    /// restarted is back: see [`still_there`](Self::still_there).
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.router().is_gone()
    }

    /// Asks the system once more whether the server is back, if it [is gone](Self::is_gone).
    ///
    /// # Errors
    ///
    /// At once that it still refuses connections; without a refusal, within a command timeout what has kept it down.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn still_there(&self) -> Result<(), Error> {
        let map = self.router().map();
        match map.nodes().first().filter(|_| self.is_gone()) {
            None => Ok(()),
            Some(node) => {
                let deadline = Instant::now() + self.command_timeout();
                node.connection().ready_unless_refused(deadline).await
            }
        }
    }

    async fn ping_node(&self, node: &Arc<Node>, deadline: Instant) -> Result<Duration, Error> {
        let connection = node.connection();
        if !connection.is_up() {
            self.router().search(node);
        }
        connection.ready_unless_refused(deadline).await?;
        let sent = Instant::now();
        let reply = connection.submit(&Command::new("PING"));
        let reply = tokio::time::timeout_at(deadline.into(), reply).await;
        let late = || Error::not_sent(connection.node(), "no answer to a PING in time");
        reply.unwrap_or_else(|_| Err(late()))?;
        Ok(sent.elapsed())
    }
}
