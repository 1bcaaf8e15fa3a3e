//! The rules of one connection's queue for subscriptions, whose replies are pushes.

use leasehold_resp::pipeline::Liveness;
use leasehold_resp::push::Confirmation;
use leasehold_resp::{ErrorKind, Frame, Value};

use super::World;

#[test]
fn n_channels_are_confirmed_by_n_pushes_in_any_order() {
    let mut world = World::new();
    let (sub, echo) = (
        world.subscribe(Confirmation::Subscribe, &["a", "b", "a"]),
        world.submit("x"),
    );
    world.write_all();
    assert!(world.push("subscribe", "b"));
    assert!(world.push("subscribe", "a"));
    assert!(world.poll(sub).is_none(), "a was asked for twice");
    assert!(world.push("subscribe", "a"));
    assert_eq!(world.poll(sub).unwrap().unwrap(), Value::Null);
    world.reply("x");
    assert_eq!(world.text(echo), "x");
}

#[test]
fn a_refused_subscription_has_one_reply() {
    let mut world = World::new();
    let (sub, echo) = (
        world.subscribe(Confirmation::Subscribe, &["a", "b"]),
        world.submit("x"),
    );
    world.write_all();
    world.reply(Value::Error("NOPERM no".into()));
    assert_eq!(
        world.poll(sub).unwrap().unwrap(),
        Value::Error("NOPERM no".into())
    );
    world.reply("x");
    assert_eq!(world.text(echo), "x");
}

#[test]
fn a_subscription_answered_by_anything_but_a_push_or_an_error_ends_the_connection() {
    let mut world = World::new();
    let sub = world.subscribe(Confirmation::Subscribe, &["a"]);
    world.write_all();
    let outcome = world
        .pipeline
        .receive(Frame::Reply(Value::Simple("OK".into())), &mut world.wakes);
    assert_eq!(outcome.unwrap_err().0, Value::Simple("OK".into()));
    world.fail();
    assert_eq!(world.error(sub), ErrorKind::Unknown);
}

#[test]
fn an_unasked_sunsubscribe_between_two_replies_shifts_nothing() {
    let mut world = World::new();
    let (a, b) = (world.submit("a"), world.submit("b"));
    world.write_all();
    world.reply("a");
    assert!(!world.push("sunsubscribe", "channel"));
    world.reply("b");
    assert_eq!((world.text(a), world.text(b)), ("a".into(), "b".into()));
}

/// The slot moves away, the server ends the subscription by itself, and then it reads our
/// `SUNSUBSCRIBE`.
#[test]
fn a_sunsubscribe_that_was_overtaken_by_an_unasked_one_shifts_nothing_whatever_the_answer() {
    let mut world = World::new();
    let (refused, a) = (
        world.subscribe(Confirmation::Sunsubscribe, &["c"]),
        world.submit("a"),
    );
    let (confirmed, b) = (
        world.subscribe(Confirmation::Sunsubscribe, &["c"]),
        world.submit("b"),
    );
    world.write_all();
    world.push("sunsubscribe", "c");
    world.reply(Value::Error("MOVED 7365 127.0.0.1:21001".into()));
    world.reply("a");
    assert!(matches!(world.poll(refused), Some(Ok(Value::Error(_)))));
    assert_eq!(world.text(a), "a");
    for _ in 0..3 {
        world.push("sunsubscribe", "c");
    }
    world.reply("b");
    assert_eq!(world.text(b), "b");
    assert!(world.poll(confirmed).unwrap().is_ok());
}

#[test]
fn pushes_of_another_kind_or_channel_confirm_nothing() {
    let mut world = World::new();
    let sub = world.subscribe(Confirmation::Ssubscribe, &["a"]);
    world.write_all();
    assert!(!world.push("sunsubscribe", "a"));
    assert!(!world.push("subscribe", "a"));
    assert!(!world.push("ssubscribe", "b"));
    assert!(world.poll(sub).is_none());
    assert!(world.push("ssubscribe", "a"));
    assert!(world.poll(sub).is_some());
}

#[test]
fn a_confirmation_that_is_late_is_still_a_confirmation() {
    let mut world = World::new();
    let sub = world.subscribe(Confirmation::Subscribe, &["a"]);
    let echo = world.submit("x");
    world.write_all();
    assert_eq!(world.expire(1500), Liveness::Alive);
    assert_eq!(world.error(echo), ErrorKind::Timeout);
    assert!(world.poll(sub).is_none());
    assert_eq!(
        world.pipeline.next_deadline(),
        Some(world.at(2000)),
        "or the connection dies"
    );
    assert!(world.push("subscribe", "a"));
    assert_eq!(world.poll(sub).unwrap().unwrap(), Value::Null);
}
