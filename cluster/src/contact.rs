//! The first contact of a client with its servers: made by the first call that needs it, for all that wait for it.

use std::future::Future;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_resp::Error;
use tokio::sync::Notify;

use crate::locking::lock;

/// Whether there was one, and the attempt at it that is under way.
#[derive(Debug, Default)]
pub(crate) struct FirstContact {
    is_made: AtomicBool,
    attempts: Mutex<Attempts>,
    /// Notified at the end of each attempt.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Attempts {
    is_under_way: bool,
    begun: u64,
    /// The latest attempt that failed, and how.
    failed: Option<(u64, Error)>,
}

/// An attempt. Dropping it lets another one begin.
struct Attempt<'a> {
    contact: &'a FirstContact,
    number: u64,
}

impl FirstContact {
    pub(crate) fn is_made(&self) -> bool {
        self.is_made.load(Ordering::Acquire)
    }

    /// Makes it with `attempt` unless it is made, or waits for whoever does. An attempt that fails fails for all that wait for
    /// it then; the next call begins another one. Nobody waits for longer than `patience` for the attempt of somebody else:
    /// its runtime may be blocked.
    pub(crate) async fn make<F>(
        &self,
        patience: Duration,
        late: impl FnOnce() -> Error,
        attempt: impl FnOnce() -> F,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let waiting = tokio::time::timeout(patience, self.wait_or_begin());
        let mut begun = match waiting.await {
            Ok(Ok(Some(begun))) => begun,
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(late()),
        };
        let outcome = attempt().await;
        begun.end(&outcome);
        outcome
    }

    /// An attempt of one's own; `None` if it is made.
    async fn wait_or_begin(&self) -> Result<Option<Attempt<'_>>, Error> {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.is_made() {
                return Ok(None);
            }
            let awaited = {
                let mut attempts = lock(&self.attempts);
                if !attempts.is_under_way {
                    attempts.is_under_way = true;
                    attempts.begun += 1;
                    return Ok(Some(Attempt {
                        contact: self,
                        number: attempts.begun,
                    }));
                }
                attempts.begun
            };
            ended.await;
            if let Some((number, error)) = &lock(&self.attempts).failed
                && *number >= awaited
            {
                return Err(error.clone());
            }
        }
    }
}

impl Attempt<'_> {
    fn end(&mut self, outcome: &Result<(), Error>) {
        match outcome {
            Ok(()) => self.contact.is_made.store(true, Ordering::Release),
            Err(error) => {
                lock(&self.contact.attempts).failed = Some((self.number, error.clone()));
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        lock(&self.contact.attempts).is_under_way = false;
        self.contact.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::*;

    fn refused() -> Error {
        Error::not_sent(&Arc::from("h:1"), "refused")
    }

    #[test]
    fn one_attempt_serves_all_that_wait_and_is_made_once() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let contact = Arc::new(FirstContact::default());
            let attempts = Arc::new(AtomicUsize::new(0));
            let call = |outcome: Option<oneshot::Receiver<Result<(), Error>>>| {
                let (contact, attempts) = (Arc::clone(&contact), Arc::clone(&attempts));
                tokio::spawn(async move {
                    let attempt = async || {
                        attempts.fetch_add(1, Ordering::AcqRel);
                        outcome.expect("the first calls").await.expect("an outcome")
                    };
                    contact
                        .make(Duration::from_secs(20), refused, attempt)
                        .await
                })
            };
            for outcome in [Err(refused()), Ok(())] {
                let is_made = outcome.is_ok();
                let (tell, told) = oneshot::channel();
                let mut calls = vec![call(Some(told))];
                tokio::task::yield_now().await;
                for _ in 0..3 {
                    calls.push(call(None));
                }
                tokio::task::yield_now().await;
                tell.send(outcome).unwrap();
                for call in calls {
                    assert_eq!(call.await.unwrap().is_ok(), is_made);
                }
                assert_eq!(contact.is_made(), is_made);
            }
            assert!(call(None).await.unwrap().is_ok());
            assert_eq!(attempts.load(Ordering::Acquire), 2);
        });
    }

    #[test]
    fn an_attempt_that_is_given_up_leaves_it_to_the_next_call() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let contact = FirstContact::default();
            let hangs = contact.make(Duration::from_secs(20), refused, std::future::pending);
            let given_up = tokio::time::timeout(Duration::from_millis(10), hangs).await;
            assert!(given_up.is_err());
            let made = contact.make(Duration::from_secs(20), refused, async || Ok(()));
            assert!(made.await.is_ok());
        });
    }
}
