//! Several futures at once in one task: they begin in their order, and each is polled only when it was woken itself.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::sync::lock;

/// The futures that were woken, by their indices, and the task to wake for them.
#[derive(Debug, Default)]
struct Woken(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    indices: Vec<usize>,
    task: Option<Waker>,
}

/// The waker of one future.
struct Alarm {
    index: usize,
    woken: Arc<Woken>,
}

/// A future until its output is there.
enum Job<F: Future> {
    Running(Pin<Box<F>>, Waker),
    Done(F::Output),
}

/// The outputs of all `futures`, in their order, of which at most so many run `at_once`.
///
/// # Cancel safety
///
/// As cancel safe as they are: dropping it drops them.
pub(crate) async fn together<F: Future>(
    futures: impl IntoIterator<Item = F>,
    at_once: usize,
) -> Vec<F::Output> {
    let mut futures = futures.into_iter();
    let woken = Arc::new(Woken::default());
    let mut jobs: Vec<Job<F>> = Vec::new();
    let mut running = 0;
    poll_fn(|cx| {
        lock(&woken.0).task = Some(cx.waker().clone());
        loop {
            while running < at_once
                && let Some(future) = futures.next()
            {
                let alarm = Alarm {
                    index: jobs.len(),
                    woken: Arc::clone(&woken),
                };
                let mut job = Job::Running(Box::pin(future), Arc::new(alarm).into());
                running += usize::from(!job.poll());
                jobs.push(job);
            }
            let indices = std::mem::take(&mut lock(&woken.0).indices);
            if indices.is_empty() {
                break;
            }
            for index in indices {
                if let Some(job @ Job::Running(..)) = jobs.get_mut(index) {
                    running -= usize::from(job.poll());
                }
            }
        }
        if running == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    let output = |job| match job {
        Job::Done(output) => Some(output),
        Job::Running(..) => None,
    };
    jobs.into_iter().filter_map(output).collect()
}

impl<F: Future> Job<F> {
    /// Polls it. Returns whether its output is there.
    fn poll(&mut self) -> bool {
        let Self::Running(future, waker) = self else {
            return true;
        };
        let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker)) else {
            return false;
        };
        *self = Self::Done(output);
        true
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = lock(&self.woken.0);
        state.indices.push(self.index);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn outputs_come_in_order_and_no_more_run_than_may() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let job = |n: u64| {
            let (running, most) = (&running, &most);
            async move {
                let now = running.fetch_add(1, Ordering::Relaxed) + 1;
                most.fetch_max(now, Ordering::Relaxed);
                for _ in 0..n % 5 {
                    tokio::task::yield_now().await;
                }
                running.fetch_sub(1, Ordering::Relaxed);
                n
            }
        };
        let outputs = together((0..100).map(job), 7).await;
        assert_eq!(outputs, (0..100).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::Relaxed), 7);
        assert!(together((0..0).map(job), 7).await.is_empty());
    }

    #[tokio::test]
    async fn one_that_waits_keeps_no_other_from_its_next_step() {
        let (send, receive) = tokio::sync::oneshot::channel();
        let waits = async { receive.await.is_ok() };
        let steps = async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            send.send(()).is_ok()
        };
        let futures: [Pin<Box<dyn Future<Output = bool>>>; 2] = [Box::pin(waits), Box::pin(steps)];
        assert_eq!(together(futures, 2).await, [true, true]);
    }
}
