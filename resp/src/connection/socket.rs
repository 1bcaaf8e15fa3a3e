//! The byte stream under a connection: TCP, a unix socket, TLS, or whatever a test supplies.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, tcp, unix};

use crate::endpoint::{Address, Endpoint};

/// A connected stream, in halves.
pub(crate) struct Socket {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) writer: Writer,
}

/// The writing half.
pub(crate) enum Writer {
    /// Callers may write it too, without a task in between.
    Shared(SharedWriter),
    /// Only the driver can: TLS needs `&mut`.
    Owned(Box<dyn AsyncWrite + Send + Unpin>),
}

/// A writing half whose system call needs no `&mut`.
#[derive(Clone)]
pub(crate) enum SharedWriter {
    Tcp(Arc<tcp::OwnedWriteHalf>),
    Unix(Arc<unix::OwnedWriteHalf>),
}

impl Socket {
    /// Connects, without a deadline of its own.
    pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<Self> {
        match &endpoint.address {
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                // Nagle's algorithm would hold back the second of two small writes for a round trip.
                stream.set_nodelay(true)?;
                if endpoint.tls {
                    tls(endpoint, host, stream).await
                } else {
                    Ok(Self::tcp(stream))
                }
            }
            Address::Unix(path) => {
                let (reader, writer) = UnixStream::connect(path).await?.into_split();
                let writer = Writer::Shared(SharedWriter::Unix(Arc::new(writer)));
                Ok(Self {
                    reader: Box::new(reader),
                    writer,
                })
            }
        }
    }

    fn tcp(stream: TcpStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self {
            reader: Box::new(reader),
            writer: Writer::Shared(SharedWriter::Tcp(Arc::new(writer))),
        }
    }

    /// Any stream; callers cannot write it themselves.
    pub(crate) fn owned(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self {
            reader: Box::new(reader),
            writer: Writer::Owned(Box::new(writer)),
        }
    }
}

#[cfg(feature = "tls")]
async fn tls(endpoint: &Endpoint, host: &str, stream: TcpStream) -> io::Result<Socket> {
    let connector =
        tokio_rustls::TlsConnector::from(crate::tls::client_config(endpoint.tls_config.as_ref())?);
    let name = crate::tls::server_name(host)?;
    Ok(Socket::owned(connector.connect(name, stream).await?))
}

#[cfg(not(feature = "tls"))]
async fn tls(_endpoint: &Endpoint, _host: &str, _stream: TcpStream) -> io::Result<Socket> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "rediss:// needs the feature `tls` of leasehold",
    ))
}

impl Writer {
    /// The half that callers may write, if there is one.
    pub(crate) fn shared(&self) -> Option<SharedWriter> {
        match self {
            Self::Shared(writer) => Some(writer.clone()),
            Self::Owned(_) => None,
        }
    }

    /// Writes some of `bytes`.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Shared(writer) => loop {
                match writer.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        match writer.poll_ready(cx) {
                            Poll::Ready(ready) => ready?,
                            Poll::Pending => return Poll::Pending,
                        }
                    }
                    done => return Poll::Ready(done),
                }
            },
            Self::Owned(writer) => Pin::new(writer).poll_write(cx, bytes),
        }
    }

    /// Sends what the stream itself holds back (TLS records).
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Shared(_) => Poll::Ready(Ok(())),
            Self::Owned(writer) => Pin::new(writer).poll_flush(cx),
        }
    }
}

impl SharedWriter {
    /// One attempt, which never waits.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(writer) => writer.try_write(bytes),
            Self::Unix(writer) => writer.try_write(bytes),
        }
    }

    /// For the driver only: tokio keeps one waker per direction.
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(writer) => {
                let stream: &TcpStream = (**writer).as_ref();
                stream.poll_write_ready(cx)
            }
            Self::Unix(writer) => {
                let stream: &UnixStream = (**writer).as_ref();
                stream.poll_write_ready(cx)
            }
        }
    }
}
