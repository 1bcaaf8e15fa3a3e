//! Our half: the recorded calls of one of Redisson's clients, made through this library.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::{
    CountingSemaphore, Error, Guard, Locks, Owner, Permit, ReadGuard, Redlock, RedlockGuard,
    Release, WriteGuard,
};
use leasehold_testkit::ms;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::take::Asker;
use crate::support::{until, within};

/// A call: `lock(L).tryLock(1000, 700, ms)`.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The kind of the object: `lock`.
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) method: String,
    args: Vec<String>,
}

/// What a thread has.
pub(super) enum Kept {
    Guard(Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
    Redlock(RedlockGuard),
    /// A read beside a write of the same thread: it gets one when it stops writing.
    LaterRead,
    Nothing,
}

pub(super) struct Hold {
    thread: String,
    kind: String,
    name: String,
    /// The permit's name in the recording.
    permit: String,
    kept: Kept,
}

struct Waiting {
    thread: String,
    call: Call,
    task: JoinHandle<Result<Option<Kept>, Error>>,
}

pub(super) struct Ours {
    pub(super) locks: Locks,
    red: Option<Redlock>,
    owners: BTreeMap<String, Owner>,
    held: Vec<Hold>,
    waiting: Vec<Waiting>,
    /// Permits of each semaphore, as the recorded calls set them.
    permits: BTreeMap<String, u32>,
    token: u64,
}

impl Call {
    /// `None` for what is no call of an object.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (object, call) = text.rsplit_once(").")?;
        let (kind, name) = object.split_once('(')?;
        let (method, args) = call.split_once('(')?;
        let args = args.trim_end_matches(')').split(", ");
        Some(Self {
            kind: kind.trim_end_matches("#2").into(),
            // Of several servers it is the same everywhere.
            name: name.rsplit('/').next()?.into(),
            method: method.into(),
            args: args
                .filter(|arg| !arg.is_empty())
                .map(String::from)
                .collect(),
        })
    }

    pub(super) fn number(&self, at: usize) -> Option<u64> {
        self.args.get(at)?.parse().ok()
    }

    /// The times among the arguments: their last one is a unit.
    pub(super) fn times(&self) -> Vec<Duration> {
        let unit = if self.args.last().is_some_and(|unit| unit == "s") {
            1_000
        } else {
            1
        };
        let numbers = self.args.iter().filter_map(|arg| arg.parse::<u64>().ok());
        numbers.map(|number| ms(number * unit)).collect()
    }

    /// Whether a number of permits comes before a lease.
    pub(super) fn has_count(&self) -> bool {
        self.args.len() == 1 || self.args.len() == 3
    }

    /// Whether this library has such a call. For others Redisson's own commands are played.
    pub(super) fn has_counterpart(&self) -> bool {
        let of = |methods: &[&str]| methods.contains(&self.method.as_str());
        match self.kind.as_str() {
            "sem" => {
                self.args.first().is_none_or(|first| first != "0")
                    && (of(&[
                        "acquire",
                        "acquireAsync",
                        "tryAcquire",
                        "release",
                        "availablePermits",
                    ]) || self.method == "trySetPermits" && self.args.len() == 1)
            }
            "pes" => {
                of(&["acquire", "tryAcquire", "release", "tryRelease"])
                    && self.args.first().is_none_or(|first| first != "0")
            }
            "latch" => of(&["trySetCount", "countDown", "getCount", "await"]),
            "multi" => false,
            // Ours removes the lock in either mode.
            "read" | "write" => !of(&["forceUnlock"]),
            _ => !of(&["delete"]),
        }
    }
}

impl Kept {
    /// `None` if there is nothing to release.
    async fn release(self, when: &str) -> Option<Release> {
        let released = match self {
            Self::Guard(guard) => within(when, guard.release()).await,
            Self::Read(guard) => within(when, guard.release()).await,
            Self::Write(guard) => within(when, guard.release()).await,
            Self::Permit(permit) => within(when, permit.release()).await,
            Self::Redlock(guard) => within(when, guard.release()).await,
            Self::LaterRead | Self::Nothing => return None,
        };
        Some(released.unwrap_or_else(|error| panic!("{when}: {error}")))
    }

    fn is_held(&self) -> bool {
        match self {
            Self::Guard(guard) => guard.is_held(),
            Self::Read(guard) => guard.is_held(),
            Self::Write(guard) => guard.is_held(),
            Self::Permit(permit) => permit.is_held(),
            Self::Redlock(guard) => guard.is_held(),
            Self::LaterRead | Self::Nothing => true,
        }
    }
}

impl Ours {
    pub(super) fn new(locks: Locks, red: Option<Redlock>) -> Self {
        Self {
            locks,
            red,
            owners: BTreeMap::new(),
            held: Vec::new(),
            waiting: Vec::new(),
            permits: BTreeMap::new(),
            token: 0,
        }
    }

