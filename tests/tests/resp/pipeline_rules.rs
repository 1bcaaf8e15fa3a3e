//! The rules of one connection's queue, with synthetic instants: no socket, no runtime, no clock.

mod subscriptions;
mod writes;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_resp::command::Asking;
use leasehold_resp::pipeline::{
    Liveness, MAX_IN_FLIGHT, MAX_OUTBOX, Pipeline, RequestId, Shape, Wakes,
};
use leasehold_resp::push::{Confirmation, Subscribe};
use leasehold_resp::{Command, Error, ErrorKind, Frame, Value};

const TIMEOUT: Duration = Duration::from_secs(1);

/// A pipeline, and its surroundings.
struct World {
    pipeline: Pipeline,
    wakes: Wakes,
    start: Instant,
}

impl World {
    fn new() -> Self {
        Self {
            pipeline: Pipeline::new("node:1".into(), TIMEOUT),
            wakes: Wakes::default(),
            start: Instant::now(),
        }
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    fn submit(&mut self, tag: &str) -> RequestId {
        self.submit_at(tag, 0)
    }

    fn submit_at(&mut self, tag: &str, ms: u64) -> RequestId {
        let now = self.at(ms);
        self.pipeline
            .submit(&Command::new("ECHO").arg(tag), Shape::Reply, now)
            .unwrap()
    }

    fn subscribe(&mut self, kind: Confirmation, channels: &[&str]) -> RequestId {
        let channels: Vec<Bytes> = channels
            .iter()
            .map(|name| Bytes::copy_from_slice(name.as_bytes()))
            .collect();
        let subscribe = Subscribe { kind, channels };
        let shape = Shape::Confirmations {
            kind,
            channels: subscribe.confirmations(),
        };
        let now = self.start;
        self.pipeline.submit(&subscribe, shape, now).unwrap()
    }

    /// Everything queued leaves.
    fn write_all(&mut self) -> usize {
        let mut writing = self.pipeline.begin_write();
        let n = writing.rest().len();
        writing.advance(n);
        assert!(self.pipeline.end_write(writing));
        n
    }

    fn reply(&mut self, value: impl Into<Reply>) {
        let Reply(value) = value.into();
        assert_eq!(
            self.pipeline
                .receive(Frame::Reply(value), &mut self.wakes)
                .unwrap(),
            None
        );
        self.wakes.fire();
    }

    /// Whether the push was taken for a confirmation.
    fn push(&mut self, kind: &'static str, channel: &str) -> bool {
        let rest = self
            .pipeline
            .receive(confirmation(kind, channel), &mut self.wakes)
            .unwrap();
        self.wakes.fire();
        rest.is_none()
    }

    fn poll(&mut self, id: RequestId) -> Option<Result<Value, Error>> {
        self.pipeline.poll(id, Waker::noop())
    }

    /// The text of the reply that `id` got.
    fn text(&mut self, id: RequestId) -> String {
        self.poll(id)
            .expect("an outcome")
            .expect("a reply")
            .as_str()
            .unwrap()
            .to_owned()
    }

    fn error(&mut self, id: RequestId) -> ErrorKind {
        self.poll(id)
            .expect("an outcome")
            .expect_err("an error")
            .kind()
    }

    fn expire(&mut self, ms: u64) -> Liveness {
        let now = self.at(ms);
        let liveness = self.pipeline.expire(now, &mut self.wakes);
        self.wakes.fire();
        liveness
    }

    fn fail(&mut self) {
        let reason = Error::unknown(&"node:1".into(), "the peer closed the connection");
        self.pipeline.fail_all(&reason, &mut self.wakes);
        self.wakes.fire();
    }
}

struct Reply(Value);

impl From<&str> for Reply {
    fn from(text: &str) -> Self {
        Self(Value::Bulk(Bytes::copy_from_slice(text.as_bytes())))
    }
}

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        Self(value)
    }
}

fn confirmation(kind: &'static str, channel: &str) -> Frame {
    let channel = Bytes::copy_from_slice(channel.as_bytes());
    Frame::Push(vec![
        Value::Bulk(kind.into()),
        Value::Bulk(channel),
        Value::Integer(0),
    ])
}

/// Counts wake-ups.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

// ===== order =====

