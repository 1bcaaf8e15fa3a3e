//! Clients of each kind of synchronizer with a flaw each, to show that the checker sees it by the rule of that kind.
//!
//! They run against a real server, without a line of the library's code. For each kind there is one without a flaw, which the
//! checker must call clean.

pub mod barrier;
pub mod fair;
pub mod latch;
pub mod majority;
pub mod permits;
pub mod rw;
pub mod together;

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::checker::Limits;
use crate::history::{Holder, Mode, Outcome, Part, Recorder, What, micros, now};
use crate::raw::{Raw, RawValue};
use crate::server::Server;

/// The lease of everything.
const LEASE: Duration = Duration::from_millis(400);

/// The bounds that a sound client keeps in most of these workloads. Those for what must not wait too long are short: the workloads
/// are.
const LIMITS: Limits = Limits {
    lease: LEASE,
    loss_notice: Duration::from_secs(10),
    handoff: Duration::from_millis(1_000),
    overrun: Duration::from_secs(10),
    cleanup: Duration::from_millis(250),
};

/// Flaws of clients of one kind, and what the checker says of them.
pub trait Kind: Copy + Debug + Send + 'static {
    /// All of them.
    const ALL: &[Self];

    /// Number of servers that a run needs.
    const SERVERS: usize = 1;

    /// Whether runs may have the same servers at the same time.
    const SHARES: bool = true;

    /// The bounds that sound clients keep.
    const LIMITS: Limits = LIMITS;

    /// The invariant that clients with the flaw break; `None` for sound ones.
    fn rule(self) -> Option<&'static str>;

    /// Runs clients with the flaw for some seconds, and writes their history into `dir`.
    ///
    /// # Panics
    ///
    /// When a server fails.
    fn run(self, servers: &[Server], dir: &Path) -> impl Future<Output = ()> + Send;
}

/// A pause of this length says that the process did not get to run.
const STALL: Duration = Duration::from_millis(100);

/// A task with a connection of its own.
struct Client {
    addr: SocketAddr,
    raw: Raw,
    recorder: Recorder,
    /// The beginning of its holds' ids.
    name: String,
    asked: u64,
    end: Instant,
}

impl Client {
    async fn new(addr: SocketAddr, recorder: &Recorder, n: usize, time: Duration) -> Self {
        let name = format!("client-{n}");
        Self {
            addr,
            raw: Raw::connect(addr).await.expect("the server is up"),
            recorder: recorder.client(&name),
            name,
            asked: 0,
            end: Instant::now() + time,
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() > self.end
    }

    /// An id for another hold.
    fn next_hold(&mut self) -> String {
        self.asked += 1;
        format!("{}:{}", self.name, self.asked)
    }

    /// Runs a script.
    async fn eval(&mut self, script: &str, keys: &[&str], args: &[&str]) -> RawValue {
        let count = keys.len().to_string();
        let mut command = vec!["EVAL", script, &count];
        command.extend(keys);
        command.extend(args);
        let reply = self.raw.cmd(&command).await;
        assert!(reply.error().is_none(), "{reply:?}");
        reply
    }

    /// Asks for several at once, each for its own hold.
    fn asks_for(&self, claims: &[(&str, String)], mode: Mode, waits: bool) -> Vec<Part> {
        let part = |(_, hold): &(&str, String)| Part {
            call: self.recorder.number(),
            hold: hold.clone(),
        };
        let parts: Vec<_> = claims.iter().map(part).collect();
        self.recorder.record(What::Together {
            parts: parts.clone(),
        });
        for ((key, _), part) in claims.iter().zip(&parts) {
            self.recorder.invokes(part.call, key, mode, waits, None);
        }
        parts
    }

    /// It was granted by a request that was sent then.
    fn granted(&self, call: u64, hold: &str, token: u64, sent: u64) {
        self.recorder.record(What::Ok {
            call,
            hold: hold.into(),
            token,
            valid_until: validity(sent),
        });
    }

    /// It was renewed by a request that was sent then.
    fn renewed(&self, hold: &str, sent: u64) {
        self.recorder.record(What::RenewOk {
            hold: hold.into(),
            sent,
            valid_until: validity(sent),
        });
    }

    fn refused(&self, call: u64) {
        let why = "held by others".into();
        self.recorder.record(What::Fail { call, why });
    }

    fn releases(&self, hold: &str) {
        self.recorder
            .record(What::ReleaseInvoke { hold: hold.into() });
    }

    fn released(&self, hold: &str, was_there: bool) {
        let outcome = if was_there {
            Outcome::Released
        } else {
            Outcome::AlreadyGone
        };
        self.recorder.record(What::ReleaseOk {
            hold: hold.into(),
            outcome,
        });
    }
}

/// A run of clients with a flaw, or without.
struct Run {
    recorder: Recorder,
    /// The lock that they contend for. No other run has it.
    key: String,
    /// Of sound clients alone is known when this process did not get to run: what is due then may be late.
    stalls: Option<JoinHandle<()>>,
}

impl Run {
    /// Its history is in `dir`.
    fn begin(kind: &str, flaw: impl Debug, is_sound: bool, dir: &Path) -> Self {
        let recorder = Recorder::open(dir, "workload");
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        Self {
            key: format!("{kind}:{flaw:?}:{name}"),
            stalls: is_sound.then(|| tokio::spawn(note_stalls(recorder.client("stalls")))),
            recorder,
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(stalls) = &self.stalls {
            stalls.abort();
        }
    }
}

async fn note_stalls(recorder: Recorder) {
    loop {
        let since = now();
        sleep(STALL / 10).await;
        if now() - since > micros(STALL) {
            recorder.record(What::Stalled { since });
        }
    }
}

/// Counted from before the request was sent, with a margin for clocks that run at different speeds.
fn validity(sent: u64) -> u64 {
    sent + micros(LEASE) * 99 / 100 - 2_000
}

/// Writes down what a script says of who holds a key: ids, and the time in milliseconds that the first of them has left.
fn observe(
    addr: SocketAddr,
    recorder: &Recorder,
    key: String,
    look: &'static str,
) -> JoinHandle<()> {
    let recorder = recorder.client("observer");
    tokio::spawn(async move {
        let mut raw = Raw::connect(addr).await.expect("the server is up");
        loop {
            let asked = now();
            let reply = raw.cmd(&["EVAL", look, "1", &key]).await;
            let [holders, pttl] = reply.array() else {
                panic!("two values were asked for: {reply:?}")
            };
            let key = key.clone();
            recorder.record(What::Server {
                key,
                asked,
                holders: once_each(holders),
                pttl: pttl.int(),
            });
            sleep(Duration::from_millis(5)).await;
        }
    })
}

fn once_each(ids: &RawValue) -> Vec<Holder> {
    let holder = |id: &RawValue| Holder {
        id: id.str().into(),
        count: 1,
    };
    ids.array().iter().map(holder).collect()
}
