//! Each fault of the proxy does what it says: exact bytes over an echo peer, executed requests over
//! a real server.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leasehold_testkit::{Accept, Cut, Fault, Proxy, Raw, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// How long nothing must arrive to count as silence.
const QUIET: Duration = Duration::from_millis(200);

/// A peer that sends back what it gets, and the end of stream too.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut peer, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = peer.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    addr
}

async fn echo_through() -> (Proxy, TcpStream) {
    let proxy = Proxy::start(echo().await);
    let client = connect(&proxy).await;
    (proxy, client)
}

/// A connection that has passed a byte, so that the proxy is known to have taken it.
async fn connect(proxy: &Proxy) -> TcpStream {
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    client.set_nodelay(true).unwrap();
    assert_eq!(say(&mut client, b".").await, b".");
    client
}

/// Sends, and expects as many bytes back.
async fn say(client: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    client.write_all(bytes).await.unwrap();
    hear(client, bytes.len()).await
}

/// The next `n` bytes.
async fn hear(client: &mut TcpStream, n: usize) -> Vec<u8> {
    let mut heard = vec![0; n];
    timeout(Duration::from_secs(10), client.read_exact(&mut heard))
        .await
        .expect("within 10 s")
        .unwrap();
    heard
}

/// How the connection ends within ten seconds: `Ok` an orderly end, `Err` a reset.
async fn end(client: &mut TcpStream) -> Result<(), ErrorKind> {
    let mut rest = Vec::new();
    let end = timeout(Duration::from_secs(10), client.read_to_end(&mut rest))
        .await
        .expect("the connection ends");
    end.map(|_| ()).map_err(|e| e.kind())
}

async fn is_silent(client: &mut TcpStream) -> bool {
    timeout(QUIET, client.read_u8()).await.is_err()
}

#[tokio::test]
async fn a_healthy_proxy_passes_everything_and_counts() {
    let (proxy, mut client) = echo_through().await;
    let big: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    let (mut from, mut to) = client.split();
    let mut back = vec![0; big.len()];
    let (sent, got) = tokio::join!(to.write_all(&big), from.read_exact(&mut back));
    sent.unwrap();
    got.unwrap();
    assert!(back == big);
    assert_eq!((proxy.accepts(), proxy.open()), (1, 1));
    assert_eq!(
        (proxy.from_client(), proxy.from_server()),
        (1_000_001, 1_000_001)
    );

    client.shutdown().await.unwrap();
    assert_eq!(end(&mut client).await, Ok(()));
}

#[tokio::test]
async fn delay_is_at_least_what_was_asked_for_and_ends_when_healed() {
    let (proxy, mut client) = echo_through().await;
    proxy.to_client(Fault::Delay(Duration::from_millis(100)));
    let before = Instant::now();
    client.write_all(b"late").await.unwrap();
    let mut back = [0; 4];
    client.read_exact(&mut back).await.unwrap();
    assert!(before.elapsed() >= Duration::from_millis(100));

    proxy.to_client(Fault::Delay(Duration::from_secs(3600)));
    client.write_all(b"held").await.unwrap();
    assert!(is_silent(&mut client).await);
    proxy.heal();
    assert_eq!(hear(&mut client, 4).await, b"held");
}

#[tokio::test]
async fn trickle_passes_everything_in_small_pieces() {
    let (proxy, mut client) = echo_through().await;
    proxy.to_client(Fault::Trickle {
        bytes: 2,
        pause: Duration::from_millis(10),
    });
    let before = Instant::now();
    client.write_all(b"0123456789").await.unwrap();
    assert_eq!(hear(&mut client, 10).await, b"0123456789");
    // Five pieces have four pauses between them.
    assert!(before.elapsed() >= Duration::from_millis(40));
}

#[tokio::test]
async fn stall_is_back_pressure_and_loses_nothing() {
    let (proxy, mut client) = echo_through().await;
    proxy.to_server(Fault::Stall);
    let chunk = vec![7; 64 * 1024];
    let mut sent = 0;
    while let Ok(written) = timeout(QUIET, client.write(&chunk)).await {
        sent += written.unwrap();
    }
    assert_eq!(proxy.from_client(), 1, "a stalled proxy reads nothing");

    proxy.heal();
    let mut back = vec![0; sent];
    timeout(Duration::from_secs(20), client.read_exact(&mut back))
        .await
        .unwrap()
        .unwrap();
    assert!(back.iter().all(|b| *b == 7));
}

#[tokio::test]
async fn blackhole_swallows_and_tells_nobody() {
    let (proxy, mut client) = echo_through().await;
    proxy.blackhole();
    client.write_all(b"lost").await.unwrap();
    assert!(is_silent(&mut client).await);
    proxy.heal();
    assert_eq!(say(&mut client, b"found").await, b"found");
}

