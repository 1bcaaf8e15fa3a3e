//! Mistakes of users and servers: each is an error of its own kind, whose message says what
//! happened, to which key, at which node and what to do. No data is lost.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Guard, Locks, LostReason, Release};
use leasehold_testkit::{Accept, Cut, Fault, Proxy, Raw, RawValue, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{
    assert_everything_expires, exists, fields, locks, ms, pttl, short_locks, until, within,
};

/// The error is of that kind, and its message has all these parts.
#[track_caller]
fn assert_says(error: &Error, kind: ErrorKind, parts: &[&str]) {
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

/// A listener that sends `greeting` unasked, answers each request with the next of `answers`, and
/// closes the connection when none is left.
async fn somebody(greeting: &'static str, answers: &'static [&'static str]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                socket.write_all(greeting.as_bytes()).await?;
                for answer in answers {
                    if socket.read(&mut [0; 4096]).await? == 0 {
                        break;
                    }
                    socket.write_all(answer.as_bytes()).await?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    addr
}

async fn connect_to(addr: SocketAddr) -> Error {
    let builder =
        Locks::builder(format!("redis://{addr}")).connect_timeout(Duration::from_secs(10));
    within("an answer", builder.connect())
        .await
        .expect_err("that is no Redis server")
}

#[tokio::test]
async fn what_is_no_redis_server_is_told_from_one() {
    const HTTP: &[&str] =
        &["HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html></html>"];
    for (greeting, answers) in [
        ("", HTTP),
        ("SSH-2.0-OpenSSH_9.2\r\n", HTTP),
        ("220 mail.example.com ESMTP\r\n", HTTP),
        ("", &["\0\0\0\x0cnonsense"]),
        ("", &["$-7\r\n"]),
        ("+PONG\r\n", HTTP),
    ] {
        let addr = somebody(greeting, answers).await;
        let error = connect_to(addr).await;
        assert_says(
            &error,
            ErrorKind::Protocol,
            &[&addr.to_string(), "Redis or Valkey server"],
        );
    }
}

#[tokio::test]
async fn a_server_that_only_speaks_resp2_is_told_so() {
    for answer in [
        "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n",
        "-ERR unknown command 'HELLO', with args beginning with: '3' \r\n",
        "-NOPROTO unsupported protocol version\r\n",
        "-NOPROTO sorry, this protocol version is not supported\r\n",
    ] {
        let answers: &'static [&'static str] = Vec::leak(vec![answer]);
        let addr = somebody("", answers).await;
        let error = connect_to(addr).await;
        assert_says(
            &error,
            ErrorKind::Protocol,
            &[&addr.to_string(), "RESP3", "Redis 6.0"],
        );
    }
    // One that takes the command and answers as RESP2 does.
    let addr = somebody(
        "",
        &["*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n"],
    )
    .await;
    assert_says(
        &connect_to(addr).await,
        ErrorKind::Protocol,
        &[&addr.to_string(), "RESP3"],
    );
}

#[tokio::test]
async fn a_server_that_refuses_everybody_says_why() {
    let addr = somebody("-ERR max number of clients reached\r\n", &[]).await;
    let full = connect_to(addr).await;
    assert!(
        matches!(
            full.kind(),
            ErrorKind::Unavailable | ErrorKind::Protocol | ErrorKind::Server
        ),
        "{full}"
    );
    assert!(full.to_string().contains(&addr.to_string()), "{full}");

    let server = Server::builder().requirepass("right").start().await;
    let node = server.addr().to_string();
    for url in [
        format!("redis://:wrong@{node}"),
        format!("redis://nobody:right@{node}"),
        format!("redis://{node}"),
    ] {
        let error = within("an answer", Locks::connect(url)).await.unwrap_err();
        assert_says(&error, ErrorKind::Denied, &[&node, "password"]);
        assert_eq!(error.key(), "");
    }
    // A wrong guess has no effect on the lock.
    drop(locks(&server).await.mutex("a").lock().await.unwrap());
}

#[tokio::test]
async fn a_database_that_is_not_there_is_named() {
    let server = Server::start().await;
    let error = Locks::connect(format!("{}/99", server.url()))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains(&server.addr().to_string()),
        "{error}"
    );
    assert!(error.to_string().contains("DB index"), "{error}");
}

/// A handshake that ends anywhere is an error at once, and one that never ends is one after the
/// connect timeout.
#[tokio::test]
async fn a_server_that_dies_during_the_handshake_could_not_be_reached() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let healthy = Locks::connect(proxy.url()).await.unwrap();
    drop(healthy);
    let (there, back) = (proxy.from_client(), proxy.from_server());
    let mut failed = 0;
    for (bytes, to_server) in [(there, true), (back, false)] {
        for after in 0..bytes.min(400) {
            let fault = Fault::Cut {
                after,
                how: if after % 2 == 0 { Cut::Rst } else { Cut::Fin },
            };
            if to_server {
                proxy.to_server(fault)
            } else {
                proxy.to_client(fault)
            }
            // Requests behind the handshake are repeated by the connection.
            if let Err(error) = within("an answer", Locks::connect(proxy.url())).await {
                assert_says(
                    &error,
                    ErrorKind::Unavailable,
                    &[&proxy.addr().to_string(), "try again"],
                );
                failed += 1;
            }
            proxy.heal();
        }
    }
    assert!(failed > 100, "{failed}");
    proxy.accept(Accept::Silence);
    let silent = Locks::builder(proxy.url())
        .connect_timeout(ms(100))
        .connect();
    let error = within("the connect timeout", silent).await.unwrap_err();
    assert_says(
        &error,
        ErrorKind::Unavailable,
        &[&proxy.addr().to_string(), "100ms"],
    );
}

/// Without the feature `tls`, without certificates to trust, or with both: no later attempt can
/// succeed.
#[tokio::test]
async fn rediss_to_a_port_without_tls_is_a_setting_and_not_an_outage() {
    let server = Server::start().await;
    let url = server.url().replace("redis://", "rediss://");
    let error = within("a refusal", Locks::connect(url)).await.unwrap_err();
    assert_says(&error, ErrorKind::Config, &[&server.addr().to_string()]);
    assert!(!error.to_string().contains("try again"), "{error}");
}

/// Operations in progress when the server dies end with an error that says so, and work again with
/// the next server.
#[tokio::test]
async fn a_server_that_dies_under_a_lock_is_an_error_for_each_operation() {
    let server = Server::start().await;
    let node = server.addr().to_string();
    let ours = short_locks(&server, Duration::from_secs(2)).await;
    let (kept, released) = (
        ours.mutex("kept").lock().await.unwrap(),
        ours.mutex("released").lock().await.unwrap(),
    );
    let foreign = locks(&server).await;
    let foreign = foreign.mutex("wanted").lock().lease(ms(600)).await.unwrap();
    let waiter = tokio::spawn(
        ours.mutex("wanted")
            .try_lock_for(Duration::from_secs(10))
            .into_future(),
    );
    let mut raw = server.raw().await;
    until("the waiter", async || {
        crate::support::tickets(&mut raw, "wanted").await == 1
    })
    .await;

    // Frozen first, so that what is sent stays without an answer.
    server.pause();
    let locking = tokio::spawn(ours.mutex("new").lock().into_future());
    let releasing = tokio::spawn(released.release());
    tokio::time::sleep(ms(50)).await;
    server.kill();
    let error = within("the lock", locking).await.unwrap().unwrap_err();
    assert_says(&error, ErrorKind::Unknown, &["`new`", &node, "try again"]);
    let error = within("the release", releasing).await.unwrap().unwrap_err();
    assert_says(&error, ErrorKind::Unknown, &["`released`", &node]);
    let error = within("the waiter", waiter).await.unwrap();
    let error = error.expect_err("nobody answered");
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
        "{error}"
    );
    assert_says(&error, error.kind(), &["`wanted`", &node, "try again"]);
    assert_eq!(within("the news", kept.lost()).await, LostReason::Expired);

    server.restart().await;
    let mut raw = server.raw().await;
    until("the next server is found", async || {
        ours.mutex("new").try_lock().await.is_ok()
    })
    .await;
    assert_eq!(
        within("the release of what is gone", kept.release())
            .await
            .unwrap(),
        Release::AlreadyGone
    );
    drop(foreign);
    let wanted = within("a lock", ours.mutex("wanted").lock().into_future())
        .await
        .unwrap();
    assert_eq!(wanted.release().await.unwrap(), Release::Released);
    for key in ["kept", "released", "new", "wanted"] {
        until("nothing comes back", async || !exists(&mut raw, key).await).await;
    }
}

