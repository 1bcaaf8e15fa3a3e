//! What a recorded call asks for, taken through this library.

use std::time::Duration;

use leasehold::{Acquire, Error, Locks, Owner, Redlock};

use super::ours::{Call, Kept};

/// Who asks.
pub(super) struct Asker {
    pub(super) locks: Locks,
    pub(super) red: Option<Redlock>,
    /// The thread.
    pub(super) owner: Owner,
    /// The number of permits that the semaphore has.
    pub(super) permits: u32,
}

/// The times of a call: how long it waits, without end if it is `None`, and its lease.
struct Times {
    wait: Option<Duration>,
    lease: Option<Duration>,
}

impl Times {
    fn of(call: &Call) -> Self {
        let times = call.times();
        let is_try = call.method.starts_with("try");
        // Redisson's `tryLockAndGetToken()` waits, and `lockAndGetToken(lease)` ignores the lease.
        if !is_try || call.method == "tryLockAndGetToken" && times.is_empty() {
            let lease = times.first().filter(|_| call.method != "lockAndGetToken");
            return Self {
                wait: None,
                lease: lease.copied(),
            };
        }
        Self {
            wait: Some(times.first().copied().unwrap_or_default()),
            lease: times.get(1).copied(),
        }
    }

    fn leased<T>(&self, acquire: Acquire<T>) -> Acquire<T> {
        match self.lease {
            Some(lease) => acquire.lease(lease),
            None => acquire,
        }
    }
}

impl Asker {
    /// Takes what the call asks for; `None` if it is refused.
    pub(super) async fn take(&self, call: &Call) -> Result<Option<Kept>, Error> {
        let times = Times::of(call);
        let name = &call.name;
        match call.kind.as_str() {
            "sem" => self.count(call, &times).await,
            "pes" => self.permits(call, times).await,
            "latch" => {
                let latch = self.locks.latch(name);
                let open = match call.times().first() {
                    None => latch.wait().await.map(|()| true)?,
                    Some(&time) => latch.wait_for(time).await?,
                };
                Ok(open.then_some(Kept::Nothing))
            }
            "red" => {
                let mutex = self.red.as_ref().expect("several servers").mutex(name);
                let lock = mutex.try_lock_for(times.wait.unwrap_or(Duration::from_secs(20)));
                let lock = match times.lease {
                    Some(lease) => lock.lease(lease),
                    None => lock,
                };
                Ok(lock.await?.map(Kept::Redlock))
            }
            _ => self.lock(call, &times).await,
        }
    }

    async fn lock(&self, call: &Call, times: &Times) -> Result<Option<Kept>, Error> {
        let (owner, name) = (&self.owner, &call.name);
        let rw = owner.rw_lock(name);
        Ok(match (call.kind.as_str(), times.wait) {
            ("fair", None) => {
                let lock = times.leased(owner.fair_mutex(name).lock());
                Some(Kept::Guard(lock.await?))
            }
            ("fair", Some(wait)) => {
                let tried = times.leased(owner.fair_mutex(name).try_lock_for(wait));
                tried.await?.map(Kept::Guard)
            }
            ("read", None) => Some(Kept::Read(times.leased(rw.read()).await?)),
            ("read", Some(wait)) => {
                let tried = times.leased(rw.try_read_for(wait));
                tried.await?.map(Kept::Read)
            }
            ("write", None) => Some(Kept::Write(times.leased(rw.write()).await?)),
            ("write", Some(wait)) => {
                let tried = times.leased(rw.try_write_for(wait));
                tried.await?.map(Kept::Write)
            }
            (_, None) => {
                let lock = times.leased(owner.mutex(name).lock());
                Some(Kept::Guard(lock.await?))
            }
            (_, Some(wait)) => {
                let tried = times.leased(owner.mutex(name).try_lock_for(wait));
                tried.await?.map(Kept::Guard)
            }
        })
    }

    async fn count(&self, call: &Call, times: &Times) -> Result<Option<Kept>, Error> {
        let semaphore = self.locks.semaphore(&call.name, self.permits.max(5));
        let semaphore = semaphore.counting();
        // `tryAcquire(permits, wait, unit)`, `tryAcquire(permits)`, `acquire(permits)`, `acquire()`
        let count = u32::try_from(call.number(0).unwrap_or(1)).expect("few");
        let taken = match (times.wait, call.times().get(1)) {
            (None, _) => semaphore.acquire(count).await.map(|()| true)?,
            (Some(_), Some(&wait)) => semaphore.try_acquire_for(count, wait).await?,
            (Some(_), None) => semaphore.try_acquire(count).await?,
        };
        Ok(taken.then_some(Kept::Nothing))
    }

    async fn permits(&self, call: &Call, mut times: Times) -> Result<Option<Kept>, Error> {
        let semaphore = self.locks.semaphore(&call.name, self.permits);
        // `acquire(permits, lease, unit)`, `acquire(lease, unit)`, `acquire(permits)`, `acquire()`
        let mut count = 1;
        if times.wait.is_none() && call.has_count() {
            count = u32::try_from(call.number(0).unwrap_or(1)).expect("few");
            times.lease = call.times().get(1).copied();
        }
        Ok(match times.wait {
            None => Some(Kept::Permit(
                times.leased(semaphore.acquire_many(count)).await?,
            )),
            Some(wait) => {
                let tried = times.leased(semaphore.try_acquire_many_for(count, wait));
                tried.await?.map(Kept::Permit)
            }
        })
    }
}