    /// Remembers the number of permits that a call of anybody sets.
    pub(super) fn note(&mut self, call: &Call, result: &Value) {
        let permits = self.permits.entry(call.name.clone()).or_default();
        let number = call.args.first().and_then(|arg| arg.parse::<i64>().ok());
        let Some(number) = number else {
            return;
        };
        match call.method.as_str() {
            "trySetPermits" if *result == "true" => *permits = u32::try_from(number).unwrap_or(0),
            "setPermits" => *permits = u32::try_from(number).unwrap_or(0),
            "addPermits" => *permits = u32::try_from(i64::from(*permits) + number).unwrap_or(0),
            _ => {}
        }
    }

    /// Makes a call of the thread and compares its result with the recorded one.
    pub(super) async fn call(&mut self, thread: &str, call: &Call, result: &Value, when: &str) {
        if let Some(acquisition) = self.acquisition(thread, call) {
            // Redisson knows of no guard that outlives its lease.
            self.held
                .retain(|hold| hold.name != call.name || hold.kept.is_held());
            let task = tokio::spawn(acquisition);
            let waiting = Waiting {
                thread: thread.into(),
                call: call.clone(),
                task,
            };
            if *result == "(blocked)" {
                // In line before the next step.
                tokio::time::sleep(ms(60)).await;
                assert!(!waiting.task.is_finished(), "{when}: it does not wait");
                self.waiting.push(waiting);
            } else {
                self.ended(waiting, result, when).await;
            }
            return;
        }
        match call.method.as_str() {
            "unlock" | "release" | "tryRelease" if call.kind != "sem" => {
                self.release(thread, call, result, when).await;
            }
            "isHeldByCurrentThread" | "getHoldCount" | "getToken" => {}
            _ => self.ask(call, result, when).await,
        }
    }

    /// A future that takes what the call asks for; `None` if it takes nothing.
    fn acquisition(
        &mut self,
        thread: &str,
        call: &Call,
    ) -> Option<impl Future<Output = Result<Option<Kept>, Error>> + Send + use<>> {
        let owner = self.owners.entry(thread.into());
        let owner = owner.or_insert_with(|| self.locks.owner()).clone();
        let asker = Asker {
            locks: self.locks.clone(),
            red: self.red.clone(),
            owner,
            permits: self.permits.get(&call.name).copied().unwrap_or(1).max(1),
        };
        let call = call.clone();
        let is_taken = ["lock", "acquire", "await", "tryLock", "tryAcquire"];
        let is_taken = is_taken.iter().any(|begin| call.method.starts_with(begin));
        let writes = |hold: &Hold| {
            let is_write = matches!(hold.kept, Kept::Write(_));
            is_write && hold.thread == thread && hold.name == call.name
        };
        let is_later = call.kind == "read" && self.held.iter().any(writes);
        if !is_taken {
            return None;
        }
        Some(async move {
            if is_later {
                return Ok(Some(Kept::LaterRead));
            }
            asker.take(&call).await
        })
    }

    /// Waits for the end of an acquisition and keeps what it took.
    async fn ended(&mut self, waiting: Waiting, result: &Value, when: &str) {
        let Waiting { thread, call, task } = waiting;
        let taken = match within(when, task).await {
            Ok(taken) => taken.unwrap_or_else(|error| panic!("{when}: {error}")),
            Err(cancelled) => {
                assert!(cancelled.is_cancelled(), "{when}");
                return;
            }
        };
        let is_refused = *result == "false" || *result == "null" && call.method.starts_with("try");
        assert_eq!(taken.is_none(), is_refused, "{when}");
        let Some(kept) = taken else {
            return;
        };
        if let Kept::Guard(guard) = &kept {
            let token = guard.token().as_u64();
            let is_nested = self.held.iter().any(|hold| hold.name == call.name);
            if call.kind == "fenced" && !is_nested {
                assert!(token > self.token, "{when}: tokens grow");
                self.token = token;
            }
        }
        let permit = result.as_str().unwrap_or_default();
        let permit = permit.trim_matches(['[', ']']).to_owned();
        self.held.push(Hold {
            thread,
            kind: call.kind,
            name: call.name,
            permit,
            kept,
        });
    }

    /// A call that waited returns: whichever waits for the same here.
    pub(super) async fn returned(&mut self, call: &Call, result: &Value, when: &str) {
        let same =
            |waiting: &Waiting| waiting.call.name == call.name && waiting.call.kind == call.kind;
        let mut at = 0;
        until(&format!("{when}: {} returns", call.method), async || {
            let done = self
                .waiting
                .iter()
                .position(|waiting| same(waiting) && waiting.task.is_finished());
            at = done.unwrap_or_default();
            done.is_some()
        })
        .await;
        let waiting = self.waiting.remove(at);
        self.ended(waiting, result, when).await;
    }

