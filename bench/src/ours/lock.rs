//! `leasehold`: the mutex, with its guard, its fencing token and its renewal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::observer::{self, Observer};
use leasehold::{Guard, Interop, Locks, Mutex, Release};

use crate::client::{Locker, PairClient, Waiting};
use crate::scripts::Job;

/// The locks of a server, and the mutex that one task uses. Clones share the connection.
#[derive(Clone)]
pub struct Lock {
    locks: Locks,
    mutex: Option<Mutex>,
}

/// The same with an observer that counts what it is told.
#[derive(Clone)]
pub struct Observed(Lock);

/// Counts every event of a lock that is taken and released.
#[derive(Default)]
struct Counting {
    told: AtomicU64,
    nanos: AtomicU64,
}

/// The locks of a server, for many waiters; `BESIDE_REDISSON` with its channels.
#[derive(Clone)]
pub struct Waited<const BESIDE_REDISSON: bool = false> {
    locks: Locks,
}

async fn connect(port: u16) -> Locks {
    connect_beside(port, false).await
}

/// Locks of the server on `port`, set up for a fleet with Redisson if asked.
pub async fn connect_beside(port: u16, redisson: bool) -> Locks {
    let interop = if redisson {
        Interop::Redisson
    } else {
        Interop::Off
    };
    let builder = Locks::builder(format!("redis://127.0.0.1:{port}")).interop(interop);
    builder.connect().await.expect("a server")
}

impl PairClient for Lock {
    async fn connect(port: u16) -> Self {
        Self {
            locks: connect(port).await,
            mutex: None,
        }
    }

    async fn pair(&mut self, job: &Job) {
        let locks = &self.locks;
        let mutex = self.mutex.get_or_insert_with(|| locks.mutex(&job.key));
        let guard = mutex.lock().await.expect("the lock");
        assert_eq!(guard.release().await.expect("an answer"), Release::Released);
    }
}

impl PairClient for Observed {
    async fn connect(port: u16) -> Self {
        let builder = Locks::builder(format!("redis://127.0.0.1:{port}"));
        let observed = builder.observer(Counting::default()).connect();
        Self(Lock {
            locks: observed.await.expect("a server"),
            mutex: None,
        })
    }

    async fn pair(&mut self, job: &Job) {
        self.0.pair(job).await;
    }
}

impl Counting {
    fn count(&self, time: Duration) {
        self.told.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Observer for Counting {
    fn waiting(&self, _: &observer::Waiting<'_>) {
        self.count(Duration::ZERO);
    }

    fn granted(&self, event: &observer::Granted<'_>) {
        self.count(event.waited);
    }

    fn released(&self, event: &observer::Released<'_>) {
        self.count(event.held);
    }
}

impl<const BESIDE_REDISSON: bool> Waiting for Waited<BESIDE_REDISSON> {
    async fn connect(port: u16, _waiters: usize) -> Self {
        Self {
            locks: connect_beside(port, BESIDE_REDISSON).await,
        }
    }
}

impl<const BESIDE_REDISSON: bool> Locker for Waited<BESIDE_REDISSON> {
    type Guard = Guard;

    async fn lock(&self, key: &str, _waiter: usize) -> Guard {
        self.locks.mutex(key).lock().await.expect("the lock")
    }

    async fn unlock(&self, guard: Guard) {
        assert_eq!(guard.release().await.expect("an answer"), Release::Released);
    }
}
