//! A peer that violates every rule of the protocol. In each case a request ends with its own reply
//! or a typed error, within its time; the connection is closed; and the next one works normally.

mod handshake;
mod load;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_resp::push::{Confirmation, Subscribe};
use leasehold_resp::{Connection, Endpoint, Error, ErrorKind, ServerErrorKind};
use leasehold_testkit::scripted::{Peer, Scripted};

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