#[tokio::test]
async fn a_key_that_is_no_lock_is_refused_whatever_it_is() {
    let server = Server::start().await;
    let node = server.addr().to_string();
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let others: [&[&str]; 5] = [
        &["SET", "string", "precious"],
        &["RPUSH", "list", "precious"],
        &["SADD", "set", "precious"],
        &["ZADD", "zset", "1", "precious"],
        &["XADD", "stream", "*", "precious", "1"],
    ];
    for create in others {
        raw.cmd(create).await;
        let key = create[1];
        let before = raw.cmd(&["DUMP", key]).await;
        let error = within("an answer", locks.mutex(key).lock().into_future())
            .await
            .unwrap_err();
        assert_says(
            &error,
            ErrorKind::WrongType,
            &[&format!("`{key}`"), &node, "another name"],
        );
        assert_eq!(raw.cmd(&["DUMP", key]).await, before, "left as it was");
        assert!(!exists(&mut raw, &format!("redisson_lock_token:{{{key}}}")).await);
    }
}

/// The counter of fencing tokens is a key as well.
#[tokio::test]
async fn a_token_counter_that_is_none_is_refused_before_the_lock_is_taken() {
    let server = Server::start().await;
    let node = server.addr().to_string();
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let counters: [(&[&str], ErrorKind); 4] = [
        (
            &["RPUSH", "redisson_lock_token:{a}", "x"],
            ErrorKind::WrongType,
        ),
        (
            &["SET", "redisson_lock_token:{a}", "many"],
            ErrorKind::Server,
        ),
        (&["SET", "redisson_lock_token:{a}", "-1"], ErrorKind::Server),
        (
            &["SET", "redisson_lock_token:{a}", "9007199254740991"],
            ErrorKind::Server,
        ),
    ];
    for (create, kind) in counters {
        raw.cmd(&["DEL", create[1]]).await;
        raw.cmd(create).await;
        let error = within("an answer", locks.mutex("a").lock().into_future())
            .await
            .unwrap_err();
        assert_says(&error, kind, &["`a`", &node]);
        assert!(
            !exists(&mut raw, "a").await,
            "{create:?}: not taken, and not half taken"
        );
    }
    raw.cmd(&["DEL", "redisson_lock_token:{a}"]).await;
    drop(
        within("the lock", locks.mutex("a").lock().into_future())
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn names_and_durations_say_what_is_wrong_with_them() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let long = "x".repeat(1 << 20);
    for (name, says) in [
        ("", "empty"),
        ("a{b", "hash tag"),
        ("{}x", "hash tag"),
        ("}{", "hash tag"),
        (&long, "4096"),
    ] {
        let error = locks.mutex(name).lock().await.unwrap_err();
        assert_says(&error, ErrorKind::BadName, &[says]);
        assert_eq!(error.key(), name);
    }
    for lease in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let error = locks.mutex("a").lock().lease(lease).await.unwrap_err();
        assert_says(&error, ErrorKind::BadLease, &["`a`", "10ms", "365 days"]);
    }
    for url in [
        "",
        "redis",
        "http://127.0.0.1",
        "redis://127.0.0.1:port",
        "redis://[::1",
        "redis://h:99999",
    ] {
        let error = within("no answer is needed", Locks::connect(url))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
    }
}

