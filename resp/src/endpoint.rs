//! The address of a server and the credentials for it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::protocol::classify::ServerError;

#[doc(hidden)]
pub mod scheme;
mod url;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host, by name or address (IPv6 without brackets), and a port.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

/// Whether to send `INFO server` at each connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AskServer {
    /// Not asked.
    #[default]
    Never,
    /// Asked; a user without the right to is connected all the same.
    IfPermitted,
    /// Asked; without an answer the connect fails.
    Required,
}

/// `host:port`, with brackets around an IPv6 address, or the path of the socket.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// One server, and everything the handshake needs.
///
/// ```
/// use leasehold_resp::Endpoint;
/// let mut endpoint = Endpoint::parse("redis://alice:s3cret@cache.example:6380/2?client_name=billing")?;
/// endpoint.command_timeout = std::time::Duration::from_secs(1);
/// assert_eq!(endpoint.address.to_string(), "cache.example:6380");
/// assert!(!format!("{endpoint:?}").contains("s3cret"));
/// # Ok::<(), leasehold_resp::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// Where it listens.
    pub address: Address,
    /// Whether to speak TLS.
    pub tls: bool,
    /// How to speak it; see [`TlsConfig`](crate::tls::TlsConfig) for what happens without one.
    #[cfg(feature = "tls")]
    pub tls_config: Option<crate::tls::TlsConfig>,
    /// The ACL user; the default user when absent.
    pub user: Option<String>,
    /// The password; none when absent.
    pub password: Option<String>,
    /// The database to `SELECT`.
    pub database: u32,
    /// The name to `CLIENT SETNAME`.
    pub client_name: Option<String>,
    /// Whether to refuse a server that is not a master (by `ROLE`, at each connect).
    pub master_only: bool,
    /// Whether to refuse a sentinel, which serves no keys.
    pub keys_only: bool,
    /// Whether to ask for the server's uptime and run id (by `INFO server`, at each connect).
    pub ask_server: AskServer,
    /// After this long without a byte while a command waits, the observer gets
    /// [`Event::Stalled`](crate::connection::Event::Stalled): for deployments where another server may take over.
    pub stall_after: Option<Duration>,
    /// Timeout for TCP, TLS and the handshake together.
    pub connect_timeout: Duration,
    /// Timeout of a command, from its submission.
    pub command_timeout: Duration,
    /// Opens streams to a server in this process, which is asked instead of the one at the address.
    #[cfg(feature = "in-process")]
    #[doc(hidden)]
    pub dialer: Option<crate::connection::in_process::Dialer>,
}

impl Endpoint {
    /// A server without a password, database 0, and 5 s for either timeout.
    #[must_use]
    pub const fn new(address: Address) -> Self {
        Self {
            address,
            tls: false,
            #[cfg(feature = "tls")]
            tls_config: None,
            user: None,
            password: None,
            database: 0,
            client_name: None,
            master_only: false,
            keys_only: false,
            ask_server: AskServer::Never,
            stall_after: None,
            connect_timeout: Duration::from_secs(5),
            command_timeout: Duration::from_secs(5),
            #[cfg(feature = "in-process")]
            dialer: None,
        }
    }

    /// Reads `redis://`, `rediss://` or `unix://`; `valkey://`, `valkeys://` and `redis+unix://` mean the same.
    ///
    /// - `redis://[[user][:password]@]host[:port][/database]`, port 6379 and database 0 if absent, an IPv6 address in
    ///   brackets; `rediss://` is the same over TLS
    /// - `unix:///path/to/socket`
    /// - behind a `?`, joined by `&`: `client_name`, and where the URL has no other place for them `db`, `user` and
    ///   `password`
    ///
    /// User, password, path and parameters may be percent-encoded, and must be where a character has a meaning of its own.
    ///
    /// # Errors
    ///
    /// A URL that cannot be used; the message never shows a password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        url::parse(url).map_err(|problem| Error::config(problem.to_string()))
    }

    /// The name of this node in messages.
    #[must_use]
    pub fn node(&self) -> Arc<str> {
        self.address.to_string().into()
    }
}

impl Endpoint {
    /// An error line of this server as an error, without the password even if the server echoes it.
    #[must_use]
    pub fn server_error(&self, node: &Arc<str>, line: &[u8]) -> Error {
        let error = ServerError::parse(line);
        Error::refused(
            node,
            match &self.password {
                Some(password) => error.without(password),
                None => error,
            },
        )
    }
}

/// Everything but the password, of which it says only whether there is one.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("database", &self.database)
            .field("client_name", &self.client_name)
            .field("connect_timeout", &self.connect_timeout)
            .field("command_timeout", &self.command_timeout)
            .finish()
    }
}
