//! The mistakes of the first day, against real servers: the whole sentence that a person reads.

use std::net::UdpSocket;

use leasehold::{Error, Locks};
use leasehold_testkit::ports::Port;
use leasehold_testkit::{Cluster, Sentinels, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{locks, within};

async fn connecting(url: &str) -> Error {
    let connecting = Locks::connect(url);
    within(url, connecting).await.expect_err(url)
}

/// Asserts what each URL is answered with. Servers differ in what they say in brackets, which is left out, and so is what
/// the system calls it.
async fn are_told<const N: usize>(cases: [(String, String); N]) {
    for (url, expected) in cases {
        let error = connecting(&url).await.to_string();
        let mut told = error.clone();
        while let Some((before, rest)) = told.split_once(" (") {
            let (_, after) = rest.split_once(')').expect("a closing bracket");
            told = format!("{before}{after}");
        }
        assert_eq!(told, expected, "{url}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

fn case(url: impl Into<String>, told: impl Into<String>) -> (String, String) {
    (url.into(), told.into())
}

#[tokio::test]
async fn nobody_at_the_address() {
    let free = Port::reserve();
    let addr = format!("127.0.0.1:{}", free.number());
    let refused = format!(
        "{addr} could not be reached or does not serve, nothing was done: cannot connect: Connection refused: no server \
         listens there; check host and port, and that it is started; try again later"
    );
    are_told([
        case(format!("redis://:hunter2@{addr}"), &refused),
        case(format!("redis-cluster://{addr}"), &refused),
        case(format!("redis-sentinel://{addr}/service"), &refused),
        case(
            "redis://no-such-host.invalid",
            "no-such-host.invalid:6379 could not be reached or does not serve, nothing was done: cannot connect: the \
             host's name cannot be resolved, check it; try again later",
        ),
        case(
            "unix:///no/such.sock",
            "/no/such.sock could not be reached or does not serve, nothing was done: cannot connect: No such file or \
             directory: there is no socket at that path; try again later",
        ),
    ])
    .await;
}

#[tokio::test]
async fn the_wrong_password_or_none() {
    let server = Server::builder().requirepass("right").start().await;
    let addr = server.addr();
    let wrong = format!(
        "permission denied by {addr}: WRONGPASS invalid username-password pair or user is disabled.; check user and \
         password in the URL"
    );
    are_told([
        case(
            format!("redis://{addr}"),
            format!(
                "permission denied by {addr}: the server requires a password, and none was given; give user and password \
                 in the URL: redis://user:password@host"
            ),
        ),
        case(format!("redis://:hunter2@{addr}"), &wrong),
        case(format!("redis://nobody:hunter2@{addr}"), &wrong),
    ])
    .await;
}

#[tokio::test]
async fn another_kind_of_server() {
    let server = Server::start().await;
    let addr = server.addr();
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let node = cluster.addr(0);
    let sentinels = Sentinels::start().await;
    let sentinel = sentinels.sentinel(0).addr();
    let no_keys = format!(
        "the configuration does not work with {sentinel}: it is a sentinel, which has no keys: use \
         redis-sentinel://host:port/service"
    );
    are_told([
        case(
            format!("redis-cluster://{addr}"),
            format!(
                "the configuration does not work with {addr}: it is no node of a cluster: use redis://host:port"
            ),
        ),
        case(
            format!("redis-sentinel://{addr}/service"),
            format!(
                "the configuration does not work with {addr}: it is no sentinel, which mostly listen on port 26379; for a \
                 server use redis://host:port"
            ),
        ),
        case(format!("redis://{sentinel}"), &no_keys),
        case(format!("redis-cluster://{sentinel}"), &no_keys),
        case(
            format!("redis-sentinel://{sentinel}/nothing"),
            format!(
                "the configuration does not work with {sentinel}: the sentinel knows no service called 'nothing', see \
                 `sentinel monitor` in its configuration"
            ),
        ),
        case(
            format!("redis://{addr}/99"),
            format!("{addr} refused: database 99 is not there, or not for this user"),
        ),
        case(
            format!("redis-cluster://{node}/9999"),
            format!(
                "the configuration does not work with {node}: the URL names database 9999, which this cluster does not \
                 have; only Valkey 9 and later can have several, see `cluster-databases` in its configuration"
            ),
        ),
    ])
    .await;
    // By one of its nodes a cluster is used all the same: redirects lead to the others.
    let locks = Locks::connect(format!("redis://{node}")).await.unwrap();
    for n in 0..20 {
        let guard = locks.mutex(format!("order:{n}")).lock().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn something_that_is_no_server_at_all() {
    let web = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = web.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = web.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    are_told([case(
        format!("redis://{addr}"),
        format!(
            "unexpected reply from {addr}: the peer speaks HTTP; check that the URL is the one of a Redis or Valkey server"
        ),
    )])
    .await;
}

/// A server without a password that listens to everybody, asked from an address that is not the loopback.
#[tokio::test]
async fn a_server_in_protected_mode() {
    let outside = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    let Some(host) = outside.ok().filter(|addr| !addr.ip().is_loopback()) else {
        println!("skipped: this machine has no address but the loopback");
        return;
    };
    let builder = Server::builder().config("bind 0.0.0.0");
    let server = builder.config("protected-mode yes").start().await;
    if !server.knows("SPUBLISH").await {
        println!("skipped: a server before Redis 7 is not protected where it is told to listen");
        return;
    }
    let addr = format!("{}:{}", host.ip(), server.port());
    let error = connecting(&format!("redis://{addr}")).await.to_string();
    let reply = error
        .strip_prefix(&format!("permission denied by {addr}: DENIED "))
        .unwrap_or_else(|| panic!("{error}"));
    // Valkey 8 and newer do not name themselves.
    let begins = ["Redis is running", "Valkey is running", "Running"];
    assert!(
        begins
            .iter()
            .any(|begin| reply.starts_with(&format!("{begin} in protected mode"))),
        "{error}"
    );
    assert!(
        error.ends_with(
            "; it accepts clients of its own machine only while it has no password: set one (`requirepass`, or a user with \
             one)"
        ),
        "{error}"
    );
}

#[tokio::test]
async fn urls_that_are_nearly_right() {
    let not_used = |why: &str| format!("the configuration cannot be used: {why}");
    are_told([
        case(
            "localhost:6379",
            not_used("the server's URL has no scheme; write redis://host:port"),
        ),
        case(
            "reids://localhost",
            not_used("'reids://' is not a scheme that is understood; write redis://"),
        ),
        case(
            "https://localhost",
            not_used("'https://' is not a scheme that is understood; write rediss://"),
        ),
        case(
            "redis+sentinal://h/s",
            not_used("'redis+sentinal://' is not a scheme that is understood; write redis-sentinel://"),
        ),
        case(
            "redis://a:6379,b:6379",
            not_used(
                "in the server's URL, the host must be one name or address: several are for redis-cluster://host,host and \
                 redis-sentinel://host,host/service",
            ),
        ),
        case(
            "redis://h?username=hunter2",
            not_used(
                "the server's URL has an unknown parameter; client_name, db, user and password are known: write `user`",
            ),
        ),
        case(
            "redis-sentinel://h",
            not_used("the URL names no service; write redis-sentinel://host,host/service"),
        ),
    ])
    .await;
}

/// A name cannot forge a line of a log, and a long one does not fill it.
#[tokio::test]
async fn names_are_escaped_and_shortened() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let forged = "a\n2026-01-01 ERROR forged \u{1b}[31m\u{202e}";
    let long = "x".repeat(4_000);
    for name in [forged, &long] {
        raw.cmd(&["SET", name, "precious"]).await;
        let error = locks.mutex(name).lock().await.unwrap_err();
        assert_eq!(error.key(), name, "as it is");
        let shown = [error.to_string(), format!("{error:?}")];
        for shown in shown {
            assert!(!shown.contains(|c: char| c.is_control() || c == '\u{202e}'));
            assert!(shown.len() < 400, "{shown}");
        }
    }
    let error = locks.mutex(forged).holder().await.unwrap_err();
    let expected = format!(
        "the key at {} holds something that is not a lock (key `a\\n2026-01-01 ERROR forged \\u{{1b}}[31m\\u{{202e}}`)",
        server.addr()
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
    // No server was asked, and none is named.
    let too_long = "x".repeat(5_000);
    for name in ["", "a{b", &too_long] {
        let error = locks.mutex(name).lock().await.unwrap_err();
        assert_eq!((error.key(), error.node()), (name, ""));
        assert!(!error.is_retryable());
    }
}
