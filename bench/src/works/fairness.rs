//! Two processes that want the same lock all the time, one of them further away: the share of each, and how long they wait.

use std::io::Result;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use leasehold::{Guard, Locks, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::harness::{Harness, Placement};
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, figures};

/// What the near one and the far one call in their loops.
const CANDIDATES: &[&str] = &[
    "lock, lock",
    "try_lock, lock",
    "lock, try_lock",
    "try_lock, try_lock",
];
/// Milliseconds that everything takes on its way to or from the far one.
const DISTANCES: [u64; 4] = [0, 2, 10, 50];
/// How long each holds the lock, and pauses after an attempt that failed.
const HELD: Duration = Duration::from_millis(1);

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let mut rows = Vec::new();
    let mut smallest = f64::INFINITY;
    for distance in DISTANCES {
        let samples = harness.interleave(harness.rounds(1), CANDIDATES, |candidate| {
            let request = Request {
                work: "fairness".into(),
                candidate: candidate.into(),
                port: harness.server.port,
                workers: 2,
                count: distance,
                millis: harness.millis(10_000),
                ..Request::default()
            };
            harness.sample(Placement::CrossCpu, &request)
        })?;
        for candidate in CANDIDATES {
            let figure = |figure| samples.median(candidate, figure);
            if let Some(share) = figure("share")
                && *candidate == "lock, lock"
            {
                smallest = smallest.min(share.min(100.0 - share));
            }
            rows.push(Row {
                candidate: format!("{candidate}, {distance} ms"),
                cells: ["share", "near_wait", "far_wait", "per_s"]
                    .map(figure)
                    .to_vec(),
            });
        }
    }
    let aim = Aim {
        what: "smaller share of two processes that wait for one lock, %".into(),
        floor: None,
        peer: None,
        ours: Some(smallest),
        bound: Bound::AtLeast(35.0),
    };
    Ok(Section {
        title: "Fairness between two processes",
        how: "Two clients take one lock in a loop for 10 s, each holding it for 1 ms: one beside the server and one this far \
              away, in each direction. The share of the far one in all grants, in per cent; the longest time between two \
              grants of the near and of the far one, in milliseconds; grants of both a second."
            .into(),
        columns: ["far, %", "near waits, ms", "far waits, ms", "grants/s"]
            .map(str::to_owned)
            .to_vec(),
        rows,
        aims: vec![aim],
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    let (port, duration) = (request.port, request.duration());
    let distance = Duration::from_millis(request.count);
    let (near_calls, far_calls) = request.candidate.split_once(", ").expect("two calls");
    let (near_tries, far_tries) = (near_calls == "try_lock", far_calls == "try_lock");
    request.run(async move {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let far = far_away(server, distance).await;
        let name = format!(
            "lock:fairness:{near_tries}:{far_tries}:{}",
            distance.as_millis()
        );
        let stop = Arc::new(AtomicBool::new(false));
        let connect = async |address: SocketAddr| {
            Locks::connect(format!("redis://{address}"))
                .await
                .expect("the server is up")
        };
        let start = |locks: Locks, tries: bool| {
            let (mutex, stop) = (locks.mutex(&name), Arc::clone(&stop));
            tokio::spawn(async move {
                let turns = contend(&mutex, tries, &stop).await;
                // A release that is under way when a process ends may be lost, and the next sample would wait.
                locks.shutdown().await.expect("the server is up");
                turns
            })
        };
        let (near, far) = (connect(server).await, connect(far).await);
        let (near, far) = (start(near, near_tries), start(far, far_tries));
        tokio::time::sleep(duration).await;
        stop.store(true, Relaxed);
        let (near, far) = (near.await.expect("no panic"), far.await.expect("no panic"));
        let all = (near.grants + far.grants) as f64;
        figures([
            ("share", far.grants as f64 / all * 100.0),
            ("near_wait", near.longest.as_secs_f64() * 1e3),
            ("far_wait", far.longest.as_secs_f64() * 1e3),
            ("per_s", all / duration.as_secs_f64()),
        ])
    })
}

/// The grants of one contender, and the longest time between two of them.
#[derive(Default)]
struct Turns {
    grants: u64,
    longest: Duration,
}

async fn contend(mutex: &Mutex, tries: bool, stop: &AtomicBool) -> Turns {
    let mut turns = Turns::default();
    let mut last = Instant::now();
    while !stop.load(Relaxed) {
        let guard: Option<Guard> = if tries {
            mutex.try_lock().await.expect("the server is up")
        } else {
            Some(mutex.lock().await.expect("the server is up"))
        };
        if guard.is_some() {
            turns.grants += 1;
            turns.longest = turns.longest.max(last.elapsed());
            last = Instant::now();
        }
        tokio::time::sleep(HELD).await;
        drop(guard);
    }
    turns.longest = turns.longest.max(last.elapsed());
    turns
}

/// An address from which everything takes `distance` to the server, and back.
async fn far_away(server: SocketAddr, distance: Duration) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(server).await.expect("the server is up");
            client.set_nodelay(true).expect("a socket");
            server.set_nodelay(true).expect("a socket");
            let ((client_read, client_write), (server_read, server_write)) =
                (client.into_split(), server.into_split());
            delay(client_read, server_write, distance);
            delay(server_read, client_write, distance);
        }
    });
    address
}

/// Passes on what arrives, each piece `distance` later; pieces do not wait for each other.
fn delay(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, distance: Duration) {
    let (sender, mut pieces) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            if sender
                .send((Instant::now() + distance, buffer[..read].to_vec()))
                .is_err()
            {
                return;
            }
        }
    });
    tokio::spawn(async move {
        while let Some((at, piece)) = pieces.recv().await {
            if !distance.is_zero() {
                tokio::time::sleep_until(at.into()).await;
            }
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
    });
}
