//! Tasks and appointments in virtual time, on one thread.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

/// Microseconds of true time since the beginning.
pub(super) type Micros = u64;

pub(super) const MS: Micros = 1_000;
pub(super) const SECOND: Micros = 1_000_000;

/// Whether the process of a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Runs,
    /// It is stopped until then.
    StoppedUntil(Micros),
    Dead,
}

#[derive(Default)]
pub(super) struct Executor {
    now: Cell<Micros>,
    next: Cell<u64>,
    agenda: RefCell<BinaryHeap<Planned>>,
    tasks: RefCell<HashMap<u64, Task>>,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

struct Planned {
    at: Micros,
    number: u64,
    act: Act,
}

enum Act {
    Call(Box<dyn FnOnce()>),
    Wake(Waker),
}

struct Task {
    process: usize,
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
}

struct TaskWaker {
    task: u64,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

impl Executor {
    pub(super) fn now(&self) -> Micros {
        self.now.get()
    }

    /// Calls `act` at `at`, in the order of planning.
    pub(super) fn at(&self, at: Micros, act: impl FnOnce() + 'static) {
        self.plan(at, Act::Call(Box::new(act)));
    }

    pub(super) fn wake_at(&self, at: Micros, waker: &Waker) {
        self.plan(at, Act::Wake(waker.clone()));
    }

    /// Runs a task of this process.
    pub(super) fn spawn(&self, process: usize, future: impl Future<Output = ()> + 'static) {
        let task = self.number();
        let waker = TaskWaker {
            task,
            ready: Arc::clone(&self.ready),
        };
        let waker = Waker::from(Arc::new(waker));
        waker.wake_by_ref();
        self.tasks.borrow_mut().insert(
            task,
            Task {
                process,
                future: Box::pin(future),
                waker,
            },
        );
    }

    /// When the next appointment is.
    pub(super) fn next_at(&self) -> Option<Micros> {
        self.agenda.borrow().peek().map(|planned| planned.at)
    }

    /// Goes on to this instant.
    pub(super) fn advance(&self, to: Micros) {
        self.now.set(self.now.get().max(to));
    }

    /// Keeps the next appointment, and runs what it wakes.
    pub(super) fn step(&self, gate: impl Fn(usize) -> Gate) {
        let planned = self.agenda.borrow_mut().pop();
        if let Some(planned) = planned {
            self.advance(planned.at);
            match planned.act {
                Act::Call(act) => act(),
                Act::Wake(waker) => waker.wake(),
            }
        }
        self.run_ready(gate);
    }

    pub(super) fn run_ready(&self, gate: impl Fn(usize) -> Gate) {
        loop {
            let next = self.ready.lock().unwrap().pop_front();
            let Some(number) = next else { return };
            let task = self.tasks.borrow_mut().remove(&number);
            let Some(mut task) = task else { continue };
            match gate(task.process) {
                Gate::Dead => drop(task),
                Gate::StoppedUntil(at) => {
                    self.wake_at(at, &task.waker);
                    self.tasks.borrow_mut().insert(number, task);
                }
                Gate::Runs => {
                    let waker = task.waker.clone();
                    let polled = task.future.as_mut().poll(&mut Context::from_waker(&waker));
                    if polled.is_pending() {
                        self.tasks.borrow_mut().insert(number, task);
                    }
                }
            }
        }
    }

    /// Drops everything that is planned or under way.
    pub(super) fn clear(&self) {
        drop(std::mem::take(&mut *self.tasks.borrow_mut()));
        drop(std::mem::take(&mut *self.agenda.borrow_mut()));
    }

    fn plan(&self, at: Micros, act: Act) {
        let (at, number) = (at.max(self.now.get()), self.number());
        let planned = Planned { at, number, act };
        self.agenda.borrow_mut().push(planned);
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }
}

impl Ord for Planned {
    /// The earliest is the greatest, as the heap gives it first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Planned {}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap().push_back(self.task);
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").finish_non_exhaustive()
    }
}

/// An answer that arrives later.
#[derive(Debug)]
pub(super) struct Slot<T> {
    value: RefCell<Option<T>>,
    waker: RefCell<Option<Waker>>,
}

impl<T> Slot<T> {
    pub(super) const fn new() -> Self {
        Self {
            value: RefCell::new(None),
            waker: RefCell::new(None),
        }
    }

    /// Fills it, unless it is filled.
    pub(super) fn fill(&self, value: T) {
        self.value.borrow_mut().get_or_insert(value);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<T> {
        match self.value.borrow_mut().take() {
            Some(value) => Poll::Ready(value),
            None => {
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