#[test]
fn replies_go_to_commands_in_the_order_they_were_submitted() {
    let mut world = World::new();
    let ids: Vec<_> = ["a", "b", "c"].map(|tag| world.submit(tag)).into();
    world.write_all();
    for tag in ["a", "b", "c"] {
        world.reply(tag);
    }
    // Fetched in any order.
    for (id, tag) in ids.into_iter().zip(["a", "b", "c"]).rev() {
        assert_eq!(world.text(id), tag);
    }
}

#[test]
fn an_abandoned_command_keeps_its_place_so_that_nobody_gets_anothers_reply() {
    let mut world = World::new();
    let [a, b, c] = ["a", "b", "c"].map(|tag| world.submit(tag));
    world.pipeline.abandon(b);
    world.write_all();
    for tag in ["a", "b", "c"] {
        world.reply(tag);
    }
    assert_eq!((world.text(a), world.text(c)), ("a".into(), "c".into()));
    assert_eq!(world.pipeline.in_flight(), 0);
}

#[test]
fn a_place_is_used_again_only_when_its_owner_is_done_with_it() {
    let mut world = World::new();
    let a = world.submit("a");
    world.write_all();
    world.reply("a");
    let b = world.submit("b");
    assert_ne!(a, b, "a has not fetched its reply");
    assert_eq!(world.text(a), "a");
    assert_eq!(world.submit("c"), a);
    // An outcome that is not fetched frees the place as well.
    world.write_all();
    world.reply("b");
    world.pipeline.abandon(b);
    assert_eq!(world.submit("d"), b);
}

#[test]
fn only_the_newest_waker_of_a_command_is_woken_and_once() {
    let mut world = World::new();
    let id = world.submit("a");
    let (first, second) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
    for counter in [&first, &second, &second] {
        assert!(
            world
                .pipeline
                .poll(id, &Waker::from(Arc::clone(counter)))
                .is_none()
        );
    }
    world.write_all();
    world.reply("a");
    assert_eq!(
        (
            first.0.load(Ordering::Relaxed),
            second.0.load(Ordering::Relaxed)
        ),
        (0, 1)
    );
}

#[test]
fn a_function_gets_the_outcome_whether_it_is_left_before_or_after_the_reply() {
    let mut world = World::new();
    let (early, late) = (world.submit("early"), world.submit("late"));
    world.write_all();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let callback = || {
        let heard = Arc::clone(&heard);
        Box::new(move |outcome: Result<Value, Error>| heard.lock().unwrap().push(outcome.unwrap()))
    };
    assert!(world.pipeline.detach(early, callback()).is_none());
    world.reply("early");
    world.reply("late");
    let (callback, outcome) = world
        .pipeline
        .detach(late, callback())
        .expect("it is known already");
    callback(outcome);
    assert_eq!(
        *heard.lock().unwrap(),
        [Value::Bulk("early".into()), Value::Bulk("late".into())]
    );
    world.pipeline.release_memory();
    // Both places were given back.
    assert_eq!(world.submit("next"), 0);
}

#[test]
fn a_reply_that_nobody_asked_for_ends_the_connection() {
    let mut world = World::new();
    let stray = world
        .pipeline
        .receive(Frame::Reply(Value::Integer(1)), &mut world.wakes)
        .unwrap_err();
    assert_eq!(stray.0, Value::Integer(1));
    // Some servers send an error before they close.
    let line = Value::Error("ERR max number of clients reached".into());
    let frame = Frame::Reply(line.clone());
    let farewell = world.pipeline.receive(frame, &mut world.wakes).unwrap_err();
    assert_eq!(farewell.0, line);
}

/// A peer that answers twice would hand every later caller the reply of the one before.
#[test]
fn a_surplus_reply_settles_nothing_that_was_not_written() {
    let mut world = World::new();
    let first = world.submit("first");
    world.write_all();
    let second = world.submit("second");
    world.reply("first");
    let surplus = Frame::Reply(Value::Integer(1));
    let refused = world.pipeline.receive(surplus.clone(), &mut world.wakes);
    assert_eq!(refused.unwrap_err().0, Value::Integer(1));
    assert_eq!(world.text(first), "first");
    assert!(world.poll(second).is_none());

    // Nor commands that wait for the socket behind one that is half written.
    let mut writing = world.pipeline.begin_write();
    let third = world.submit("third");
    writing.advance(1);
    world.pipeline.progress(&writing);
    world.reply("second");
    assert_eq!(world.text(second), "second");
    let refused = world.pipeline.receive(surplus, &mut world.wakes);
    assert_eq!(refused.unwrap_err().0, Value::Integer(1));
    assert!(world.poll(third).is_none());
    world.fail();
    assert_eq!(world.error(third), ErrorKind::NotSent);
}

