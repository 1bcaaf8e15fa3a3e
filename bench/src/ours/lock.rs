//! `leasehold`: the mutex, with its guard, its fencing token and its renewal.

use leasehold::{Guard, Interop, Locks, Mutex, Release};

use crate::client::{Locker, PairClient, Waiting};
use crate::scripts::Job;

/// The locks of a server, and the mutex that one task uses. Clones share the connection.
#[derive(Clone)]
pub struct Lock {
    locks: Locks,
    mutex: Option<Mutex>,
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
