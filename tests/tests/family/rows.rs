//! The primitives, as the rows of a table of faults: how each is taken, used and given back.

use std::pin::pin;
use std::time::Duration;

use leasehold::{
    Backoff, BarrierWaitResult, CountingSemaphore, Error, Guard, Locks, MultiGuard, Permit,
    ReadGuard, Redlock, RedlockGuard, Release, WriteGuard,
};
use leasehold_testkit::ms;

/// Upper bound on each wait, of the library's own.
const PATIENCE: Duration = Duration::from_secs(15);
/// Permits of the semaphores, and those that are taken.
pub(crate) const PERMITS: u32 = 3;
const TAKEN: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Mutex,
    /// Re-entrant: taken twice by one owner.
    Owner,
    Fair,
    FairBesideRedisson,
    Read,
    Write,
    /// A read that becomes a write.
    Upgrade,
    /// A write that becomes a read.
    Downgrade,
    Plain,
    /// A mutex that is waited for without publish and subscribe.
    Polling,
    /// Two mutexes of one server.
    Multi,
    /// Two mutexes of two slots of a cluster.
    MultiInSlots,
    Redlock,
    /// Permits that are leases.
    Semaphore,
    /// Permits without an owner.
    Counting,
    Latch,
    Barrier,
}

pub(crate) const ALL: [Row; 17] = [
    Row::Mutex,
    Row::Owner,
    Row::Fair,
    Row::FairBesideRedisson,
    Row::Read,
    Row::Write,
    Row::Upgrade,
    Row::Downgrade,
    Row::Plain,
    Row::Polling,
    Row::Multi,
    Row::MultiInSlots,
    Row::Redlock,
    Row::Semaphore,
    Row::Counting,
    Row::Latch,
    Row::Barrier,
];

/// A client, with the names that it uses.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) of: Deployment,
    pub(crate) names: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Deployment {
    One(Locks),
    Independent(Redlock),
}

/// The moments of a turn at which something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// Nothing is taken.
    Before,
    /// It is taken. A latch is set, and at a barrier the other party has arrived.
    Held,
}

pub(crate) const POINTS: [Point; 2] = [Point::Before, Point::Held];

pub(crate) enum Held {
    Guard(Guard),
    Twice(Guard, Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    Multi(MultiGuard),
    Redlock(RedlockGuard),
    Permit(Permit),
    Counted(CountingSemaphore),
}

impl Client {
    pub(crate) fn locks(&self) -> &Locks {
        match &self.of {
            Deployment::One(locks) => locks,
            Deployment::Independent(_) => panic!("independent servers have mutexes alone"),
        }
    }
}

impl Held {
    /// How long it may be trusted; zero when it is lost.
    pub(crate) fn valid_for(&self) -> Duration {
        match self {
            Self::Guard(guard) | Self::Twice(guard, _) => guard.valid_for(),
            Self::Read(guard) => guard.valid_for(),
            Self::Write(guard) => guard.valid_for(),
            Self::Multi(guard) => guard.valid_for(),
            Self::Redlock(guard) => guard.valid_for(),
            Self::Permit(permit) => permit.valid_for(),
            Self::Counted(_) => Duration::MAX,
        }
    }
}

impl Row {
    /// Whether what one client holds keeps others waiting.
    pub(crate) fn is_lock(self) -> bool {
        !matches!(self, Self::Latch | Self::Barrier)
    }

    /// Whether the hold is the key of the name, and nothing else.
    pub(crate) fn is_its_key(self) -> bool {
        self.is_lock() && !matches!(self, Self::Redlock | Self::Semaphore | Self::Counting)
    }

    /// Takes it, waiting for others.
    pub(crate) async fn take(self, client: &Client) -> Result<Option<Held>, Error> {
        let name = &client.names[0];
        let locks = match &client.of {
            Deployment::One(locks) => locks,
            Deployment::Independent(red) => {
                let lock = red.mutex(name).try_lock_for(PATIENCE);
                return Ok(lock.fenced().await?.map(Held::Redlock));
            }
        };
        Ok(match self {
            Self::Mutex => {
                let lock = locks.mutex(name).try_lock_for(PATIENCE);
                lock.await?.map(Held::Guard)
            }
            Self::Owner => {
                let mutex = locks.owner().mutex(name);
                match mutex.try_lock_for(PATIENCE).await? {
                    Some(outer) => Some(Held::Twice(outer, mutex.lock().await?)),
                    None => None,
                }
            }
            Self::Fair | Self::FairBesideRedisson => {
                let lock = locks.fair_mutex(name).try_lock_for(PATIENCE);
                lock.await?.map(Held::Guard)
            }
            Self::Read | Self::Upgrade => {
                let lock = locks.rw_lock(name).try_read_for(PATIENCE);
                lock.await?.map(Held::Read)
            }
            Self::Write | Self::Downgrade => {
                let lock = locks.rw_lock(name).try_write_for(PATIENCE);
                lock.await?.map(Held::Write)
            }
            Self::Plain => {
                let lock = locks.plain_mutex(name).try_lock_for(PATIENCE);
                lock.await?.map(Held::Guard)
            }
            Self::Polling => {
                let lock = locks.mutex(name).try_lock_for(PATIENCE);
                let backoff = Backoff::new(ms(2), ms(20));
                lock.polling(backoff).await?.map(Held::Guard)
            }
            Self::Multi | Self::MultiInSlots => {
                let lock = locks.multi(&client.names).try_lock_for(PATIENCE);
                lock.await?.map(Held::Multi)
            }
            Self::Semaphore => {
                let semaphore = locks.semaphore(name, PERMITS);
                let permit = semaphore.try_acquire_many_for(TAKEN, PATIENCE);
                permit.await?.map(Held::Permit)
            }
            Self::Counting => {
                let semaphore = locks.semaphore(name, PERMITS).counting();
                let taken = semaphore.try_acquire_for(TAKEN, PATIENCE).await?;
                taken.then_some(Held::Counted(semaphore))
            }
            Self::Redlock | Self::Latch | Self::Barrier => panic!("{self:?} is not taken"),
        })
    }

