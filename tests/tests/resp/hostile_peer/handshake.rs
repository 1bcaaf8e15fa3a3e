//! A peer that violates the rules of the handshake: connecting ends with a typed error.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_resp::{Connection, Error, ErrorKind, ServerErrorKind};
use leasehold_testkit::scripted::{GREETING, Scripted};

use super::{Then, endpoint, misbehave};
use crate::support::{BOUND, echo};

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
