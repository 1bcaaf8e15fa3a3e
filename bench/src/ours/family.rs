//! The primitives of the library by name, each as a lock that is taken and given back.

use leasehold::{
    Backoff, Guard, Interop, Latch, Locks, MultiGuard, Permit, ReadGuard, Redlock, RedlockGuard,
    Release, WriteGuard,
};

use crate::client::Locker;

/// How many may hold the semaphore.
const PERMITS: u32 = 5;
/// Of the tasks that read and write, one in so many writes.
const ONE_WRITES: usize = 8;

/// A primitive, or a way to use one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mutex,
    /// Beside Redisson.
    MutexBeside,
    Polled,
    Plain,
    Fair,
    /// With Redisson's queue.
    FairBeside,
    Write,
    Read,
    /// Most tasks read, some write.
    ReadWrite,
    Semaphore,
    /// Two names in one slot.
    Multi,
    /// At five servers.
    Redlock,
    /// Set to one, and counted down.
    Latch,
    /// Of a single party, which has nothing to give back.
    Barrier,
}

/// One primitive of a process. Clones share its connections.
#[derive(Clone)]
pub struct Family {
    kind: Kind,
    locks: Locks,
    redlock: Option<Redlock>,
}

/// Whatever is held.
pub enum Held {
    Guard(Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    Multi(MultiGuard),
    Redlock(RedlockGuard),
    Latch(Latch),
    Nothing,
}

impl Kind {
    /// All of them, by the names of their rows.
    pub const ALL: [(&str, Self); 14] = [
        ("mutex", Self::Mutex),
        ("mutex, Redisson", Self::MutexBeside),
        ("mutex, polled", Self::Polled),
        ("plain", Self::Plain),
        ("fair", Self::Fair),
        ("fair, Redisson", Self::FairBeside),
        ("write", Self::Write),
        ("read", Self::Read),
        ("read and write", Self::ReadWrite),
        ("semaphore of 5", Self::Semaphore),
        ("multi of 2", Self::Multi),
        ("Redlock of 5", Self::Redlock),
        ("latch", Self::Latch),
        ("barrier of 1", Self::Barrier),
    ];

    /// The one with this name.
    ///
    /// # Panics
    ///
    /// Unless there is one.
    pub fn named(name: &str) -> Self {
        let known = Self::ALL.into_iter().find(|(known, _)| *known == name);
        known.unwrap_or_else(|| panic!("no primitive {name}")).1
    }

    /// Whether one task has it at a time.
    pub fn is_exclusive(self) -> bool {
        !matches!(self, Self::Read | Self::ReadWrite | Self::Semaphore)
    }

    /// A process that uses it at the servers on these ports: the first alone, or all.
    pub async fn connect(self, ports: &[u16]) -> Family {
        let urls = ports.iter().map(|port| format!("redis://127.0.0.1:{port}"));
        let interop = match self {
            Self::MutexBeside | Self::FairBeside => Interop::Redisson,
            _ => Interop::Off,
        };
        let locks = Locks::builder(format!("redis://127.0.0.1:{}", ports[0])).interop(interop);
        let redlock = match self {
            Self::Redlock => Some(Redlock::connect(urls).await.expect("most are up")),
            _ => None,
        };
        Family {
            kind: self,
            locks: locks.connect().await.expect("a server"),
            redlock,
        }
    }
}

impl Locker for Family {
    type Guard = Held;

    async fn lock(&self, key: &str, waiter: usize) -> Held {
        let locks = &self.locks;
        let held = match self.kind {
            Kind::Mutex | Kind::MutexBeside => locks.mutex(key).lock().await.map(Held::Guard),
            Kind::Polled => {
                let polled = locks.mutex(key).lock().polling(Backoff::default());
                polled.await.map(Held::Guard)
            }
            Kind::Plain => locks.plain_mutex(key).lock().await.map(Held::Guard),
            Kind::Fair | Kind::FairBeside => locks.fair_mutex(key).lock().await.map(Held::Guard),
            Kind::ReadWrite if !waiter.is_multiple_of(ONE_WRITES) => {
                locks.rw_lock(key).read().await.map(Held::Read)
            }
            Kind::Write | Kind::ReadWrite => locks.rw_lock(key).write().await.map(Held::Write),
            Kind::Read => locks.rw_lock(key).read().await.map(Held::Read),
            Kind::Semaphore => {
                let semaphore = locks.semaphore(key, PERMITS);
                semaphore.acquire().await.map(Held::Permit)
            }
            Kind::Multi => {
                let names = ["a", "b"].map(|part| format!("{{{key}}}:{part}"));
                locks.multi(names).lock().await.map(Held::Multi)
            }
            Kind::Redlock => {
                let redlock = self.redlock.as_ref().expect("it is connected");
                redlock.mutex(key).lock().await.map(Held::Redlock)
            }
            Kind::Latch => {
                let latch = locks.latch(key);
                latch.try_set_count(1).await.map(|_| Held::Latch(latch))
            }
            Kind::Barrier => locks.barrier(key, 1).wait().await.map(|_| Held::Nothing),
        };
        held.expect("the lock")
    }

    async fn unlock(&self, held: Held) {
        let released = match held {
            Held::Guard(guard) => guard.release().await,
            Held::Read(guard) => guard.release().await,
            Held::Write(guard) => guard.release().await,
            Held::Permit(permit) => permit.release().await,
            Held::Multi(guard) => guard.release().await,
            Held::Redlock(guard) => guard.release().await,
            Held::Latch(latch) => latch.count_down().await.map(|_| Release::Released),
            Held::Nothing => Ok(Release::Released),
        };
        assert_ne!(released.expect("an answer"), Release::AlreadyGone);
    }
}
