//! A peer that floods the client, claims lengths that it does not send, or hangs up again and
//! again: the client's time and memory stay bounded.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use leasehold_resp::{Connection, Endpoint};
use leasehold_testkit::in_own_process;
use leasehold_testkit::scripted::{GREETING, Scripted};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{COMMAND_TIMEOUT, endpoint};
use crate::support::{BOUND, echo};

/// Completes the handshake, and then floods the client.
#[derive(Default)]
struct Chatter {
    written: usize,
    answered: usize,
    reader: Option<Waker>,
}

impl AsyncRead for Chatter {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match [GREETING, b"+OK\r\n+OK\r\n"].get(self.answered) {
            Some(_) if self.answered == self.written => {
                self.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Some(answer) => {
                buf.put_slice(answer);
                self.answered += 1;
            }
            None => buf.put_slice(&b">1\r\n+x\r\n".repeat(buf.remaining() / 8)),
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Chatter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written += 1;
        self.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn deadlines_pass_while_a_peer_never_pauses() {
    let mut endpoint = Endpoint::parse("redis://chatter").unwrap();
    endpoint.command_timeout = COMMAND_TIMEOUT;
    let connection = Connection::over(Chatter::default(), endpoint)
        .await
        .unwrap();
    let outcome = tokio::time::timeout(BOUND, connection.submit(&echo("a")))
        .await
        .expect("in time");
    assert!(outcome.unwrap_err().is_timeout());
    // Nor can it keep the client from closing the connection.
    let began = Instant::now();
    while connection.is_up() {
        assert!(began.elapsed() < BOUND);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(connection.send(&echo("b")).await.unwrap_err().is_closed());
}

#[tokio::test]
async fn a_peer_that_shakes_hands_and_hangs_up_is_not_called_without_a_pause() {
    let server = Scripted::start(|mut peer| async move {
        for answer in [GREETING, b"+OK\r\n", b"+OK\r\n"] {
            peer.request().await;
            peer.say(answer).await;
        }
        peer.hang_up().await;
    })
    .await;
    let _connection = Connection::connect(endpoint(&server)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1000)).await;
    // 10, 20, 40 ... ms: eight or so. Without a pause it would be thousands.
    let accepted = server.accepted();
    assert!((2..=20).contains(&accepted), "{accepted}");
}

/// Runs in a process of its own: it measures the memory of the whole process.
#[test]
fn what_a_header_merely_claims_is_not_allocated() {
    in_own_process(async {
        let before = peak_memory();
        for claim in [
            "$536870912\r\n",
            "*4294967295\r\n",
            "%2147483647\r\n",
            "~4294967295\r\n",
            ">4294967295\r\n",
        ] {
            claims(claim).await;
        }
        let grown = peak_memory() - before;
        assert!(grown < 16 << 20, "{} MiB", grown >> 20);
    });
}

/// A server that sends this header and nothing else, and a client that asks it.
async fn claims(header: &'static str) {
    let server = Scripted::start(move |mut peer| async move {
        if peer.number > 0 {
            return peer.behave().await;
        }
        peer.greet().await;
        peer.say(header).await;
        peer.silence().await;
    })
    .await;
    let connection = Connection::connect(endpoint(&server)).await.unwrap();
    assert!(connection.send(&echo("a")).await.is_err());
}

/// The most address space that this process has ever had in memory, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}
