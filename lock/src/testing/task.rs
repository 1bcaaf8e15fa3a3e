//! Tasks of the engine that a fake knows to have anything to do.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::engine::sync::lock;

/// How many tasks have been woken and not polled since, or are being polled.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy(Arc<AtomicUsize>);

/// A task, which is busy from when it is woken until it waits again.
pub(super) struct Tracked<F> {
    work: Pin<Box<F>>,
    wakes: Arc<Wakes>,
}

struct Wakes {
    busy: Busy,
    is_woken: AtomicBool,
    /// Of the runtime's task.
    waker: Mutex<Option<Waker>>,
}

impl Busy {
    pub(super) fn is_none(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    pub(super) fn track<F: Future>(&self, work: F) -> Tracked<F> {
        self.begin();
        Tracked {
            work: Box::pin(work),
            wakes: Arc::new(Wakes {
                busy: self.clone(),
                is_woken: AtomicBool::new(true),
                waker: Mutex::default(),
            }),
        }
    }

    fn begin(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<F: Future> Future for Tracked<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { work, wakes } = &mut *self;
        *lock(&wakes.waker) = Some(cx.waker().clone());
        wakes.busy.begin();
        if wakes.is_woken.swap(false, Ordering::SeqCst) {
            wakes.busy.end();
        }
        let waker = Waker::from(Arc::clone(wakes));
        let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
        wakes.busy.end();
        polled
    }
}

impl<F> Drop for Tracked<F> {
    fn drop(&mut self) {
        // Left as woken, so that a later wake does not count.
        if self.wakes.is_woken.swap(true, Ordering::SeqCst) {
            self.wakes.busy.end();
        }
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::SeqCst) {
            self.busy.begin();
        }
        let waker = lock(&self.waker).clone();
        waker.into_iter().for_each(Waker::wake);
    }
}
