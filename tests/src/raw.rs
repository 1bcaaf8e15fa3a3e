//! A small RESP client that shares no code with the library.
//!
//! Tests ask the server for facts through this client, so that a bug in the library's decoder or
//! connection cannot hide itself. It is simple rather than fast: one request at a time, every wait
//! bounded.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::timeout;

use crate::wait::{BOUND, PROBE};

pub use crate::raw_value::RawValue;

/// One connection, RESP2 until [`hello3`](Self::hello3).
#[derive(Debug)]
pub struct Raw {
    stream: BufReader<TcpStream>,
    /// RESP3 pushes that arrived while a reply was awaited.
    pushes: VecDeque<RawValue>,
}

impl Raw {
    /// Connects to `addr`.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub async fn connect(addr: impl ToSocketAddrs) -> Result<Self> {
        let stream = bounded(TcpStream::connect(addr)).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
            pushes: VecDeque::new(),
        })
    }

    /// Switches to RESP3.
    ///
    /// # Panics
    ///
    /// When the server does not speak it.
    pub async fn hello3(&mut self) {
        let reply = self.cmd(&["HELLO", "3"]).await;
        assert!(
            matches!(reply, RawValue::Map(_)),
            "HELLO 3 was answered with {reply:?}"
        );
    }

    /// One request, one reply.
    ///
    /// # Panics
    ///
    /// When the connection fails or nothing comes within a minute. An error *reply* is a value.
    pub async fn cmd<A: AsRef<[u8]>>(&mut self, args: &[A]) -> RawValue {
        self.try_cmd(args).await.unwrap_or_else(|e| {
            let words: Vec<_> = args
                .iter()
                .map(|a| String::from_utf8_lossy(a.as_ref()))
                .collect();
            panic!("{}: {e}", words.join(" "))
        })
    }

    /// As [`cmd`](Self::cmd), for tests in which the connection may fail.
    ///
    /// Not cancel safe: a dropped call leaves its reply to the next one. Drop the client with it.
    ///
    /// # Errors
    ///
    /// Those of the socket; `UnexpectedEof` when the server closed it; `TimedOut` after a minute.
    pub async fn try_cmd<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<RawValue> {
        self.send(args).await?;
        self.read().await
    }

    /// The text of a reply that comes at once, or why there is none: the server may be starting,
    /// frozen, or ending connections because its role changes.
    pub(crate) async fn try_text(&mut self, args: &[&str]) -> std::result::Result<String, String> {
        match timeout(PROBE, self.try_cmd(args)).await {
            Ok(Ok(reply @ (RawValue::Simple(_) | RawValue::Bulk(_)))) => Ok(reply.str().to_owned()),
            outcome => Err(format!("{}: {outcome:?}", args.join(" "))),
        }
    }

    /// Writes a request and does not wait for its reply.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub async fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<()> {
        self.send_bytes(&encode(args)).await
    }

    /// Writes bytes as they are: for pipelines and for what is not a request at all.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        bounded(self.stream.get_mut().write_all(bytes)).await
    }

    /// The next reply. Pushes in front of it are kept for [`push`](Self::push).
    ///
    /// # Errors
    ///
    /// As [`try_cmd`](Self::try_cmd).
    pub async fn read(&mut self) -> Result<RawValue> {
        loop {
            match bounded(read_value(&mut self.stream)).await? {
                push @ RawValue::Push(_) => self.pushes.push_back(push),
                reply => return Ok(reply),
            }
        }
    }

    /// The elements of the next RESP3 push.
    ///
    /// # Panics
    ///
    /// When a reply comes instead, the connection fails, or nothing comes within a minute.
    pub async fn push(&mut self) -> Vec<RawValue> {
        let push = match self.pushes.pop_front() {
            Some(push) => push,
            None => bounded(read_value(&mut self.stream)).await.expect("a push"),
        };
        match push {
            RawValue::Push(items) => items,
            reply => panic!("expected a push, got {reply:?}"),
        }
    }
}

/// The bytes of a request.
#[must_use]
pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

async fn bounded<T>(io: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(BOUND, io)
        .await
        .unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

async fn read_value(from: &mut BufReader<TcpStream>) -> Result<RawValue> {
    let mut line = String::new();
    if from.read_line(&mut line).await? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let line = line.strip_suffix("\r\n").ok_or_else(|| broken(&line))?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| broken(line))?;
    let length = || rest.parse::<i64>().map_err(|_| broken(line));
    Ok(match kind {
        "+" => RawValue::Simple(rest.into()),
        "-" => RawValue::Error(rest.into()),
        ":" => RawValue::Int(length()?),
        "," => RawValue::Double(rest.parse().map_err(|_| broken(line))?),
        "#" => RawValue::Bool(rest == "t"),
        "(" => RawValue::Simple(rest.into()),
        "_" => RawValue::Null,
        "$" | "=" | "!" => match usize::try_from(length()?) {
            Err(_) => RawValue::Null,
            Ok(n) => {
                let mut bytes = vec![0; n + 2];
                from.read_exact(&mut bytes).await?;
                bytes.truncate(n);
                match kind {
                    "!" => RawValue::Error(String::from_utf8_lossy(&bytes).into()),
                    // The first four bytes of a verbatim string are its format: `txt:`.
                    "=" => RawValue::Bulk(bytes.split_off(4.min(n))),
                    _ => RawValue::Bulk(bytes),
                }
            }
        },
        "*" | "~" | ">" => match usize::try_from(length()?) {
            Err(_) => RawValue::Null,
            Ok(n) if kind == ">" => RawValue::Push(read_values(from, n).await?),
            Ok(n) => RawValue::Array(read_values(from, n).await?),
        },
        "%" => {
            let mut flat = read_values(
                from,
                usize::try_from(length()?).map_err(|_| broken(line))? * 2,
            )
            .await?
            .into_iter();
            let mut pairs = Vec::new();
            while let (Some(key), Some(value)) = (flat.next(), flat.next()) {
                pairs.push((key, value));
            }
            RawValue::Map(pairs)
        }
        _ => return Err(broken(line)),
    })
}

async fn read_values(from: &mut BufReader<TcpStream>, n: usize) -> Result<Vec<RawValue>> {
    let mut values = Vec::new();
    for _ in 0..n {
        // An async function that calls itself needs a box between.
        values.push(Box::pin(read_value(from)).await?);
    }
    Ok(values)
}

fn broken(line: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not RESP: {line:?}"))
}