/// Waiting without end, or for no time at all, for a held lock: neither panics in the arithmetic.
#[tokio::test]
async fn absurd_times_to_wait_are_only_long_or_short() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let guard = theirs
        .mutex("a")
        .lock()
        .lease(Duration::from_secs(365 * 86_400))
        .await
        .unwrap();
    for time in [Duration::ZERO, Duration::from_nanos(1)] {
        assert!(
            within("nothing", ours.mutex("a").try_lock_for(time).into_future())
                .await
                .unwrap()
                .is_none()
        );
    }
    let times = [
        Duration::from_secs(u64::MAX / 1_000),
        Duration::from_secs(1 << 40),
        Duration::MAX,
    ];
    let waiters: Vec<_> = times
        .map(|time| tokio::spawn(ours.mutex("a").try_lock_for(time).into_future()))
        .into_iter()
        .collect();
    until("the waiters", async || {
        crate::support::tickets(&mut raw, "a").await == 1
    })
    .await;
    drop(guard);
    for waiter in waiters {
        let got: Option<Guard> = within("its turn", waiter).await.unwrap().unwrap();
        drop(got.expect("there is no end to its patience"));
    }
    let guard = ours
        .mutex("a")
        .lock()
        .max_hold(Duration::from_secs(365 * 86_400))
        .await
        .unwrap();
    assert!(guard.valid_for() <= Duration::from_secs(30));
}

