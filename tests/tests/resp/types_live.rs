//! Every type as a real server sends it, read from the socket in small pieces.

use bytes::BytesMut;
use leasehold_resp::{Command, Decoder, Encode, Frame, Limits, Value};
use leasehold_testkit::server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};

use crate::support::{bulk, int, simple};

/// A bare socket in RESP3: this tests the codec, not the connection.
struct Wire {
    stream: TcpStream,
    decoder: Decoder,
    buf: BytesMut,
    /// Bytes read at a time.
    piece: u64,
}

impl Wire {
    async fn connect(server: &Server, piece: u64) -> Self {
        let stream = TcpStream::connect(server.addr())
            .await
            .expect("the server listens");
        let mut wire = Self {
            stream,
            decoder: Decoder::new(Limits::default()),
            buf: BytesMut::new(),
            piece,
        };
        let hello = wire.ask(Command::new("HELLO").arg_int(3)).await;
        let Frame::Reply(Value::Map(pairs)) = hello else {
            panic!("HELLO was answered by {hello:?}")
        };
        assert!(pairs.contains(&(bulk(b"proto"), int(3))), "{pairs:?}");
        wire
    }

    async fn ask(&mut self, command: Command) -> Frame {
        self.send(command).await;
        self.frame().await
    }

    async fn send(&mut self, command: Command) {
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        self.stream
            .write_all(&bytes)
            .await
            .expect("the server reads");
    }

    async fn frame(&mut self) -> Frame {
        loop {
            if let Some(frame) = self
                .decoder
                .decode(&mut self.buf)
                .expect("a server speaks the protocol")
            {
                return frame;
            }
            let mut piece = (&mut self.stream).take(self.piece);
            let read = timeout(Duration::from_secs(30), piece.read_buf(&mut self.buf)).await;
            assert!(
                read.expect("the server answers")
                    .expect("it stays connected")
                    > 0,
                "the server hung up"
            );
        }
    }
}

/// A double as it is written, so that two are compared exactly.
fn shown(frame: &Frame) -> String {
    match frame {
        Frame::Reply(Value::Double(n)) => n.to_string(),
        other => panic!("not a double: {other:?}"),
    }
}

#[tokio::test]
async fn every_type_a_server_can_send_is_understood() {
    let server = Server::start().await;
    for piece in [1, 3, 4096] {
        let mut wire = Wire::connect(&server, piece).await;
        let mut ask = async |kind: &str| {
            wire.ask(Command::new("DEBUG").arg("PROTOCOL").arg(kind))
                .await
        };
        assert_eq!(ask("string").await, Frame::Reply(bulk(b"Hello World")));
        assert_eq!(ask("integer").await, Frame::Reply(int(12345)));
        let double = shown(&ask("double").await);
        assert!(
            ["3.141", "3.14159265359"].contains(&double.as_str()),
            "{double}: the latter is what Redis 6.2 has"
        );
        assert_eq!(ask("null").await, Frame::Reply(Value::Null));
        assert_eq!(ask("true").await, Frame::Reply(Value::Boolean(true)));
        assert_eq!(ask("false").await, Frame::Reply(Value::Boolean(false)));
        assert_eq!(
            ask("array").await,
            Frame::Reply(Value::Array(vec![int(0), int(1), int(2)]))
        );
        assert_eq!(
            ask("set").await,
            Frame::Reply(Value::Set(vec![int(0), int(1), int(2)]))
        );
        let pairs = [(0, false), (1, true), (2, false)].map(|(n, is)| (int(n), Value::Boolean(is)));
        assert_eq!(ask("map").await, Frame::Reply(Value::Map(pairs.into())));
        let big = "1234567999999999999999999999999999999";
        assert_eq!(
            ask("bignum").await,
            Frame::Reply(Value::BigNumber(big.into()))
        );
        let text = "This is a verbatim\nstring".into();
        assert_eq!(
            ask("verbatim").await,
            Frame::Reply(Value::Verbatim {
                format: *b"txt",
                text
            })
        );
        // An attribute and then the value it describes: the value alone arrives.
        assert_eq!(
            ask("attrib").await,
            Frame::Reply(bulk(b"Some real reply following the attribute"))
        );
        // A push and a reply: in this order up to Redis 7.0, in the other one later.
        let push = Frame::Push(vec![bulk(b"server-cpu-usage"), int(42)]);
        let reply = Frame::Reply(bulk(b"Some real reply following the push reply"));
        let frames = [ask("push").await, wire.frame().await];
        assert!(
            frames == [push.clone(), reply.clone()] || frames == [reply, push],
            "{frames:?}"
        );
    }
}

