//! A connection whose peer, chunks, callers and their patience are the input's: no panic, no hang, and every reply ends.
//!
//! The stream is a `tokio::io::duplex` that holds few bytes, on a runtime of one thread whose clock is the test's.
#![no_main]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use arbitrary::Arbitrary;
use leasehold_resp::push::{Confirmation, Subscribe};
use leasehold_resp::{Command, Connection, Endpoint, Reply};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

#[derive(Arbitrary, Debug)]
enum Step {
    /// Submits so many small commands.
    Submit(u8),
    /// One of some kilobytes, which the stream does not take at once.
    Large(u8),
    Subscribe(Vec<u8>),
    /// Drops one of the replies to come.
    Drop(u8),
    /// Looks at one of them.
    Poll(u8),
    /// Leaves one of them to a function.
    Detach(u8),
    /// The peer reads.
    Read(u16),
    /// The peer says anything.
    Say(Vec<u8>),
    /// Or something that could be an answer.
    Answer(u8),
    /// The other tasks get a turn or some.
    Turn(u8),
    Close,
    Abort,
    HangUp,
}

#[derive(Arbitrary, Debug)]
struct Input {
    capacity: u8,
    /// What comes right behind the handshake, in the same breath.
    behind: Vec<u8>,
    steps: Vec<Step>,
}

const ANSWERS: [&[u8]; 8] = [
    b"+OK\r\n",
    b":1\r\n",
    b"$1\r\nx\r\n",
    b"-ERR no\r\n",
    b"*2\r\n_\r\n%1\r\n+a\r\n#t\r\n",
    b">3\r\n$9\r\nsubscribe\r\n$0\r\n\r\n:1\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
    b">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n",
];

fuzz_target!(|input: Input| {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(run(input));
});

async fn run(input: Input) {
    let (ours, theirs) = tokio::io::duplex(usize::from(input.capacity) + 1);
    let mut endpoint = Endpoint::parse("redis://peer").expect("a URL");
    endpoint.command_timeout = Duration::from_secs(3600);
    let (connection, theirs) = tokio::join!(
        Connection::over(ours, endpoint),
        shake_hands(theirs, &input.behind)
    );
    let (Ok(connection), Some(theirs)) = (connection, theirs) else {
        return;
    };
    let replies = converse(&connection, theirs, input.steps).await;
    // The peer has gone, so everything ends without anybody's patience.
    for reply in replies {
        let end = tokio::time::timeout(Duration::from_secs(20), reply).await;
        assert!(end.is_ok(), "a reply that never ends");
    }
}

async fn shake_hands(mut peer: DuplexStream, behind: &[u8]) -> Option<DuplexStream> {
    let mut heard = Vec::new();
    for (word, answer) in [
        (&b"HELLO"[..], &b"%1\r\n$5\r\nproto\r\n:3\r\n"[..]),
        (b"LIB-NAME", b"+OK\r\n"),
        (b"LIB-VER", &[b"+OK\r\n", behind].concat()),
    ] {
        // The last argument of each is behind the word; its line end is the end of the request.
        while !heard.windows(word.len()).any(|part| part == word)
            || !heard.ends_with(b"\r\n")
            || is_short(&heard)
        {
            peer.read_buf(&mut heard).await.ok().filter(|n| *n > 0)?;
        }
        heard.clear();
        peer.write_all(answer).await.ok()?;
    }
    Some(peer)
}

/// Whether the one request in `bytes` lacks an argument.
fn is_short(bytes: &[u8]) -> bool {
    let lines = bytes.windows(2).filter(|two| two == b"\r\n").count();
    lines < 1 + 2 * usize::from(bytes[1] - b'0')
}

async fn converse(connection: &Connection, theirs: DuplexStream, steps: Vec<Step>) -> Vec<Reply> {
    let (mut from, to) = tokio::io::split(theirs);
    let mut to = Some(to);
    let mut replies = Vec::new();
    for step in steps {
        match step {
            Step::Submit(n) => {
                replies
                    .extend((0..n % 40).map(|n| connection.submit(&Command::new("ECHO").arg([n]))));
            }
            Step::Large(n) => replies.push(
                connection.submit(&Command::new("ECHO").arg(vec![b'x'; usize::from(n) << 6])),
            ),
            Step::Subscribe(name) => {
                let subscribe = Subscribe {
                    kind: Confirmation::Subscribe,
                    channels: vec![name.into()],
                };
                replies.push(connection.subscribe(&subscribe));
            }
            Step::Drop(which) => drop(take(&mut replies, which)),
            Step::Detach(which) => {
                if let Some(reply) = take(&mut replies, which) {
                    reply.detach(drop);
                }
            }
            Step::Poll(which) => {
                if let Some(mut reply) = take(&mut replies, which)
                    && Pin::new(&mut reply)
                        .poll(&mut Context::from_waker(Waker::noop()))
                        .is_pending()
                {
                    replies.push(reply);
                }
            }
            // A peer that waits for us, or for room, does not do so for ever: the others would get no turn.
            Step::Read(n) => drop(now(from.read(&mut vec![0; usize::from(n)])).await),
            Step::Say(bytes) => say(to.as_mut(), &bytes).await,
            Step::Answer(which) => {
                say(to.as_mut(), ANSWERS[usize::from(which) % ANSWERS.len()]).await
            }
            Step::Turn(n) => {
                for _ in 0..n % 8 {
                    tokio::task::yield_now().await;
                }
            }
            Step::Close => connection.close(),
            Step::Abort => connection.abort(),
            Step::HangUp => to = None,
        }
    }
    replies
}

async fn say(to: Option<&mut tokio::io::WriteHalf<DuplexStream>>, bytes: &[u8]) {
    if let Some(to) = to {
        drop(now(to.write_all(bytes)).await);
    }
}

/// What is done within some turns of the others, and no more.
async fn now<T>(io: impl Future<Output = T>) -> Option<T> {
    let mut io = std::pin::pin!(io);
    for _ in 0..20 {
        if let std::task::Poll::Ready(done) =
            io.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}

fn take(replies: &mut Vec<Reply>, which: u8) -> Option<Reply> {
    (!replies.is_empty()).then(|| replies.swap_remove(usize::from(which) % replies.len()))
}
