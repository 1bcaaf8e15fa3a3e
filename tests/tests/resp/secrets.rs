//! Nothing that can be printed shows a password, whatever a server echoes.

use std::error::Error as _;

use bytes::BytesMut;
use leasehold_resp::pipeline::{Pipeline, Shape};
use leasehold_resp::push::{Confirmation, Subscribe};
use leasehold_resp::{Asking, Codec, Command, Connection, Endpoint, Error, ErrorKind};
use leasehold_testkit::Server;
use leasehold_testkit::scripted::{GREETING, Scripted};
use tokio_util::codec::Encoder;

/// Everything that a program or a panic can print of an error.
fn printed(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?} {} ", error.detail());
    if let Some(server) = error.as_server() {
        let (code, message) = (server.code(), server.message());
        text += &format!("{server} {server:?} {code} {message}");
    }
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!("{error} {error:?} {error:#?}");
        source = error.source();
    }
    text
}

/// No part of `secret` that is long enough to be useful.
fn assert_hidden(secret: &str, text: &str) {
    let chars: Vec<char> = secret.chars().collect();
    for part in chars.windows(chars.len().min(5)) {
        let part: String = part.iter().collect();
        assert!(!text.contains(&part), "{part:?} of {secret:?} in {text}");
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Longer than the 128 bytes after which servers cut their echo off.
const LONG: &str = "K7#qW9!zR2$mX5^bN8&vC1*lJ4(hG6)fD3-sA0_pO+uY=tE{iQ}wL[kM]xZ;rT:nB,yU.jI/eP?oS<aF>dH|gV~cXq7Ws2Ed4Rf6Tg8Yh0Uj1Ik3Ol5Pz9Mx7Nc2Bv4Lb6";

/// As with Redis 5, with proxies, and with a renamed command: the real echo of a real server.
#[tokio::test]
async fn a_server_without_hello_echoes_the_password_and_the_error_does_not_show_it() {
    let server = Server::builder()
        .config("rename-command HELLO \"\"")
        .start()
        .await;
    // That it does echo what it was sent.
    let mut raw = server.raw().await;
    let echo = raw
        .cmd(&["HELLO", "3", "AUTH", "default", "s3cretPW"])
        .await;
    assert!(echo.error().unwrap().contains("s3cretPW"), "{echo:?}");

    let with_quotes = "it's \"quoted\" \\ s3cretPW";
    for password in [
        "s3cretPW",
        with_quotes,
        "two\nlines\r\nof it",
        "пароль🔑пароль",
        LONG,
    ] {
        for user in ["", "default", "somebody"] {
            let url = format!("redis://{user}:{}@{}", encoded(password), server.addr());
            let endpoint = Endpoint::parse(&url).unwrap();
            let error = Connection::connect(endpoint).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
            let text = printed(&error);
            assert!(text.contains("does not speak RESP3"), "{text}");
            assert!(text.contains("unknown command"), "{text}");
            for spelling in [password, &password.replace(['\r', '\n'], " ")] {
                assert_hidden(spelling, &text);
            }
        }
    }
}

/// Echoes in other words, plain, escaped and cut off; during the handshake and long after it.
#[tokio::test]
async fn an_echo_in_any_words_is_left_out_at_any_time() {
    let password = "p@ss\"w\\rd-0815";
    for echo in [
        "-ERR proxy: cannot route HELLO 3 AUTH default p@ss\"w\\rd-0815 to a shard\r\n",
        "-ERR bad request \"HELLO 3 AUTH default p@ss\\\"w\\\\rd-0815\"\r\n",
        "-ERR refused: HELLO 3 AUTH default p@ss\"w\\rd-0...\r\n",
        "-p@ss\"w\\rd-0815\r\n",
        "!63\r\nSYNTAX near p@ss\"w\\rd-0815 p@ss\"w\\rd-0815p@ss\"w\\rd-0815 end\r\n",
    ] {
        let server = Scripted::start(move |mut peer| async move {
            if peer.number == 0 {
                peer.request().await;
                peer.say(echo).await;
                return peer.silence().await;
            }
            for answer in [GREETING, b"+OK\r\n", b"+OK\r\n"] {
                peer.request().await;
                peer.say(answer).await;
            }
            // The answer to a command, and then one to nothing.
            peer.request().await;
            peer.say(echo).await;
            peer.request().await;
            peer.say([echo, echo].concat()).await;
            peer.silence().await;
        })
        .await;
        let url = format!("redis://:{}@{}", encoded(password), server.addr());
        let endpoint = Endpoint::parse(&url).unwrap();
        let mut errors = Vec::new();
        errors.push(
            Connection::connect(endpoint.clone())
                .await
                .map(drop)
                .unwrap_err(),
        );
        let connection = Connection::connect(endpoint).await.unwrap();
        let ping = Command::new("PING");
        errors.push(connection.send(&ping).await.unwrap_err());
        let (second, unasked) = tokio::join!(connection.submit(&ping), async {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            connection.submit(&ping).await
        });
        errors.extend([second.unwrap_err(), unasked.unwrap_err()]);
        for error in errors {
            let text = printed(&error);
            for part in ["p@ss", "w\\rd", "0815"] {
                assert!(!text.contains(part), "{part} after {echo}: {text}");
            }
        }
    }
}

/// Bytes are hidden whether they are printed as text or as a list of numbers.
#[test]
fn what_holds_requests_does_not_show_them() {
    let secret = "s3cretPW";
    let numbers = format!("{:?}", secret.as_bytes());
    let numbers = numbers.trim_matches(['[', ']']);
    let auth = || Command::new("AUTH").arg(secret);
    let now = std::time::Instant::now();
    let mut codec = Codec::default();
    codec.encode(&auth(), &mut BytesMut::new()).unwrap();
    let mut pipeline = Pipeline::new("node:1".into(), std::time::Duration::from_secs(1));
    pipeline.submit(&auth(), Shape::Reply, now).unwrap();
    let queued = format!("{pipeline:?}");
    let writing = pipeline.begin_write();
    let args: [&[u8]; 2] = [b"AUTH", secret.as_bytes()];
    let subscribe = Subscribe {
        kind: Confirmation::Subscribe,
        channels: vec![secret.into()],
    };
    let mut endpoint = Endpoint::parse("redis://user@host?password=s3cretPW").unwrap();
    endpoint.client_name = Some("visible".into());
    for printed in [
        format!("{codec:?}{codec:#?}"),
        queued,
        format!("{pipeline:?}{writing:?}{writing:#?}"),
        format!("{:?}{:#?}", auth(), auth()),
        format!("{:?}{:?}", Asking(auth()), Asking(args)),
        format!("{subscribe:?}"),
        format!("{endpoint:?}{endpoint:#?}"),
    ] {
        assert!(!printed.contains(secret), "{printed}");
        let flat = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!flat.contains(numbers), "{printed}");
    }
}
