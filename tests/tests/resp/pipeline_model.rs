//! The pipeline against a reference model: a million random steps, each compared with what a plain
//! list of commands and a plain list of bytes say.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_resp::pipeline::{
    Full, Liveness, Outcome, Pipeline, RequestId, Shape, Surplus, Wakes, Writing,
};
use leasehold_resp::push::{Confirmation, Subscribe};
use leasehold_resp::{Asking, Command, Encode, Error, ErrorKind, Frame, Value};
use leasehold_testkit::chance::Chance;

const RUNS: u64 = 1_000;
const STEPS: u64 = 1_000;
const TIMEOUT: u64 = 1_000;

/// Above this many unanswered commands none is submitted: the model reads its whole list at many
/// steps.
const MOST_IN_FLIGHT: usize = 40;

/// How a command ends, as far as the model tells.
#[derive(Clone, Debug, PartialEq)]
enum End {
    Reply(String),
    Refused(String),
    Confirmed,
    Failed(ErrorKind),
}

#[derive(Clone, Debug, PartialEq)]
enum Awaits {
    Reply,
    /// The reply to `ASKING` when it has come, and the other.
    Asking(Option<Value>),
    Channels(Confirmation, Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Owner {
    Future(RequestId),
    Callback,
    Nobody,
}

#[derive(Debug)]
struct Known {
    awaits: Awaits,
    owner: Owner,
    start: u64,
    deadline: u64,
    end: Option<End>,
    /// Counts the wake-ups of the task that polled last.
    task: Option<Arc<Task>>,
}

#[derive(Debug, Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The commands of one run and the bytes of its connections.
#[derive(Default)]
struct Model {
    all: Vec<Known>,
    /// Those that still take a reply, oldest first.
    queue: VecDeque<usize>,
    /// Those whose future may still ask.
    held: Vec<usize>,
    encoded: u64,
    exposed: u64,
    /// Encoded and not yet written, in order.
    unwritten: VecDeque<u8>,
    /// Commands since the outbox was last taken.
    since_taken: usize,
    now: u64,
}

struct Run {
    chance: Chance,
    pipeline: Pipeline,
    model: Model,
    wakes: Wakes,
    writing: Option<Writing>,
    /// A buffer of a connection that has failed since.
    stale: Option<Writing>,
    called: Arc<Mutex<Vec<(usize, End)>>>,
    start: Instant,
    connections: i64,
}

struct Panicking;

impl Encode for Panicking {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"*2\r\n$4\r\nECHO\r\n$9\r\nhalf");
        std::panic::resume_unwind(Box::new("without the hook's message"));
    }
}

fn observed(outcome: Outcome) -> End {
    match outcome {
        Ok(Value::Null) => End::Confirmed,
        Ok(Value::Error(line)) => End::Refused(String::from_utf8_lossy(&line).into()),
        Ok(value) => End::Reply(value.as_str().unwrap().to_owned()),
        Err(error) => End::Failed(error.kind()),
    }
}

fn expected(value: &Value) -> End {
    observed(Ok(value.clone()))
}

impl Model {
    fn front(&self) -> Option<&Known> {
        self.queue.front().map(|n| &self.all[*n])
    }

    fn front_sent(&self) -> bool {
        self.front().is_some_and(|known| known.start < self.exposed)
    }

