//! Where a server is and who we are there.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

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

impl fmt::Display for Address {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}

/// One server, and everything the handshake needs.
#[derive(Clone)]
#[non_exhaustive]
pub struct Endpoint {
    /// Where it listens.
    pub address: Address,
    /// Whether to speak TLS.
    pub tls: bool,
    /// The ACL user; the default user when absent.
    pub user: Option<String>,
    /// The password; none when absent.
    pub password: Option<String>,
    /// The database to `SELECT`.
    pub database: u32,
    /// The name to `CLIENT SETNAME`.
    pub client_name: Option<String>,
    /// How long TCP, TLS and the handshake may take together.
    pub connect_timeout: Duration,
    /// How long one command may take, from submitting it.
    pub command_timeout: Duration,
}

impl Endpoint {
    /// Reads `redis://`, `rediss://` or `unix://`.
    ///
    /// # Errors
    ///
    /// A URL that cannot be used; the message never shows a password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let _ = url;
        todo!()
    }

    /// The name of this node in messages.
    #[must_use]
    pub fn node(&self) -> Arc<str> {
        todo!()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).finish_non_exhaustive()
    }
}
