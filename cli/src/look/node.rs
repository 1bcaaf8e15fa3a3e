//! One server to look at, asked within the budget.

use std::sync::Arc;
use std::time::Instant;

use leasehold_resp::{Command, Connection, Error, ErrorKind, ServerErrorKind, Value};

use super::pace::Pace;
use super::replies;

/// Keys that one `SCAN` looks at.
const SCAN_COUNT: i64 = 1000;
/// Such a `SCAN` costs the server about as much as so many small commands.
const SCAN_COST: u32 = 10;
/// Commands that are under way at a time.
const BATCH: usize = 256;

/// A server, and the budget that is spent on it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    connection: Connection,
    pace: Arc<Pace>,
}

impl Node {
    pub(crate) fn new(connection: Connection, pace: &Arc<Pace>) -> Self {
        Self {
            connection,
            pace: Arc::clone(pace),
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        self.connection.node()
    }

    /// Asks one question.
    pub(crate) async fn ask(&self, command: &Command) -> Result<Value, Error> {
        self.pace.spend(1).await;
        self.ready().await?;
        self.connection.submit(command).await
    }

    /// Asks all of them, a few hundred at a time. A key that holds something else or is not for this user is `None` in its place.
    ///
    /// # Errors
    ///
    /// The connection fails, the server does not serve, or this user may not ask.
    pub(crate) async fn ask_all(&self, commands: &[Command]) -> Result<Vec<Option<Value>>, Error> {
        let mut answers = Vec::with_capacity(commands.len());
        for batch in commands.chunks(BATCH) {
            self.pace.spend(batch.len() as u32).await;
            self.ready().await?;
            let replies: Vec<_> = batch
                .iter()
                .map(|command| self.connection.submit(command))
                .collect();
            for reply in replies {
                match reply.await {
                    Ok(value) => answers.push(Some(value)),
                    Err(error) if is_about_the_key(&error) => answers.push(None),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(answers)
    }

    /// All keys of a type, by `SCAN`; of those that match `pattern`, if there is one.
    pub(crate) async fn keys(
        &self,
        kind: &str,
        pattern: Option<&[u8]>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut cursor = b"0".to_vec();
        let mut keys = Vec::new();
        loop {
            let mut scan = Command::new("SCAN")
                .arg(&cursor)
                .arg("COUNT")
                .arg_int(SCAN_COUNT);
            if let Some(pattern) = pattern {
                scan = scan.arg("MATCH").arg(pattern);
            }
            self.pace.spend(SCAN_COST - 1).await;
            let reply = self.ask(&scan.arg("TYPE").arg(kind)).await?;
            let Some((next, found)) = replies::page(&reply) else {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    self.name(),
                    "unexpected reply to SCAN",
                ));
            };
            let found = found.as_array().unwrap_or_default();
            keys.extend(
                found
                    .iter()
                    .filter_map(|key| Some(key.as_bytes()?.to_vec())),
            );
            cursor = next.to_vec();
            if cursor == b"0" {
                // A key may be returned several times while the table grows or shrinks.
                keys.sort_unstable();
                keys.dedup();
                return Ok(keys);
            }
        }
    }

    async fn ready(&self) -> Result<(), Error> {
        let deadline = Instant::now() + self.connection.endpoint().command_timeout;
        self.connection.ready(deadline).await
    }
}

/// Whether the refusal is about one key and not about all: it holds something else, has moved, or is not for this user.
fn is_about_the_key(error: &Error) -> bool {
    error.as_server().is_some_and(|error| match error.kind() {
        ServerErrorKind::WrongType => true,
        // Of a command, the whole look is refused.
        ServerErrorKind::NoPerm => error.message().contains("to access"),
        _ => error.is_redirect(),
    })
}
