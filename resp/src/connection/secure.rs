//! TLS over a connected stream, and how a peer is recognized that speaks plain text where TLS is expected, or the reverse.

use std::io;
#[cfg(feature = "tls")]
use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use tokio::net::TcpStream;

use crate::endpoint::Endpoint;
use crate::error::Misconfigured;

/// The longest wait for the first answer to a TLS handshake before the peer is asked in plain text.
#[cfg(feature = "tls")]
const QUIET: Duration = Duration::from_secs(1);

/// A stream that is encrypted.
#[cfg(feature = "tls")]
pub(crate) type SecureStream = tokio_rustls::client::TlsStream<TcpStream>;

/// A TLS handshake to come.
#[cfg(feature = "tls")]
pub(crate) struct Secure {
    connector: tokio_rustls::TlsConnector,
    name: tokio_rustls::rustls::pki_types::ServerName<'static>,
    quiet: Duration,
}

#[cfg(feature = "tls")]
impl Secure {
    /// Reads the configuration. Nothing is sent.
    pub(crate) fn new(endpoint: &Endpoint, host: &str) -> io::Result<Self> {
        let config = crate::tls::client_config(endpoint.tls_config.as_ref());
        let config = config.map_err(|error| Misconfigured::new(error.to_string()))?;
        let name = crate::tls::server_name(host);
        Ok(Self {
            connector: config.into(),
            name: name.map_err(|error| Misconfigured::new(error.to_string()))?,
            quiet: QUIET.min(endpoint.connect_timeout / 4),
        })
    }

    /// Shakes hands over `stream`.
    ///
    /// A server without TLS on its port never answers: it waits for the end of what it takes for a command. One that is
    /// silent for a while is asked in plain text over a connection of its own, so that it need not be waited for.
    pub(crate) async fn connect(self, stream: TcpStream) -> io::Result<SecureStream> {
        let peer = stream.peer_addr()?;
        let mut connecting = pin!(self.connector.connect(self.name, stream));
        let connected = match tokio::time::timeout(self.quiet, &mut connecting).await {
            Ok(connected) => connected,
            Err(_) => unless_plain_text(peer, connecting).await,
        };
        connected.map_err(explain)
    }
}

/// The outcome of `connecting`, or an error as soon as `peer` is known to speak plain text.
#[cfg(feature = "tls")]
async fn unless_plain_text(
    peer: SocketAddr,
    mut connecting: Pin<&mut impl Future<Output = io::Result<SecureStream>>>,
) -> io::Result<SecureStream> {
    let mut asking = pin!(speaks_plain_text(peer));
    let mut is_asking = true;
    poll_fn(|cx| {
        if is_asking && let Poll::Ready(is_plain) = asking.as_mut().poll(cx) {
            is_asking = false;
            if is_plain {
                return Poll::Ready(Err(no_tls()));
            }
        }
        connecting.as_mut().poll(cx)
    })
    .await
}

/// Whether the server at `peer` answers a `PING` that is not encrypted, if only with an error.
#[cfg(feature = "tls")]
async fn speaks_plain_text(peer: SocketAddr) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let first_byte = async {
        let mut stream = TcpStream::connect(peer).await?;
        stream.write_all(b"PING\r\n").await?;
        stream.read_u8().await
    };
    matches!(first_byte.await, Ok(b'+' | b'-'))
}

#[cfg(feature = "tls")]
fn no_tls() -> io::Error {
    Misconfigured::new(
        "the server does not speak TLS on this port: use `redis://`, or its TLS port",
    )
}

/// Marks the failures of TLS that trying again does not cure; a refusal by the peer may also arrive behind the
/// handshake, with the first bytes that are read.
#[cfg(feature = "tls")]
pub(crate) fn explain(error: io::Error) -> io::Error {
    use tokio_rustls::rustls::Error as Tls;
    use tokio_rustls::rustls::{AlertDescription as Alert, InvalidMessage};
    let Some(cause) = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<Tls>())
    else {
        return error;
    };
    match cause {
        Tls::InvalidCertificate(_) => Misconfigured::new(format!(
            "{cause}; check the host name, and the certificates that the `TlsConfig` trusts"
        )),
        Tls::InvalidMessage(InvalidMessage::InvalidContentType) => no_tls(),
        Tls::PeerIncompatible(_) => Misconfigured::new(cause.to_string()),
        Tls::AlertReceived(Alert::CloseNotify | Alert::InternalError | Alert::UserCanceled) => {
            error
        }
        Tls::AlertReceived(_) => Misconfigured::new(format!(
            "{cause}: the server refuses the TLS handshake; check the client certificate in the `TlsConfig`"
        )),
        _ => error,
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) type SecureStream = TcpStream;

/// Without the feature `tls` there is nothing to connect with.
#[cfg(not(feature = "tls"))]
pub(crate) enum Secure {}

#[cfg(not(feature = "tls"))]
impl Secure {
    pub(crate) fn new(_endpoint: &Endpoint, _host: &str) -> io::Result<Self> {
        Err(Misconfigured::new(
            "`rediss://` needs the feature `tls` of leasehold, which this program was built without",
        ))
    }

    pub(crate) async fn connect(self, _stream: TcpStream) -> io::Result<SecureStream> {
        match self {}
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) const fn explain(error: io::Error) -> io::Error {
    error
}

/// The error for a first reply in `received` that is a TLS record: an alert or a handshake message. No RESP frame begins
/// like it.
pub(crate) fn refuse_tls(received: &[u8]) -> io::Result<()> {
    match received {
        [0x15 | 0x16, 0x03, ..] => Err(Misconfigured::new(
            "the server speaks TLS on this port: use `rediss://`, or its port for plain text",
        )),
        _ => Ok(()),
    }
}