/// A push that looks like a confirmation cannot confirm what the peer has not read yet.
#[test]
fn a_subscription_that_was_not_written_cannot_be_confirmed() {
    let mut world = World::new();
    let sub = world.subscribe(Confirmation::Sunsubscribe, &["a"]);
    assert!(!world.push("sunsubscribe", "a"), "the slot moved away");
    assert!(world.poll(sub).is_none());
    world.write_all();
    assert!(world.push("sunsubscribe", "a"));
    assert!(world.push("sunsubscribe", "a"));
    assert!(matches!(world.poll(sub), Some(Ok(Value::Null))));
}

// ===== time =====

#[test]
fn deadlines_count_from_submitting_whether_or_not_anything_was_written() {
    let mut world = World::new();
    let (a, b) = (world.submit_at("a", 0), world.submit_at("b", 300));
    assert_eq!(world.pipeline.next_deadline(), Some(world.at(1000)));
    assert_eq!(world.expire(999), Liveness::Alive);
    assert!(world.poll(a).is_none());
    assert_eq!(world.expire(1000), Liveness::Alive);
    assert_eq!(world.error(a), ErrorKind::Timeout);
    assert!(world.poll(b).is_none());
    assert_eq!(world.pipeline.next_deadline(), Some(world.at(1300)));
}

#[test]
fn the_late_reply_of_an_expired_command_is_for_nobody() {
    let mut world = World::new();
    let (a, b) = (world.submit_at("a", 0), world.submit_at("b", 500));
    world.write_all();
    world.expire(1000);
    assert_eq!(world.error(a), ErrorKind::Timeout);
    world.reply("a");
    assert!(
        world.poll(b).is_none(),
        "the late reply to a is not the reply to b"
    );
    world.reply("b");
    assert_eq!(world.text(b), "b");
}

#[test]
fn two_timeouts_without_an_answer_to_the_oldest_command_are_death() {
    let mut world = World::new();
    let a = world.submit_at("a", 0);
    world.write_all();
    assert_eq!(world.expire(1000), Liveness::Alive);
    assert_eq!(world.pipeline.next_deadline(), Some(world.at(2000)));
    assert_eq!(world.expire(1999), Liveness::Alive);
    assert_eq!(world.expire(2000), Liveness::Dead);
    assert_eq!(world.error(a), ErrorKind::Timeout);

    // Also if its future was dropped.
    let mut world = World::new();
    let a = world.submit_at("a", 0);
    world.pipeline.abandon(a);
    assert_eq!(world.expire(1999), Liveness::Alive);
    assert_eq!(world.expire(2000), Liveness::Dead);
}

#[test]
fn a_command_that_blocks_may_take_longer_but_never_shorter_than_the_connection_allows() {
    let mut world = World::new();
    let command = Command::new("BLPOP").arg("k").arg("3");
    let now = world.start;
    let a = world
        .pipeline
        .submit_within(&command, Shape::Reply, now, TIMEOUT * 3)
        .unwrap();
    assert_eq!(world.expire(2999), Liveness::Alive);
    assert!(world.poll(a).is_none());
    world.expire(3000);
    assert_eq!(world.error(a), ErrorKind::Timeout);

    let mut world = World::new();
    let a = world
        .pipeline
        .submit_within(&command, Shape::Reply, now, Duration::ZERO)
        .unwrap();
    world.expire(999);
    assert!(world.poll(a).is_none());
}

#[test]
fn a_timeout_for_ever_and_one_of_nothing_are_durations_that_can_be_counted() {
    let mut pipeline = Pipeline::new("node:1".into(), Duration::MAX);
    let now = Instant::now();
    let command = Command::new("PING");
    pipeline.submit(&command, Shape::Reply, now).unwrap();
    pipeline
        .submit_within(&command, Shape::Reply, now, Duration::MAX)
        .unwrap();
    assert!(pipeline.next_deadline().unwrap() > now + Duration::from_secs(24 * 3600));
    let hasty = Pipeline::new("node:1".into(), Duration::ZERO);
    assert!(
        hasty.timeout() > Duration::ZERO,
        "or the timer of an idle connection would fire for ever"
    );
}

