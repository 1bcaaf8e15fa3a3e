//! A server that does what a test tells it to, right or wrong.
//!
//! The script runs once for every connection, on the test's own runtime, and sees the requests as
//! they come. Requests are read, and answers that are values written, by the library's codec; bytes
//! that no codec would write go out as they are.

use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{SinkExt, StreamExt};
use leasehold_resp::{Codec, Frame, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::codec::Framed;
use tokio_util::io::InspectReader;

/// The reply of a well-behaved server to `HELLO 3`.
pub const GREETING: &[u8] = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n";

/// A running script; it ends, with all its connections, when dropped.
#[derive(Debug)]
pub struct Scripted {
    addr: SocketAddr,
    counts: Arc<Counts>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    ended: AtomicU64,
    read: AtomicU64,
}

/// The server's end of one connection.
pub struct Peer {
    /// 0 for the first connection.
    pub number: u64,
    stream: Framed<InspectReader<TcpStream, Count>, Codec>,
    counts: Arc<Counts>,
}

/// Counts the bytes that were read.
type Count = Box<dyn FnMut(&[u8]) + Send>;

impl Scripted {
    /// Runs `script` for every connection.
    ///
    /// # Panics
    ///
    /// When no port is to be had.
    pub async fn start<F: Future<Output = ()> + Send + 'static>(
        script: impl Fn(Peer) -> F + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let addr = listener.local_addr().expect("an address");
        let counts = Arc::new(Counts::default());
        let counting = Arc::clone(&counts);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let number = counting.accepted.fetch_add(1, Ordering::SeqCst);
                let _ = stream.set_nodelay(true);
                connections.spawn(script(Peer::new(number, stream, Arc::clone(&counting))));
            }
        });
        Self {
            addr,
            counts,
            accepting,
        }
    }

    /// `redis://127.0.0.1:40001`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Its address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Number of connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// Number of connections that clients ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.counts.ended.load(Ordering::SeqCst)
    }

    /// Number of bytes from clients that the script has read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.counts.read.load(Ordering::SeqCst)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Peer {
    fn new(number: u64, stream: TcpStream, counts: Arc<Counts>) -> Self {
        let counting = Arc::clone(&counts);
        let count: Count = Box::new(move |bytes: &[u8]| {
            counting
                .read
                .fetch_add(bytes.len() as u64, Ordering::SeqCst);
        });
        Self {
            number,
            stream: Framed::new(InspectReader::new(stream, count), Codec::default()),
            counts,
        }
    }

    /// The next request, or `None` when the client has gone.
    ///
    /// # Panics
    ///
    /// When it is not an array of bulk strings: clients send nothing else.
    pub async fn request(&mut self) -> Option<Vec<String>> {
        match self.stream.next().await {
            Some(Ok(frame)) => Some(arguments(frame)),
            Some(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                panic!("not a request: {error}")
            }
            // The end of the stream, in the middle of a request or not, or of the connection.
            Some(Err(_)) | None => {
                self.counts.ended.fetch_add(1, Ordering::SeqCst);
                None
            }
        }
    }

    /// Writes bytes as they are. A client that has gone is no reason to fail.
    pub async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.get_mut().write_all(bytes.as_ref()).await;
    }

    /// Writes a reply. A client that has gone is no reason to fail.
    pub async fn answer(&mut self, reply: Value) {
        let _ = self.stream.send(reply).await;
    }

    /// Answers the whole handshake as it should be. Returns the first request behind it.
    ///
    /// # Panics
    ///
    /// As [`request`](Self::request).
    pub async fn greet(&mut self) -> Option<Vec<String>> {
        loop {
            let request = self.request().await?;
            match request[0].as_str() {
                "HELLO" => self.say(GREETING).await,
                "SELECT" => self.answer(Value::Simple("OK".into())).await,
                // Tells neither uptime nor run id, which a client without the right to ask does not learn either.
                "INFO" => self.answer(Value::Bulk(String::new().into())).await,
                "CLIENT" if request[1] == "SETINFO" => {
                    self.answer(Value::Simple("OK".into())).await
                }
                _ => return Some(request),
            }
        }
    }

    /// A well-behaved server from here on: greets, and echoes.
    ///
    /// # Panics
    ///
    /// As [`request`](Self::request).
    pub async fn behave(&mut self) {
        while let Some(mut request) = self.greet().await {
            let last = request.pop().unwrap_or_default();
            self.answer(Value::Bulk(last.into())).await;
        }
    }

    /// Waits for bytes of any kind, RESP or not, and drops them. `false` when the client has gone.
    pub async fn anything(&mut self) -> bool {
        let mut chunk = vec![0; 16 * 1024];
        matches!(self.stream.get_mut().read(&mut chunk).await, Ok(1..))
    }

    /// Reads until the client ends the connection, and answers nothing. What it reads need not be
    /// RESP.
    pub async fn silence(&mut self) {
        let mut chunk = vec![0; 16 * 1024];
        while let Ok(1..) = self.stream.get_mut().read(&mut chunk).await {}
        self.counts.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the connection with RST.
    pub fn reset(self) {
        let _ = self.stream.get_ref().get_ref().set_zero_linger();
    }

    /// Ends the connection in order: with FIN, and everything read that may still come.
    pub async fn hang_up(mut self) {
        let _ = self.stream.get_mut().shutdown().await;
        self.silence().await;
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// The arguments of a request, the name of the command first.
fn arguments(frame: Frame) -> Vec<String> {
    let Frame::Reply(Value::Array(arguments)) = frame else {
        panic!("not a request: {frame:?}")
    };
    arguments
        .iter()
        .map(|argument| match argument {
            Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("not an argument: {other:?}"),
        })
        .collect()
}