    fn settle_front(&mut self, end: End) -> usize {
        let n = self.queue.pop_front().unwrap();
        self.all[n].end.get_or_insert(end);
        n
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            chance: Chance::new(seed),
            pipeline: Pipeline::new("node:1".into(), Duration::from_millis(TIMEOUT)),
            model: Model::default(),
            wakes: Wakes::default(),
            writing: None,
            stale: None,
            called: Arc::default(),
            start: Instant::now(),
            connections: 0,
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.model.now)
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..=24 => self.submit(),
            25..=29 => self.subscribe(),
            30..=33 => self.submit_asking(),
            34 => self.submit_panicking(),
            35..=40 => self.abandon(),
            41..=46 => self.detach(),
            47..=58 => self.fetch(),
            59..=70 => self.write(),
            71..=88 => self.answer(),
            89..=92 => self.push(),
            93..=95 => self.pass(),
            96 => self.pipeline.release_memory(),
            97 => self.give_back_stale(),
            98 => self.surplus(),
            _ if self.chance.percent(30) => self.fail(),
            _ => {}
        }
        self.compare();
    }

    // ===== callers =====

    fn submitted(&mut self, id: Result<RequestId, Full>, awaits: Awaits, bytes: &[u8]) {
        let id = id.expect("far from full");
        let n = self.model.all.len();
        let reused = self
            .model
            .held
            .iter()
            .any(|n| self.model.all[*n].owner == Owner::Future(id));
        assert!(!reused, "an id with two owners");
        self.model.all.push(Known {
            awaits,
            owner: Owner::Future(id),
            start: self.model.encoded,
            deadline: self.model.now + TIMEOUT,
            end: None,
            task: None,
        });
        self.model.queue.push_back(n);
        self.model.held.push(n);
        self.model.encoded += bytes.len() as u64;
        self.model.unwritten.extend(bytes);
        self.model.since_taken += 1;
    }

    fn may_submit(&self) -> bool {
        self.model.queue.len() < MOST_IN_FLIGHT
    }

    fn submit(&mut self) {
        if self.may_submit() {
            let command = Command::new("ECHO").arg(self.model.all.len().to_string());
            let id = self.pipeline.submit(&command, Shape::Reply, self.now());
            self.submitted(id, Awaits::Reply, &bytes_of(&command));
        }
    }

    fn submit_asking(&mut self) {
        if self.may_submit() {
            let command = Asking(Command::new("ECHO").arg(self.model.all.len().to_string()));
            let shape = Shape::AfterAsking(None);
            let id = self.pipeline.submit(&command, shape, self.now());
            self.submitted(id, Awaits::Asking(None), &bytes_of(&command));
        }
    }

    fn subscribe(&mut self) {
        if self.may_submit() {
            let n = self.model.all.len();
            let kind = *self
                .chance
                .pick(&[Confirmation::Subscribe, Confirmation::Sunsubscribe]);
            // Few names, so that commands share them.
            let names = (0..=self.chance.below(3)).map(|i| format!("{}", (n as u64 + i) % 5));
            let channels: Vec<Bytes> = names.map(Bytes::from).collect();
            let subscribe = Subscribe { kind, channels };
            let channels = subscribe.confirmations();
            let names = channels.iter().map(text).collect();
            let shape = Shape::Confirmations { kind, channels };
            let id = self.pipeline.submit(&subscribe, shape, self.now());
            self.submitted(id, Awaits::Channels(kind, names), &bytes_of(&subscribe));
        }
    }

    fn submit_panicking(&mut self) {
        if self.may_submit() {
            let now = self.now();
            let submitting =
                AssertUnwindSafe(|| self.pipeline.submit(&Panicking, Shape::Reply, now));
            assert!(catch_unwind(submitting).is_err());
        }
    }

    fn take_held(&mut self) -> Option<(usize, RequestId)> {
        let held = &mut self.model.held;
        let n = match held.len() {
            0 => return None,
            len => held.swap_remove(self.chance.below(len as u64) as usize),
        };
        let known = &self.model.all[n];
        let Owner::Future(id) = known.owner else {
            panic!("held by nobody")
        };
        if let Some(task) = &known.task {
            let woken = task.0.load(Ordering::Relaxed);
            assert_eq!(woken, usize::from(known.end.is_some()), "of command {n}");
        }
        Some((n, id))
    }

    fn abandon(&mut self) {
        if let Some((n, id)) = self.take_held() {
            self.pipeline.abandon(id);
            self.model.all[n].owner = Owner::Nobody;
        }
    }

    fn detach(&mut self) {
        if let Some((n, id)) = self.take_held() {
            let called = Arc::clone(&self.called);
            let callback =
                Box::new(move |outcome| called.lock().unwrap().push((n, observed(outcome))));
            let ready = self.pipeline.detach(id, callback);
            assert_eq!(ready.is_some(), self.model.all[n].end.is_some());
            match ready {
                Some((_, outcome)) => {
                    assert_eq!(Some(observed(outcome)), self.model.all[n].end);
                    self.model.all[n].owner = Owner::Nobody;
                }
                None => self.model.all[n].owner = Owner::Callback,
            }
        }
    }

    fn fetch(&mut self) {
        if let Some((n, id)) = self.take_held() {
            // The same task again, or another one, which alone is to be woken then.
            let before = self.model.all[n].task.take();
            let task = match before {
                Some(before) if self.chance.percent(50) => before,
                _ => Arc::default(),
            };
            let outcome = self.pipeline.poll(id, &Waker::from(Arc::clone(&task)));
            self.model.all[n].task = Some(task);
            if let Some(Err(error)) = &outcome {
                let sent = matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Timeout);
                assert!(sent || error.connection().is_none(), "{error}");
            }
            assert_eq!(
                outcome.map(observed),
                self.model.all[n].end,
                "of command {n}"
            );
            if self.model.all[n].end.is_none() {
                self.model.held.push(n);
            } else {
                self.model.all[n].owner = Owner::Nobody;
            }
        }
    }

    // ===== the wire =====

    fn write(&mut self) {
        let mut writing = match self.writing.take() {
            Some(writing) => writing,
            None => {
                self.model.exposed = self.model.encoded;
                self.model.since_taken = 0;
                self.pipeline.begin_write()
            }
        };
        let n = self.chance.below(writing.rest().len() as u64 + 1) as usize;
        let n = if self.chance.percent(30) {
            writing.rest().len()
        } else {
            n
        };
        let sent: Vec<u8> = self.model.unwritten.drain(..n).collect();
        assert_eq!(
            writing.rest()[..n],
            sent[..],
            "other bytes than were submitted"
        );
        writing.advance(n);
        let left = self.model.encoded - self.model.unwritten.len() as u64;
        if self.chance.percent(50) {
            self.pipeline.progress(&writing);
            self.writing = Some(writing);
        } else {
            let is_done = writing.rest().is_empty();
            assert_eq!(self.pipeline.end_write(writing), is_done);
        }
        self.model.exposed = left;
    }

    fn give_back_stale(&mut self) {
        if let Some(stale) = self.stale.take() {
            self.pipeline.progress(&stale);
            assert!(
                self.pipeline.end_write(stale),
                "its bytes are nobody's any more"
            );
        }
    }

    fn receive(&mut self, frame: Frame) -> Result<Option<Vec<Value>>, Surplus> {
        let received = self.pipeline.receive(frame, &mut self.wakes);
        self.wakes.fire();
        received
    }

    /// The reply that the oldest command awaits, or an error.
    fn answer(&mut self) {
        if !self.model.front_sent() {
            return;
        }
        let n = self.model.queue[0];
        let line = *self
            .chance
            .pick(&["ERR no", "MOVED 1 10.0.0.1:1", "TRYAGAIN later"]);
        let error = Value::Error(line.into());
        let text = Value::Bulk(n.to_string().into());
        let value = if self.chance.percent(80) {
            text
        } else {
            error.clone()
        };
        match self.model.all[n].awaits.clone() {
            Awaits::Reply => {
                self.model.settle_front(expected(&value));
                assert_eq!(self.receive(Frame::Reply(value)), Ok(None));
            }
            Awaits::Asking(None) => {
                self.model.all[n].awaits = Awaits::Asking(Some(value.clone()));
                assert_eq!(self.receive(Frame::Reply(value)), Ok(None));
            }
            Awaits::Asking(Some(asking)) => {
                let is_redirect =
                    matches!(&value, Value::Error(line) if line.starts_with(b"MOVED"));
                let was_refused = matches!(asking, Value::Error(_));
                let last = if is_redirect && was_refused {
                    &asking
                } else {
                    &value
                };
                self.model.settle_front(expected(last));
                assert_eq!(self.receive(Frame::Reply(value)), Ok(None));
            }
            Awaits::Channels(..) if self.chance.percent(10) => {
                self.model.settle_front(expected(&error));
                assert_eq!(self.receive(Frame::Reply(error)), Ok(None));
            }
            Awaits::Channels(kind, mut names) => {
                let index = self.chance.below(names.len() as u64) as usize;
                self.confirm(kind, &names[index].clone());
                names.swap_remove(index);
                if names.is_empty() {
                    self.model.settle_front(End::Confirmed);
                } else {
                    self.model.all[n].awaits = Awaits::Channels(kind, names);
                }
            }
        }
    }

    fn confirm(&mut self, kind: Confirmation, channel: &str) {
        assert_eq!(self.receive(confirmation(kind, channel)), Ok(None));
    }

    /// A push that confirms nothing: a message, or a confirmation of another kind or channel or too
    /// early.
    fn push(&mut self) {
        let kind = *self.chance.pick(&[
            Confirmation::Subscribe,
            Confirmation::Sunsubscribe,
            Confirmation::Unsubscribe,
        ]);
        let channel = self.chance.below(5).to_string();
        let front = self.model.front().map(|known| &known.awaits);
        let confirms = matches!(front, Some(Awaits::Channels(awaited, names)) if *awaited == kind && names.contains(&channel));
        if !(confirms && self.model.front_sent()) {
            let frame = confirmation(kind, &channel);
            let Frame::Push(elements) = frame.clone() else {
                panic!("it is a push")
            };
            assert_eq!(self.receive(frame), Ok(Some(elements)));
        }
    }

    /// A reply where none is due; that ends the connection.
    fn surplus(&mut self) {
        let front = self.model.front().map(|known| &known.awaits);
        let awaits_reply = !matches!(front, Some(Awaits::Channels(..)));
        if awaits_reply && self.model.front_sent() {
            return;
        }
        let value = Value::Bulk("surplus".into());
        assert_eq!(
            self.receive(Frame::Reply(value.clone())),
            Err(Surplus(value))
        );
        self.fail();
    }

    fn fail(&mut self) {
        self.connections += 1;
        let reason = Error::unknown(&"node:1".into(), "the peer closed the connection");
        self.pipeline.fail_all(&reason, &mut self.wakes);
        self.wakes.fire();
        while let Some(known) = self.model.front() {
            let kind = if known.start < self.model.exposed {
                ErrorKind::Unknown
            } else {
                ErrorKind::NotSent
            };
            self.model.settle_front(End::Failed(kind));
        }
        self.model.exposed = self.model.encoded;
        self.model.unwritten.clear();
        self.model.since_taken = 0;
        self.stale = self.writing.take().or_else(|| self.stale.take());
    }

    // ===== time =====

    fn pass(&mut self) {
        self.model.now += self.chance.below(700);
        for n in self.model.queue.iter().copied() {
            let known = &mut self.model.all[n];
            let expires = !matches!(known.awaits, Awaits::Channels(..));
            if known.deadline <= self.model.now && expires && known.owner != Owner::Nobody {
                known.end.get_or_insert(End::Failed(ErrorKind::Timeout));
            }
        }
        let dead = |known: &Known| known.deadline + TIMEOUT <= self.model.now;
        let expected = match self.model.front().is_some_and(dead) {
            true => Liveness::Dead,
            false => Liveness::Alive,
        };
        let liveness = self.pipeline.expire(self.now(), &mut self.wakes);
        self.wakes.fire();
        assert_eq!(liveness, expected);
    }

    // ===== after every step =====

    fn compare(&mut self) {
        for (n, end) in self.called.lock().unwrap().drain(..) {
            assert_eq!(self.model.all[n].owner, Owner::Callback, "called twice");
            assert_eq!(Some(end), self.model.all[n].end, "of command {n}");
            self.model.all[n].owner = Owner::Nobody;
        }
        let pipeline = &self.pipeline;
        assert_eq!(pipeline.in_flight(), self.model.queue.len());
        assert_eq!(pipeline.unwritten(), self.model.since_taken);
        assert_eq!(pipeline.is_writing(), self.writing.is_some());
        let handed_out = self
            .writing
            .as_ref()
            .map_or(0, |writing| writing.rest().len());
        assert_eq!(
            pipeline.is_flushed(),
            self.model.unwritten.len() == handed_out
        );
        let instant = |ms| self.start + Duration::from_millis(ms);
        let front = self.model.front();
        let submitted = front.map(|known| instant(known.deadline - TIMEOUT));
        assert_eq!(pipeline.waiting_since(), submitted);
        let gives_up = front.map(|known| known.deadline + TIMEOUT);
        let in_flight = self.model.queue.iter().map(|n| &self.model.all[*n]);
        let expires = in_flight
            .filter(|known| !matches!(known.awaits, Awaits::Channels(..)))
            .find(|known| known.end.is_none() && known.owner != Owner::Nobody)
            .map(|known| known.deadline);
        let next = gives_up.map(|at| expires.map_or(at, |deadline| deadline.min(at)));
        assert_eq!(pipeline.next_deadline(), next.map(instant));
    }

    /// Nothing is left without an outcome once the connection has failed.
    fn finish(mut self) {
        self.fail();
        self.compare();
        while !self.model.held.is_empty() {
            self.fetch();
        }
        let forgotten = self
            .model
            .all
            .iter()
            .position(|known| known.owner != Owner::Nobody);
        assert_eq!(forgotten, None, "never told");
    }
}

fn bytes_of(command: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    command.encode(&mut bytes);
    bytes
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into()
}

fn confirmation(kind: Confirmation, channel: &str) -> Frame {
    let kind = match kind {
        Confirmation::Subscribe => "subscribe",
        Confirmation::Unsubscribe => "unsubscribe",
        Confirmation::Ssubscribe => "ssubscribe",
        Confirmation::Sunsubscribe => "sunsubscribe",
    };
    Frame::Push(vec![
        Value::Bulk(kind.into()),
        Value::Bulk(channel.to_owned().into()),
        Value::Integer(1),
    ])
}

#[test]
fn a_million_random_steps_are_what_a_plain_list_says() {
    let first = Chance::seed();
    for seed in first..first + RUNS {
        let mut run = Run::new(seed);
        let mut step = 0;
        let running = catch_unwind(AssertUnwindSafe(|| {
            while step < STEPS {
                run.step();
                step += 1;
            }
        }));
        if let Err(panic) = running {
            eprintln!("LEASEHOLD_SEED={seed} repeats it, at its step {step}");
            std::panic::resume_unwind(panic);
        }
        run.finish();
    }
}
