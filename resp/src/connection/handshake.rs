//! From a fresh socket to a usable connection.
//!
//! One exclusive exchange: no user command may be pipelined behind an `AUTH` that can still fail (redis issue 15640).
//! A finished handshake says that the peer speaks RESP3 and let us in, not that it is ready: `HELLO` succeeds while a
//! node is loading its data or running a script.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::AsyncReadExt;

use crate::connection::socket::Socket;
use crate::endpoint::Endpoint;
use crate::error::{Error, ErrorKind};
use crate::protocol::classify::ServerErrorKind;
use crate::protocol::command::{Command, Encode};
use crate::protocol::decode::{Decoder, Frame, Limits};
use crate::protocol::value::Value;

/// A connection that is ready for commands.
pub(crate) struct Established {
    pub(crate) socket: Socket,
    pub(crate) decoder: Decoder,
    /// Bytes that came behind the last reply of the handshake: the beginning of a push, at most.
    pub(crate) received: BytesMut,
    /// When the server was started, at the latest; if that was asked.
    pub(crate) started: Option<Instant>,
}

/// A handshake under way.
type Establishing<'a> = Pin<Box<dyn Future<Output = Result<Established, Error>> + Send + 'a>>;

/// Connects and shakes hands, all within the endpoint's connect timeout.
///
/// Boxed: a connection is opened in several places, and each would carry a copy of all that happens here.
pub(crate) fn establish<'a>(endpoint: &'a Endpoint, node: &'a Arc<str>) -> Establishing<'a> {
    Box::pin(async move {
        let connecting = async {
            let socket = Socket::connect(endpoint)
                .await
                .map_err(|error| Error::connect(node, error))?;
            shake_hands(socket, endpoint, node).await
        };
        tokio::time::timeout(endpoint.connect_timeout, connecting)
            .await
            .unwrap_or_else(|_| {
                let time = endpoint.connect_timeout;
                Err(Error::not_sent(
                    node,
                    format!("cannot connect within {time:?}: the peer is silent"),
                ))
            })
    })
}

/// `HELLO 3` with who we are, the database, and what the server should list us as.
pub(crate) async fn shake_hands(
    socket: Socket,
    endpoint: &Endpoint,
    node: &Arc<str>,
) -> Result<Established, Error> {
    let mut exchange = Exchange {
        established: Established {
            socket,
            decoder: Decoder::new(Limits::default()),
            received: BytesMut::new(),
            started: None,
        },
        node,
    };
    let greeting = exchange
        .call(&hello(endpoint))
        .await?
        .map_err(|error| refused(error, node))?;
    if !speaks_resp3(&greeting) {
        let detail = format!(
            "`HELLO 3` was answered with something else than a RESP3 greeting: {}",
            greeting.kind()
        );
        return Err(Error::new(ErrorKind::Protocol, node, detail));
    }
    if endpoint.database != 0 {
        exchange
            .call(&Command::new("SELECT").arg_int(i64::from(endpoint.database)))
            .await??;
    }
    if endpoint.master_only {
        let role = exchange.call(&Command::new("ROLE")).await??;
        if role.as_array().and_then(|role| role.first()?.as_str()) != Some("master") {
            return Err(Error::not_sent(
                node,
                "the server is not a master (any more)",
            ));
        }
    }
    if endpoint.ask_uptime {
        let info = exchange.call(&Command::new("INFO").arg("server")).await??;
        let Some(uptime) = uptime(&info) else {
            return Err(Error::new(
                ErrorKind::Protocol,
                node,
                "`INFO server` says nothing of the uptime",
            ));
        };
        // The difference of two clocks that were both rounded down to seconds: up to a second more than it has been up.
        // The answer took its time, too: it cannot have started later than this.
        exchange.established.started =
            Instant::now().checked_sub(uptime.saturating_sub(Duration::from_secs(1)));
    }
    // Servers before 7.2 do not know it, and an ACL may forbid it; neither matters.
    for (what, value) in [
        ("LIB-NAME", "leasehold"),
        ("LIB-VER", env!("CARGO_PKG_VERSION")),
    ] {
        let _ = exchange
            .call(&Command::new("CLIENT").arg("SETINFO").arg(what).arg(value))
            .await?;
    }
    exchange.expect_silence()?;
    Ok(exchange.established)
}

