//! From a fresh socket to a usable connection, in two round trips: `HELLO` alone, because nothing may be pipelined behind
//! an `AUTH` that can still fail (redis issue 15640), then everything else together.
//!
//! A finished handshake says that the peer speaks RESP3 and accepted the credentials, not that it is ready: `HELLO`
//! succeeds while a node is loading its data or running a script.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::connection::secure;
use crate::connection::socket::Socket;
use crate::endpoint::{Address, AskServer, Endpoint};
use crate::error::{Error, ErrorKind};
use crate::protocol::classify::ServerErrorKind;
use crate::protocol::command::{Command, Encode};
use crate::protocol::decode::{Decoder, Frame, Limits};
use crate::protocol::greeting::{ConnectionId, Greeting, ServerInfo};
use crate::protocol::value::Value;

/// A connection that is ready for commands.
pub(crate) struct Established {
    pub(crate) socket: Socket,
    pub(crate) decoder: Decoder,
    /// Bytes that came behind the last reply of the handshake: the beginning of a push, at most.
    pub(crate) received: BytesMut,
    /// Absent if the server did not tell.
    pub(crate) id: Option<Arc<ConnectionId>>,
    /// Upper bound on the instant at which the server was started; if that was asked.
    pub(crate) server_started: Option<Instant>,
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
                .map_err(|error| Error::connect(node, &error))?;
            shake_hands(socket, endpoint, node).await
        };
        tokio::time::timeout(endpoint.connect_timeout, connecting)
            .await
            .unwrap_or_else(|_| {
                let time = endpoint.connect_timeout;
                let mut detail = format!("cannot connect within {time:?}: the peer is silent");
                if endpoint.tls {
                    detail += " (does it speak TLS on this port?)";
                }
                Err(Error::not_sent(node, detail))
            })
    })
}

/// Says hello and sets the connection up as `endpoint` describes it.
pub(crate) async fn shake_hands(
    socket: Socket,
    endpoint: &Endpoint,
    node: &Arc<str>,
) -> Result<Established, Error> {
    let mut exchange = Exchange {
        socket,
        decoder: Decoder::new(Limits::HANDSHAKE),
        received: BytesMut::new(),
        has_answered: false,
        endpoint,
        node,
    };
    let greeting = greet(&mut exchange).await?;
    let steps = Step::of(endpoint);
    let commands: Vec<Command> = steps.iter().map(|step| step.command(endpoint)).collect();
    let replies = exchange.call(&commands).await?;
    let answered_at = Instant::now();
    let mut info = None;
    for (step, reply) in steps.into_iter().zip(replies) {
        match step {
            Step::Select => {
                drop(reply.map_err(|error| explain_database(error, endpoint.database))?);
            }
            Step::Role => check_master(&reply?, node)?,
            Step::Info => info = server_info(reply, endpoint.ask_server, node)?,
            // Servers before 7.2 do not know it, and an ACL may forbid it; neither matters.
            Step::LibName | Step::LibVersion => {}
        }
    }
    exchange.expect_silence()?;
    let (uptime, run_id) = info.map_or((None, None), |info| (Some(info.uptime), info.run_id));
    let id = greeting
        .client_id
        .map(|client_id| Arc::new(ConnectionId { client_id, run_id }));
    // The uptime is the difference of two clocks that were both rounded down to seconds: up to a second too much. The
    // reply took its time, too: the server cannot have started later than this.
    let server_started = uptime
        .and_then(|uptime| answered_at.checked_sub(uptime.saturating_sub(Duration::from_secs(1))));
    let Exchange {
        socket,
        mut decoder,
        received,
        ..
    } = exchange;
    decoder.set_limits(Limits::CONNECTION);
    Ok(Established {
        socket,
        decoder,
        received,
        id,
        server_started,
    })
}

/// A command of the second round trip.
#[derive(Clone, Copy)]
enum Step {
    Select,
    Role,
    Info,
    LibName,
    LibVersion,
}

