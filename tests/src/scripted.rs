//! A server that does what a test tells it to, right or wrong.
//!
//! The script runs once for every connection, on the test's own runtime, and sees the requests as they come.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What a well-behaved server answers to `HELLO 3`.
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
    heard: AtomicU64,
}

/// The server's end of one connection.
#[derive(Debug)]
pub struct Peer {
    /// 0 for the first connection.
    pub number: u64,
    stream: TcpStream,
    unread: Vec<u8>,
    counts: Arc<Counts>,
}

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
                let peer = Peer {
                    number,
                    stream,
                    unread: Vec::new(),
                    counts: Arc::clone(&counting),
                };
                connections.spawn(script(peer));
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

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections were accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// How many connections the client was seen to end.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.counts.ended.load(Ordering::SeqCst)
    }

    /// How many bytes clients have sent so far, as far as the script looked.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.counts.heard.load(Ordering::SeqCst)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Peer {
    /// The next request, or `None` when the client has gone.
    ///
    /// # Panics
    ///
    /// When it is not an array of bulk strings: clients send nothing else.
    pub async fn request(&mut self) -> Option<Vec<String>> {
        loop {
            if let Some((request, length)) = parse(&self.unread) {
                self.unread.drain(..length);
                return Some(request);
            }
            if !self.read().await {
                return None;
            }
        }
    }

    /// Writes bytes as they are. A client that has gone is no reason to fail.
    pub async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref()).await;
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
                "SELECT" => self.say("+OK\r\n").await,
                "CLIENT" if request[1] == "SETINFO" => self.say("+OK\r\n").await,
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
        while let Some(request) = self.greet().await {
            let last = request.last().map(String::as_str).unwrap_or_default();
            self.say(format!("${}\r\n{last}\r\n", last.len())).await;
        }
    }

    /// Reads until the client ends the connection, and answers nothing.
    pub async fn silence(&mut self) {
        while self.read().await {
            self.unread.clear();
        }
    }

    /// Ends the connection with RST.
    pub fn reset(self) {
        let _ = self.stream.set_zero_linger();
    }

    /// Ends the connection in order: with FIN, and everything read that may still come.
    pub async fn hang_up(mut self) {
        let _ = self.stream.shutdown().await;
        self.silence().await;
    }

    async fn read(&mut self) -> bool {
        let mut chunk = [0; 16 * 1024];
        let n = self.stream.read(&mut chunk).await.unwrap_or(0);
        self.counts.heard.fetch_add(n as u64, Ordering::SeqCst);
        self.unread.extend_from_slice(&chunk[..n]);
        if n == 0 {
            self.counts.ended.fetch_add(1, Ordering::SeqCst);
        }
        n > 0
    }
}

/// The first request in `bytes` and its length, or `None` while it is incomplete.
fn parse(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let mut header = |marker: u8| {
        let end = at + bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        assert_eq!(
            bytes[at],
            marker,
            "not a request: {:?}",
            String::from_utf8_lossy(bytes)
        );
        let count: usize = std::str::from_utf8(&bytes[at + 1..end])
            .ok()?
            .parse()
            .ok()?;
        if marker == b'*' {
            at = end + 2;
            return Some((count, String::new()));
        }
        let text = bytes.get(end + 2..end + 2 + count)?;
        at = end + 2 + count + 2;
        (at <= bytes.len()).then(|| (count, String::from_utf8_lossy(text).into_owned()))
    };
    let (count, _) = header(b'*')?;
    let mut request = Vec::new();
    for _ in 0..count {
        request.push(header(b'$')?.1);
    }
    Some((request, at))
}