#[tokio::test]
async fn a_server_without_memory_takes_no_locks_and_still_lets_go_of_them() {
    let server = Server::start().await;
    let node = server.addr().to_string();
    let mut raw = server.raw().await;
    let locks = Locks::builder(server.url())
        .lease(ms(900))
        .command_timeout(ms(400))
        .connect()
        .await
        .unwrap();
    let guards = [
        locks.mutex("a").lock().await.unwrap(),
        locks.mutex("b").lock().await.unwrap(),
    ];
    raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = within("an answer", locks.mutex("c").lock().into_future())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("OOM") && error.to_string().contains(&node),
        "{error}"
    );
    assert_says(&error, error.kind(), &["`c`"]);
    assert!(!exists(&mut raw, "c").await);
    // Longer than the lease: renewing needs no memory.
    tokio::time::sleep(ms(1_300)).await;
    for guard in guards {
        assert!(guard.is_held());
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
    raw.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    drop(
        within("the lock", locks.mutex("c").lock().into_future())
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn a_replica_takes_no_locks() {
    let (master, replica) = (Server::start().await, Server::start().await);
    let mut raw = replica.raw().await;
    let locks = Locks::builder(replica.url())
        .command_timeout(ms(1_500))
        .connect()
        .await
        .unwrap();
    raw.cmd(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])
        .await;
    let error = within("an answer", locks.mutex("a").lock().into_future())
        .await
        .unwrap_err();
    assert_says(
        &error,
        error.kind(),
        &["`a`", &replica.addr().to_string(), "READONLY"],
    );
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Server),
        "{error}"
    );
    raw.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    until("it serves again", async || {
        locks.mutex("a").try_lock().await.is_ok()
    })
    .await;
}

/// Nothing at the key `a` is taken for a lock, and nothing of it is changed.
async fn assert_no_lock(raw: &mut Raw, locks: &Locks) {
    let before = fields(raw, "a").await;
    let is_permanent = pttl(raw, "a").await == -1;
    let a = locks.mutex("a");
    let fixed = a.try_lock().lease(ms(1000));
    let errors = [
        a.lock().await.map(drop).unwrap_err(),
        fixed.await.map(drop).unwrap_err(),
        a.try_lock_for(ms(10)).await.map(drop).unwrap_err(),
        a.holder().await.map(drop).unwrap_err(),
        a.remaining().await.map(drop).unwrap_err(),
        a.force_unlock().await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_says(&error, ErrorKind::WrongType, &["`a`", "another name"]);
    }
    assert!(
        fields(raw, "a").await == before,
        "{before:.200} was changed"
    );
    assert_eq!(pttl(raw, "a").await == -1, is_permanent);
}

#[tokio::test]
async fn a_hash_of_somebody_elses_data_is_no_lock_and_is_never_deleted() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let hashes: [&[&str]; 9] = [
        &["name", "Ann"],
        &["", "many"],
        &[":", "1"],
        &["no colon", "1"],
        &["uuid:1", "many"],
        &["uuid:1", "-1"],
        &["uuid:1", "1", "name", "Ann"],
        &["mode", "read"],
        &["mode", "dark", "uuid:1", "1"],
    ];
    for hash in hashes {
        raw.cmd(&[&["HSET", "a"], hash].concat()).await;
        assert_no_lock(&mut raw, &locks).await;
        raw.cmd(&["PEXPIRE", "a", "600000"]).await;
        assert_no_lock(&mut raw, &locks).await;
        raw.cmd(&["DEL", "a"]).await;
    }
    for n in 0..5_000 {
        raw.cmd(&["HSET", "a", &format!("field {n}"), "text"]).await;
    }
    assert_no_lock(&mut raw, &locks).await;
}

#[tokio::test]
async fn strange_holders_are_holders_all_the_same() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let long = format!("{}:1", "x".repeat(10_000));
    let locked: [&[&str]; 4] = [
        &["\r\n$5\r\n:1", "1"],
        &[&long, "3"],
        &["mode", "write", "uuid:1:write", "2"],
        &["mode", "read", "uuid:1", "1", "other:7", "2"],
    ];
    for lock in locked {
        raw.cmd(&[&["HSET", "a"], lock].concat()).await;
        raw.cmd(&["PEXPIRE", "a", "60000"]).await;
        let a = locks.mutex("a");
        assert!(a.try_lock().await.unwrap().is_none());
        assert!(a.holder().await.unwrap().expect("a holder").count() > 0);
        assert!(a.remaining().await.unwrap().expect("held") <= ms(60_000));
        assert!(a.force_unlock().await.unwrap());
        assert!(!exists(&mut raw, "a").await);
    }
    assert_everything_expires(&mut raw).await;
    assert!(matches!(raw.cmd(&["PING"]).await, RawValue::Simple(_)));
}