    /// What is held of this name now: it is removed behind its holders.
    pub(super) fn take_out(&mut self, name: &str) -> Vec<Hold> {
        let (removed, held) = self.held.drain(..).partition(|hold| hold.name == name);
        self.held = held;
        removed
    }

    /// These were removed behind their holders.
    pub(super) async fn have_lost(&self, removed: Vec<Hold>, when: &str) {
        for hold in removed {
            if let Some(released) = hold.kept.release(when).await {
                assert_ne!(released, Release::Released, "{when}");
            }
        }
    }

    /// Gives up what waits and gives back what is held.
    pub(super) async fn end(self) {
        for waiting in self.waiting {
            waiting.task.abort();
        }
        for hold in self.held {
            // It may be gone, or its server.
            let _ = hold.kept.release("the end").await;
        }
        let _ = within("the end", self.locks.shutdown()).await;
    }

    /// The latest call of the thread that waits is given up.
    pub(super) fn interrupt(&mut self, thread: &str) {
        let waiting = self
            .waiting
            .iter()
            .rev()
            .find(|waiting| waiting.thread == thread);
        if let Some(waiting) = waiting {
            waiting.task.abort();
        }
    }

    async fn release(&mut self, thread: &str, call: &Call, result: &Value, when: &str) {
        let fits = |hold: &Hold| {
            let is_named = call.kind != "pes" || call.args.contains(&hold.permit);
            let same = (hold.kind == "read", hold.kind == "write")
                == (call.kind == "read", call.kind == "write");
            hold.name == call.name && same && is_named
        };
        let at = self
            .held
            .iter()
            .rposition(|hold| fits(hold) && hold.thread == thread);
        let at = at.or_else(|| self.held.iter().rposition(fits));
        let Some(at) = at else {
            // Nothing is held: there is nothing to call it on.
            let is_taken = *result == "null" || *result == "true";
            assert!(!is_taken || call.kind == "fair", "{when}: nothing is held");
            return;
        };
        let hold = self.held.remove(at);
        let later = self
            .held
            .iter()
            .position(|other| matches!(other.kept, Kept::LaterRead) && other.name == call.name);
        let kept = match hold.kept {
            Kept::Write(guard) if later.is_some() => {
                let read = within(when, guard.downgrade()).await;
                self.held[later.expect("a read")].kept = Kept::Read(read.unwrap());
                return;
            }
            kept => kept,
        };
        let Some(released) = kept.release(when).await else {
            return;
        };
        let text = result.as_str().unwrap_or_default();
        let is_gone = text.starts_with("throws") || text == "false" || text == "0";
        assert_eq!(released == Release::AlreadyGone, is_gone, "{when}");
    }

    /// A call that takes nothing and releases nothing that was taken by name.
    async fn ask(&mut self, call: &Call, result: &Value, when: &str) {
        let locks = &self.locks;
        let name = &call.name;
        let (is_rw, is_fair) = (
            call.kind == "read" || call.kind == "write",
            call.kind == "fair",
        );
        let said = match (call.kind.as_str(), call.method.as_str()) {
            ("sem", method) => {
                let permits = self.permits.get(name).copied().unwrap_or(0).max(5);
                let semaphore = locks.semaphore(name, permits).counting();
                count(&semaphore, method, call).await
            }
            ("latch", "trySetCount") => {
                let latch = locks.latch(name);
                let set = latch.try_set_count(call.number(0).unwrap_or(0)).await;
                set.map(|set| set.to_string())
            }
            ("latch", "countDown") => locks.latch(name).count_down().await.map(|_| "null".into()),
            ("latch", _) => locks
                .latch(name)
                .count()
                .await
                .map(|count| count.to_string()),
            (_, "forceUnlock") => {
                let forced = if is_rw {
                    locks.rw_lock(name).force_unlock().await
                } else if is_fair {
                    locks.fair_mutex(name).force_unlock().await
                } else {
                    locks.mutex(name).force_unlock().await
                };
                forced.map(|forced| forced.to_string())
            }
            (_, "isLocked") if !is_rw => locks
                .mutex(name)
                .holder()
                .await
                .map(|holder| holder.is_some().to_string()),
            (_, "isLocked" | "remainTimeToLive") => return,
            _ => panic!("{when}: no such call"),
        };
        let said = said.unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(said, result.as_str().unwrap_or_default(), "{when}");
    }
}

async fn count(semaphore: &CountingSemaphore, method: &str, call: &Call) -> Result<String, Error> {
    let permits = call.number(0).unwrap_or(1);
    let permits = u32::try_from(permits).expect("few");
    Ok(match method {
        "trySetPermits" => semaphore.try_set_permits(permits).await?.to_string(),
        "release" => {
            semaphore.release(permits).await?;
            "null".into()
        }
        _ => semaphore.available().await?.to_string(),
    })
}
