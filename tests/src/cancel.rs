//! Cancellation at every await point.
//!
//! A future can be dropped wherever it waits, and only there: at each `Pending` it returns. So an
//! operation is driven until its first `Pending` and dropped, then anew until its second, and so on
//! until it completes. With a deterministic peer each await point is visited exactly once; with a
//! real server the number varies from run to run, but the points come in the same order.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::time::timeout;

use crate::wait::BOUND;

/// No operation has that many await points; one that never completes has.
const MANY: usize = 10_000;

/// Drives `future` until it is pending for the `n`-th time, counted from 0, then drops it. Returns
/// its output if it completes before.
///
/// # Panics
///
/// When neither happens within a minute.
pub async fn cancel_at<F: Future>(future: F, n: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut pendings = 0;
    let driven = poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if pendings == n => Poll::Ready(None),
        Poll::Pending => {
            pendings += 1;
            Poll::Pending
        }
    });
    timeout(BOUND, driven)
        .await
        .unwrap_or_else(|_| panic!("neither done nor pending {n} times within a minute"))
}

/// Makes a future, drops it at its `n`-th await point and calls `check(n)`, for n = 0, 1, 2, …
/// until the future completes. Returns its output, and the number of await points at which it was
/// dropped.
///
/// # Panics
///
/// When one drive takes longer than a minute, or the future has more than 10 000 await points.
pub async fn at_every_await<F, C>(
    mut make: impl FnMut() -> F,
    mut check: impl FnMut(usize) -> C,
) -> (F::Output, usize)
where
    F: Future,
    C: Future<Output = ()>,
{
    for n in 0..MANY {
        if let Some(output) = cancel_at(make(), n).await {
            return (output, n);
        }
        check(n).await;
    }
    panic!("not completed with {MANY} await points")
}
