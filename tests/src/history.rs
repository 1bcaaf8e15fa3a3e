//! The history of a run: events that every process records as they happen.
//!
//! Each process appends lines of JSON to a file of its own, one write a line, so that nothing is
//! lost when it is killed. [`read`] merges the files of a directory.
//!
//! **The clock** is CLOCK_MONOTONIC in microseconds: the one clock that all processes of a host
//! share and that cannot be set. (`Instant` reads the same clock but does not say what it reads;
//! the wall clock may step.)
//!
//! **When to record** decides what a checked history proves. A process that claims less than is
//! true can only make the checker miss a violation; one that claims more makes it report false
//! ones. So: `invoke` and `release_invoke` and `drop` *before* the call, everything else *after*
//! it; and validity from [`valid_until`].

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Microseconds on the host's monotonic clock, comparable across processes.
#[must_use]
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000
        + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000
}

/// The moment until which a guard may be trusted, from what it says about itself. The clock is read
/// first, so the result is early rather than late.
#[must_use]
pub fn valid_until(valid_for: impl FnOnce() -> Duration) -> u64 {
    let now = now();
    now + micros(valid_for())
}

/// A duration in the history's unit.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 2)
}

/// A line of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The time of recording, see [`now`].
    pub at: u64,
    /// The process that wrote it.
    pub process: u32,
    /// The task or thread within the process; its events are sequential.
    pub client: String,
    /// The event itself.
    #[serde(flatten)]
    pub what: What,
}

/// An event. `hold` is the owner's id as it stands in the lock's key; times are as [`now`] gives
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields say what the variants explain")]
pub enum What {
    /// These calls are one request, granted as a whole or not at all. Recorded before them.
    Together { parts: Vec<Part> },
    /// An acquisition begins. `call` ties its end to it; `bound` is the latest moment it may end by
    /// its own promise (`try_lock_for`), without the command timeout. `waits` is false for one that
    /// does not queue (`try_lock`).
    Invoke {
        call: u64,
        key: String,
        mode: Mode,
        waits: bool,
        bound: Option<u64>,
    },
    /// It was granted. `token` is the fencing token.
    Ok {
        call: u64,
        hold: String,
        token: u64,
        valid_until: u64,
    },
    /// It was not granted, or failed.
    Fail { call: u64, why: String },
    /// Its future was dropped.
    Cancel { call: u64 },
    /// A renewal succeeded; it was sent at `sent`.
    RenewOk {
        hold: String,
        sent: u64,
        valid_until: u64,
    },
    /// The holder was notified that it no longer holds.
    Lost { hold: String, reason: String },
    /// The holder used the guarded resource between `since` and now, which took or refused its
    /// token.
    Use {
        key: String,
        hold: String,
        token: u64,
        since: u64,
        accepted: bool,
    },
    /// A release begins.
    ReleaseInvoke { hold: String },
    /// A release ended with this outcome.
    ReleaseOk { hold: String, outcome: Outcome },
    /// A guard is dropped.
    Drop { hold: String },
    /// The server's own state of the key, seen at some moment between `asked` and now. `pttl` in
    /// milliseconds, -1 without expiry, -2 without key.
    Server {
        key: String,
        asked: u64,
        holders: Vec<Holder>,
        pttl: i64,
    },
    /// The state of a key at each of several independent servers, seen at some moment between `asked` and now; `None` for a
    /// server that did not answer.
    Nodes {
        key: String,
        asked: u64,
        nodes: Vec<Option<Vec<Holder>>>,
    },
    /// A latch is about to be set to this count.
    SetCount { key: String, count: u32 },
    /// A latch is about to be counted down.
    CountDown { key: String },
    /// The call came back without an error.
    Counted { key: String },
    /// A latch showed this count at some moment between `asked` and now.
    Counts { key: String, asked: u64, count: u32 },
    /// A task begins to wait for a latch.
    Awaits { key: String },
    /// It was let through.
    Opened { key: String },
    /// A party is about to arrive at a barrier for so many.
    Arrive { key: String, parties: u32 },
    /// It was let through, as one of this generation.
    Passed {
        key: String,
        generation: u64,
        leader: bool,
    },
    /// It does not wait any more: it gave up, or the generation is broken.
    Withdrawn { key: String },
    /// All processes have finished and the longest lease is over: the keys that are left. There
    /// should be none.
    Quiesced { keys: Vec<String> },
    /// A fault begins.
    FaultStart {
        id: u64,
        kind: String,
        effect: Effect,
    },
    /// It is over.
    FaultEnd { id: u64 },
    /// A process was killed; what it held it claims no longer.
    Died { pid: u32 },
    /// A change of a lock or its line at a server, at the time `when`. Those of one server and lock
    /// are recorded in the order in which they happened there.
    Line {
        server: String,
        key: String,
        when: u64,
        change: Change,
    },
    /// The process that records this did not get to run since then, so others may not have either.
    Stalled { since: u64 },
}

