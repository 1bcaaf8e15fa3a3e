//! Clients with a flaw each, to show that the checker sees it: flaws that well-known lock clients
//! had or have.
//!
//! They run the same workload against a real server, on the library's own key layout but without a
//! line of its code. One of them has no flaw. The checker must call that one clean, or its verdict
//! on the others is worth nothing.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::checker::Limits;
use crate::history::{Effect, Mode, Outcome, Recorder, What, micros, now};
use crate::observer::Observer;
use crate::raw::{Raw, RawValue};
use crate::server::Server;

/// The flaw of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It releases with a plain `DEL`, also when another client holds the lock by then.
    ReleaseWithoutOwnerCheck,
    /// Its renewal is not stopped by the release, and sets the key anew instead of extending it.
    RenewalAfterRelease,
    /// It takes a request that timed out for one that was refused.
    TimeoutTakenForNo,
}

/// The lock that all clients contend for.
const KEY: &str = "broken:lock";
const LEASE: Duration = Duration::from_millis(1_000);
/// Time a client waits for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_millis(100);
/// Duration of the server's freezes: longer than the clients wait for a reply.
const FREEZE: Duration = Duration::from_millis(300);
/// Time an ordinary client holds the lock.
const WORK: Duration = Duration::from_millis(160);
const CLIENTS: usize = 3;
/// Interval between the server's freezes.
const FREEZES: u64 = 3;
/// The client that oversleeps its lease each time. One is enough: the others are its victims.
const SLEEPER: usize = 0;

const ACQUIRE: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
    redis.call('HSET', KEYS[1], ARGV[1], '1') redis.call('PEXPIRE', KEYS[1], ARGV[2]) \
    local token = redis.call('INCR', KEYS[2]) redis.call('PEXPIRE', KEYS[2], '600000') return token";
const RENEW: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end \
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const RENEW_BADLY: &str = "redis.call('HSET', KEYS[1], ARGV[1], '1') \
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const RELEASE: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end \
    return redis.call('DEL', KEYS[1])";
const RELEASE_BADLY: &str = "return redis.call('DEL', KEYS[1])";

/// The bounds a sound client keeps in this workload, with much to spare except for the cleanup:
/// what is left behind lives for one lease, and must be seen to.
pub const LIMITS: Limits = Limits {
    lease: LEASE,
    loss_notice: Duration::from_secs(10),
    handoff: Duration::from_secs(10),
    overrun: Duration::from_secs(10),
    cleanup: Duration::from_millis(600),
};

/// Runs clients with the flaw for some seconds, and writes their history into `dir`: they take
/// turns, oversleep their lease now and then, and their server freezes now and then.
///
/// # Panics
///
/// When the server fails in any other way.
pub async fn workload(flaw: Flaw, server: &Server, dir: &Path) {
    let recorder = Recorder::open(dir, "workload");
    let observer = recorder.client("observer");
    let _observer = Observer::start(
        server.addr(),
        vec![KEY.into()],
        observer,
        Duration::from_millis(5),
    );
    let turn = Arc::new(Mutex::new(()));
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let client = Client {
            addr: server.addr(),
            raw: None,
            recorder: recorder.client(&name(n)),
            name: name(n),
            attempts: 0,
            turn: Arc::clone(&turn),
            flaw,
        };
        clients.spawn(client.run(n == SLEEPER));
    }
    let mut raw = server.raw().await;
    for id in 0..FREEZES {
        sleep(LEASE).await;
        let _turn = turn.lock().await;
        // While the sleeper holds the lock no other client can get it, so no flaw would show.
        until_held(&mut raw, |holder| client_of(holder) != name(SLEEPER)).await;
        recorder.record(What::FaultStart {
            id,
            kind: "freeze the server".into(),
            effect: Effect::Delays,
        });
        server.pause();
        sleep(FREEZE).await;
        server.resume();
        recorder.record(What::FaultEnd { id });
    }
    // The observer must see the holds that are left.
    sleep(LEASE).await;
    clients.shutdown().await;
}

struct Client {
    addr: SocketAddr,
    /// `None` when a reply is still owed on the last one.
    raw: Option<Raw>,
    recorder: Recorder,
    /// The beginning of its holds' ids.
    name: String,
    attempts: u64,
    /// One disturbance at a time: a frozen server hides what a sleeper does, and the other way
    /// round.
    turn: Arc<Mutex<()>>,
    flaw: Flaw,
}