impl Step {
    fn of(endpoint: &Endpoint) -> Vec<Self> {
        let optional = [
            (Self::Select, endpoint.database != 0),
            (Self::Role, endpoint.master_only),
            (Self::Info, endpoint.ask_server != AskServer::Never),
            (Self::LibName, true),
            (Self::LibVersion, true),
        ];
        let wanted = optional.into_iter().filter(|(_, is_wanted)| *is_wanted);
        wanted.map(|(step, _)| step).collect()
    }

    fn command(self, endpoint: &Endpoint) -> Command {
        let set_info =
            |name: &str, value: &str| Command::new("CLIENT").arg("SETINFO").arg(name).arg(value);
        match self {
            Self::Select => Command::new("SELECT").arg_int(i64::from(endpoint.database)),
            Self::Role => Command::new("ROLE"),
            Self::Info => Command::new("INFO").arg("server"),
            Self::LibName => set_info("LIB-NAME", "leasehold"),
            Self::LibVersion => set_info("LIB-VER", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// `HELLO 3`, with the credentials and the name that the server should list.
async fn greet(exchange: &mut Exchange<'_>) -> Result<Greeting, Error> {
    let Exchange { endpoint, node, .. } = *exchange;
    let mut hello = Command::new("HELLO").arg("3");
    if let Some(password) = &endpoint.password {
        let user = endpoint.user.as_deref().unwrap_or("default");
        hello = hello.arg("AUTH").arg(user).arg(password);
    }
    if let Some(name) = &endpoint.client_name {
        hello = hello.arg("SETNAME").arg(name);
    }
    let reply = exchange.call(&[hello]).await?.remove(0);
    let reply = reply.map_err(|error| explain_refusal(error, endpoint, node))?;
    let greeting = Greeting::read(&reply).ok_or_else(|| {
        let detail = format!(
            "`HELLO 3` was answered with something else than a RESP3 greeting: {}",
            reply.kind()
        );
        Error::new(ErrorKind::Protocol, node, detail)
    })?;
    if endpoint.keys_only && greeting.is_sentinel {
        let detail = "it is a sentinel, which has no keys: use redis-sentinel://host:port/service";
        return Err(Error::new(ErrorKind::Config, node, detail));
    }
    Ok(greeting)
}

/// Says what a refused `HELLO` means for the user.
fn explain_refusal(error: Error, endpoint: &Endpoint, node: &Arc<str>) -> Error {
    let advice = match error.as_server().map(|server| server.kind()) {
        Some(ServerErrorKind::NoProto | ServerErrorKind::UnknownCommand) => {
            "the server does not speak RESP3: leasehold needs Redis 6.0 or later, or Valkey"
        }
        // The server's words are of protocols.
        Some(ServerErrorKind::NoAuth) if endpoint.password.is_none() => {
            return error.told_as("the server requires a password, and none was given (NOAUTH)");
        }
        _ => return error,
    };
    let detail = format!("{advice} ({})", error.detail());
    Error::new(ErrorKind::Protocol, node, detail)
}

fn explain_database(error: Error, database: u32) -> Error {
    if error.as_server().is_none() {
        return error;
    }
    let detail = format!(
        "database {database} is not there, or not for this user ({})",
        error.detail()
    );
    error.told_as(detail)
}

fn check_master(role: &Value, node: &Arc<str>) -> Result<(), Error> {
    match role.as_array().and_then(|role| role.first()?.as_str()) {
        Some("master") => Ok(()),
        _ => Err(Error::not_sent(
            node,
            "the server is not a master (any more)",
        )),
    }
}

fn server_info(
    reply: Result<Value, Error>,
    ask: AskServer,
    node: &Arc<str>,
) -> Result<Option<ServerInfo>, Error> {
    let info = match reply {
        Ok(reply) => ServerInfo::read(&reply),
        Err(_) if ask != AskServer::Required => None,
        Err(error) => return Err(error),
    };
    if info.is_none() && ask == AskServer::Required {
        let detail = "`INFO server` does not tell the uptime";
        return Err(Error::new(ErrorKind::Protocol, node, detail));
    }
    Ok(info)
}

/// The error of a reply that no request is waiting for: what follows cannot be matched any more.
pub(crate) fn surplus(value: &Value, node: &Arc<str>) -> Error {
    let detail = format!("a reply without a request: {}", value.kind());
    Error::new(ErrorKind::Protocol, node, detail)
}

/// Requests and their replies, before there is a driver.
struct Exchange<'a> {
    socket: Socket,
    decoder: Decoder,
    received: BytesMut,
    /// Whether the peer has sent anything.
    has_answered: bool,
    endpoint: &'a Endpoint,
    node: &'a Arc<str>,
}

impl Exchange<'_> {
    /// Writes the commands at once and reads a reply to each. The outer error ends the connection, the inner ones are
    /// the server's.
    async fn call(&mut self, commands: &[Command]) -> Result<Vec<Result<Value, Error>>, Error> {
        self.expect_silence()?;
        let mut requests = Vec::new();
        for command in commands {
            command.encode(&mut requests);
        }
        self.write_all(&requests)
            .await
            .map_err(|error| self.broken(error))?;
        let mut replies = Vec::with_capacity(commands.len());
        while replies.len() < commands.len() {
            let is_http = self.received.starts_with(b"HTTP/");
            match self.decoder.decode(&mut self.received) {
                Ok(Some(Frame::Reply(Value::Error(line)))) => {
                    replies.push(Err(self.endpoint.server_error(self.node, &line)));
                }
                Ok(Some(Frame::Reply(value))) => replies.push(Ok(value)),
                Ok(Some(Frame::Push(_))) => {}
                Ok(None) => self.read_some().await.map_err(|error| self.broken(error))?,
                Err(error) => {
                    let error = Error::protocol(self.node, error);
                    return Err(match is_http {
                        true => error.told_as("the peer speaks HTTP"),
                        false => error,
                    });
                }
            }
        }
        Ok(replies)
    }

    /// A surplus reply would be taken for the answer to the next request, and every later one would be shifted as well.
    fn expect_silence(&mut self) -> Result<(), Error> {
        loop {
            match self.decoder.decode(&mut self.received) {
                Ok(Some(Frame::Push(_))) => {}
                Ok(Some(Frame::Reply(value))) => return Err(surplus(&value, self.node)),
                Ok(None) => return Ok(()),
                Err(error) => return Err(Error::protocol(self.node, error)),
            }
        }
    }

    async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = poll_fn(|cx| self.socket.poll_write(cx, bytes)).await?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[n..];
        }
        poll_fn(|cx| self.socket.poll_flush(cx)).await
    }

    async fn read_some(&mut self) -> io::Result<()> {
        // A greeting in one read: the buffer would otherwise grow by 64 bytes a system call.
        self.received.reserve(2 << 10);
        let n = poll_fn(|cx| self.socket.poll_read(cx, &mut self.received)).await?;
        if n == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the peer hung up during the handshake",
            ));
        }
        if !std::mem::replace(&mut self.has_answered, true) {
            secure::refuse_tls(&self.received)?;
        }
        Ok(())
    }

    /// The error of a stream that broke.
    fn broken(&self, error: io::Error) -> Error {
        let error = Error::connect(self.node, &secure::explain(error));
        // A server with TLS hangs up on a request that is not encrypted; so does one that is being shut down.
        let is_plain_tcp =
            !self.endpoint.tls && matches!(self.endpoint.address, Address::Tcp { .. });
        if self.has_answered || !is_plain_tcp || error.kind() == ErrorKind::Config {
            return error;
        }
        let detail = format!(
            "{} (if it speaks TLS on this port, use `rediss://`)",
            error.detail()
        );
        Error::new(error.kind(), self.node, detail)
    }
}
