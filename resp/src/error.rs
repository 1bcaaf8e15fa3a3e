//! The errors of commands and connections.

#[doc(hidden)]
pub mod shown;

use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;

use self::shown::Escaping;
use crate::protocol::classify::ServerError;
use crate::protocol::decode::ProtocolError;
use crate::protocol::greeting::ConnectionId;

/// Why a command has no value.
///
/// The question a caller must be able to answer is "may it have run?": see [`may_have_executed`](Self::may_have_executed).
/// The message names the node and never shows a password.
#[derive(Clone, thiserror::Error)]
#[error("{0}")]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    /// The event, as a clause: "connection refused", "no reply within 5 s".
    detail: String,
    /// Where: `host:port` or the path of the socket; empty when no node was chosen yet.
    node: Arc<str>,
    server: Option<ServerError>,
    connection: Option<Arc<ConnectionId>>,
    /// Whether the system refused to connect.
    is_refused: bool,
}

/// The kinds of [`Error`], by what they say of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The command was certainly not sent. Sending it again is safe.
    NotSent,
    /// It was sent, at least in part, and the connection broke before the reply: it may have run.
    Unknown,
    /// Its deadline passed after it was sent: it may have run, or may still run later.
    Timeout,
    /// The server answered with an error.
    Server,
    /// The peer does not speak the protocol, or not the part of it that is needed: the connection was closed.
    Protocol,
    /// The handle was closed here, by [`Connection::close`](crate::Connection::close), before the command was sent.
    Closed,
    /// The URL or another setting cannot be used, at this server at least: `rediss://` without the feature `tls`, TLS on
    /// a port for plain text or the reverse, a certificate that one side refuses. Trying again is pointless until
    /// something is changed.
    Config,
}

/// Marks an [`io::Error`] that trying again does not cure. Streams can return nothing but an `io::Error`, so it travels
/// inside one.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misconfigured(String);

impl Misconfigured {
    /// An I/O error with this mark.
    #[expect(
        clippy::new_ret_no_self,
        reason = "it is of use inside of an error only"
    )]
    pub(crate) fn new(detail: impl Into<String>) -> io::Error {
        io::Error::other(Self(detail.into()))
    }
}

