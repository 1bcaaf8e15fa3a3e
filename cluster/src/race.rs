//! Several futures at once, in the task that waits for them. Those that have not ended are dropped with the race.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// A handful of futures, whose outcomes come in the order in which they end. All of them are polled at each wake-up, which
/// for a handful is cheaper than a task for each.
pub(crate) struct Race<'a, T>(Vec<Pin<Box<dyn Future<Output = T> + Send + 'a>>>);

impl<'a, T> Race<'a, T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, future: impl Future<Output = T> + Send + 'a) {
        self.0.push(Box::pin(future));
    }

    /// The next outcome; `None` when there are no more.
    pub(crate) async fn next(&mut self) -> Option<T> {
        poll_fn(|cx| {
            for index in 0..self.0.len() {
                if let Some(Poll::Ready(outcome)) =
                    self.0.get_mut(index).map(|future| future.as_mut().poll(cx))
                {
                    drop(self.0.swap_remove(index));
                    return Poll::Ready(Some(outcome));
                }
            }
            if self.0.is_empty() {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        })
        .await
    }
}