/// A change of a lock or its line at a server. Tickets are known by the id of the hold that they
/// become.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields say what the variants explain")]
pub enum Change {
    /// The state is known from here on.
    Known {
        holder: Option<String>,
        tickets: Vec<Ticket>,
    },
    /// The state is not known from here on.
    Unknown,
    /// A ticket joined the line.
    Joined(Ticket),
    /// A ticket left the line without a grant: taken back, or skipped because nobody heard of it.
    Left { hold: String, is_skipped: bool },
    /// Somebody else's request made it the holder, and its process was told of it and its token.
    /// `score` is its place in the line.
    Granted {
        hold: String,
        token: u64,
        score: Option<u64>,
    },
    /// Its own request made it the holder; `is_alone` if that knew no line.
    Taken {
        hold: String,
        score: Option<u64>,
        is_alone: bool,
    },
    /// The hold was released, or removed; `is_alone` as for those that are taken.
    Ended { hold: String, is_alone: bool },
    /// The lease of the hold ran out.
    Expired { hold: String },
}

/// A ticket in a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The id of the hold that it becomes.
    pub hold: String,
    /// Its place: the lowest is the first.
    pub score: u64,
}

/// A call that is one of several of a request, and the id of the hold that it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the type says what the fields are")]
pub struct Part {
    pub call: u64,
    pub hold: String,
}

/// The mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One holder.
    Exclusive,
    /// One holder, in the order of the requests.
    Ordered,
    /// Shared with other holders.
    Shared,
    /// At most this many holders at a time.
    Permit(u32),
    /// One holder, which has it at the majority of several independent servers: what one of them loses excuses no overlap.
    Majority,
}

impl Mode {
    /// Whether it excludes every other holder.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive | Self::Ordered | Self::Majority)
    }
}

/// The outcome of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// This call removed the hold.
    Released,
    /// It was gone before.
    AlreadyGone,
    /// It is not known.
    Unknown,
}

/// A holder as the server has it: a field of the lock's hash, and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The owner's id.
    pub id: String,
    /// How many times it holds. The library only ever writes 1.
    pub count: i64,
}

/// The effect of a fault on the guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Things take longer while it lasts. Nothing else is excused.
    Delays,
    /// The server may forget locks (restart without persistence, failover, flush): overlaps are
    /// reported, not failed.
    LosesLocks,
    /// This process does not run; what it should have noticed meanwhile it notices afterwards.
    Freezes(u32),
}

/// Writes this process's part of a history. Clones write to the same file.
#[derive(Debug, Clone)]
pub struct Recorder {
    file: Arc<Mutex<File>>,
    calls: Arc<AtomicU64>,
    client: String,
}

impl Recorder {
    /// Appends to `dir/history-<process id>.jsonl`.
    ///
    /// # Panics
    ///
    /// When the file cannot be opened.
    #[must_use]
    pub fn open(dir: &Path, client: &str) -> Self {
        let path = dir.join(format!("history-{}.jsonl", std::process::id()));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.unwrap_or_else(|e| panic!("cannot open {}: {e}", path.display()));
        Self {
            file: Arc::new(Mutex::new(file)),
            calls: Arc::default(),
            client: client.into(),
        }
    }

    /// The same file for another task of this process.
    #[must_use]
    pub fn client(&self, name: &str) -> Self {
        Self {
            client: name.into(),
            ..self.clone()
        }
    }

    /// Writes an event, stamped now.
    ///
    /// # Panics
    ///
    /// When the disk is full: a history with holes proves nothing.
    pub fn record(&self, what: What) {
        // Stamped under the lock, so that a file's lines stand in the order of their times.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let event = Event {
            at: now(),
            process: std::process::id(),
            client: self.client.clone(),
            what,
        };
        let mut line = serde_json::to_string(&event).expect("an event is plain data");
        line.push('\n');
        file.write_all(line.as_bytes())
            .expect("the history can be written");
    }

    /// A number for a call of this process.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes an [`What::Invoke`] and returns the number of the call.
    pub fn invoke(&self, key: &str, mode: Mode, waits: bool, bound: Option<Duration>) -> u64 {
        let call = self.number();
        self.invokes(call, key, mode, waits, bound);
        call
    }

    /// Writes an [`What::Invoke`] of the call with this number.
    pub fn invokes(&self, call: u64, key: &str, mode: Mode, waits: bool, bound: Option<Duration>) {
        let bound = bound.map(|d| now() + micros(d));
        self.record(What::Invoke {
            call,
            key: key.into(),
            mode,
            waits,
            bound,
        });
    }
}

/// Merges the histories of all processes in `dir`, in the order of their times.
///
/// # Panics
///
/// When a line is not an event. The last line of a process that was killed while writing may be
/// cut; it is left out.
#[must_use]
pub fn read(dir: &Path) -> Vec<Event> {
    let mut events = Vec::new();
    for entry in std::fs::read_dir(dir)
        .expect("the history's directory is readable")
        .map_while(Result::ok)
    {
        if entry.path().extension().is_none_or(|e| e != "jsonl") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).expect("the history is readable");
        for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
            events.push(
                serde_json::from_str(line)
                    .unwrap_or_else(|e| panic!("{}: {e}: {line}", entry.path().display())),
            );
        }
    }
    // Stable: lines of one process with the same microsecond keep their order.
    events.sort_by_key(|e: &Event| e.at);
    events
}
