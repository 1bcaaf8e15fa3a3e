//! Work that goes on for as long as what it is done under is held.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use crate::error::LostReason;

/// Drives `work` until it is done or `over` resolves, with the reason; then nothing polls it any more, and its owner is to drop it.
pub(crate) async fn run<F: Future>(
    over: impl Future<Output = LostReason>,
    mut work: Pin<&mut F>,
) -> Result<F::Output, LostReason> {
    let mut over = pin!(over);
    poll_fn(|cx| {
        // First, so that nothing runs under a lost lock even once.
        if let Poll::Ready(reason) = over.as_mut().poll(cx) {
            return Poll::Ready(Err(reason));
        }
        work.as_mut().poll(cx).map(Ok)
    })
    .await
}
