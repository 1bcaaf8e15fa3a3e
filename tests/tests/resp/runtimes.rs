//! A connection that lives on a runtime which does not run: calls from others end within their
//! bound all the same.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use leasehold_resp::pool::Pool;
use leasehold_resp::{Command, Connection, Endpoint, ErrorKind};
use leasehold_testkit::Server;

const TIMEOUT: Duration = Duration::from_millis(300);

/// Generous: what is tested is that a call ends, and does so long before the other runtime runs
/// again.
const BOUND: Duration = Duration::from_secs(10);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// A connection whose runtime is never driven after the connect, until the sender is dropped; then
/// it is for a while.
fn stranded(endpoint: Endpoint) -> (Connection, mpsc::Sender<()>, std::thread::JoinHandle<()>) {
    let (give, take) = mpsc::channel();
    let (resume, resumed) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = runtime();
        let connection = runtime.block_on(Connection::connect(endpoint)).unwrap();
        give.send(connection).unwrap();
        assert!(resumed.recv().is_err(), "nothing is sent");
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(500)).await });
    });
    (take.recv().unwrap(), resume, thread)
}

#[test]
fn calls_time_out_by_themselves_while_the_connections_runtime_is_blocked() {
    let server = runtime().block_on(Server::start());
    let mut endpoint = Endpoint::parse(&server.url()).unwrap();
    endpoint.command_timeout = TIMEOUT;
    let (connection, resume, thread) = stranded(endpoint);
    let echo = |text: &str| Command::new("ECHO").arg(text);
    runtime().block_on(async {
        let began = Instant::now();
        let mut replies: Vec<_> = (0..100)
            .map(|n| connection.submit(&echo(&n.to_string())))
            .collect();
        let dropped = replies.pop();
        let mut hints = 0;
        for reply in replies {
            let error = tokio::time::timeout(BOUND, reply)
                .await
                .expect("in time")
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert_eq!(error.connection(), connection.id().as_ref());
            assert!(error.detail().contains("within 300ms"), "{error}");
            hints += usize::from(error.detail().contains("may be blocked"));
        }
        assert!(hints > 0, "no error says why");
        drop(dropped);
        assert!(began.elapsed() >= TIMEOUT);
        let later = echo("later");
        let outcome = tokio::time::timeout(BOUND, connection.send(&later)).await;
        let error = outcome.expect("in time").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        // The other runtime goes on, takes the late replies for what they are, and the connection
        // is as good as new.
        drop(resume);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = echo("now");
        let reply = tokio::time::timeout(BOUND, connection.send(&now)).await;
        assert_eq!(reply.expect("in time").unwrap().as_str(), Some("now"));
    });
    thread.join().unwrap();
}

#[test]
fn so_do_calls_on_an_exclusive_connection() {
    let server = runtime().block_on(Server::start());
    let endpoint = Endpoint::parse(&server.url()).unwrap();
    let pool = Pool::lazy(&endpoint, None);
    // Connected on a runtime that is not driven any more.
    let stranded = runtime();
    let mut exclusive = stranded.block_on(pool.exclusive()).unwrap();
    runtime().block_on(async {
        let ping = Command::new("PING");
        let outcome = tokio::time::timeout(BOUND, exclusive.call(&ping, TIMEOUT)).await;
        let error = outcome.expect("in time").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        drop(exclusive);
        // The broken one is not reused: the next one is another.
        let mut next = pool.exclusive().await.unwrap();
        let outcome = tokio::time::timeout(BOUND, next.call(&ping, TIMEOUT)).await;
        assert_eq!(outcome.expect("in time").unwrap().as_str(), Some("PONG"));
    });
    drop(stranded);
}