#[tokio::test]
async fn blackhole_hides_the_death_of_the_server_until_it_ends() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    client.write_all(b"PING\r\n").await.unwrap();
    assert_eq!(hear(&mut client, 7).await, b"+PONG\r\n");
    proxy.blackhole();
    server.kill();
    assert!(is_silent(&mut client).await);
    proxy.heal();
    let _ = end(&mut client).await;
}

#[tokio::test]
async fn corrupt_inverts_one_byte_once() {
    let (proxy, mut client) = echo_through().await;
    proxy.to_server(Fault::Corrupt { at: 5 });
    assert_eq!(say(&mut client, b"abc").await, b"abc");
    assert_eq!(say(&mut client, b"defg").await, [b'd', b'e', !b'f', b'g']);
    assert_eq!(say(&mut client, b"abcdefgh").await, b"abcdefgh");
}

#[tokio::test]
async fn cut_passes_exactly_k_bytes_of_either_direction_for_every_k() {
    const MESSAGE: &[u8] = b"0123456789";
    let (proxy, _client) = echo_through().await;
    for k in 0..=MESSAGE.len() as u64 {
        for replies in [false, true] {
            let mut client = connect(&proxy).await;
            let fault = Fault::Cut {
                after: k,
                how: Cut::HalfClose,
            };
            if replies {
                proxy.to_client(fault)
            } else {
                proxy.to_server(fault)
            }
            client.write_all(MESSAGE).await.unwrap();
            // Half-close shows every byte that passed, and the end of stream behind them.
            let mut heard = Vec::new();
            timeout(Duration::from_secs(10), client.read_to_end(&mut heard))
                .await
                .unwrap()
                .unwrap();
            assert_eq!(
                heard,
                MESSAGE[..usize::try_from(k).unwrap()],
                "replies: {replies}"
            );
            // Once: the next connection is healthy.
            assert_eq!(say(&mut connect(&proxy).await, MESSAGE).await, MESSAGE);
        }
    }
}

#[tokio::test]
async fn a_cut_counts_from_when_it_was_set_or_from_the_start_of_a_younger_connection() {
    let (proxy, mut old) = echo_through().await;
    assert_eq!(
        say(&mut old, b"many bytes before").await,
        b"many bytes before"
    );
    proxy.to_client(Fault::Cut {
        after: 4,
        how: Cut::Fin,
    });
    assert_eq!(say(&mut old, b"abc").await, b"abc");
    let mut young = connect(&proxy).await;
    assert_eq!(say(&mut young, b"ab").await, b"ab");
    old.write_all(b"de").await.unwrap();
    assert_eq!(hear(&mut old, 1).await, b"d");
    assert_eq!(end(&mut old).await, Ok(()));
    assert_eq!(say(&mut young, b"cdef").await, b"cdef");
}

#[tokio::test]
async fn the_ways_to_end_a_connection_differ() {
    let (proxy, mut client) = echo_through().await;
    proxy.to_client(Fault::Cut {
        after: 2,
        how: Cut::Rst,
    });
    client.write_all(b"abcd").await.unwrap();
    assert_eq!(end(&mut client).await, Err(ErrorKind::ConnectionReset));

    let mut client = connect(&proxy).await;
    proxy.to_client(Fault::Cut {
        after: 2,
        how: Cut::Fin,
    });
    client.write_all(b"abcd").await.unwrap();
    assert_eq!(hear(&mut client, 2).await, b"ab");
    assert_eq!(end(&mut client).await, Ok(()));
    client
        .write_all(b"a client that has not noticed yet")
        .await
        .unwrap();

    let mut client = connect(&proxy).await;
    proxy.to_client(Fault::Cut {
        after: 2,
        how: Cut::Silence,
    });
    client.write_all(b"abcd").await.unwrap();
    assert_eq!(hear(&mut client, 2).await, b"ab");
    client.write_all(b"anybody there").await.unwrap();
    assert!(is_silent(&mut client).await);
}

#[tokio::test]
async fn half_close_towards_the_client_still_executes_its_requests() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = Raw::connect(proxy.addr()).await.unwrap();
    assert_eq!(raw.cmd(&["PING"]).await.str(), "PONG");
    proxy.to_client(Fault::Cut {
        after: 5,
        how: Cut::HalfClose,
    });
    assert!(raw.cmd(&["SET", "a", "1"]).await.is_ok());
    assert_eq!(
        raw.try_cmd(&["SET", "b", "1"]).await.unwrap_err().kind(),
        ErrorKind::UnexpectedEof
    );
    becomes(&server, "b", "1").await;
}

