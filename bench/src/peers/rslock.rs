//! `rslock`: the Redlock algorithm over `redis`, here on one server. It takes with SET and releases
//! by script.

use std::time::Duration;

use rslock::{Lock, LockGuard, LockManager};

use crate::client::{Locker, PairClient, Waiting};
use crate::peers::redis::client;
use crate::scripts::Job;

const LEASE: Duration = Duration::from_secs(30);

/// A lock manager; clones share its connection.
#[derive(Clone)]
pub struct Rslock {
    manager: LockManager,
}

impl PairClient for Rslock {
    async fn connect(port: u16) -> Self {
        Self {
            manager: LockManager::from_clients(vec![client(port)]),
        }
    }

    async fn pair(&mut self, job: &Job) {
        let lock: Lock = self.manager.lock(&*job.key, LEASE).await.expect("the lock");
        lock.release().await;
    }
}

impl Waiting for Rslock {
    async fn connect(port: u16, _waiters: usize) -> Self {
        Self {
            manager: LockManager::from_clients(vec![client(port)]),
        }
    }
}

impl Locker for Rslock {
    type Guard = LockGuard;

    async fn lock(&self, key: &str, _waiter: usize) -> LockGuard {
        self.manager.acquire(key, LEASE).await.expect("the lock")
    }

    async fn unlock(&self, guard: LockGuard) {
        guard.release().await;
    }
}

/// The same, asking again after 5 ms at most instead of 200.
#[derive(Clone)]
pub struct Eager(Rslock);

impl Waiting for Eager {
    async fn connect(port: u16, waiters: usize) -> Self {
        let mut rslock = <Rslock as Waiting>::connect(port, waiters).await;
        rslock.manager.set_retry(3, Duration::from_millis(5));
        Self(rslock)
    }
}

impl Locker for Eager {
    type Guard = LockGuard;

    async fn lock(&self, key: &str, waiter: usize) -> LockGuard {
        self.0.lock(key, waiter).await
    }

    async fn unlock(&self, guard: LockGuard) {
        Locker::unlock(&self.0, guard).await;
    }
}
