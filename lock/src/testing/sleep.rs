//! Timers by the clock of a fake.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::clock::{FakeClock, SleeperId};
use crate::engine::clock::Elapsed;

/// A timer that fires at an instant of the machine's clock, or of that of a fake.
#[derive(Debug)]
pub(crate) struct Sleep {
    at: Instant,
    /// Of the runtime.
    timer: Pin<Box<tokio::time::Sleep>>,
    fake: Option<OfFake>,
}

#[derive(Debug)]
struct OfFake {
    clock: Arc<FakeClock>,
    /// How far the clock was ahead of that of the machine when the timer was set.
    ahead: Duration,
    /// Among those whom the clock wakes when it is moved, once polled.
    sleeper: Option<SleeperId>,
}

impl Sleep {
    pub(crate) fn new(fake: Option<&Arc<FakeClock>>, at: Instant) -> Self {
        let fires_at = match fake {
            None => tokio::time::Instant::from_std(at),
            Some(clock) => clock.timer(at),
        };
        Self {
            at,
            timer: Box::pin(tokio::time::sleep_until(fires_at)),
            fake: fake.map(|clock| OfFake {
                clock: Arc::clone(clock),
                ahead: clock.ahead(),
                sleeper: None,
            }),
        }
    }

    /// When it fires.
    pub(crate) const fn deadline(&self) -> Instant {
        self.at
    }

    pub(crate) fn reset(mut self: Pin<&mut Self>, at: Instant) {
        self.at = at;
        let fires_at = match &mut self.fake {
            None => tokio::time::Instant::from_std(at),
            Some(fake) => {
                fake.forget();
                fake.ahead = fake.clock.ahead();
                fake.clock.timer(at)
            }
        };
        self.timer.as_mut().reset(fires_at);
    }
}

impl OfFake {
    fn forget(&mut self) {
        if let Some(sleeper) = self.sleeper.take() {
            self.clock.forget(sleeper);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { at, timer, fake } = &mut *self;
        let Some(fake) = fake else {
            return timer.as_mut().poll(cx);
        };
        let sleeper = fake.clock.remember(fake.sleeper, *at, cx.waker());
        fake.sleeper = Some(sleeper);
        if fake.clock.now() < *at {
            let ahead = fake.clock.ahead();
            if std::mem::replace(&mut fake.ahead, ahead) != ahead {
                // The clock was moved since.
                timer.as_mut().reset(fake.clock.timer(*at));
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // The time of the runtime is paused and was moved on: so does this clock.
            fake.clock.follow(*at);
        }
        fake.forget();
        Poll::Ready(())
    }
}

impl Drop for OfFake {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The output of `future`, if it is there before `sleep` is over.
pub(crate) async fn timeout<F: Future>(sleep: Sleep, future: F) -> Result<F::Output, Elapsed> {
    let (mut sleep, mut future) = (pin!(sleep), pin!(future));
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        // Where that has moved the clock on, other threads have done what was due on the way.
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Ok(output),
            Poll::Pending => Err(Elapsed),
        })
    })
    .await
}