/// Bytes sent through the proxy reach the server soon, without a reply that tells when.
async fn becomes(server: &Server, key: &str, value: &str) {
    let mut raw = server.raw().await;
    let give_up = Instant::now() + Duration::from_secs(20);
    loop {
        let now = raw.cmd(&["GET", key]).await;
        if !now.is_null() && now.str() == value {
            return;
        }
        assert!(Instant::now() < give_up, "{key} is {now:?}, not {value}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_lost_reply_is_of_a_request_that_was_executed() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    for how in [Cut::Rst, Cut::Fin, Cut::Silence] {
        server.raw().await.cmd(&["SET", "n", "0"]).await;
        let mut raw = Raw::connect(proxy.addr()).await.unwrap();
        assert_eq!(raw.cmd(&["PING"]).await.str(), "PONG");
        proxy.to_client(Fault::LoseReply { nth: 3, how });
        assert_eq!(raw.cmd(&["INCR", "n"]).await.int(), 1);
        assert_eq!(raw.cmd(&["INCR", "n"]).await.int(), 2);
        assert!(!proxy.is_over());
        raw.send(&["INCR", "n"]).await.unwrap();
        match timeout(QUIET, raw.read()).await {
            Err(_) => assert_eq!(how, Cut::Silence),
            Ok(reply) => {
                let kind = reply.unwrap_err().kind();
                let expected = if how == Cut::Rst {
                    ErrorKind::ConnectionReset
                } else {
                    ErrorKind::UnexpectedEof
                };
                assert_eq!(kind, expected);
            }
        }
        becomes(&server, "n", "3").await;
        assert!(proxy.is_over());
        // Once: who comes back is served.
        assert_eq!(
            Raw::connect(proxy.addr())
                .await
                .unwrap()
                .cmd(&["INCR", "n"])
                .await
                .int(),
            4
        );
    }
}

#[tokio::test]
async fn messages_can_be_dropped_and_repeated_while_replies_pass() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut publisher = server.raw().await;
    let mut raw = Raw::connect(proxy.addr()).await.unwrap();
    raw.hello3().await;

    proxy.to_client(Fault::DropMessages);
    raw.send(&["SUBSCRIBE", "c"]).await.unwrap();
    assert_eq!(raw.push().await[0].str(), "subscribe");
    assert_eq!(publisher.cmd(&["PUBLISH", "c", "dropped"]).await.int(), 1);
    assert_eq!(raw.cmd(&["PING"]).await.str(), "PONG");

    proxy.to_client(Fault::RepeatMessages);
    assert_eq!(publisher.cmd(&["PUBLISH", "c", "twice"]).await.int(), 1);
    assert_eq!(raw.push().await[2].str(), "twice");
    assert_eq!(raw.push().await[2].str(), "twice");
    assert_eq!(raw.cmd(&["PING"]).await.str(), "PONG");

    proxy.heal();
    assert_eq!(publisher.cmd(&["PUBLISH", "c", "once"]).await.int(), 1);
    assert_eq!(raw.push().await[2].str(), "once");
}

#[tokio::test]
async fn new_connections_are_refused_or_left_in_silence() {
    let (proxy, mut old) = echo_through().await;
    proxy.accept(Accept::Refuse);
    assert_eq!(
        TcpStream::connect(proxy.addr()).await.unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert_eq!(say(&mut old, b"still").await, b"still");

    proxy.accept(Accept::Silence);
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    client.write_all(b"hello?").await.unwrap();
    assert!(is_silent(&mut client).await);

    proxy.accept(Accept::Forward);
    assert_eq!(say(&mut connect(&proxy).await, b"back").await, b"back");
    assert_eq!(proxy.accepts(), 3);
}

#[tokio::test]
async fn reset_all_resets_what_is_open_and_nothing_later() {
    let (proxy, mut one) = echo_through().await;
    let mut two = connect(&proxy).await;
    proxy.reset_all();
    assert_eq!(proxy.open(), 0);
    assert_eq!(end(&mut one).await, Err(ErrorKind::ConnectionReset));
    assert_eq!(end(&mut two).await, Err(ErrorKind::ConnectionReset));
    assert_eq!(say(&mut connect(&proxy).await, b"new").await, b"new");
}

#[tokio::test]
async fn a_server_that_is_gone_ends_the_clients_connections() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = Raw::connect(proxy.addr()).await.unwrap();
    assert_eq!(raw.cmd(&["PING"]).await.str(), "PONG");
    server.kill();
    assert!(raw.read().await.is_err());
    drop(raw);
    // The proxy accepts before it can know; the reset may come while the client still connects, or
    // later.
    if let Ok(mut reset) = Raw::connect(proxy.addr()).await {
        assert!(reset.try_cmd(&["PING"]).await.is_err());
    }
    server.restart().await;
    assert_eq!(
        Raw::connect(proxy.addr())
            .await
            .unwrap()
            .cmd(&["PING"])
            .await
            .str(),
        "PONG"
    );
}

#[tokio::test]
async fn a_dropped_proxy_closes_everything() {
    let (proxy, mut client) = echo_through().await;
    let addr = proxy.addr();
    drop(proxy);
    let _ = end(&mut client).await;
    assert!(TcpStream::connect(addr).await.is_err());
}