/// The greeting is a map that says so. What answers `HELLO` with anything else would not send pushes either.
fn speaks_resp3(greeting: &Value) -> bool {
    let Value::Map(fields) = greeting else {
        return false;
    };
    fields
        .iter()
        .any(|(field, value)| field.as_bytes() == Some(b"proto") && value.as_int() == Some(3))
}

fn uptime(info: &Value) -> Option<Duration> {
    let seconds = info
        .as_str()?
        .lines()
        .find_map(|line| line.strip_prefix("uptime_in_seconds:"))?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

fn hello(endpoint: &Endpoint) -> Command {
    let mut hello = Command::new("HELLO").arg("3");
    if let Some(password) = &endpoint.password {
        hello = hello
            .arg("AUTH")
            .arg(endpoint.user.as_deref().unwrap_or("default"))
            .arg(password);
    }
    if let Some(name) = &endpoint.client_name {
        hello = hello.arg("SETNAME").arg(name);
    }
    hello
}

/// Says what a refused `HELLO` means for the user.
fn refused(error: Error, node: &Arc<str>) -> Error {
    let advice = match error.as_server().map(|server| server.kind()) {
        Some(ServerErrorKind::NoProto | ServerErrorKind::UnknownCommand) => {
            "the server does not speak RESP3: leasehold needs Redis 6.0 or later, or Valkey"
        }
        _ => return error,
    };
    Error::new(
        ErrorKind::Protocol,
        node,
        format!("{advice} ({})", error.detail()),
    )
}

/// One command and its reply at a time, before there is a driver.
struct Exchange<'a> {
    established: Established,
    node: &'a Arc<str>,
}

impl Exchange<'_> {
    /// The outer error ends the connection, the inner one is the server's answer.
    async fn call(&mut self, command: &Command) -> Result<Result<Value, Error>, Error> {
        self.expect_silence()?;
        let mut request = Vec::new();
        command.encode(&mut request);
        self.write_all(&request)
            .await
            .map_err(|error| Error::connect(self.node, error))?;
        loop {
            match self
                .established
                .decoder
                .decode(&mut self.established.received)
            {
                Ok(Some(Frame::Reply(Value::Error(line)))) => {
                    return Ok(Err(Error::server(self.node, &line)));
                }
                Ok(Some(Frame::Reply(value))) => return Ok(Ok(value)),
                Ok(Some(Frame::Push(_))) => {}
                Ok(None) => self
                    .read_some()
                    .await
                    .map_err(|error| Error::connect(self.node, error))?,
                Err(error) => return Err(Error::protocol(self.node, error)),
            }
        }
    }

    /// A second reply to one request would be taken for the answer to the next, and so on for ever.
    fn expect_silence(&mut self) -> Result<(), Error> {
        loop {
            match self
                .established
                .decoder
                .decode(&mut self.established.received)
            {
                Ok(Some(Frame::Push(_))) => {}
                Ok(Some(Frame::Reply(value))) => {
                    let detail = format!("a reply nobody asked for: {}", value.kind());
                    return Err(Error::new(ErrorKind::Protocol, self.node, detail));
                }
                Ok(None) => return Ok(()),
                Err(error) => return Err(Error::protocol(self.node, error)),
            }
        }
    }

    async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let writer = &mut self.established.socket.writer;
        while !bytes.is_empty() {
            let n = poll_fn(|cx| writer.poll_write(cx, bytes)).await?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[n..];
        }
        poll_fn(|cx| writer.poll_flush(cx)).await
    }

    async fn read_some(&mut self) -> io::Result<()> {
        // A greeting in one read: the buffer would otherwise grow by 64 bytes a system call.
        self.established.received.reserve(2 << 10);
        let n = self
            .established
            .socket
            .reader
            .read_buf(&mut self.established.received)
            .await?;
        if n == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the peer hung up during the handshake",
            ));
        }
        Ok(())
    }
}
