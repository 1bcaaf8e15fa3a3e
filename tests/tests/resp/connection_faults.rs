//! Faults between a client and a server (connections cut at every byte, swallowed bytes,
//! back-pressure, half-open sockets) and ends on the client's side (the runtime, the last handle).

mod cuts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use leasehold_resp::connection::{Event, Observer};
use leasehold_resp::{Command, Connection, Encode, Endpoint, Error, ErrorKind, Value};
use leasehold_testkit::scripted::Scripted;
use leasehold_testkit::{Accept, Fault, Proxy, Raw, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{BOUND, echo, until};

/// Of the server that answers.
const STALL_AFTER: Duration = Duration::from_millis(1_500);

fn endpoint(url: &str, command_timeout: Duration) -> Endpoint {
    let mut endpoint = Endpoint::parse(url).unwrap();
    endpoint.command_timeout = command_timeout;
    endpoint
}

async fn counter(raw: &mut Raw, key: &str) -> i64 {
    match raw.cmd(&["GET", key]).await {
        value if value.is_null() => 0,
        value => value.int(),
    }
}

// ===== silence and back-pressure =====

#[tokio::test]
async fn swallowed_commands_time_out_at_their_deadline_and_later_ones_go_elsewhere() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let timeout = Duration::from_millis(300);
    let connection = Connection::connect(endpoint(&proxy.url(), timeout))
        .await
        .unwrap();
    proxy.blackhole();
    let began = Instant::now();
    let error = connection.send(&echo("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(began.elapsed() >= timeout && began.elapsed() < BOUND);
    // A stream that has lost a request is of no use any more, and nothing heals it.
    until("it is given up", async || !connection.is_up()).await;
    proxy.heal();
    until("it has another connection", async || {
        connection.send(&echo("b")).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn waiting_for_the_connection_and_for_the_reply_have_one_deadline_together() {
    let timeout = Duration::from_secs(4);
    let server = Scripted::start(move |mut peer| async move {
        if peer.number > 0 {
            // It answers late, and then not at all.
            tokio::time::sleep(timeout * 3 / 4).await;
        }
        peer.greet().await;
        if peer.number > 0 {
            peer.silence().await;
        }
    })
    .await;
    let connection = Connection::connect(endpoint(&server.url(), timeout))
        .await
        .unwrap();
    assert_eq!(
        connection.send(&echo("a")).await.unwrap_err().kind(),
        ErrorKind::Unknown
    );
    until("it is down", async || !connection.is_up()).await;
    let began = Instant::now();
    let error = connection.send(&echo("b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(began.elapsed() < timeout * 3 / 2, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_peer_fills_a_bounded_queue_and_senders_wait_for_room() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let connection = Connection::connect(endpoint(&proxy.url(), BOUND))
        .await
        .unwrap();
    proxy.to_server(Fault::Stall);
    let page = "x".repeat(1 << 20);
    let mut queued = Vec::new();
    loop {
        let reply = connection.submit(&echo(&page));
        if reply.is_refused() {
            // The socket may take another buffer a moment later.
            tokio::time::sleep(Duration::from_millis(50)).await;
            if connection.submit(&echo(&page)).is_refused() {
                break;
            }
        } else {
            queued.push(reply);
        }
        assert!(queued.len() < 100, "100 MiB and no end");
    }
    let error = connection.submit(&echo("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSent);
    // Others wait for room, and get it as soon as there is some.
    let waiting: Vec<_> = (0..50)
        .map(|n| {
            let connection = connection.clone();
            tokio::spawn(async move { connection.send(&echo(&n.to_string())).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(waiting.iter().all(|task| !task.is_finished()));
    proxy.heal();
    for reply in queued {
        assert_eq!(
            reply.await.unwrap().as_bytes().map(<[u8]>::len),
            Some(page.len())
        );
    }
    for (n, task) in waiting.into_iter().enumerate() {
        assert_eq!(
            task.await.unwrap().unwrap().as_str(),
            Some(n.to_string().as_str())
        );
    }
}

#[tokio::test]
async fn a_full_queue_before_a_silent_server_is_an_error_at_the_deadline() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let timeout = Duration::from_millis(400);
    let connection = Connection::connect(endpoint(&proxy.url(), timeout))
        .await
        .unwrap();
    proxy.to_server(Fault::Stall);
    let page = "x".repeat(40 << 20);
    // One is being written, one is in the outbox.
    let held = [
        connection.submit(&echo(&page)),
        connection.submit(&echo(&page)),
    ];
    let began = Instant::now();
    let error = tokio::time::timeout(BOUND, connection.send(&echo("a")))
        .await
        .expect("in time")
        .unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::NotSent | ErrorKind::Unknown | ErrorKind::Timeout
        ),
        "{error}"
    );
    assert!(began.elapsed() >= timeout / 2);
    for reply in held {
        assert!(
            tokio::time::timeout(BOUND, reply)
                .await
                .expect("in time")
                .is_err()
        );
    }
}

/// redis-rs issues 1955 and 2070: two full sockets wait for each other for ever.
#[tokio::test]
async fn a_peer_that_writes_a_lot_before_it_reads_does_not_block_us() {
    let (ours, mut theirs) = tokio::io::duplex(64);
    let peer = tokio::spawn(async move {
        let mut request = [0; 4096];
        // `HELLO 3`, then two requests of four arguments, in pieces of 64 bytes at most.
        for (lines, answer) in [
            (5, leasehold_testkit::scripted::GREETING),
            (18, b"+OK\r\n+OK\r\n"),
        ] {
            let mut heard = Vec::new();
            while heard.iter().filter(|byte| **byte == b'\n').count() < lines {
                let n = theirs.read(&mut request).await.unwrap();
                heard.extend_from_slice(&request[..n]);
            }
            theirs.write_all(answer).await.unwrap();
        }
        // One byte of the large request, and then many replies before the rest.
        assert_eq!(theirs.read_u8().await.unwrap(), b'*');
        let noise = b">2\r\n+invalidate\r\n_\r\n";
        for _ in 0..(1 << 20) / noise.len() {
            theirs.write_all(noise).await.unwrap();
        }
        let mut left = large().len() - 1;
        while left > 0 {
            let room = request.len().min(left);
            left -= theirs.read(&mut request[..room]).await.unwrap();
        }
        theirs.write_all(b"+done\r\n").await.unwrap();
        theirs
    });
    let connection = Connection::over(ours, endpoint("redis://duplex", BOUND))
        .await
        .unwrap();
    let reply = tokio::time::timeout(BOUND, connection.submit(&echo(&"x".repeat(1 << 20)))).await;
    assert_eq!(
        reply.expect("both sides wait").unwrap(),
        Value::Simple("done".into())
    );
    drop(peer.await.unwrap());
}

fn large() -> Vec<u8> {
    let mut bytes = Vec::new();
    echo(&"x".repeat(1 << 20)).encode(&mut bytes);
    bytes
}

// ===== connections that end =====

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_a_hundred_times_under_load_it_comes_back_each_time() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let connection = Connection::connect(endpoint(&proxy.url(), Duration::from_secs(10)))
        .await
        .unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicU64::new(0));
    let load: Vec<_> = (0..16)
        .map(|task| {
            let (connection, over, served) =
                (connection.clone(), Arc::clone(&over), Arc::clone(&served));
            tokio::spawn(async move {
                let mut n = 0_u64;
                while !over.load(Relaxed) {
                    let tag = format!("{task}:{n}");
                    match connection.send(&echo(&tag)).await {
                        Ok(value) => {
                            assert_eq!(value.as_str(), Some(tag.as_str()));
                            served.fetch_add(1, Relaxed);
                        }
                        Err(error) => assert!(error.is_transient(), "{error}"),
                    }
                    n += 1;
                }
            })
        })
        .collect();
    for resets in 0..100 {
        let before = served.load(Relaxed);
        // Over another connection: a reply of the last one may be counted late.
        until("it serves", async || {
            proxy.accepts() > resets && served.load(Relaxed) > before
        })
        .await;
        let proxy = &proxy;
        tokio::task::block_in_place(|| proxy.reset_all());
    }
    over.store(true, Relaxed);
    for task in load {
        tokio::time::timeout(BOUND, task)
            .await
            .expect("no request hangs")
            .unwrap();
    }
    until("it serves", async || {
        connection.send(&echo("last")).await.is_ok()
    })
    .await;
    assert!((101..400).contains(&proxy.accepts()), "{}", proxy.accepts());
}

/// A peer that has lost its power sends no FIN: only a request detects it.
#[tokio::test]
async fn an_idle_connection_that_is_half_open_is_noticed_without_a_command() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let quiet = Connection::connect(endpoint(&server.url(), Duration::from_secs(1)))
        .await
        .unwrap();
    let connection = Connection::connect(endpoint(&proxy.url(), Duration::from_millis(200)))
        .await
        .unwrap();
    let id = quiet.send(&Command::new("CLIENT").arg("ID")).await.unwrap();
    proxy.blackhole();
    until("it connects again", async || proxy.accepts() == 2).await;
    proxy.heal();
    until("it serves", async || {
        connection.send(&echo("a")).await.is_ok()
    })
    .await;
    // One that is only idle is left alone.
    assert_eq!(
        quiet.send(&Command::new("CLIENT").arg("ID")).await.unwrap(),
        id
    );
}

#[tokio::test]
async fn silence_is_told_again_and_again_and_a_reset_ends_it_for_those_who_wait() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut endpoint = endpoint(&format!("redis://{}", proxy.addr()), BOUND * 2);
    endpoint.stall_after = Some(Duration::from_millis(50));
    let told = Arc::new(AtomicU64::new(0));
    let connection = Connection::connect_observed(endpoint, observer(&told))
        .await
        .unwrap();
    // The second time after a pause in which the driver has stopped looking at the clock.
    for pause in [Duration::ZERO, Duration::from_millis(300)] {
        tokio::time::sleep(pause).await;
        let before = told.load(Relaxed);
        assert!(connection.send(&echo("here")).await.is_ok());
        proxy.blackhole();
        let reply = connection.submit(&echo("into the void"));
        until("silence was told three times", async || {
            told.load(Relaxed) >= before + 3
        })
        .await;
        assert!(connection.is_stalled());

        proxy.heal();
        connection.reset("somebody else does its work now");
        let error = tokio::time::timeout(BOUND, reply)
            .await
            .expect("not left to its timeout")
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        assert!(
            error.detail().contains("somebody else does its work now"),
            "{error}"
        );
        let answer = connection.send(&echo("again")).await;
        assert_eq!(answer.unwrap().as_str(), Some("again"));
        assert!(!connection.is_stalled());
    }
}

/// Neither while commands wait behind others that are answered one by one, nor when each is answered before the next is
/// submitted.
#[tokio::test]
async fn a_server_that_answers_is_never_silent() {
    let slow = Scripted::start(|mut peer| async move {
        let mut next = peer.greet().await;
        while next.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            peer.answer(Value::Integer(1)).await;
            next = peer.request().await;
        }
    })
    .await;
    let mut endpoint = endpoint(&slow.url(), BOUND);
    endpoint.stall_after = Some(STALL_AFTER);
    let told = Arc::new(AtomicU64::new(0));
    let connection = Connection::connect_observed(endpoint, observer(&told))
        .await
        .unwrap();
    let in_a_row = async || {
        let queued: Vec<_> = (0..30).map(|_| connection.submit(&echo("a"))).collect();
        longest_gap(queued).await
    };
    let one_by_one =
        async || longest_gap((0..20).map(async |_| connection.send(&echo("a")).await)).await;
    never_silent("a reply each tenth of a second", &told, in_a_row).await;
    never_silent("one after the other", &told, one_by_one).await;
}

/// Asks until the replies came without a gap that is half of a silence: the machine may be so busy that the script does not run.
async fn never_silent(what: &str, told: &AtomicU64, ask: impl AsyncFn() -> Duration) {
    for _ in 0..10 {
        told.store(0, Relaxed);
        if ask().await < STALL_AFTER / 2 {
            return assert_eq!(told.load(Relaxed), 0, "{what}");
        }
    }
    panic!("{what}: the machine stood still again and again");
}

/// The longest time without a reply.
async fn longest_gap<R: Future<Output = Result<Value, Error>>>(
    replies: impl IntoIterator<Item = R>,
) -> Duration {
    let (mut longest, mut latest) = (Duration::ZERO, Instant::now());
    for reply in replies {
        assert_eq!(reply.await.unwrap().as_int(), Some(1));
        longest = longest.max(latest.elapsed());
        latest = Instant::now();
    }
    longest
}

fn observer(silences: &Arc<AtomicU64>) -> Observer {
    let silences = Arc::clone(silences);
    Arc::new(move |_, event| {
        if matches!(event, Event::Stalled) {
            silences.fetch_add(1, Relaxed);
        }
    })
}

#[test]
fn when_its_runtime_ends_what_is_in_flight_fails_and_another_runtime_takes_over() {
    let server = Server::builder().start_blocking();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let connection = first
        .block_on(Connection::connect(endpoint(
            &server.url(),
            Duration::from_secs(10),
        )))
        .unwrap();
    let second = runtime();
    server.pause();
    let waiting = second.spawn(connection.submit(&echo("a")));
    let (heard, hears) = std::sync::mpsc::channel();
    connection
        .submit(&echo("b"))
        .detach(move |outcome| heard.send(outcome).unwrap());
    drop(first);
    let error: Error = second
        .block_on(async { tokio::time::timeout(BOUND, waiting).await })
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(error.may_have_executed(), "{error}");
    assert!(hears.recv_timeout(BOUND).unwrap().is_err());
    assert!(!connection.is_up());
    assert!(connection.submit(&echo("c")).is_refused());
    server.resume();
    for round in 0..3 {
        let runtime = runtime();
        let value = runtime.block_on(async { connection.send(&echo("d")).await });
        assert_eq!(value.unwrap().as_str(), Some("d"), "on runtime {round}");
    }
}

#[test]
fn a_connection_over_a_stream_is_not_reopened_over_another_one() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    // There is a listener at the endpoint's address.
    let elsewhere = second.block_on(Scripted::start(
        |mut peer| async move { peer.behave().await },
    ));
    let inside = second.block_on(Scripted::start(
        |mut peer| async move { peer.behave().await },
    ));
    let connection = first.block_on(async {
        let stream = tokio::net::TcpStream::connect(inside.addr()).await.unwrap();
        let connection =
            Connection::over(stream, endpoint(&elsewhere.url(), Duration::from_secs(1)))
                .await
                .unwrap();
        // At once, not when its task gets its turn.
        assert_eq!(
            connection.submit(&echo("a")).await.unwrap().as_str(),
            Some("a")
        );
        connection
    });
    drop(first);
    let error = second
        .block_on(async { connection.send(&echo("b")).await })
        .unwrap_err();
    assert!(error.is_closed(), "{error}");
    assert_eq!(elsewhere.accepted(), 0);
}

async fn sockets(raw: &mut Raw, name: &str) -> usize {
    raw.cmd(&["CLIENT", "LIST"])
        .await
        .str()
        .lines()
        .filter(|line| line.contains(&format!(" name={name} ")))
        .count()
}

#[tokio::test]
async fn after_the_last_handle_what_is_in_flight_is_answered_and_then_nothing_is_left() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let url = format!("{}?client_name=ours", server.url());
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    let connection = Connection::connect(endpoint(&url, Duration::from_secs(10)))
        .await
        .unwrap();
    let other = connection.clone();
    assert_eq!(sockets(&mut raw, "ours").await, 1);
    drop(other);
    assert_eq!(
        connection.send(&echo("a")).await.unwrap().as_str(),
        Some("a"),
        "one handle is enough"
    );
    let replies: Vec<_> = (0..100)
        .map(|n| connection.submit(&echo(&n.to_string())))
        .collect();
    let (heard, hears) = tokio::sync::oneshot::channel();
    connection
        .submit(&Command::new("SET").arg("left").arg("behind"))
        .detach(move |outcome| drop(heard.send(outcome)));
    drop(connection);
    for (n, reply) in replies.into_iter().enumerate() {
        assert_eq!(reply.await.unwrap().as_str(), Some(n.to_string().as_str()));
    }
    assert!(hears.await.unwrap().is_ok());
    until("the socket is closed", async || {
        sockets(&mut raw, "ours").await == 0
    })
    .await;
    assert_eq!(raw.cmd(&["GET", "left"]).await.str(), "behind");
    let alive = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    until("no task is left", async || alive() == tasks).await;
}

#[tokio::test]
async fn close_answers_what_is_in_flight_abort_does_not_and_either_resolves_everything() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for abort in [false, true] {
        let name = format!("ours{abort}");
        let url = format!("{}?client_name={name}", server.url());
        let connection = Connection::connect(endpoint(&url, Duration::from_secs(10)))
            .await
            .unwrap();
        let replies: Vec<_> = (0..1000)
            .map(|n| connection.submit(&echo(&n.to_string())))
            .collect();
        if abort {
            connection.abort()
        } else {
            connection.close()
        }
        let late = connection.send(&echo("late")).await.unwrap_err();
        assert!(late.is_closed() && !late.may_have_executed(), "{late}");
        for (n, reply) in replies.into_iter().enumerate() {
            match tokio::time::timeout(BOUND, reply)
                .await
                .expect("every future resolves")
            {
                Ok(value) => assert_eq!(value.as_str(), Some(n.to_string().as_str())),
                Err(error) => assert!(abort, "{error}"),
            }
        }
        until("the socket is closed", async || {
            sockets(&mut raw, &name).await == 0
        })
        .await;
    }
}

#[tokio::test]
async fn a_handle_dropped_while_the_server_is_away_leaves_nothing_that_tries_again() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    let connection = Connection::connect(endpoint(&proxy.url(), Duration::from_secs(1)))
        .await
        .unwrap();
    proxy.accept(Accept::Refuse);
    proxy.reset_all();
    until("it is down", async || !connection.is_up()).await;
    drop(connection);
    let alive = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    until("no task is left", async || alive() == tasks).await;
    proxy.accept(Accept::Forward);
    let accepts = proxy.accepts();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(proxy.accepts(), accepts);
}

#[tokio::test]
async fn commands_fail_at_once_while_the_connection_is_down_and_say_why() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let connection = Connection::connect(endpoint(&proxy.url(), Duration::from_millis(200)))
        .await
        .unwrap();
    proxy.accept(Accept::Refuse);
    proxy.reset_all();
    until("it is down for a reason", async || {
        let reply = connection.submit(&echo("a"));
        reply.is_refused() && reply.await.unwrap_err().to_string().contains("refused")
    })
    .await;
    let error = connection.send(&echo("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSent);
    assert!(
        error.to_string().contains("refused") && error.to_string().contains("127.0.0.1"),
        "{error}"
    );
    proxy.accept(Accept::Forward);
    connection.ready(Instant::now() + BOUND).await.unwrap();
    assert_eq!(
        connection.send(&echo("a")).await.unwrap().as_str(),
        Some("a")
    );
}
