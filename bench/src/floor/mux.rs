//! floor-mux: one connection that many tasks share, as cheaply as it can be done.
//!
//! Tasks encode into a shared outbox and take a place in a ring of reply slots, in one short
//! critical section, so queue order is wire order. An idle connection is written by the task
//! itself. A busy one is written by the driver after the tasks it woke have queued their next
//! command, and by those tasks whenever sixteen commands are queued: without that, client and
//! server take turns instead of working at the same time.
//!
//! Replies are integers; pushes carry a number and are looked up in a second ring (see
//! [`grant`](crate::floor::grant)).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::client::PairClient;
use crate::floor::scan::{Scan, element, number};
use crate::floor::write;
use crate::scripts::{ACQUIRE, Job, LEASE_MS, RELEASE};

/// Commands that are written without waiting for more.
const EARLY_FLUSH: usize = 16;
/// Size of one read.
const READ_BUFFER: usize = 16 << 10;

/// A shared connection; clones share it.
#[derive(Clone)]
pub struct Mux {
    shared: Arc<Shared>,
}

struct Shared {
    writer: OwnedWriteHalf,
    queue: Mutex<Queue>,
}

/// State shared by tasks and driver.
struct Queue {
    /// Encoded, not yet written.
    out: Vec<u8>,
    /// The buffer of the last write, to be used again.
    spare: Vec<u8>,
    /// Commands in `out`.
    queued: usize,
    /// A task is in a system call with the buffer that `spare` was.
    writing: bool,
    /// The driver has woken several tasks and will flush after them: tasks do not write lone
    /// commands themselves.
    company: bool,
    /// The driver has been asked to flush.
    flush: bool,
    /// Reply slots; the front one is number `first`.
    slots: VecDeque<Slot>,
    first: u64,
    /// The next slot to get a reply.
    next_reply: u64,
    driver: Option<Waker>,
    /// By number, the content of a push or its waiter.
    pushes: Vec<Push>,
}

enum Slot {
    Waiting(Waker),
    Done(i64),
    Taken,
}

enum Push {
    Nobody,
    Waiting(Waker),
    Arrived,
}