impl Client {
    async fn run(mut self, oversleeps: bool) {
        loop {
            let Some((hold, renewal)) = self.acquire().await else {
                sleep(Duration::from_millis(5)).await;
                continue;
            };
            if oversleeps {
                // As a process that is frozen: it renews nothing meanwhile, and goes on as if
                // nothing had been.
                renewal.abort();
                let _turn = self.turn.clone().lock_owned().await;
                sleep(LEASE).await;
                let mut raw = Raw::connect(self.addr)
                    .await
                    .expect("a frozen server still accepts");
                until_held(&mut raw, |holder| holder != hold).await;
                // The next holder is in the midst of its work.
                sleep(WORK / 4).await;
                self.release(&hold, &renewal).await;
            } else {
                sleep(WORK).await;
                self.release(&hold, &renewal).await;
            }
            // Longer than the others pause between attempts: one of them is to have it next.
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn acquire(&mut self) -> Option<(String, AbortHandle)> {
        self.attempts += 1;
        let hold = format!("{}:{}", self.name, self.attempts);
        let call = self.recorder.invoke(KEY, Mode::Exclusive, false, None);
        let sent = now();
        match self.ask(ACQUIRE, &hold).await {
            Some(0) => self.recorder.record(What::Fail {
                call,
                why: "held by another".into(),
            }),
            None => self.recorder.record(What::Fail {
                call,
                why: "timed out".into(),
            }),
            Some(token) => {
                let token = u64::try_from(token).expect("a counter is positive");
                self.recorder.record(What::Ok {
                    call,
                    hold: hold.clone(),
                    token,
                    valid_until: validity(sent),
                });
                let renewal = tokio::spawn(renew(
                    self.addr,
                    hold.clone(),
                    self.flaw,
                    self.recorder.clone(),
                ));
                return Some((hold, renewal.abort_handle()));
            }
        }
        None
    }

    async fn release(&mut self, hold: &str, renewal: &AbortHandle) {
        if self.flaw != Flaw::RenewalAfterRelease {
            renewal.abort();
        }
        self.recorder
            .record(What::ReleaseInvoke { hold: hold.into() });
        let script = if self.flaw == Flaw::ReleaseWithoutOwnerCheck {
            RELEASE_BADLY
        } else {
            RELEASE
        };
        let outcome = match self.ask(script, hold).await {
            Some(1) => Outcome::Released,
            Some(_) => Outcome::AlreadyGone,
            None => Outcome::Unknown,
        };
        self.recorder.record(What::ReleaseOk {
            hold: hold.into(),
            outcome,
        });
    }

    /// Runs a script; `None` when no answer came in time.
    async fn ask(&mut self, script: &str, hold: &str) -> Option<i64> {
        let mut raw = match self.raw.take() {
            Some(raw) => raw,
            None => Raw::connect(self.addr)
                .await
                .expect("a frozen server still accepts"),
        };
        send(&mut raw, script, hold).await;
        if let Ok(reply) = timeout(REPLY_TIMEOUT, raw.read()).await {
            self.raw = Some(raw);
            return Some(number(&reply.expect("the server lives")));
        }
        if self.flaw != Flaw::TimeoutTakenForNo {
            // It may still run. Behind it on the same connection, a release can only run later.
            send(&mut raw, RELEASE, hold).await;
            tokio::spawn(async move {
                // Kept open until both are answered: a closed connection's requests are executed as
                // well, but then at an unknown time.
                let _ = (raw.read().await, raw.read().await);
            });
        }
        None
    }
}

/// Renews every third of a lease, on a connection of its own, until it finds that it holds no
/// longer.
async fn renew(addr: SocketAddr, hold: String, flaw: Flaw, recorder: Recorder) {
    let mut raw = Raw::connect(addr)
        .await
        .expect("a frozen server still accepts");
    let script = if flaw == Flaw::RenewalAfterRelease {
        RENEW_BADLY
    } else {
        RENEW
    };
    let end = Instant::now() + LEASE;
    while Instant::now() < end {
        sleep(LEASE / 3).await;
        let sent = now();
        send(&mut raw, script, &hold).await;
        if number(&raw.read().await.expect("the server lives")) == 0 {
            return;
        }
        recorder.record(What::RenewOk {
            hold: hold.clone(),
            sent,
            valid_until: validity(sent),
        });
    }
}

/// Waits until the server shows a holder like that.
async fn until_held(raw: &mut Raw, wanted: impl Fn(&str) -> bool) {
    let watch = async {
        loop {
            let fields = raw.cmd(&["HKEYS", KEY]).await;
            if fields.array().iter().any(|holder| wanted(holder.str())) {
                return;
            }
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(Duration::from_secs(60), watch)
        .await
        .expect("somebody gets the lock");
}

fn name(n: usize) -> String {
    format!("client-{n}")
}

/// A hold's id is `<client>:<n>`.
fn client_of(hold: &str) -> &str {
    hold.split(':').next().unwrap_or(hold)
}

async fn send(raw: &mut Raw, script: &str, hold: &str) {
    let (lease, counter) = (LEASE.as_millis().to_string(), format!("{KEY}:token"));
    raw.send(&["EVAL", script, "2", KEY, &counter, hold, &lease])
        .await
        .expect("the server lives");
}

/// Counted from before the request was sent, with a margin for clocks that run at different speeds.
fn validity(sent: u64) -> u64 {
    sent + micros(LEASE) * 99 / 100 - 2_000
}

fn number(reply: &RawValue) -> i64 {
    assert!(reply.error().is_none(), "{reply:?}");
    reply.int()
}
