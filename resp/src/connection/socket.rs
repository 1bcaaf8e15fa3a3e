//! The byte stream under a connection: TCP, a unix socket, TLS, or any stream that a caller supplies.

use std::any::Any;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpStream, tcp};
#[cfg(unix)]
use tokio::net::{UnixStream, unix};

use crate::connection::dial::dial;
use crate::connection::secure::Secure;
use crate::endpoint::{Address, Endpoint};

/// A connected stream.
pub(crate) enum Socket {
    /// Callers may write it too, without a task in between.
    Shared {
        reader: Box<dyn AsyncRead + Send + Unpin>,
        writer: SharedWriter,
    },
    /// Only the driver can write: TLS needs `&mut`.
    Owned(Box<dyn Stream>),
}

/// A writing half whose system call needs no `&mut`.
#[derive(Clone)]
pub(crate) struct SharedWriter(Arc<Writer>);

/// Leaves the end of the stream to the reading half, which closes both directions: a FIN of its own would overtake a reset,
/// and in a child that was forked it would end the stream of the parent. Never empty before it is dropped.
struct Writer(Option<WriteHalf>);

enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
}

/// Both directions of a stream.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Any + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Any + Send + Unpin> Stream for T {}

impl Socket {
    /// Connects, without a deadline of its own.
    pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<Self> {
        #[cfg(feature = "in-process")]
        if let Some(dialer) = &endpoint.dialer {
            return Ok(Self::Owned(Box::new(dialer.dial())));
        }
        match &endpoint.address {
            Address::Tcp { host, port } => {
                let secure = match endpoint.tls {
                    true => Some(Secure::new(endpoint, host)?),
                    false => None,
                };
                let stream = dial(host, *port).await?;
                // Nagle's algorithm would hold back the second of two small writes for a round trip.
                stream.set_nodelay(true)?;
                if let Some(secure) = secure {
                    let stream = secure.connect(stream).await?;
                    return Ok(Self::Owned(Box::new(stream)));
                }
                let (reader, writer) = stream.into_split();
                Ok(Self::Shared {
                    reader: Box::new(reader),
                    writer: SharedWriter::new(WriteHalf::Tcp(writer)),
                })
            }
            #[cfg(not(unix))]
            Address::Unix(_) => Err(crate::error::Misconfigured::new(
                "this system has no unix sockets: use a host and a port",
            )),
            #[cfg(unix)]
            Address::Unix(path) => {
                let (reader, writer) = UnixStream::connect(path).await?.into_split();
                Ok(Self::Shared {
                    reader: Box::new(reader),
                    writer: SharedWriter::new(WriteHalf::Unix(writer)),
                })
            }
        }
    }

    /// The writer that callers may use, if there is one.
    pub(crate) fn shared_writer(&self) -> Option<SharedWriter> {
        match self {
            Self::Shared { writer, .. } => Some(writer.clone()),
            Self::Owned(_) => None,
        }
    }

    /// Appends what there is to `buffer`, whose spare room bounds it.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        // The future keeps nothing between polls, so a fresh one each time is the same as `AsyncRead::poll_read`, into
        // memory that need not be filled with zeros first.
        match self {
            Self::Shared { reader, .. } => pin!(reader.read_buf(buffer)).poll(cx),
            Self::Owned(stream) => pin!(stream.read_buf(buffer)).poll(cx),
        }
    }

    /// Writes some of `bytes`.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Shared { writer, .. } => loop {
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
            Self::Owned(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    /// Sends what the stream itself holds back (TLS records).
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Shared { .. } => Poll::Ready(Ok(())),
            Self::Owned(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    /// Makes the close that follows a TCP reset: the kernel drops what it has not delivered yet, instead of sending it
    /// again until it arrives, perhaps long after this process has acted on the failure. Other streams close as usual.
    pub(crate) fn reset_on_close(&self) {
        let tcp: Option<&TcpStream> = match self {
            Self::Shared { writer, .. } => match writer.half() {
                Some(WriteHalf::Tcp(half)) => Some(half.as_ref()),
                #[cfg(unix)]
                Some(WriteHalf::Unix(_)) => None,
                None => None,
            },
            Self::Owned(stream) => tcp_under(&**stream),
        };
        // An error means that the socket is gone already.
        let _ = tcp.map(TcpStream::set_zero_linger);
    }
}

#[cfg(feature = "tls")]
fn tcp_under(stream: &dyn Any) -> Option<&TcpStream> {
    use crate::connection::secure::SecureStream;
    let tls = stream.downcast_ref::<SecureStream>();
    let tls = tls.map(|tls| tls.get_ref().0);
    tls.or_else(|| stream.downcast_ref())
}

#[cfg(not(feature = "tls"))]
fn tcp_under(stream: &dyn Any) -> Option<&TcpStream> {
    stream.downcast_ref()
}

impl SharedWriter {
    fn new(half: WriteHalf) -> Self {
        Self(Arc::new(Writer(Some(half))))
    }

    fn half(&self) -> Option<&WriteHalf> {
        self.0.0.as_ref()
    }

    /// One attempt, which never waits.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.half() {
            Some(WriteHalf::Tcp(half)) => half.try_write(bytes),
            #[cfg(unix)]
            Some(WriteHalf::Unix(half)) => half.try_write(bytes),
            None => Ok(0),
        }
    }

    /// For the driver only: tokio keeps one waker per direction.
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.half() {
            Some(WriteHalf::Tcp(half)) => {
                let stream: &TcpStream = half.as_ref();
                stream.poll_write_ready(cx)
            }
            #[cfg(unix)]
            Some(WriteHalf::Unix(half)) => {
                let stream: &UnixStream = half.as_ref();
                stream.poll_write_ready(cx)
            }
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        match self.0.take() {
            Some(WriteHalf::Tcp(half)) => half.forget(),
            #[cfg(unix)]
            Some(WriteHalf::Unix(half)) => half.forget(),
            None => {}
        }
    }
}
