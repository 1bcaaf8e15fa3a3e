//! Rules whose absence costs time and order but breaks no promise: each in the one situation that it is for.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::acquire::{Request, Wait, acquire};
use super::call::{Call, HoldKey, Line, Reply, TicketKey};
use super::connection::{LinkKind, disconnect};
use super::executor::{MS, Micros};
use super::process::Process;
use super::profile::{Broken, Profile};
use super::release;
use super::world::World;
use crate::options::{Replicas, Terms};

/// Numbers of holds that the driver does not give.
const HOLDER: u64 = 900;
const LATE: u64 = 901;

/// Processes without tasks, where nothing goes wrong by itself.
fn world(seed: u64, broken: Option<Broken>) -> Rc<World> {
    let world = World::new(seed, Some(Profile::calm(3, 0)), broken);
    world.begin();
    // The first process has the lock.
    send(
        &world,
        0,
        &Call::Acquire {
            hold: hold(0, HOLDER),
            lease: 30_000,
            line: Line::Passed,
            block: 1,
        },
    );
    world
}

/// Runs a script for a process.
fn send(world: &Rc<World>, index: usize, call: &Call) -> Reply {
    let process = process(world, index);
    let session = process.link(LinkKind::Shared).session.get();
    world.execute(&process, session, call)
}

/// The first process releases the lock. Whether it was granted to another one.
fn release_first(world: &Rc<World>) -> bool {
    let call = Call::Release {
        hold: hold(0, HOLDER),
        ticket: None,
        redisson: None,
    };
    matches!(send(world, 0, &call), Reply::Ended(2))
}

/// A task of the process waits for the lock, has it for a moment, and tells when that was.
fn wait(world: &Rc<World>, index: usize, replicas: Replicas) -> Rc<Cell<Option<Micros>>> {
    let served = Rc::new(Cell::new(None));
    let (process, told) = (process(world, index), Rc::clone(&served));
    let request = Request {
        process: Rc::clone(&process),
        terms: Terms {
            lease: Duration::from_secs(3),
            renew: true,
            max_hold: None,
            at_least: None,
            replicas,
        },
        wait: Wait::Endless,
    };
    world.executor.spawn(index, async move {
        let Ok(Some(hold)) = acquire(&request).await else {
            return;
        };
        told.set(Some(process.world.now()));
        process.sleep(Duration::from_millis(1)).await;
        release::drop_guard(&process, &hold);
    });
    served
}

/// Goes on until `reached`, in steps that are shorter than any delay.
fn go_on_until(world: &Rc<World>, reached: impl Fn(&World) -> bool) {
    for _ in 0..200_000 {
        if reached(world) {
            return;
        }
        world.go_on(world.now() + 10);
    }
    panic!("not reached");
}

fn in_line(world: &World) -> usize {
    world.server.borrow().data.line.len()
}

fn process(world: &World, index: usize) -> Rc<Process> {
    Rc::clone(&world.processes.borrow()[index])
}

const fn hold(process: usize, number: u64) -> HoldKey {
    HoldKey { process, number }
}

#[test]
fn a_grant_that_nobody_waits_for_any_more_is_handed_on() {
    let is_held_later = |broken| {
        let world = world(1, broken);
        process(&world, 1).subscribe();
        world.go_on(10 * MS);
        // A request that was given up runs late.
        let late = hold(1, LATE);
        let ticket = TicketKey {
            hold: late,
            lease: 1_000,
            with_block: false,
        };
        send(
            &world,
            1,
            &Call::Acquire {
                hold: late,
                lease: 3_000,
                line: Line::Joined(ticket),
                block: 1,
            },
        );
        assert!(release_first(&world));
        assert_eq!(
            world.server.borrow().data.lock.map(|(hold, _)| hold),
            Some(late)
        );
        world.go_on(world.now() + 20 * MS);
        let is_held = world.server.borrow().data.lock.is_some();
        world.finish();
        is_held
    };
    assert!(!is_held_later(None));
    assert!(is_held_later(Some(Broken::UnknownNotHandedOn)));
}

