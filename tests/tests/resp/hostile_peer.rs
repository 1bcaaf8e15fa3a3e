//! A peer that violates every rule of the protocol. In each case a request ends with its own reply
//! or a typed error, within its time; the connection is closed; and the next one works normally.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_resp::push::{Confirmation, Subscribe};
use leasehold_resp::{Connection, Endpoint, Error, ErrorKind, ServerErrorKind};
use leasehold_testkit::in_own_process;
use leasehold_testkit::scripted::{GREETING, Peer, Scripted};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::support::{BOUND, echo};

/// Long enough for a well-behaved peer on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(800);

fn endpoint(server: &Scripted) -> Endpoint {
    let mut endpoint = Endpoint::parse(&server.url()).unwrap();
    endpoint.command_timeout = COMMAND_TIMEOUT;
    endpoint.connect_timeout = Duration::from_secs(2);
    endpoint
}

/// The end of a peer's connection.
#[derive(Clone, Copy, Debug)]
enum Then {
    Hold,
    Fin,
    Rst,
    /// The same again and again, for ever.
    Repeat,
}

async fn misbehave(mut peer: Peer, bytes: &[u8], then: Then) {
    peer.say(bytes).await;
    match then {
        Then::Hold => peer.silence().await,
        Then::Fin => peer.hang_up().await,
        Then::Rst => peer.reset(),
        Then::Repeat => loop {
            peer.say(bytes).await;
            tokio::task::yield_now().await;
        },
    }
}

// ===== in the middle of a conversation =====

/// The bytes instead of the second of three replies.
struct Live {
    name: &'static str,
    bytes: Vec<u8>,
    then: Then,
    /// The outcome of the second request.
    expected: fn(&Result<String, Error>) -> bool,
}

fn unknown(outcome: &Result<String, Error>) -> bool {
    matches!(outcome, Err(error) if error.kind() == ErrorKind::Unknown && error.may_have_executed())
}

fn times_out(outcome: &Result<String, Error>) -> bool {
    matches!(outcome, Err(error) if error.kind() == ErrorKind::Timeout && error.may_have_executed())
}

fn is_b(outcome: &Result<String, Error>) -> bool {
    matches!(outcome, Ok(text) if text == "b")
}

fn too_many_clients(outcome: &Result<String, Error>) -> bool {
    matches!(outcome, Err(error) if error.as_server().is_some_and(|s| *s.kind() == ServerErrorKind::MaxClients))
}