#[tokio::test]
async fn the_largest_replies_of_a_server_are_understood() {
    let server = Server::start().await;
    let mut wire = Wire::connect(&server, 1460).await;
    // Sets of maps inside of arrays: on which parsers with hashed elements fail.
    let Frame::Reply(Value::Array(commands)) = wire.ask(Command::new("COMMAND")).await else {
        panic!("not an array")
    };
    assert!(commands.len() > 100);
    let docs = wire.ask(Command::new("COMMAND").arg("DOCS")).await;
    assert!(
        matches!(docs, Frame::Reply(Value::Map(_) | Value::Error(_))),
        "Redis 6.2 has no COMMAND DOCS"
    );

    let large = vec![b'x'; 3 << 20];
    assert_eq!(
        wire.ask(
            Command::new("SET")
                .arg("large")
                .arg(&large)
                .arg("PX")
                .arg_int(60_000)
        )
        .await,
        Frame::Reply(simple("OK"))
    );
    assert_eq!(
        wire.ask(Command::new("GET").arg("large")).await,
        Frame::Reply(bulk(&large))
    );
}

#[tokio::test]
async fn a_push_inside_of_exec_does_not_put_the_replies_out_of_step() {
    let server = Server::start().await;
    let mut wire = Wire::connect(&server, 7).await;
    assert!(matches!(
        wire.ask(Command::new("SUBSCRIBE").arg("ch")).await,
        Frame::Push(_)
    ));
    for command in [
        Command::new("MULTI"),
        Command::new("PUBLISH").arg("ch").arg("m"),
        Command::new("PING"),
    ] {
        assert!(matches!(
            wire.ask(command).await,
            Frame::Reply(Value::Simple(_))
        ));
    }
    wire.send(Command::new("EXEC")).await;
    // Redis 7.0 and older put the push inside of the array, later ones behind it: the same two
    // frames either way.
    let mut frames = [wire.frame().await, wire.frame().await];
    frames.sort_by_key(|frame| matches!(frame, Frame::Push(_)));
    let replies = Frame::Reply(Value::Array(vec![int(1), simple("PONG")]));
    assert_eq!(
        frames,
        [
            replies,
            Frame::Push(vec![bulk(b"message"), bulk(b"ch"), bulk(b"m")])
        ]
    );
    assert_eq!(
        wire.ask(Command::new("ECHO").arg("in step")).await,
        Frame::Reply(bulk(b"in step"))
    );
}

#[tokio::test]
async fn a_cyclic_reply_of_a_script_ends_in_an_error_and_nothing_worse() {
    let server = Server::start().await;
    let mut wire = Wire::connect(&server, 4096).await;
    wire.send(
        Command::new("EVAL")
            .arg("local t = {} t[1] = t return t")
            .arg_int(0),
    )
    .await;
    let mut ended = false;
    while !ended {
        let read = timeout(Duration::from_secs(30), wire.stream.read_buf(&mut wire.buf)).await;
        assert!(
            read.expect("the server answers")
                .expect("it stays connected")
                > 0,
            "the server hung up"
        );
        ended = wire.decoder.decode(&mut wire.buf).is_err();
    }
}