impl Error {
    /// An error of `kind` at `node`, which may be empty.
    #[must_use]
    pub fn new(kind: ErrorKind, node: &Arc<str>, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            detail: detail.into(),
            node: Arc::clone(node),
            server: None,
            connection: None,
            is_refused: false,
        }))
    }

    /// The command never left: the caller may send it elsewhere, or again.
    #[must_use]
    pub fn not_sent(node: &Arc<str>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotSent, node, detail)
    }

    /// The command left and no reply came.
    #[must_use]
    pub fn unknown(node: &Arc<str>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unknown, node, detail)
    }

    /// A setting that cannot be used.
    #[must_use]
    pub fn config(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, &Arc::from(""), detail)
    }

    /// An error line of the server at `node`.
    ///
    /// Servers echo what they were sent: where that may have been a password, [`Endpoint::server_error`] leaves it out.
    ///
    /// [`Endpoint::server_error`]: crate::Endpoint::server_error
    #[must_use]
    pub fn server(node: &Arc<str>, line: &[u8]) -> Self {
        Self::refused(node, ServerError::parse(line))
    }

    /// A refusal by the server at `node`.
    pub(crate) fn refused(node: &Arc<str>, error: ServerError) -> Self {
        let mut this = Self::new(ErrorKind::Server, node, error.to_string());
        this.0.server = Some(error);
        this
    }

    /// Bytes that are not the protocol.
    #[must_use]
    pub fn protocol(node: &Arc<str>, error: ProtocolError) -> Self {
        Self::new(ErrorKind::Protocol, node, error.to_string())
    }

    /// A failed connect or handshake: nothing of the caller's was sent. [`ErrorKind::Config`] if trying again is
    /// pointless.
    #[must_use]
    pub fn connect(node: &Arc<str>, error: &io::Error) -> Self {
        let kind = match error.get_ref() {
            Some(cause) if cause.is::<Misconfigured>() => ErrorKind::Config,
            _ => ErrorKind::NotSent,
        };
        let reason = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                ": no server listens there; check host and port, and that it is started".into()
            }
            io::ErrorKind::NotFound if node.starts_with('/') => {
                ": there is no socket at that path".into()
            }
            io::ErrorKind::PermissionDenied if node.starts_with('/') => {
                ": this user may not use the socket".into()
            }
            _ => String::new(),
        };
        let mut this = Self::new(kind, node, format!("cannot connect: {error}{reason}"));
        this.0.is_refused = match error.kind() {
            io::ErrorKind::ConnectionRefused => true,
            io::ErrorKind::NotFound => node.starts_with('/'),
            _ => false,
        };
        this
    }

    /// The same error, of a command that was sent over `connection`.
    #[must_use]
    pub(crate) fn over(mut self, connection: Option<Arc<ConnectionId>>) -> Self {
        self.0.connection = connection;
        self
    }

    /// The same error, told in other words.
    #[must_use]
    pub(crate) fn told_as(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = detail.into();
        self
    }

    /// The same error, with more detail at its end.
    #[must_use]
    pub(crate) fn with_detail(mut self, more: &str) -> Self {
        self.0.detail.push_str(more);
        self
    }

    /// The kind: whether the command may have run.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The node that answered or did not, `host:port` or a socket's path; empty when none was chosen yet.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.0.node
    }

    /// The event, without the node.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The server's own words, if it is the server that said no.
    #[must_use]
    pub const fn as_server(&self) -> Option<&ServerError> {
        self.0.server.as_ref()
    }

    /// The connection that the command was sent over, if it got no reply and the server gave the connection an id. As
    /// long as the server has not seen the end of that connection, the command may still arrive.
    #[must_use]
    pub fn connection(&self) -> Option<&ConnectionId> {
        self.0.connection.as_deref()
    }

    /// Whether the command may have run, may be half done, or may still run later.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        match self.0.kind {
            ErrorKind::Unknown | ErrorKind::Timeout | ErrorKind::Protocol => true,
            ErrorKind::Server => self
                .0
                .server
                .as_ref()
                .is_some_and(ServerError::may_have_executed),
            ErrorKind::NotSent | ErrorKind::Closed | ErrorKind::Config => false,
        }
    }

    /// Whether it was not sent because the system refused to connect: no server listens there.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.0.is_refused
    }

    /// Whether the deadline passed without a reply.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.0.kind == ErrorKind::Timeout
    }

    /// Whether the handle was closed here, so that trying again is pointless.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.kind == ErrorKind::Closed
    }

    /// Whether the same command, if it may be repeated at all, may succeed when sent again a little later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self.0.kind {
            ErrorKind::NotSent | ErrorKind::Unknown | ErrorKind::Timeout => true,
            ErrorKind::Server => self
                .0
                .server
                .as_ref()
                .is_some_and(ServerError::is_transient),
            ErrorKind::Protocol | ErrorKind::Closed | ErrorKind::Config => false,
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("node", &self.0.node)
            .field("detail", &self.0.detail)
            .finish()
    }
}

/// One line: the kind with the node, then what happened, with control characters escaped. The cause is part of it, so
/// `source` does not repeat it.
impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let f = &mut Escaping(f);
        type Writing<'a, 'b> = Escaping<'a, fmt::Formatter<'b>>;
        let at = |f: &mut Writing<'_, '_>, before: &str, preposition: &str, after: &str| {
            if self.node.is_empty() {
                write!(f, "{before}{after}")
            } else {
                write!(f, "{before} {preposition} {}{after}", self.node)
            }
        };
        match self.kind {
            ErrorKind::NotSent => at(f, "not sent", "to", ""),
            ErrorKind::Unknown => at(f, "sent", "to", ", but the outcome is unknown"),
            ErrorKind::Timeout => at(f, "timed out", "at", ", the outcome is unknown"),
            ErrorKind::Server => at(f, "refused", "by", ""),
            ErrorKind::Protocol => at(f, "protocol error", "at", ""),
            ErrorKind::Closed => at(f, "closed connection", "to", ""),
            ErrorKind::Config => at(f, "bad configuration", "for", ""),
        }?;
        write!(f, ": {}", self.detail)
    }
}
