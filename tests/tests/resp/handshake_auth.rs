//! Authentication: against a real server, and against one that refuses and counts the bytes that
//! still arrive.

use std::time::{Duration, Instant};

use leasehold_resp::{AskServer, Command, Connection, Endpoint, Error, ErrorKind, ServerErrorKind};
use leasehold_testkit::scripted::{GREETING, Scripted};
use leasehold_testkit::{Accept, Proxy, Server};

use crate::support::BOUND;

/// Every character that has a meaning in URLs, in RESP, or in a terminal.
const ODD: &str = "p@ss:w/o?r#d&=+ %25\"'{}[]<>|\\^`~!$*();,ü€🔑";

async fn kind_of_refusal(url: &str, secrets: &[&str]) -> ServerErrorKind {
    let error = Connection::connect(Endpoint::parse(url).unwrap())
        .await
        .map(drop)
        .unwrap_err();
    tells_nothing(&error, secrets);
    error
        .as_server()
        .unwrap_or_else(|| panic!("{error}"))
        .kind()
        .clone()
}

/// Neither the message nor anything behind it shows a secret.
fn tells_nothing(error: &Error, secrets: &[&str]) {
    let mut source = Some(error as &dyn std::error::Error);
    while let Some(error) = source {
        for secret in secrets {
            let told = format!("{error} {error:?} {error:#?}");
            assert!(!told.contains(secret), "{told}");
        }
        source = error.source();
    }
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn a_wrong_password_and_none_are_told_apart_and_never_shown() {
    let server = Server::builder().requirepass("rightone").start().await;
    let addr = server.addr();
    let wrong = kind_of_refusal(
        &format!("redis://:wrongone@{addr}"),
        &["wrongone", "rightone"],
    )
    .await;
    assert_eq!(wrong, ServerErrorKind::WrongPass);
    let none = kind_of_refusal(&format!("redis://{addr}"), &["rightone"]).await;
    assert_eq!(none, ServerErrorKind::NoAuth);
    let right = Connection::connect(Endpoint::parse(&server.url()).unwrap())
        .await
        .unwrap();
    assert_eq!(
        right.send(&Command::new("PING")).await.unwrap().as_str(),
        Some("PONG")
    );
    assert!(!format!("{right:?} {:?}", right.endpoint()).contains("rightone"));
}

#[tokio::test]
async fn a_user_comes_in_as_itself_with_its_own_password_and_rights() {
    let server = Server::builder()
        .config("user app on >secret ~app:* +@all -flushall")
        .start()
        .await;
    let addr = server.addr();
    let connection =
        Connection::connect(Endpoint::parse(&format!("redis://app:secret@{addr}")).unwrap())
            .await
            .unwrap();
    let who = connection
        .send(&Command::new("ACL").arg("WHOAMI"))
        .await
        .unwrap();
    assert_eq!(who.as_str(), Some("app"));
    for forbidden in [Command::new("FLUSHALL"), Command::new("GET").arg("other")] {
        let error = connection.send(&forbidden).await.unwrap_err();
        assert_eq!(
            *error.as_server().unwrap().kind(),
            ServerErrorKind::NoPerm,
            "{error}"
        );
    }
    for url in [
        format!("redis://app:wrong@{addr}"),
        format!("redis://nobody:secret@{addr}"),
    ] {
        assert_eq!(
            kind_of_refusal(&url, &["wrong@", "secret"]).await,
            ServerErrorKind::WrongPass
        );
    }
}

#[tokio::test]
async fn a_password_may_hold_any_character() {
    let server = Server::start().await;
    let created = server
        .raw()
        .await
        .cmd(&[
            "ACL",
            "SETUSER",
            "odd",
            "on",
            &format!(">{ODD}"),
            "~*",
            "+@all",
        ])
        .await;
    assert!(created.is_ok(), "{created:?}");
    let addr = server.addr();
    let plain = {
        let mut endpoint = Endpoint::parse(&format!("redis://{addr}")).unwrap();
        (endpoint.user, endpoint.password) = (Some("odd".into()), Some(ODD.into()));
        endpoint
    };
    let from_url = Endpoint::parse(&format!("redis://odd:{}@{addr}", escaped(ODD))).unwrap();
    for endpoint in [plain, from_url] {
        let connection = Connection::connect(endpoint).await.unwrap();
        let who = connection
            .send(&Command::new("ACL").arg("WHOAMI"))
            .await
            .unwrap();
        assert_eq!(who.as_str(), Some("odd"));
    }
    let wrong = format!("redis://odd:{}@{addr}", escaped(&format!("{ODD}!")));
    assert_eq!(
        kind_of_refusal(&wrong, &[ODD, &escaped(ODD)]).await,
        ServerErrorKind::WrongPass
    );
}

#[tokio::test]
async fn the_database_is_selected_on_every_connection_and_one_that_does_not_exist_is_refused() {
    let server = Server::builder().config("databases 4").start().await;
    let addr = server.addr();
    let connection = Connection::connect(Endpoint::parse(&format!("redis://{addr}/3")).unwrap())
        .await
        .unwrap();
    connection
        .send(&Command::new("SET").arg("k").arg("three"))
        .await
        .unwrap();
    let mut raw = server.raw().await;
    assert!(raw.cmd(&["GET", "k"]).await.is_null());
    raw.cmd(&["SELECT", "3"]).await;
    assert_eq!(raw.cmd(&["GET", "k"]).await.str(), "three");
    // Reopened, it is still the same.
    raw.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let began = Instant::now();
    let again = loop {
        match connection.send(&Command::new("GET").arg("k")).await {
            Ok(value) => break value,
            Err(error) => assert!(error.is_transient() && began.elapsed() < BOUND, "{error}"),
        }
    };
    assert_eq!(again.as_str(), Some("three"));

    let beyond = Connection::connect(Endpoint::parse(&format!("redis://{addr}/4")).unwrap()).await;
    let error = beyond.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert!(
        error.to_string().contains("DB index is out of range"),
        "{error}"
    );
}

#[tokio::test]
async fn the_server_lists_us_by_our_name_and_library() {
    let server = Server::start().await;
    let url = format!("{}?client_name=billing", server.url());
    let _connection = Connection::connect(Endpoint::parse(&url).unwrap())
        .await
        .unwrap();
    let list = server.raw().await.cmd(&["CLIENT", "LIST"]).await;
    let line = list
        .str()
        .lines()
        .find(|line| line.contains(" name=billing "))
        .expect("our line");
    if line.contains(" lib-name=") {
        assert!(line.contains(" lib-name=leasehold "), "{line}");
    }
    let spaced = Connection::connect({
        let mut endpoint = Endpoint::parse(&server.url()).unwrap();
        endpoint.client_name = Some("two words".into());
        endpoint
    });
    assert_eq!(
        spaced.await.map(drop).unwrap_err().kind(),
        ErrorKind::Server
    );
}

/// redis issue 15640: the reply to a command behind a failed `AUTH` goes to another caller.
#[tokio::test]
async fn nothing_is_sent_behind_a_failed_auth() {
    let server = Scripted::start(|mut peer| async move {
        let hello = peer.request().await.unwrap();
        assert_eq!(
            hello,
            ["HELLO", "3", "AUTH", "app", "secret", "SETNAME", "me"]
        );
        peer.say("-WRONGPASS invalid username-password pair or user is disabled.\r\n")
            .await;
        assert_eq!(
            peer.request().await,
            None,
            "a request behind the failed AUTH"
        );
    })
    .await;
    let url = format!("redis://app:secret@{}?client_name=me", server.addr());
    assert_eq!(
        kind_of_refusal(&url, &["secret"]).await,
        ServerErrorKind::WrongPass
    );
    let began = Instant::now();
    while server.ended() == 0 {
        assert!(began.elapsed() < BOUND, "the socket stays open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let hello =
        leasehold_testkit::raw::encode(&["HELLO", "3", "AUTH", "app", "secret", "SETNAME", "me"]);
    assert_eq!(server.bytes_read(), hello.len() as u64);
    assert_eq!(server.accepted(), 1, "a wrong password is not tried again");
}

/// Nothing is pipelined behind the credentials, and everything else is.
#[tokio::test]
async fn the_handshake_is_hello_and_then_the_rest_at_once() {
    let rest: &[&str] = &["HELLO", "SELECT", "ROLE", "INFO", "CLIENT", "CLIENT"];
    for (refused, expected) in [("HELLO", &rest[..1]), ("SELECT", rest)] {
        let (seen, mut requests) = tokio::sync::mpsc::unbounded_channel();
        let server = Scripted::start(move |mut peer| {
            let seen = seen.clone();
            async move {
                while let Some(request) = peer.request().await {
                    let name = request[0].clone();
                    // Further requests get the time to arrive.
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    match name.as_str() {
                        name if name == refused => peer.say("-ERR no\r\n").await,
                        "HELLO" => peer.say(GREETING).await,
                        _ => peer.say("+OK\r\n").await,
                    }
                    seen.send(name).unwrap();
                }
                seen.send("end".into()).unwrap();
            }
        })
        .await;
        let mut endpoint = Endpoint::parse(&format!("redis://{}/2", server.addr())).unwrap();
        endpoint.master_only = true;
        endpoint.ask_server = AskServer::IfPermitted;
        let error = Connection::connect(endpoint).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Server);
        let mut names = Vec::new();
        while names.last().is_none_or(|last| last != "end") {
            names.push(
                tokio::time::timeout(BOUND, requests.recv())
                    .await
                    .unwrap()
                    .unwrap(),
            );
        }
        names.pop();
        assert_eq!(names, expected);
    }
}

#[tokio::test]
async fn a_server_that_dies_in_the_handshake_is_one_that_cannot_be_reached() {
    let server = Server::builder().requirepass("rightone").start().await;
    let proxy = Proxy::start(server.addr());
    let url = format!("redis://:rightone@{}/1", proxy.addr());
    let endpoint = |timeout_ms| {
        let mut endpoint = Endpoint::parse(&url).unwrap();
        endpoint.connect_timeout = Duration::from_millis(timeout_ms);
        endpoint
    };
    // Number of bytes of a whole handshake.
    let before = proxy.from_server();
    Connection::connect(endpoint(10_000))
        .await
        .map(drop)
        .unwrap();
    let said = proxy.from_server() - before;
    assert!(said > 100);
    for how in [leasehold_testkit::Cut::Fin, leasehold_testkit::Cut::Rst] {
        for after in (0..said).step_by(7) {
            proxy.to_client(leasehold_testkit::Fault::Cut { after, how });
            let error = Connection::connect(endpoint(10_000))
                .await
                .map(drop)
                .unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::NotSent,
                "{how:?} after {after}: {error}"
            );
            tells_nothing(&error, &["rightone"]);
        }
    }
    // And one that does not listen, or does not answer.
    for (mode, timeout_ms) in [(Accept::Refuse, 10_000), (Accept::Silence, 100)] {
        proxy.accept(mode);
        let error = Connection::connect(endpoint(timeout_ms))
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSent, "{error}");
        assert!(error.is_transient());
        tells_nothing(&error, &["rightone"]);
    }
}
