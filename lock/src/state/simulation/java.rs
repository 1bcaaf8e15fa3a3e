//! A client of Redisson that comes and goes: it waits on its channel, and tries when a release is announced or a lease must
//! be over.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use super::executor::{MS, Micros};
use super::world::World;

const LEASE_MS: u64 = 10_000;

pub(super) async fn want(world: Rc<World>) {
    loop {
        sleep_until(&world, world.now() + world.random.between(MS, 800 * MS)).await;
        if world.quiet.get() {
            return;
        }
        let number = world.number();
        let since = world.now();
        world.checks.borrow_mut().java.waits = true;
        world.server.borrow_mut().java += 1;
        while !take(&world, number) {
            let lease_end = world.server.borrow().lease_end();
            let again = lease_end.unwrap_or(0).max(world.now() + MS);
            world.checks.borrow_mut().java.heard = false;
            heard_or(&world, again).await;
        }
        world.checks.borrow_mut().java.took(world.now() - since);
        world.server.borrow_mut().java -= 1;
        sleep_until(&world, world.now() + world.random.between(10, 50 * MS)).await;
        let now = world.now();
        world.server.borrow_mut().java_release(now, number);
        world.publish();
        world.take_notes();
    }
}

fn take(world: &Rc<World>, number: u64) -> bool {
    let now = world.now();
    if world.server.borrow().down_until > now {
        return false;
    }
    let taken = world
        .server
        .borrow_mut()
        .java_acquire(now, number, LEASE_MS);
    world.say(|| format!("Redisson tries: {taken}"));
    world.take_notes();
    taken
}

async fn heard_or(world: &Rc<World>, at: Micros) {
    let until = at + world.random.below(2 * MS);
    poll_fn(|cx| {
        let mut checks = world.checks.borrow_mut();
        if checks.java.heard || world.now() >= until {
            return Poll::Ready(());
        }
        checks.java.waker = Some(cx.waker().clone());
        world.executor.wake_at(until, cx.waker());
        Poll::Pending
    })
    .await;
    // The message takes its time.
    sleep_until(world, world.now() + world.random.between(20, 2 * MS)).await;
}

async fn sleep_until(world: &Rc<World>, at: Micros) {
    poll_fn(|cx| {
        if world.now() >= at {
            return Poll::Ready(());
        }
        world.executor.wake_at(at, cx.waker());
        Poll::Pending
    })
    .await;
}
