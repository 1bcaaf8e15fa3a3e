//! The replies to `HELLO 3` and `INFO server`: the server process and the id of the connection.

use std::time::Duration;

use crate::protocol::value::Value;

/// A connection, as its server knows it.
///
/// `CLIENT KILL ID` takes the client id, at the server process with the same run id only: another one, at the same
/// address, gives the same numbers to other clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ConnectionId {
    /// `id` in the reply to `HELLO`; unique for the life of the server process.
    pub client_id: i64,
    /// `run_id` in the reply to `INFO server`; absent if that was not asked or not permitted.
    pub run_id: Option<Box<str>>,
}

/// The reply to `HELLO 3` of a server that speaks RESP3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Proxies may leave it out.
    pub(crate) client_id: Option<i64>,
    /// Whether it is a sentinel, which serves no keys.
    pub(crate) is_sentinel: bool,
}

impl Greeting {
    /// Reads a greeting; `None` if it is none of RESP3. A peer that answers `HELLO` otherwise would not send pushes
    /// either.
    pub(crate) fn read(reply: &Value) -> Option<Self> {
        let Value::Map(fields) = reply else {
            return None;
        };
        let field = |name: &[u8]| {
            let mut fields = fields.iter();
            let named = fields.find(|(field, _)| field.as_bytes() == Some(name));
            named.map(|(_, value)| value)
        };
        let int = |name| field(name).and_then(Value::as_int);
        (int(b"proto") == Some(3)).then(|| Self {
            client_id: int(b"id"),
            is_sentinel: field(b"mode").and_then(Value::as_str) == Some("sentinel"),
        })
    }
}

/// The fields of `INFO server` that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    /// In whole seconds, rounded.
    pub(crate) uptime: Duration,
    pub(crate) run_id: Option<Box<str>>,
}

impl ServerInfo {
    /// Reads the reply; `None` if it does not tell the uptime.
    pub(crate) fn read(reply: &Value) -> Option<Self> {
        let info = reply.as_str()?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        let seconds = field("uptime_in_seconds:")?.trim().parse().ok()?;
        let run_id = field("run_id:").map(str::trim).filter(|id| !id.is_empty());
        Some(Self {
            uptime: Duration::from_secs(seconds),
            run_id: run_id.map(Into::into),
        })
    }
}
