//! Tasks that want the lock again and again.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::acquire::{Request, Wait, acquire};
use super::connection::Failure;
use super::executor::MS;
use super::process::{Hold, Process};
use super::release;
use crate::options::{Replicas, Terms};

/// When a wait is given up.
#[derive(Clone, Copy, Debug)]
enum Cancel {
    Never,
    At(Instant),
    /// With the message of a grant, before it is read.
    AtGrant,
}

/// Wants the lock until everything is quiet.
pub(super) async fn want(process: Rc<Process>) {
    let world = Rc::clone(&process.world);
    let (random, profile) = (&world.random, &world.profile);
    process
        .sleep(Duration::from_micros(random.below(50 * MS)))
        .await;
    while !world.quiet.get() {
        let request = Request {
            process: Rc::clone(&process),
            terms: draw_terms(&process),
            wait: if !world.fails(profile.tries) {
                Wait::Endless
            } else if random.chance(400) {
                Wait::None
            } else {
                Wait::For(Duration::from_micros(random.between(1, 500 * MS)))
            },
        };
        process.busy.set(process.busy.get() + 1);
        let cancel = draw_cancel(&process);
        let taken = unless_cancelled(&process, cancel, acquire(&request)).await;
        let (mut pause, mut shortest) = (0, 20);
        match taken {
            Some(Ok(Some(hold))) => use_lock(&process, &hold).await,
            // A time that was up says nothing new; a failure may go on for a while.
            Some(Ok(None)) | None => pause = 20 * MS,
            Some(Err(Failure::Closed)) => {
                process.busy.set(process.busy.get() - 1);
                return;
            }
            Some(Err(_)) => (pause, shortest) = (100 * MS, MS),
        }
        process.busy.set(process.busy.get() - 1);
        if !profile.eager {
            pause = pause.max(if random.chance(700) { 5 * MS } else { 400 * MS });
        }
        let pause = random.between(shortest, pause.max(shortest + 1));
        process.sleep(Duration::from_micros(pause)).await;
    }
}

/// Has the lock for a while.
async fn use_lock(process: &Rc<Process>, hold: &Rc<Hold>) {
    let world = &process.world;
    let time = if world.fails(world.profile.long_holds) {
        world.random.between(500 * MS, 5_000 * MS)
    } else {
        let short = world.profile.brief || world.random.chance(500);
        world.random.between(10, if short { 300 } else { 20 * MS })
    };
    let until = process.now().monotonic + Duration::from_micros(time);
    let watches = world.random.chance(500);
    loop {
        let now = process.now();
        if now.monotonic >= until || watches && release::check(process, hold).is_some() {
            break;
        }
        let next = if watches {
            now.monotonic + hold.left(now).min(Duration::from_secs(1))
        } else {
            until
        };
        process.sleep_until(next.min(until)).await;
    }
    release::drop_guard(process, hold);
}

fn draw_terms(process: &Process) -> Terms {
    let world = &process.world;
    let (random, profile) = (&world.random, &world.profile);
    let lease = random.between(profile.shortest_ms, profile.longest_ms + 1);
    let most = random.between(profile.shortest_ms / 2, 2 * profile.longest_ms);
    let has_most = random.chance(profile.max_hold);
    Terms {
        lease: Duration::from_millis(lease),
        renew: !random.chance(profile.fixed),
        max_hold: has_most.then(|| Duration::from_millis(most)),
        at_least: None,
        replicas: if profile.replicated {
            Replicas::AtLeast(1)
        } else {
            Replicas::None
        },
    }
}

fn draw_cancel(process: &Process) -> Cancel {
    let world = &process.world;
    if !world.fails(world.profile.cancel) {
        return Cancel::Never;
    }
    let random = &world.random;
    let most = match random.below(4) {
        0 => 4 * MS,
        1 => 40 * MS,
        2 => 2_000 * MS,
        _ => return Cancel::AtGrant,
    };
    let time = Duration::from_micros(random.below(most));
    Cancel::At(process.now().monotonic + time)
}

/// The outcome; `None` if the future was dropped before.
async fn unless_cancelled<T>(
    process: &Process,
    cancel: Cancel,
    future: impl Future<Output = T>,
) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let is_time = match cancel {
            Cancel::Never => false,
            Cancel::At(at) => process.now().monotonic >= at,
            Cancel::AtGrant => {
                let has_grant = |line: &mut super::process::Line| {
                    let standing = line.standing.as_ref();
                    standing.is_some_and(|standing| standing.ticket.has_grant())
                };
                process.with_line(has_grant) == Some(true)
            }
        };
        if is_time {
            return Poll::Ready(None);
        }
        if let Poll::Ready(outcome) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(outcome));
        }
        if let Cancel::At(at) = cancel {
            process.wake_at(at, cx.waker());
        }
        Poll::Pending
    })
    .await
}
