//! The rules of one connection's queue for what was written: which commands may have left.

use leasehold_resp::pipeline::Shape;
use leasehold_resp::{Command, ErrorKind};

use super::World;

#[test]
fn what_may_have_left_is_unknown_and_the_rest_was_not_sent() {
    let mut world = World::new();
    let written = world.submit("written");
    world.write_all();
    let queued = world.submit("queued");
    world.fail();
    assert_eq!(
        (world.error(written), world.error(queued)),
        (ErrorKind::Unknown, ErrorKind::NotSent)
    );
}

#[test]
fn each_count_of_bytes_that_left_divides_unknown_from_not_sent_exactly() {
    let command = |n: usize| Command::new("ECHO").arg(n.to_string());
    let mut length = Vec::new();
    leasehold_resp::Encode::encode(&command(0), &mut length);
    let total = length.len() * 3;
    for left in 0..=total {
        let mut world = World::new();
        let now = world.start;
        let ids: Vec<_> = (0..3)
            .map(|n| {
                world
                    .pipeline
                    .submit(&command(n), Shape::Reply, now)
                    .unwrap()
            })
            .collect();
        let mut writing = world.pipeline.begin_write();
        assert_eq!(writing.rest().len(), total);
        writing.advance(left);
        assert_eq!(world.pipeline.end_write(writing), left == total);
        world.fail();
        for (n, id) in ids.into_iter().enumerate() {
            let begun = left > n * length.len();
            let expected = if begun {
                ErrorKind::Unknown
            } else {
                ErrorKind::NotSent
            };
            assert_eq!(world.error(id), expected, "command {n}, {left} bytes left");
        }
    }
}

#[test]
fn bytes_in_a_writers_hands_may_have_left() {
    let mut world = World::new();
    let taken = world.submit("taken");
    let _writing = world.pipeline.begin_write();
    let after = world.submit("after");
    world.fail();
    assert_eq!(
        (world.error(taken), world.error(after)),
        (ErrorKind::Unknown, ErrorKind::NotSent)
    );
}

#[test]
fn a_partial_write_goes_on_before_what_was_queued_meanwhile() {
    let mut world = World::new();
    let mut wire = Vec::new();
    let mut expected = Vec::new();
    for tag in ["first", "second", "third", "fourth"] {
        leasehold_resp::Encode::encode(&Command::new("ECHO").arg(tag), &mut expected);
        world.submit(tag);
        // At most three bytes.
        let mut writing = world.pipeline.begin_write();
        wire.extend_from_slice(&writing.rest()[..3]);
        writing.advance(3);
        assert!(!world.pipeline.end_write(writing));
    }
    let mut writing = world.pipeline.begin_write();
    world.submit("fifth");
    leasehold_resp::Encode::encode(&Command::new("ECHO").arg("fifth"), &mut expected);
    wire.extend_from_slice(writing.rest());
    writing.advance(writing.rest().len());
    assert!(world.pipeline.end_write(writing));
    wire.extend_from_slice(world.pipeline.begin_write().rest());
    assert_eq!(wire, expected);
}

#[test]
fn a_writer_that_comes_back_in_a_later_epoch_changes_nothing_there() {
    let mut world = World::new();
    world.submit("old");
    let late = world.pipeline.begin_write();
    world.fail();
    assert!(!world.pipeline.is_writing());
    let new = world.submit("new");
    let writing = world.pipeline.begin_write();
    assert!(
        world.pipeline.end_write(late),
        "there is nothing left of it to be written"
    );
    assert!(
        world.pipeline.is_writing(),
        "the present writer is still at it: a second one would write into its middle"
    );
    assert!(
        world.pipeline.is_flushed(),
        "old bytes must not get into the new stream"
    );
    assert!(!world.pipeline.end_write(writing));
    world.fail();
    assert_eq!(world.error(new), ErrorKind::NotSent);
}