impl Mux {
    /// Connects with RESP3, so that pushes come on the same connection. `pushes` numbers may be
    /// waited for.
    pub async fn open(port: u16, setup: &[&[&[u8]]], pushes: usize) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port))
            .await
            .expect("a server");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        let hello: &[&[u8]] = &[b"HELLO", b"3"];
        for command in std::iter::once(&hello).chain(setup) {
            exchange(&mut stream, command).await;
        }
        let queue = Queue {
            out: Vec::with_capacity(READ_BUFFER),
            spare: Vec::with_capacity(READ_BUFFER),
            queued: 0,
            writing: false,
            company: false,
            flush: false,
            slots: VecDeque::with_capacity(64),
            first: 0,
            next_reply: 0,
            driver: None,
            pushes: (0..pushes).map(|_| Push::Nobody).collect(),
        };
        let (reader, writer) = stream.into_split();
        let shared = Arc::new(Shared {
            writer,
            queue: Mutex::new(queue),
        });
        tokio::spawn(drive(Arc::clone(&shared), reader));
        Self { shared }
    }

    /// Runs a script that replies with an integer.
    pub async fn evalsha(&self, sha: &[u8], keys: &[&[u8]], args: &[&[u8]]) -> i64 {
        let mut number = None;
        poll_fn(|cx| match number {
            None => {
                number = Some(self.submit(cx, sha, keys, args));
                Poll::Pending
            }
            Some(number) => self.shared.lock().take_reply(number, cx),
        })
        .await
    }

    /// The first half of a pair.
    pub async fn acquire(&self, job: &Job) {
        let (key, token) = (job.key.as_bytes(), job.token.as_bytes());
        assert_eq!(
            self.evalsha(
                ACQUIRE.sha.as_bytes(),
                &[key],
                &[token, LEASE_MS.as_bytes()]
            )
            .await,
            1
        );
    }

    /// The second.
    pub async fn release(&self, job: &Job) {
        let (key, token) = (job.key.as_bytes(), job.token.as_bytes());
        assert_eq!(
            self.evalsha(RELEASE.sha.as_bytes(), &[key], &[token]).await,
            1
        );
    }

    /// Waits until a push has named `number`, now or before.
    pub async fn pushed(&self, number: usize) {
        poll_fn(|cx| {
            let slot = &mut self.shared.lock().pushes[number];
            if matches!(slot, Push::Arrived) {
                *slot = Push::Nobody;
                return Poll::Ready(());
            }
            *slot = Push::Waiting(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn submit(&self, cx: &Context<'_>, sha: &[u8], keys: &[&[u8]], args: &[&[u8]]) -> u64 {
        let mut queue = self.shared.lock();
        write::evalsha(&mut queue.out, sha, keys, args);
        queue.queued += 1;
        queue.slots.push_back(Slot::Waiting(cx.waker().clone()));
        let number = queue.first + queue.slots.len() as u64 - 1;
        let alone = !queue.company && number == queue.next_reply;
        if !queue.writing && (alone || queue.queued >= EARLY_FLUSH) {
            self.shared.write_out(queue);
        } else if !queue.company && !queue.flush {
            queue.flush = true;
            let driver = queue.driver.take();
            drop(queue);
            if let Some(driver) = driver {
                driver.wake();
            }
        }
        number
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nobody panics in here")
    }

    /// Writes what is queued, once; the system call is made without the lock. What did not fit is
    /// left to the driver.
    fn write_out(&self, mut queue: MutexGuard<'_, Queue>) {
        if queue.writing || queue.out.is_empty() {
            return;
        }
        let spare = std::mem::take(&mut queue.spare);
        let mut out = std::mem::replace(&mut queue.out, spare);
        queue.queued = 0;
        queue.writing = true;
        drop(queue);

        let written = match self.writer.try_write(&out) {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
            Err(e) => panic!("write: {e}"),
        };

        let mut queue = self.lock();
        queue.writing = false;
        if written < out.len() {
            out.drain(..written);
            out.extend_from_slice(&queue.out);
            std::mem::swap(&mut queue.out, &mut out);
            queue.flush = true;
        } else if queue.queued > 0 && !queue.company {
            // Queued during the write, without knowing whether it would include them.
            queue.flush = true;
        }
        out.clear();
        queue.spare = out;
        let driver = if queue.flush {
            queue.driver.take()
        } else {
            None
        };
        drop(queue);
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

impl Queue {
    fn take_reply(&mut self, number: u64, cx: &Context<'_>) -> Poll<i64> {
        let index = (number - self.first) as usize;
        let reply = match &mut self.slots[index] {
            Slot::Done(reply) => *reply,
            Slot::Waiting(waker) => {
                waker.clone_from(cx.waker());
                return Poll::Pending;
            }
            Slot::Taken => unreachable!("a reply is taken once"),
        };
        self.slots[index] = Slot::Taken;
        while matches!(self.slots.front(), Some(Slot::Taken)) {
            self.slots.pop_front();
            self.first += 1;
        }
        Poll::Ready(reply)
    }

    /// Files the complete replies in `input`; returns their length. Several woken tasks defer their
    /// writes.
    fn dispatch_all(&mut self, input: &[u8], wake: &mut Vec<Waker>) -> usize {
        let mut scan = Scan::default();
        let mut done = 0;
        while let Some(end) = scan.frame(input) {
            self.dispatch(&input[done..end], wake);
            done = end;
        }
        self.company = wake.len() > 1;
        done
    }

    /// Files one reply or push; its waiter is added to `wake`.
    fn dispatch(&mut self, frame: &[u8], wake: &mut Vec<Waker>) {
        match frame[0] {
            b':' => {
                let index = (self.next_reply - self.first) as usize;
                self.next_reply += 1;
                let reply = number(&frame[1..frame.len() - 2]) as i64;
                if let Slot::Waiting(waker) =
                    std::mem::replace(&mut self.slots[index], Slot::Done(reply))
                {
                    wake.push(waker);
                }
            }
            b'>' => {
                let number = last_number(frame);
                if let Push::Waiting(waker) =
                    std::mem::replace(&mut self.pushes[number], Push::Arrived)
                {
                    wake.push(waker);
                }
            }
            _ => panic!("reply: {}", String::from_utf8_lossy(frame)),
        }
    }
}

impl PairClient for Mux {
    async fn connect(port: u16) -> Self {
        Self::open(port, &[], 0).await
    }

    async fn pair(&mut self, job: &Job) {
        self.acquire(job).await;
        self.release(job).await;
    }
}

/// Reads replies and wakes their tasks; writes the commands that these queue next.
async fn drive(shared: Arc<Shared>, mut reader: OwnedReadHalf) {
    let mut input = vec![0; READ_BUFFER];
    let mut filled = 0;
    let mut wake = Vec::with_capacity(64);
    loop {
        // `None`: a flush was requested. `poll_read`, for `try_read` would need a second call to
        // see that there is no more.
        let read = poll_fn(|cx| {
            let mut queue = shared.lock();
            if std::mem::take(&mut queue.flush) {
                return Poll::Ready(None);
            }
            if !queue
                .driver
                .as_ref()
                .is_some_and(|driver| driver.will_wake(cx.waker()))
            {
                queue.driver = Some(cx.waker().clone());
            }
            drop(queue);
            let mut free = ReadBuf::new(&mut input[filled..]);
            Pin::new(&mut reader)
                .poll_read(cx, &mut free)
                .map(|read| Some(read.map(|()| free.filled().len())))
        })
        .await;
        match read {
            None => {
                flush_all(&shared).await;
                continue;
            }
            Some(Ok(0)) => return,
            Some(Ok(n)) => filled += n,
            Some(Err(e)) => panic!("read: {e}"),
        }

        let done = shared.lock().dispatch_all(&input[..filled], &mut wake);
        input.copy_within(done..filled, 0);
        filled -= done;
        let company = wake.len() > 1;
        wake.drain(..).for_each(Waker::wake);

        // A single task writes its command itself; several are given one turn to queue theirs.
        if company {
            behind_the_woken().await;
            shared.lock().company = false;
            flush_all(&shared).await;
        }
    }
}

/// Lets the tasks woken before run first. Unlike `yield_now`, without a look at the sockets in
/// between, which would be a system call a wave.
async fn behind_the_woken() {
    let mut again = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut again, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Writes until nothing is queued or another task is writing.
async fn flush_all(shared: &Shared) {
    loop {
        shared.write_out(shared.lock());
        if !std::mem::take(&mut shared.lock().flush) {
            return;
        }
        shared.writer.writable().await.expect("a server");
    }
}

/// One command and its reply before the driver runs.
async fn exchange(stream: &mut TcpStream, command: &[&[u8]]) {
    let mut out = Vec::new();
    write::request(&mut out, command);
    stream.write_all(&out).await.expect("a server");
    let mut input = Vec::new();
    while Scan::default().frame(&input).is_none() {
        assert!(
            stream.read_buf(&mut input).await.expect("a server") > 0,
            "the server hung up"
        );
    }
    assert!(input[0] != b'-', "{}", String::from_utf8_lossy(&input));
}

/// The decimal text that a push ends with.
fn last_number(push: &[u8]) -> usize {
    let mut pos = 0;
    let mut last = 0;
    while let Some(element) = element(push, pos) {
        if element.kind == b'$' {
            last = number_or_zero(&push[element.start..element.text_end]);
        }
        pos = element.end;
    }
    last
}

fn number_or_zero(text: &[u8]) -> usize {
    if text.iter().all(u8::is_ascii_digit) {
        number(text) as usize
    } else {
        0
    }
}
