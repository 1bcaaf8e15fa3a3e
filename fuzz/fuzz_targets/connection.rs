//! A connection whose peer, chunks and callers are the input's: no panic, no hang, every reply ends and so does the task.
//!
//! The stream is a `tokio::io::duplex` that holds few bytes. The input is a program, one letter and its argument for each
//! step, so that seeds can be written by hand: see [`steps`].
#![no_main]

use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use leasehold_resp::push::{Confirmation, Subscribe};
use leasehold_resp::{Command, Connection, Endpoint, Reply};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::{Builder, Runtime};

/// One runtime for all runs: to make one takes longer than most runs.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
});

enum Step<'a> {
    /// Submits so many small commands.
    Submit(u8),
    /// One of some kilobytes, which the stream does not take at once.
    Large(u8),
    Subscribe(&'a [u8]),
    /// One behind an `ASKING`.
    Asking,
    /// Drops one of the replies to come.
    Drop(u8),
    /// Looks at one of them.
    Poll(u8),
    /// Leaves one of them to a function.
    Detach(u8),
    /// The peer reads.
    Read(u8),
    /// The peer says anything.
    Say(&'a [u8]),
    /// Or something that could be an answer.
    Answer(u8),
    /// The other tasks get a turn or some.
    Turn(u8),
    Close,
    Abort,
    HangUp,
}

/// The steps of a program. A letter is followed by a number, which is a byte, or by a text, which ends at the next zero
/// byte. Letters without a meaning are left out.
fn steps(mut program: &[u8]) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    while let Some((letter, rest)) = program.split_first() {
        let number = rest.first().copied().unwrap_or_default();
        let behind_number = rest.get(1..).unwrap_or_default();
        let end = rest
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(rest.len());
        let (text, behind_text) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
        let step;
        (step, program) = match letter {
            b's' => (Step::Submit(number), behind_number),
            b'l' => (Step::Large(number), behind_number),
            b'c' => (Step::Subscribe(text), behind_text),
            b'q' => (Step::Asking, rest),
            b'd' => (Step::Drop(number), behind_number),
            b'p' => (Step::Poll(number), behind_number),
            b'f' => (Step::Detach(number), behind_number),
            b'r' => (Step::Read(number), behind_number),
            b'y' => (Step::Say(text), behind_text),
            b'a' => (Step::Answer(number), behind_number),
            b't' => (Step::Turn(number), behind_number),
            b'x' => (Step::Close, rest),
            b'k' => (Step::Abort, rest),
            b'h' => (Step::HangUp, rest),
            _ => {
                program = rest;
                continue;
            }
        };
        steps.push(step);
    }
    steps
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

// The first byte is how many bytes the stream holds, then comes what is said right behind the handshake, up to a zero
// byte, then the program.
fuzz_target!(|input: &[u8]| {
    let Some((capacity, rest)) = input.split_first() else {
        return;
    };
    let mut parts = rest.splitn(2, |byte| *byte == 0);
    let behind = parts.next().unwrap_or_default();
    let program = parts.next().unwrap_or_default();
    RUNTIME.block_on(async {
        run(*capacity, behind, steps(program)).await;
        for _ in 0..1000 {
            if RUNTIME.metrics().num_alive_tasks() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("a task that does not end");
    });
});

async fn run(capacity: u8, behind: &[u8], steps: Vec<Step<'_>>) {
    let (ours, theirs) = tokio::io::duplex(usize::from(capacity) + 1);
    let mut endpoint = Endpoint::parse("redis://peer").expect("a URL");
    endpoint.command_timeout = Duration::from_secs(3600);
    let (connection, theirs) = tokio::join!(
        Connection::over(ours, endpoint),
        shake_hands(theirs, behind)
    );
    let (Ok(connection), Some(theirs)) = (connection, theirs) else {
        return;
    };
    let replies = converse(&connection, theirs, steps).await;
    // The peer has gone, so everything ends without waiting for a timeout.
    for reply in replies {
        let end = tokio::time::timeout(Duration::from_secs(20), reply).await;
        assert!(end.is_ok(), "a reply that never ends");
    }
}

async fn shake_hands(mut peer: DuplexStream, behind: &[u8]) -> Option<DuplexStream> {
    let answers = [
        (&b"HELLO"[..], &b"%1\r\n$5\r\nproto\r\n:3\r\n"[..]),
        (b"LIB-VER", &[b"+OK\r\n+OK\r\n", behind].concat()),
    ];
    for (word, answer) in answers {
        let mut heard = Vec::new();
        while !has_argument_behind(&heard, word) {
            peer.read_buf(&mut heard).await.ok().filter(|n| *n > 0)?;
        }
        peer.write_all(answer).await.ok()?;
    }
    Some(peer)
}

/// Whether `word` and one more argument are there: three line ends.
fn has_argument_behind(heard: &[u8], word: &[u8]) -> bool {
    let at = heard.windows(word.len()).position(|part| part == word);
    at.is_some_and(|at| heard[at..].windows(2).filter(|two| two == b"\r\n").count() >= 3)
}

async fn converse(
    connection: &Connection,
    theirs: DuplexStream,
    steps: Vec<Step<'_>>,
) -> Vec<Reply> {
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
                    channels: vec![Bytes::copy_from_slice(name)],
                };
                replies.push(connection.subscribe(&subscribe));
            }
            Step::Asking => replies.push(connection.submit_asking(&Command::new("PING"))),
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
            Step::Read(n) => drop(now(from.read(&mut vec![0; usize::from(n) << 4])).await),
            Step::Say(bytes) => say(to.as_mut(), bytes).await,
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