fn live_cases() -> Vec<Live> {
    let mut cases = Vec::new();
    let mut add = |name, bytes: &[u8], then, expected: fn(&Result<String, Error>) -> bool| {
        cases.push(Live {
            name,
            bytes: bytes.to_vec(),
            then,
            expected,
        });
    };
    // Not the protocol, at once.
    for (name, bytes) in [
        ("an unknown type byte", &b"@1\r\n"[..]),
        ("a zero byte", b"\0\r\n"),
        ("an empty line", b"\r\n"),
        ("text", b"GARBAGE\r\n"),
        ("an HTTP answer", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ("a TLS alert", b"\x15\x03\x01\x00\x02\x02\x46"),
        ("noise", b"\xff\xfe\x00\x80\x91\r\n\x17\x42"),
        ("an SSH greeting", b"SSH-2.0-OpenSSH_9.2\r\n"),
        ("a negative length", b"$-2\r\n"),
        ("an overflowing length", b"$99999999999999999999\r\n"),
        ("a length of i64::MAX", b"$9223372036854775807\r\n"),
        ("a length of u64::MAX", b"$18446744073709551615\r\n"),
        ("a string over the limit", b"$8388609\r\n"),
        ("a length with a leading zero", b"$01\r\nb\r\n"),
        ("a length with a plus", b"$+1\r\nb\r\n"),
        ("a length with a blank", b"$ 1\r\nb\r\n"),
        ("a length with a letter", b"$1x\r\nb\r\n"),
        ("no length", b"$\r\n"),
        ("a string longer than it said", b"$1\r\nbb\r\n"),
        ("a string without its line end", b"$1\r\nb\n\n"),
        ("a line that ends in a bare LF", b"+b\n+b\r\n"),
        ("a CR inside a line", b"+b\rb\r\n"),
        ("an array of a negative length", b"*-2\r\n"),
        ("an array over the limit", b"*1048577\r\n"),
        ("an array with a leading zero", b"*00\r\n"),
        (
            "a map that overflows when doubled",
            b"%9223372036854775808\r\n",
        ),
        ("a set of a negative length", b"~-7\r\n"),
        ("an empty push", b">0\r\n"),
        ("a push of a negative length", b">-1\r\n"),
        ("a push without a kind", b">1\r\n:1\r\n"),
        ("a push of nulls", b">2\r\n_\r\n_\r\n"),
        ("an error of a negative length", b"!-1\r\n"),
        ("a verbatim string without a format", b"=1\r\nb\r\n"),
        ("a verbatim string without a colon", b"=5\r\ntxt_b\r\n"),
        ("a null with something in it", b"_b\r\n"),
        ("a boolean that is neither", b"#b\r\n"),
        ("an empty boolean", b"#\r\n"),
        ("an empty integer", b":\r\n"),
        ("an integer with a letter", b":1b\r\n"),
        ("an integer that overflows", b":9223372036854775808\r\n"),
        ("an empty double", b",\r\n"),
        ("a double that is none", b",b\r\n"),
        ("an empty big number", b"(\r\n"),
        ("a big number with a letter", b"(1b\r\n"),
        ("a chunk outside of a stream", b";1\r\nb\r\n"),
        ("the end of no stream", b".\r\n"),
        ("a streamed string of something else", b"$?\r\n:1\r\n"),
        ("a streamed map with half a pair", b"%?\r\n+b\r\n.\r\n"),
        ("a streamed push", b">?\r\n+b\r\n.\r\n"),
        ("streamed attributes", b"|?\r\n+b\r\n.\r\n"),
        ("nonsense deep inside", b"*2\r\n*1\r\n%1\r\n+k\r\n@\r\n"),
    ] {
        add(name, bytes, Then::Hold, unknown);
    }
    add(
        "a million arrays in each other",
        &b"*1\r\n".repeat(1_000_000),
        Then::Hold,
        unknown,
    );
    add(
        "a million streams in each other",
        &b"*?\r\n".repeat(1_000_000),
        Then::Hold,
        unknown,
    );
    add(
        "a million attributes in each other",
        &b"|1\r\n".repeat(1_000_000),
        Then::Hold,
        unknown,
    );
    add(
        "a line without an end",
        &b"+b".repeat(1 << 20),
        Then::Hold,
        unknown,
    );
    add(
        "a length without an end",
        &[&b"$"[..], &[b'1'; 1 << 17]].concat(),
        Then::Hold,
        unknown,
    );
    add(
        "a big number without an end",
        &[&b"("[..], &[b'1'; 1 << 17]].concat(),
        Then::Hold,
        unknown,
    );

    // Less than was promised.
    add("nothing", b"", Then::Hold, times_out);
    add("a type byte and silence", b"$", Then::Hold, times_out);
    add(
        "as many elements as are allowed, and silence",
        b"*1048576\r\n",
        Then::Hold,
        times_out,
    );
    add(
        "as many pairs as are allowed, and silence",
        b"%1048576\r\n",
        Then::Hold,
        times_out,
    );
    add(
        "as many bytes as are allowed, and silence",
        b"$8388608\r\n",
        Then::Hold,
        times_out,
    );
    add(
        "half a reply and silence",
        b"$10\r\nabc",
        Then::Hold,
        times_out,
    );
    add(
        "an array that lacks its last element",
        b"*2\r\n:1\r\n",
        Then::Hold,
        times_out,
    );
    add(
        "a streamed string without an end",
        b"$?\r\n;1\r\nb\r\n",
        Then::Hold,
        times_out,
    );
    add(
        "attributes of nothing",
        b"|1\r\n+k\r\n+v\r\n",
        Then::Hold,
        times_out,
    );
    add("FIN at once", b"", Then::Fin, unknown);
    add("FIN in a header", b"$1", Then::Fin, unknown);
    add("FIN in a string", b"$10\r\nabc", Then::Fin, unknown);
    add("FIN in an array", b"*2\r\n:1\r\n", Then::Fin, unknown);
    add("RST at once", b"", Then::Rst, unknown);
    add("RST in a string", b"$10\r\nabc", Then::Rst, unknown);
    add(
        "a reason and FIN",
        b"-ERR max number of clients reached\r\n",
        Then::Fin,
        too_many_clients,
    );

    // More than was asked for.
    add(
        "pushes for ever",
        b">3\r\n+message\r\n+c\r\n+m\r\n",
        Then::Repeat,
        times_out,
    );
    add(
        "pages of pushes for ever",
        &b">3\r\n+message\r\n+c\r\n+m\r\n".repeat(20_000),
        Then::Repeat,
        times_out,
    );
    add(
        "attributes for ever",
        &b"|1\r\n+k\r\n+v\r\n".repeat(20_000),
        Then::Repeat,
        times_out,
    );
    add(
        "a large string that goes on for ever",
        &[&b"$8388608\r\n"[..], &[b'x'; 60_000]].concat(),
        Then::Hold,
        times_out,
    );
    add(
        "a reply too many",
        b"$1\r\nb\r\n$1\r\nc\r\n+OK\r\n",
        Then::Hold,
        is_b,
    );
    add(
        "pushes of every kind before the reply",
        PUSHES,
        Then::Hold,
        is_b,
    );
    add(
        "a push inside the reply",
        b"*1\r\n>2\r\n+invalidate\r\n_\r\n$1\r\nb\r\n$1\r\nc\r\n@",
        Then::Hold,
        |outcome| matches!(outcome, Ok(text) if text == "array"),
    );
    cases
}

const PUSHES: &[u8] = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n>1\r\n+what\r\n>2\r\n+invalidate\r\n_\r\n\
    >3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n\
    >3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n>2\r\n+pubsub\r\n*1\r\n%0\r\n$1\r\nb\r\n$1\r\nc\r\n@\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_comes_instead_of_a_reply_harms_no_other_request() {
    let cases = live_cases();
    assert!(cases.len() >= 60, "{}", cases.len());
    // A few at a time: each of the floods is worth a core.
    for some in cases.chunks(16) {
        let running = some.iter().map(|case| {
            let (name, bytes, then, expected) =
                (case.name, case.bytes.clone(), case.then, case.expected);
            tokio::spawn(async move {
                let outcome =
                    tokio::time::timeout(BOUND * 2, live(name, bytes, then, expected)).await;
                outcome.unwrap_or_else(|_| panic!("{name}: hangs"));
            })
        });
        for case in running.collect::<Vec<_>>() {
            case.await.unwrap();
        }
    }
}

async fn live(
    name: &'static str,
    bytes: Vec<u8>,
    then: Then,
    expected: fn(&Result<String, Error>) -> bool,
) {
    let bytes = Arc::new(bytes);
    let server = Scripted::start(move |mut peer| {
        let bytes = Arc::clone(&bytes);
        async move {
            if peer.number > 0 {
                return peer.behave().await;
            }
            // All three have come before anything is answered.
            assert_eq!(peer.greet().await.unwrap(), ["ECHO", "a"]);
            for tag in ["b", "c"] {
                assert_eq!(peer.request().await.unwrap(), ["ECHO", tag]);
            }
            peer.say("$1\r\na\r\n").await;
            misbehave(peer, &bytes, then).await;
        }
    })
    .await;
    let connection = Connection::connect(endpoint(&server)).await.unwrap();
    let began = Instant::now();
    let [a, b, c] = ["a", "b", "c"].map(|tag| {
        let reply = connection.submit(&echo(tag));
        tokio::spawn(async move {
            reply
                .await
                .map(|value| value.as_str().unwrap_or_else(|| value.kind()).to_owned())
        })
    });
    assert_eq!(a.await.unwrap().unwrap(), "a", "{name}");
    let b = b.await.unwrap();
    assert!(expected(&b), "{name}: {b:?}");
    match c.await.unwrap() {
        Ok(text) => assert_eq!(text, "c", "{name}"),
        Err(error) => assert!(
            matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Timeout),
            "{name}: {error}"
        ),
    }
    assert!(began.elapsed() < BOUND, "{name}");

    // The connection is closed by itself, in twice the timeout at most, and the next one works.
    let d = loop {
        match connection.send(&echo("d")).await {
            Ok(value) => break value,
            Err(error) => assert!(
                error.is_transient() && began.elapsed() < BOUND,
                "{name}: {error}"
            ),
        }
    };
    assert_eq!(d.as_str(), Some("d"), "{name}");
    assert_eq!(
        server.accepted(),
        2,
        "{name}: one connection, and one after it"
    );
}