    /// Whether another client can have it now for itself. What it got is given back.
    pub(crate) async fn intrude(self, client: &Client) -> Result<bool, Error> {
        let name = &client.names[0];
        let locks = match &client.of {
            Deployment::One(locks) => locks,
            Deployment::Independent(red) => return Ok(red.mutex(name).try_lock().await?.is_some()),
        };
        Ok(match self {
            Self::Fair | Self::FairBesideRedisson => {
                locks.fair_mutex(name).try_lock().await?.is_some()
            }
            Self::Read | Self::Write | Self::Upgrade | Self::Downgrade => {
                locks.rw_lock(name).try_write().await?.is_some()
            }
            Self::Plain => locks.plain_mutex(name).try_lock().await?.is_some(),
            Self::Multi | Self::MultiInSlots => {
                locks.multi(&client.names).try_lock().await?.is_some()
            }
            Self::Semaphore => {
                let semaphore = locks.semaphore(name, PERMITS);
                semaphore.try_acquire_many(TAKEN).await?.is_some()
            }
            Self::Counting => {
                let semaphore = locks.semaphore(name, PERMITS).counting();
                let taken = semaphore.try_acquire(TAKEN).await?;
                if taken {
                    semaphore.release(TAKEN).await?;
                }
                taken
            }
            _ => locks.mutex(name).try_lock().await?.is_some(),
        })
    }

    /// One turn of `client`: it takes it, uses it and gives it back. `other` is the other party of a barrier.
    ///
    /// # Panics
    ///
    /// When it is not had within its time.
    pub(crate) async fn turn(
        self,
        client: &Client,
        other: &Client,
        mut between: impl AsyncFnMut(Point),
    ) -> Result<Release, Error> {
        let name = &client.names[0];
        match (&client.of, self) {
            (Deployment::One(locks), Self::Latch) => {
                let latch = locks.latch(name);
                between(Point::Before).await;
                latch.reset(2).await?;
                between(Point::Held).await;
                assert_eq!(latch.count_down_as("x").await?, 1);
                assert_eq!(latch.count_down_as("x").await?, 1, "counted once");
                let (left, open) = tokio::join!(latch.count_down(), latch.wait_for(PATIENCE));
                assert_eq!(left?, 0);
                assert!(open?, "it is open");
                Ok(Release::Released)
            }
            (Deployment::One(locks), Self::Barrier) => {
                between(Point::Before).await;
                // Both are withdrawn when this is dropped, or when one of them fails.
                let mut others = pin!(party(other, name));
                tokio::select! {
                    ended = &mut others => panic!("{:?}, alone", ended?),
                    arrived = has_arrived(other, name) => arrived?,
                }
                between(Point::Held).await;
                let barrier = locks.barrier(name, 2);
                let (passed, other) = tokio::try_join!(barrier.wait_for(PATIENCE), others)?;
                let passed = passed.expect("the other one is there");
                let other = other.expect("this one is there");
                assert_eq!(passed.generation(), other.generation());
                assert_ne!(passed.is_leader(), other.is_leader());
                Ok(Release::Released)
            }
            _ => {
                between(Point::Before).await;
                let held = self.take(client).await?.expect("in time");
                between(Point::Held).await;
                self.give_back(held).await
            }
        }
    }

    /// Uses what it holds, and gives it back.
    pub(crate) async fn give_back(self, held: Held) -> Result<Release, Error> {
        match held {
            Held::Guard(guard) => guard.release().await,
            Held::Twice(outer, inner) => {
                let first = outer.release().await?;
                let last = inner.release().await?;
                Ok(if first == Release::StillHeld {
                    last
                } else {
                    first
                })
            }
            Held::Read(guard) if self == Self::Upgrade => match guard.try_upgrade().await? {
                Ok(guard) => guard.release().await,
                Err(guard) => guard.release().await,
            },
            Held::Read(guard) => guard.release().await,
            Held::Write(guard) if self == Self::Downgrade => {
                guard.downgrade().await?.release().await
            }
            Held::Write(guard) => guard.release().await,
            Held::Multi(guard) => guard.release().await,
            Held::Redlock(guard) => guard.release().await,
            Held::Permit(mut permit) => {
                let part = permit.split(1).expect("it has two");
                let first = part.release().await?;
                let last = permit.release().await?;
                Ok(if first == Release::Released {
                    last
                } else {
                    first
                })
            }
            Held::Counted(semaphore) => {
                semaphore.release(TAKEN).await?;
                Ok(Release::Released)
            }
        }
    }
}

/// The other party of a barrier.
async fn party(client: &Client, name: &str) -> Result<Option<BarrierWaitResult>, Error> {
    client.locks().barrier(name, 2).wait_for(PATIENCE).await
}

async fn has_arrived(client: &Client, name: &str) -> Result<(), Error> {
    let barrier = client.locks().barrier(name, 2);
    while barrier.inspect().await?.holders().is_empty() {
        tokio::time::sleep(ms(1)).await;
    }
    Ok(())
}
