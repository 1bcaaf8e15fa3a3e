//! The connections to one server: one that all callers share, and exclusive ones for what blocks or keeps state.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::connection::{Connection, Observer};
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind};
use crate::protocol::command::Encode;
use crate::protocol::greeting::ConnectionId;
use crate::protocol::value::Value;
use crate::timer::timer_at;

/// Exclusive connections that are kept for the next checkout, at most.
const MAX_IDLE: usize = 8;

/// Lifetime of an idle connection. Checked when one is taken: no task watches them.
const IDLE_FOR: Duration = Duration::from_secs(60);

/// The connections to one server; clones share them.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    shared: Connection,
    /// Exclusive connections without a user, the latest one last.
    idle: Mutex<Vec<(Connection, Instant)>>,
}

impl Pool {
    /// A pool whose connections are opened on demand; `observer` receives the events of the shared one.
    #[must_use]
    pub fn lazy(endpoint: &Endpoint, observer: Option<Observer>) -> Self {
        Self(Arc::new(Inner {
            shared: Connection::lazy(endpoint.clone(), observer),
            idle: Mutex::default(),
        }))
    }

    /// The connection that all callers share.
    #[must_use]
    pub fn shared(&self) -> &Connection {
        &self.0.shared
    }

    /// A connection for one user, idle or new.
    ///
    /// # Errors
    ///
    /// As of [`Connection::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes what was being opened.
    pub async fn exclusive(&self) -> Result<Exclusive, Error> {
        let now = Instant::now();
        let idle = loop {
            let Some((connection, since)) = self.idle().pop() else {
                break None;
            };
            if connection.is_up() && now - since < IDLE_FOR {
                break Some(connection);
            }
        };
        let connection = match idle {
            Some(connection) => connection,
            None => Connection::connect_once(self.shared().endpoint().clone()).await?,
        };
        Ok(Exclusive {
            connection,
            pool: self.clone(),
            spoiled: false,
            state: Kept::Nothing,
        })
    }

    /// Refuses further commands on the shared connection and lets the idle ones go.
    pub fn close(&self) {
        self.0.shared.close();
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(Connection, Instant)>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("shared", &self.0.shared)
            .finish_non_exhaustive()
    }
}

/// A connection with one user. It goes back to the pool when dropped, unless a reply is still to come, something went
/// wrong or a transaction is open: then it is closed, because the next user would read the wrong reply or find a changed
/// state.
///
/// It is never reopened, because it keeps state for its user: a new connection knows nothing of the `MULTI` before, and
/// its `WAIT` would confirm what it never wrote.
#[derive(Debug)]
pub struct Exclusive {
    connection: Connection,
    pool: Pool,
    /// Set while a reply is to come, and for good after an error without an answer.
    spoiled: bool,
    state: Kept,
}

/// State of a connection that its next user would not expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Nothing,
    /// A `MULTI` or a `WATCH`, until an `EXEC` or `DISCARD`.
    Transaction,
    /// Another user, database, protocol or mode.
    Changed,
}

impl Exclusive {
    /// Runs one command, which may block at the server for as long as `timeout` allows.
    ///
    /// # Errors
    ///
    /// See [`Error`]. After [`Error::may_have_executed`] without an answer, and once the connection has ended, it cannot be
    /// used again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection: the command may have run.
    pub async fn call<E: Encode + ?Sized>(
        &mut self,
        command: &E,
        timeout: Duration,
    ) -> Result<Value, Error> {
        self.check()?;
        self.spoiled = true;
        self.state = self.state.after(command.breaks_sharing());
        let reply = self.connection.submit_alone(command, timeout);
        let outcome = tokio::time::timeout(timeout, reply)
            .await
            .unwrap_or_else(|_| Err(self.late(timeout)));
        self.spoiled = matches!(&outcome, Err(error) if error.kind() != ErrorKind::Server);
        outcome.map_err(|error| self.ended(error))
    }

    /// Runs several commands, sent in one write, and returns their replies in order; an error that a server answered
    /// with is one of them. `timeout` bounds all of them together.
    ///
    /// # Errors
    ///
    /// The connection ended, or not all replies came in time. See [`call`](Self::call).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection: the commands may have run.
    pub async fn call_all(
        &mut self,
        commands: &[&(dyn Encode + Sync)],
        timeout: Duration,
    ) -> Result<Vec<Result<Value, Error>>, Error> {
        self.check()?;
        self.spoiled = true;
        for command in commands {
            self.state = self.state.after(command.breaks_sharing());
        }
        let deadline = Instant::now() + timeout;
        let mut replies = Vec::with_capacity(commands.len());
        for reply in self.connection.submit_all_alone(commands, timeout) {
            let outcome = tokio::time::timeout_at(timer_at(deadline), reply)
                .await
                .unwrap_or_else(|_| Err(self.late(timeout)));
            match outcome {
                Err(error) if error.kind() != ErrorKind::Server => return Err(self.ended(error)),
                outcome => replies.push(outcome),
            }
        }
        self.spoiled = false;
        Ok(replies)
    }

    /// The connection as the server knows it; absent if the server gave it no id, and when it has ended.
    #[must_use]
    pub fn id(&self) -> Option<ConnectionId> {
        self.connection.id()
    }

    /// Ends the connection with a TCP reset, which [`Connection::abandon`] describes; returns what [`id`](Self::id) did.
    ///
    /// Dropping does the same while a reply is outstanding.
    pub fn abandon(mut self) -> Option<ConnectionId> {
        self.spoiled = true;
        self.id()
    }

    /// Upper bound on the instant at which the server was started; see [`Connection::server_started`].
    #[must_use]
    pub fn server_started(&self) -> Option<Instant> {
        self.connection.server_started()
    }

    fn check(&self) -> Result<(), Error> {
        if self.spoiled {
            let detail = "this exclusive connection was given up by an earlier call";
            return Err(Error::new(
                ErrorKind::Closed,
                self.connection.node(),
                detail,
            ));
        }
        Ok(())
    }

    fn late(&self, timeout: Duration) -> Error {
        let detail = format!("no reply within {timeout:?}");
        Error::new(ErrorKind::Timeout, self.connection.node(), detail)
    }

    /// A connection that ended between two calls is one of many for the caller: trying again may help.
    fn ended(&self, error: Error) -> Error {
        if error.is_closed() {
            Error::not_sent(self.connection.node(), error.detail())
        } else {
            error
        }
    }
}

impl Kept {
    /// `command` is one that a shared connection refuses, if it is.
    fn after(self, command: Option<&'static str>) -> Self {
        let Some(command) = command else { return self };
        match command {
            "MULTI" | "WATCH" if self != Self::Changed => Self::Transaction,
            "EXEC" | "DISCARD" if self != Self::Changed => Self::Nothing,
            "MULTI" | "WATCH" | "EXEC" | "DISCARD" => self,
            // They take time and leave nothing behind.
            "WAIT" | "WAITAOF" | "BLMOVE" | "BLMPOP" | "BLPOP" | "BRPOP" | "BRPOPLPUSH"
            | "BZMPOP" | "BZPOPMAX" | "BZPOPMIN" | "XREAD BLOCK" | "XREADGROUP BLOCK" => self,
            _ => Self::Changed,
        }
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        let mut idle = self.pool.idle();
        if !self.spoiled && self.state == Kept::Nothing && idle.len() < MAX_IDLE {
            idle.push((self.connection.clone(), Instant::now()));
        } else {
            drop(idle);
            self.connection.abort();
        }
    }
}