#[tokio::test]
async fn two_replies_for_one_end_the_connection_before_another_request_gets_the_second() {
    let server = Scripted::start(|mut peer| async move {
        if peer.number > 0 {
            return peer.behave().await;
        }
        peer.greet().await;
        peer.say("$1\r\na\r\n$1\r\na\r\n").await;
        peer.silence().await;
    })
    .await;
    let connection = Connection::connect(endpoint(&server)).await.unwrap();
    assert_eq!(
        connection.send(&echo("a")).await.unwrap().as_str(),
        Some("a")
    );
    let began = Instant::now();
    while server.accepted() < 2 {
        assert!(began.elapsed() < BOUND);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(
        connection.send(&echo("b")).await.unwrap().as_str(),
        Some("b")
    );
}

/// Completes the handshake, and then floods the client.
#[derive(Default)]
struct Chatter {
    written: usize,
    answered: usize,
    reader: Option<Waker>,
}

impl AsyncRead for Chatter {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match [GREETING, b"+OK\r\n+OK\r\n"].get(self.answered) {
            Some(_) if self.answered == self.written => {
                self.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Some(answer) => {
                buf.put_slice(answer);
                self.answered += 1;
            }
            None => buf.put_slice(&b">1\r\n+x\r\n".repeat(buf.remaining() / 8)),
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Chatter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written += 1;
        self.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn deadlines_pass_while_a_peer_never_pauses() {
    let mut endpoint = Endpoint::parse("redis://chatter").unwrap();
    endpoint.command_timeout = COMMAND_TIMEOUT;
    let connection = Connection::over(Chatter::default(), endpoint)
        .await
        .unwrap();
    let outcome = tokio::time::timeout(BOUND, connection.submit(&echo("a")))
        .await
        .expect("in time");
    assert!(outcome.unwrap_err().is_timeout());
    // Nor can it keep the client from closing the connection.
    let began = Instant::now();
    while connection.is_up() {
        assert!(began.elapsed() < BOUND);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(connection.send(&echo("b")).await.unwrap_err().is_closed());
}

#[tokio::test]
async fn a_reply_in_crumbs_is_a_reply() {
    let server = Scripted::start(|mut peer| async move {
        while let Some(request) = peer.greet().await {
            for byte in format!("$1\r\n{}\r\n", request[1]).bytes() {
                peer.say([byte]).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    })
    .await;
    let connection = Connection::connect(endpoint(&server)).await.unwrap();
    let replies = ["a", "b", "c"].map(|tag| connection.submit(&echo(tag)));
    for (reply, tag) in replies.into_iter().zip(["a", "b", "c"]) {
        assert_eq!(reply.await.unwrap().as_str(), Some(tag));
    }
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn an_error_reply_is_one_requests_error_and_nobody_elses() {
    let server = Scripted::start(|mut peer| async move {
        while let Some(request) = peer.greet().await {
            match request[1].as_str() {
                "loading" => {
                    peer.say("-LOADING Redis is loading the dataset in memory\r\n")
                        .await
                }
                "blob" => peer.say(b"!5\r\nERR \xff\r\n").await,
                "empty" => peer.say("-\r\n").await,
                tag => peer.say(format!("+{tag}\r\n")).await,
            }
        }
    })
    .await;
    let connection = Connection::connect(endpoint(&server)).await.unwrap();
    let replies = ["loading", "a", "empty", "b", "blob"].map(|tag| connection.submit(&echo(tag)));
    let [loading, a, empty, b, blob] = replies;
    assert_eq!(
        *loading.await.unwrap_err().as_server().unwrap().kind(),
        ServerErrorKind::Loading
    );
    assert_eq!(a.await.unwrap().as_str(), Some("a"));
    assert_eq!(empty.await.unwrap_err().kind(), ErrorKind::Server);
    assert_eq!(b.await.unwrap().as_str(), Some("b"));
    assert_eq!(blob.await.unwrap_err().kind(), ErrorKind::Server);
    assert_eq!(server.accepted(), 1, "the connection is as good as before");
}

#[tokio::test]
async fn a_subscription_that_is_answered_by_a_reply_ends_the_connection() {
    let server = Scripted::start(|mut peer| async move {
        if peer.number > 0 {
            return peer.behave().await;
        }
        assert_eq!(peer.greet().await.unwrap(), ["SUBSCRIBE", "c"]);
        peer.say("+OK\r\n").await;
        peer.silence().await;
    })
    .await;
    let connection = Connection::connect(endpoint(&server)).await.unwrap();
    let channels = vec![Bytes::from_static(b"c")];
    let error = connection
        .subscribe(&Subscribe {
            kind: Confirmation::Subscribe,
            channels,
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert_eq!(
        connection.send(&echo("b")).await.unwrap().as_str(),
        Some("b")
    );
}

#[tokio::test]
async fn a_peer_that_shakes_hands_and_hangs_up_is_not_called_without_a_pause() {
    let server = Scripted::start(|mut peer| async move {
        for answer in [GREETING, b"+OK\r\n", b"+OK\r\n"] {
            peer.request().await;
            peer.say(answer).await;
        }
        peer.hang_up().await;
    })
    .await;
    let _connection = Connection::connect(endpoint(&server)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1000)).await;
    // 10, 20, 40 ... ms: eight or so. Without a pause it would be thousands.
    let accepted = server.accepted();
    assert!((2..=20).contains(&accepted), "{accepted}");
}

/// Runs in a process of its own: it measures the memory of the whole process.
#[test]
fn what_a_header_merely_claims_is_not_allocated() {
    in_own_process(async {
        let before = peak_memory();
        for claim in [
            "$536870912\r\n",
            "*4294967295\r\n",
            "%2147483647\r\n",
            "~4294967295\r\n",
            ">4294967295\r\n",
        ] {
            claims(claim).await;
        }
        let grown = peak_memory() - before;
        assert!(grown < 16 << 20, "{} MiB", grown >> 20);
    });
}

/// A server that sends this header and nothing else, and a client that asks it.
async fn claims(header: &'static str) {
    let server = Scripted::start(move |mut peer| async move {
        if peer.number > 0 {
            return peer.behave().await;
        }
        peer.greet().await;
        peer.say(header).await;
        peer.silence().await;
    })
    .await;
    let connection = Connection::connect(endpoint(&server)).await.unwrap();
    assert!(connection.send(&echo("a")).await.is_err());
}

/// The most address space that this process has ever had in memory, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}

// ===== in the handshake =====

struct Greeted {
    name: &'static str,
    /// The requests that are answered as they should be, before the others.
    polite: usize,
    bytes: Vec<u8>,
    then: Then,
    expected: fn(&Result<(), Error>) -> bool,
}

fn connects(outcome: &Result<(), Error>) -> bool {
    outcome.is_ok()
}

fn no_resp(outcome: &Result<(), Error>) -> bool {
    matches!(outcome, Err(error) if error.kind() == ErrorKind::Protocol)
}

fn not_sent(outcome: &Result<(), Error>) -> bool {
    matches!(outcome, Err(error) if error.kind() == ErrorKind::NotSent && !error.may_have_executed())
}

fn misconfigured(outcome: &Result<(), Error>) -> bool {
    matches!(outcome, Err(error) if error.kind() == ErrorKind::Config && !error.may_have_executed())
}

fn refused(outcome: &Result<(), Error>, kind: &ServerErrorKind) -> bool {
    matches!(outcome, Err(error) if error.as_server().is_some_and(|server| server.kind() == kind))
}

fn handshake_cases() -> Vec<Greeted> {
    let mut cases = Vec::new();
    let mut add = |name, polite, bytes: &[u8], then, expected: fn(&Result<(), Error>) -> bool| {
        cases.push(Greeted {
            name,
            polite,
            bytes: bytes.to_vec(),
            then,
            expected,
        });
    };
    for (name, bytes) in [
        (
            "RESP2: no such command",
            &b"-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n"[..],
        ),
        (
            "RESP2: no such version",
            b"-NOPROTO unsupported protocol version\r\n",
        ),
        ("an array", b"*4\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n"),
        ("OK", b"+OK\r\n"),
        ("a number", b":3\r\n"),
        ("null", b"_\r\n"),
        ("an old null", b"$-1\r\n"),
        ("an empty map", b"%0\r\n"),
        ("a map of version 2", b"%1\r\n$5\r\nproto\r\n:2\r\n"),
        (
            "a map without a version",
            b"%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n",
        ),
        (
            "HTTP",
            b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        ),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n"),
        ("MySQL", b"\x4a\x00\x00\x00\x0a8.0.33\x00"),
        ("noise", b"\x91\x00\xfe\r\n"),
        ("nonsense in the map", b"%2\r\n$6\r\nserver\r\n@\r\n"),
    ] {
        add(name, 0, bytes, Then::Hold, no_resp);
    }
    let alert = b"\x15\x03\x01\x00\x02\x02\x46";
    add("a TLS alert", 0, alert, Then::Hold, misconfigured);
    add(
        "a million arrays in each other",
        0,
        &b"*1\r\n".repeat(1_000_000),
        Then::Hold,
        no_resp,
    );
    add(
        "a line without an end",
        0,
        &[b'+'; 1 << 17],
        Then::Hold,
        no_resp,
    );
    add(
        "as many bytes as are allowed, and silence",
        0,
        b"$32768\r\n",
        Then::Hold,
        not_sent,
    );
    add(
        "more bytes than are allowed before the handshake is over",
        0,
        b"$32769\r\n",
        Then::Hold,
        no_resp,
    );
    add(
        "as many elements as are allowed, and silence",
        0,
        b"*4096\r\n",
        Then::Hold,
        not_sent,
    );
    add(
        "pushes for ever",
        0,
        &b">3\r\n+message\r\n+c\r\n+m\r\n".repeat(1000),
        Then::Repeat,
        not_sent,
    );
    add(
        "attributes for ever",
        0,
        &b"|1\r\n+k\r\n+v\r\n".repeat(1000),
        Then::Repeat,
        not_sent,
    );
    add(
        "a push before the greeting",
        0,
        b">1\r\n+hi\r\n%1\r\n+proto\r\n:3\r\n",
        Then::Hold,
        not_sent,
    );
    add(
        "NOAUTH",
        0,
        b"-NOAUTH HELLO must be called with the client already authenticated\r\n",
        Then::Hold,
        |outcome| refused(outcome, &ServerErrorKind::NoAuth),
    );
    add(
        "WRONGPASS",
        0,
        b"-WRONGPASS invalid username-password pair\r\n",
        Then::Hold,
        |outcome| refused(outcome, &ServerErrorKind::WrongPass),
    );
    add(
        "NOPERM",
        0,
        b"-NOPERM this user has no permissions to run the 'hello' command\r\n",
        Then::Fin,
        |outcome| refused(outcome, &ServerErrorKind::NoPerm),
    );
    add(
        "LOADING",
        0,
        b"-LOADING Redis is loading the dataset in memory\r\n",
        Then::Hold,
        |outcome| refused(outcome, &ServerErrorKind::Loading),
    );
    add(
        "one error more than requests",
        1,
        b"-LOADING Redis is loading\r\n-LOADING yes\r\n-LOADING still\r\n",
        Then::Hold,
        no_resp,
    );
    for polite in 0..3 {
        add("silence", polite, b"", Then::Hold, not_sent);
        add("FIN", polite, b"", Then::Fin, not_sent);
        add("RST", polite, b"", Then::Rst, not_sent);
        add(
            "half a reply and silence",
            polite,
            b"$5\r\nab",
            Then::Hold,
            not_sent,
        );
        add(
            "half a reply and FIN",
            polite,
            b"%1\r\n+pro",
            Then::Fin,
            not_sent,
        );
        add(
            "half a reply and RST",
            polite,
            b"%1\r\n+pro",
            Then::Rst,
            not_sent,
        );
        add("garbage", polite, b"@@@@\r\n", Then::Hold, no_resp);
        add(
            "more replies than requests",
            polite,
            &[GREETING, GREETING, GREETING].concat(),
            Then::Hold,
            no_resp,
        );
    }
    add("as it should be", 3, b"", Then::Hold, connects);
    add(
        "CLIENT SETINFO is unknown",
        1,
        b"-ERR unknown subcommand 'SETINFO'\r\n",
        Then::Hold,
        not_sent,
    );
    cases
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_answers_the_handshake_connecting_ends_with_a_typed_error() {
    let running = handshake_cases().into_iter().map(|case| {
        tokio::spawn(async move {
            let Greeted {
                name,
                polite,
                bytes,
                then,
                expected,
            } = case;
            let bytes = Arc::new(bytes);
            let server = Scripted::start(move |mut peer| {
                let bytes = Arc::clone(&bytes);
                async move {
                    for answer in [GREETING, b"+OK\r\n", b"+OK\r\n"].into_iter().take(polite) {
                        peer.request().await;
                        peer.say(answer).await;
                    }
                    peer.request().await;
                    misbehave(peer, &bytes, then).await;
                }
            })
            .await;
            let began = Instant::now();
            let outcome = Connection::connect(endpoint(&server)).await;
            assert!(began.elapsed() < BOUND, "{name} after {polite}");
            let outcome = outcome.map(drop);
            assert!(expected(&outcome), "{name} after {polite}: {outcome:?}");
            // Nothing is left behind. (A flood does not read, and a peer that reset is gone.)
            while matches!(then, Then::Hold | Then::Fin) && server.ended() < 1 {
                assert!(
                    began.elapsed() < BOUND,
                    "{name} after {polite}: the socket stays open"
                );
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(
                server.accepted(),
                1,
                "{name} after {polite}: connecting is one attempt"
            );
        })
    });
    for case in running.collect::<Vec<_>>() {
        case.await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_says_why_it_hangs_up_before_any_command_is_heard() {
    for (line, kind) in [
        (
            "-ERR max number of clients reached\r\n",
            ServerErrorKind::MaxClients,
        ),
        (
            "-DENIED Redis is running in protected mode because protected mode is enabled\r\n",
            ServerErrorKind::Denied,
        ),
    ] {
        for _ in 0..50 {
            let server = Scripted::start(move |mut peer| async move {
                peer.say(line).await;
                // With FIN, and with RST when `HELLO` comes.
            })
            .await;
            let outcome = Connection::connect(endpoint(&server)).await.map(drop);
            assert!(refused(&outcome, &kind), "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn a_handshake_in_crumbs_is_a_handshake() {
    let server = Scripted::start(|mut peer| async move {
        for answer in [GREETING, b"+OK\r\n", b"+OK\r\n"] {
            peer.request().await;
            for byte in answer {
                peer.say([*byte]).await;
                tokio::task::yield_now().await;
            }
        }
        peer.behave().await;
    })
    .await;
    let connection = Connection::connect(endpoint(&server)).await.unwrap();
    assert_eq!(
        connection.send(&echo("a")).await.unwrap().as_str(),
        Some("a")
    );
}

#[tokio::test]
async fn servers_that_do_not_know_client_setinfo_are_welcome() {
    let server = Scripted::start(|mut peer| async move {
        peer.request().await;
        peer.say(GREETING).await;
        for _ in 0..2 {
            peer.request().await;
            peer.say("-ERR Unknown subcommand or wrong number of arguments for 'SETINFO'. Try CLIENT HELP.\r\n").await;
        }
        peer.behave().await;
    })
    .await;
    let connection = Connection::connect(endpoint(&server)).await.unwrap();
    assert_eq!(
        connection.send(&echo("a")).await.unwrap().as_str(),
        Some("a")
    );
}
