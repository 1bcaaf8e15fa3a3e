//! A million tagged requests on each kind of runtime, through one connection that is cancelled,
//! killed and pushed at all the while: every reply belongs to its request, and every request ends
//! exactly once.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_resp::connection::{Event, Observer};
use leasehold_resp::push::{Confirmation, Push, Subscribe};
use leasehold_resp::{Command, Connection, Endpoint, Reply, Value};
use leasehold_testkit::Server;

use crate::support::until;

const TASKS: u64 = 32;
const REQUESTS: u64 = 1_000_000;

/// Outcomes of the requests.
#[derive(Debug, Default)]
struct Counters {
    started: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    mismatched: AtomicU64,
    /// Messages between the replies.
    pushes: AtomicU64,
    /// Times that the connection went down.
    downs: AtomicU64,
}

impl Counters {
    fn judge(&self, tag: &str, outcome: &Result<Value, leasehold_resp::Error>) {
        match outcome {
            Ok(value) if value.as_str() == Some(tag) => self.completed.fetch_add(1, Relaxed),
            Ok(_) => self.mismatched.fetch_add(1, Relaxed),
            Err(_) => self.failed.fetch_add(1, Relaxed),
        };
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_million_requests_on_one_thread_get_their_own_replies_or_an_error() {
    storm().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_requests_on_two_threads_get_their_own_replies_or_an_error() {
    storm().await;
}

async fn storm() {
    let server = Server::start().await;
    let counters = Arc::new(Counters::default());
    let endpoint = Endpoint::parse(&server.url()).unwrap();
    let connection = Connection::connect_observed(endpoint, observer(&counters))
        .await
        .unwrap();

    let over = Arc::new(AtomicBool::new(false));
    let trouble = tokio::spawn(trouble(server.raw().await, Arc::clone(&over)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(requests(task, connection.clone(), Arc::clone(&counters))))
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(300), task)
            .await
            .expect("no request hangs")
            .unwrap();
    }
    over.store(true, Relaxed);
    trouble.await.unwrap();

    // A last round trip: what was left to functions before it has been answered too. The last kill
    // may still be to come.
    until("a last round trip", async || {
        connection
            .send(&Command::new("PING"))
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await;
    let of = |counter: &AtomicU64| counter.load(Relaxed);
    assert_eq!(of(&counters.mismatched), 0, "{counters:?}");
    assert_eq!(of(&counters.started), REQUESTS, "{counters:?}");
    let ended = of(&counters.completed) + of(&counters.failed) + of(&counters.cancelled);
    assert_eq!(ended, REQUESTS, "{counters:?}");
    // The disturbances took place.
    assert!(
        of(&counters.completed) > REQUESTS / 2 && of(&counters.cancelled) > REQUESTS / 50,
        "{counters:?}"
    );
    assert!(
        of(&counters.pushes) > 10 && of(&counters.downs) > 3 && of(&counters.failed) > 0,
        "{counters:?}"
    );
}

fn observer(counters: &Arc<Counters>) -> Observer {
    let counters = Arc::clone(counters);
    Arc::new(move |connection, event| match event {
        Event::Up => {
            let channels = vec![Bytes::from_static(b"noise")];
            connection
                .subscribe(&Subscribe {
                    kind: Confirmation::Subscribe,
                    channels,
                })
                .detach(|_| {});
        }
        Event::Down => drop(counters.downs.fetch_add(1, Relaxed)),
        Event::Push(Push::Message { .. }) => drop(counters.pushes.fetch_add(1, Relaxed)),
        _ => {}
    })
}

/// Kills the connection and publishes to it, until it is over.
async fn trouble(mut raw: leasehold_testkit::Raw, over: Arc<AtomicBool>) {
    let mut turn = 0_u32;
    while !over.load(Relaxed) {
        for _ in 0..20 {
            raw.cmd(&["PUBLISH", "noise", "x"]).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        turn += 1;
        let kind = if turn.is_multiple_of(2) {
            "normal"
        } else {
            "pubsub"
        };
        raw.cmd(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"])
            .await;
    }
}

async fn requests(task: u64, connection: Connection, counters: Arc<Counters>) {
    let mut random = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for n in 0..REQUESTS / TASKS {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let tag = format!("{task}:{n}");
        let mut reply = submit(&connection, &tag).await;
        counters.started.fetch_add(1, Relaxed);
        match random % 20 {
            // Gone before it was ever looked at.
            0 => drop(reply),
            // Gone after a look or a few, with others running in between.
            1 | 2 => {
                let mut looks = random >> 32 & 3;
                let outcome = std::future::poll_fn(|cx| match Pin::new(&mut reply).poll(cx) {
                    Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                    Poll::Pending if looks == 0 => Poll::Ready(None),
                    Poll::Pending => {
                        looks -= 1;
                        cx.waker().wake_by_ref();
                        Poll::Pending
                    }
                });
                if let Some(outcome) = outcome.await {
                    counters.judge(&tag, &outcome);
                    continue;
                }
            }
            // Left to a function.
            3 => {
                let counters = Arc::clone(&counters);
                reply.detach(move |outcome| counters.judge(&tag, &outcome));
                continue;
            }
            _ => {
                counters.judge(&tag, &reply.await);
                continue;
            }
        }
        counters.cancelled.fetch_add(1, Relaxed);
    }
}

/// Submits, once the connection is there.
async fn submit(connection: &Connection, tag: &str) -> Reply {
    loop {
        let reply = connection.submit(&Command::new("ECHO").arg(tag));
        if !reply.is_refused() {
            return reply;
        }
        connection
            .ready(Instant::now() + Duration::from_secs(30))
            .await
            .unwrap();
    }
}