#[test]
fn a_command_behind_an_asking_expires_like_any_other_and_both_its_late_replies_are_for_nobody() {
    let mut world = World::new();
    let (now, later) = (world.start, world.at(500));
    let asking = Asking(Command::new("ECHO").arg("a"));
    let a = world
        .pipeline
        .submit(&asking, Shape::AfterAsking(None), now)
        .unwrap();
    let b = world
        .pipeline
        .submit(&asking, Shape::AfterAsking(None), later)
        .unwrap();
    world.write_all();
    assert_eq!(world.pipeline.next_deadline(), Some(world.at(1000)));
    world.expire(1000);
    assert_eq!(world.error(a), ErrorKind::Timeout);
    for late in ["OK", "a", "OK"] {
        world.reply(late);
        assert!(world.poll(b).is_none());
    }
    world.reply("b");
    assert_eq!(world.text(b), "b");
}

/// Without the right to `ASKING` the node sends the command back to where it came from, for ever.
#[test]
fn a_refused_asking_is_the_reason_why_its_command_is_sent_away_and_of_no_interest_otherwise() {
    let denied = "NOPERM this user has no permissions to run the 'asking' command";
    for (asking, answer, expected) in [
        (Err(denied), Err("MOVED 5 127.0.0.1:7000"), Err(denied)),
        // The slot has arrived meanwhile, so it was not needed: the command may have run.
        (Err(denied), Ok("done"), Ok("done")),
        (
            Err(denied),
            Err("OOM command not allowed"),
            Err("OOM command not allowed"),
        ),
        (
            Ok("OK"),
            Err("MOVED 5 127.0.0.1:7000"),
            Err("MOVED 5 127.0.0.1:7000"),
        ),
    ] {
        let mut world = World::new();
        let asked = Asking(Command::new("ECHO").arg("a"));
        let id = world
            .pipeline
            .submit(&asked, Shape::AfterAsking(None), world.start)
            .unwrap();
        let next = world.submit("next");
        world.write_all();
        for reply in [asking, answer] {
            assert!(world.poll(id).is_none());
            match reply {
                Ok(text) => world.reply(text),
                Err(line) => world.reply(Value::Error(line.into())),
            }
        }
        let outcome = world.poll(id).unwrap().unwrap();
        match expected {
            Ok(text) => assert_eq!(outcome.as_str(), Some(text)),
            Err(line) => assert_eq!(outcome, Value::Error(line.into())),
        }
        world.reply("b");
        assert_eq!(world.text(next), "b");
    }
}

// ===== bounds =====

#[test]
fn further_commands_are_refused_by_number_and_a_reply_makes_room() {
    let mut world = World::new();
    let now = world.start;
    let ping = Command::new("PING");
    let first = world.pipeline.submit(&ping, Shape::Reply, now).unwrap();
    for _ in 1..MAX_IN_FLIGHT {
        let id = world.pipeline.submit(&ping, Shape::Reply, now).unwrap();
        world.pipeline.abandon(id);
        world.write_all();
    }
    assert!(world.pipeline.is_full());
    assert!(world.pipeline.submit(&ping, Shape::Reply, now).is_err());
    // A subscriber would not learn that no messages can arrive.
    let sub = world.subscribe(Confirmation::Subscribe, &["a"]);
    world.pipeline.abandon(sub);
    world.reply("x");
    assert_eq!(world.text(first), "x");
    world.reply("x");
    assert!(world.pipeline.submit(&ping, Shape::Reply, now).is_ok());
}

#[test]
fn further_commands_are_refused_by_bytes_and_writing_makes_room() {
    let mut world = World::new();
    world.submit(&"x".repeat(MAX_OUTBOX));
    assert!(world.pipeline.is_full());
    let now = world.start;
    assert!(
        world
            .pipeline
            .submit(&Command::new("PING"), Shape::Reply, now)
            .is_err()
    );
    world.write_all();
    assert!(
        world
            .pipeline
            .submit(&Command::new("PING"), Shape::Reply, now)
            .is_ok()
    );
}

#[test]
fn a_request_without_arguments_is_not_one_that_servers_leave_unanswered() {
    let mut bytes = Vec::new();
    let nothing: &[&[u8]] = &[];
    leasehold_resp::Encode::encode(nothing, &mut bytes);
    assert!(
        !bytes.starts_with(b"*0"),
        "{:?}",
        String::from_utf8_lossy(&bytes)
    );
}