#[test]
fn a_hold_that_was_asked_for_twice_takes_its_ticket_along() {
    let requests = |broken| {
        let world = world(1, broken);
        let served = wait(&world, 1, Replicas::None);
        go_on_until(&world, |world| in_line(world) == 1);
        // Before the answer; and the lease runs out before the repetition.
        disconnect(&process(&world, 1), LinkKind::Shared);
        world.server.borrow_mut().data.lock = None;
        world.go_on(world.now() + 700 * MS);
        assert!(served.get().is_some());
        assert_eq!(in_line(&world), 0);
        let outcome = world.finish();
        outcome.requests
    };
    // The first process's, the attempt, the ticket twice, and the release.
    assert_eq!(requests(None), 5);
    assert_eq!(
        requests(Some(Broken::LeanRepetition)),
        6,
        "the ticket that was left is granted for nothing"
    );
}

#[test]
fn a_ticket_that_got_lost_comes_back_to_its_place() {
    let is_in_order = |broken| {
        let world = world(1, broken);
        let first = wait(&world, 1, Replicas::None);
        go_on_until(&world, |world| in_line(world) == 1);
        let second = wait(&world, 2, Replicas::None);
        go_on_until(&world, |world| in_line(world) == 2);
        world.go_on(world.now() + 10 * MS);
        // As a failover does.
        world.server.borrow_mut().data.line.pop_first();
        disconnect(&process(&world, 1), LinkKind::Shared);
        go_on_until(&world, |world| in_line(world) == 2);
        assert!(release_first(&world));
        world.go_on(world.now() + 100 * MS);
        world.finish();
        first.get().unwrap() < second.get().unwrap()
    };
    assert!(is_in_order(None));
    assert!(!is_in_order(Some(Broken::BackAtTheEnd)));
}

#[test]
fn a_waiter_looks_when_it_is_back() {
    let is_served_at_once = |broken| {
        let world = world(1, broken);
        let served = wait(&world, 1, Replicas::None);
        go_on_until(&world, |world| in_line(world) == 1);
        world.go_on(world.now() + 10 * MS);
        let waiting = process(&world, 1);
        disconnect(&waiting, LinkKind::Shared);
        assert!(!release_first(&world), "nobody listens");
        go_on_until(&world, |_| waiting.link(LinkKind::Shared).up.get());
        world.go_on(world.now() + 20 * MS);
        world.finish();
        served.get().is_some()
    };
    assert!(is_served_at_once(None));
    assert!(!is_served_at_once(Some(Broken::NoLookAfterReconnect)));
}

/// Replicas confirm over another connection than that of the subscription, which may be slower.
#[test]
fn a_waiter_looks_when_its_ticket_overtook_its_subscription() {
    for seed in 0..50 {
        let world = world(seed, None);
        let served = wait(&world, 1, Replicas::AtLeast(1));
        go_on_until(&world, |world| in_line(world) == 1);
        if world.server.borrow().grants.is_empty() {
            assert!(!release_first(&world), "nobody listens");
            world.go_on(world.now() + 30 * MS);
            assert!(served.get().is_some(), "seed {seed}");
        }
        world.finish();
    }
}

/// Whatever is under way when it begins.
#[test]
fn a_shutdown_leaves_nothing_in_line() {
    for replicas in [Replicas::None, Replicas::AtLeast(1)] {
        for seed in 0..200 {
            let world = world(seed, None);
            let _served = wait(&world, 1, replicas);
            world.go_on(world.random.below(12 * MS));
            if seed % 2 == 0 {
                release_first(&world);
                world.go_on(world.now() + world.random.below(6 * MS));
            }
            release::shut_down(&process(&world, 1));
            world.go_on(world.now() + 50 * MS);
            let server = world.server.borrow();
            let holder = server.data.lock.map(|(hold, _)| hold.process);
            assert_ne!(holder, Some(1), "{replicas:?}, seed {seed}");
            assert!(server.data.line.is_empty(), "{replicas:?}, seed {seed}");
            drop(server);
            world.finish();
        }
    }
}
