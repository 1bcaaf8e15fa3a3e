//! The connection is cut after every byte of every request and of every reply, in each of the ways
//! a connection ends: the library's report is then true at the server, and uncertain holds are
//! cleaned up.
//!
//! Cut points are shared out among lanes, each with a server and a proxy of its own, because a
//! silent end takes two command timeouts to be noticed.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::{ErrorKind, Guard, Locks, Release};
use leasehold_testkit::{Cut, Fault, Proxy, Raw, Server};
use tokio::task::{JoinSet, LocalSet};

use crate::support::{exists, fields, ms, until, within};

/// Lanes of a test. Renewals, which take their time, have more.
const LANES: usize = 12;
const RENEWAL_LANES: usize = 32;

/// The lease of all locks except those that are renewed: longer than any wait.
const LONG: Duration = Duration::from_secs(30);
const RENEWED: Duration = ms(900);

/// Command timeout: a silent connection is probed after it, and given up after twice as long.
const TIMEOUT: Duration = ms(80);

/// The ways a connection ends.
const ENDS: [Cut; 3] = [Cut::Rst, Cut::Fin, Cut::Silence];

/// The other holder.
const SOMEBODY: &str = "somebody:1=1";

/// The operation that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Of a lock that is free.
    Acquire,
    /// Of a lock that the other holder has.
    AcquireHeld,
    /// After the server lost the script: `EVALSHA`, `NOSCRIPT`, `EVAL` and the reply.
    AcquireForgotten,
    Release,
    /// Of a lock that is gone.
    ReleaseGone,
    ReleaseForgotten,
    /// A guard is dropped.
    Drop,
    Renew,
}

/// The place and kind of a cut.
#[derive(Clone, Copy, Debug)]
struct Case {
    to_server: bool,
    after: u64,
    how: Cut,
}

struct Lane {
    server: Server,
    proxy: Proxy,
    locks: Locks,
    raw: Raw,
}

/// Number of times each outcome was reported.
type Said = BTreeMap<&'static str, usize>;

impl Lane {
    async fn new(lease: Duration) -> Self {
        let server = Server::start().await;
        let proxy = Proxy::start(server.addr());
        let raw = server.raw().await;
        let locks = loop {
            let builder = Locks::builder(proxy.url())
                .lease(lease)
                .command_timeout(TIMEOUT);
            // On a busy machine even a healthy server may be too slow for that.
            if let Ok(locks) = builder.connect().await {
                break locks;
            }
        };
        Self {
            server,
            proxy,
            locks,
            raw,
        }
    }

    /// Takes the lock on a healthy connection, which knows the scripts from then on.
    async fn lock(&self, key: &str) -> Guard {
        let locked = async {
            loop {
                if let Ok(guard) = self.locks.mutex("warm").lock().await
                    && guard.release().await.is_ok()
                    && let Ok(Some(guard)) = self.locks.mutex(key).try_lock().await
                {
                    return guard;
                }
            }
        };
        within("a lock on a healthy connection", locked).await
    }

    /// Prepares the operation on `key`; returns its guard.
    async fn prepare(&mut self, operation: Operation, key: &str) -> Option<Guard> {
        let guard = self.lock(key).await;
        let guard = match operation {
            Operation::Acquire | Operation::AcquireHeld | Operation::AcquireForgotten => {
                drop(guard);
                until("the release", async || !exists(&mut self.raw, key).await).await;
                self.raw.cmd(&["DEL", &token_of(key)]).await;
                if operation == Operation::AcquireHeld {
                    self.raw.cmd(&["HSET", key, "somebody:1", "1"]).await;
                    self.raw.cmd(&["PEXPIRE", key, "60000"]).await;
                }
                None
            }
            Operation::ReleaseGone => {
                self.raw.cmd(&["DEL", key]).await;
                Some(guard)
            }
            _ => Some(guard),
        };
        if matches!(
            operation,
            Operation::AcquireForgotten | Operation::ReleaseForgotten
        ) {
            self.raw.cmd(&["SCRIPT", "FLUSH"]).await;
        }
        guard
    }

    /// The bytes of the requests and of the replies, when nothing is cut.
    async fn measure(&mut self, operation: Operation) -> (u64, u64) {
        let bytes = |proxy: &Proxy| (proxy.from_client(), proxy.from_server());
        loop {
            let guard = match operation {
                Operation::Renew => Some(self.lock_and_renew("k0000").await),
                _ => self.prepare(operation, "k0000").await,
            };
            let before = bytes(&self.proxy);
            let after = match guard {
                Some(guard) if operation == Operation::Renew => {
                    self.renewed(&guard).await.then(|| bytes(&self.proxy))
                }
                Some(guard) => guard.release().await.is_ok().then(|| bytes(&self.proxy)),
                // A guard is kept until the bytes are counted: its release is not meant.
                None => self
                    .locks
                    .mutex("k0000")
                    .try_lock()
                    .await
                    .map(|_kept| bytes(&self.proxy))
                    .ok(),
            };
            if let Some(after) = after {
                return (after.0 - before.0, after.1 - before.1);
            }
        }
    }

    /// One cut point. Returns the library's report, which was true.
    async fn cut(&mut self, operation: Operation, case: Case, key: &str) -> &'static str {
        let guard = self.prepare(operation, key).await;
        let fault = Fault::Cut {
            after: case.after,
            how: case.how,
        };
        if case.to_server {
            self.proxy.to_server(fault)
        } else {
            self.proxy.to_client(fault)
        }
        let said = match guard {
            None => self.acquire(operation, key).await,
            Some(guard) if operation == Operation::Drop => {
                drop(guard);
                "dropped"
            }
            Some(guard) => self.release(operation, key, guard).await,
        };
        self.proxy.heal();
        let left = if operation == Operation::AcquireHeld {
            SOMEBODY
        } else {
            ""
        };
        let raw = &mut self.raw;
        until(
            &format!("{operation:?} {case:?} said {said}: the cleanup"),
            async || fields(raw, key).await == left,
        )
        .await;
        if said == "nothing was done"
            && operation != Operation::Release
            && operation != Operation::ReleaseForgotten
        {
            assert!(
                !exists(raw, &token_of(key)).await,
                "{operation:?} {case:?}: something was done"
            );
        }
        raw.cmd(&["DEL", key]).await;
        if case.how == Cut::Silence {
            self.proxy.reset_all();
        }
        said
    }

    /// Takes the lock and waits until it was renewed, on a connection that knows the script from
    /// then on.
    async fn lock_and_renew(&self, key: &str) -> Guard {
        loop {
            let guard = self.lock(key).await;
            if self.renewed(&guard).await {
                return guard;
            }
        }
    }

    /// Waits for the next renewal. False if the guard was lost before.
    async fn renewed(&self, guard: &Guard) -> bool {
        let mut valid = guard.valid_for();
        let renewed = async {
            while guard.is_held() {
                tokio::time::sleep(ms(3)).await;
                // It only grows by a renewal.
                if guard.valid_for() > valid {
                    return true;
                }
                valid = guard.valid_for();
            }
            false
        };
        within("a renewal or a loss", renewed).await
    }

    /// One cut point of a renewal. While the guard claims the lock the server has it, and if it is
    /// renewed no more, it is lost.
    async fn cut_renewal(&mut self, case: Case, key: &str) -> &'static str {
        let guard = self.lock_and_renew(key).await;
        let fault = Fault::Cut {
            after: case.after,
            how: case.how,
        };
        if case.to_server {
            self.proxy.to_server(fault)
        } else {
            self.proxy.to_client(fault)
        }
        let watch = async {
            let mut raw = self.server.raw().await;
            loop {
                let held = fields(&mut raw, key).await;
                if !guard.is_held() {
                    return;
                }
                assert!(
                    held.starts_with(self.locks.client_id()) && held.ends_with("=1"),
                    "{case:?}: {held:?}"
                );
                tokio::time::sleep(ms(20)).await;
            }
        };
        let said = tokio::select! {
            renewed = self.renewed(&guard) => if renewed { "renewed" } else { "lost" },
            () = watch => "lost",
        };
        self.proxy.heal();
        drop(guard);
        let raw = &mut self.raw;
        until(&format!("{case:?} said {said}: the release"), async || {
            !exists(raw, key).await
        })
        .await;
        if case.how == Cut::Silence {
            self.proxy.reset_all();
        }
        said
    }

    async fn acquire(&mut self, operation: Operation, key: &str) -> &'static str {
        match within("an answer", self.locks.mutex(key).try_lock().into_future()).await {
            Ok(Some(guard)) => {
                let held = fields(&mut self.raw, key).await;
                let token = self.raw.cmd(&["GET", &token_of(key)]).await;
                assert!(
                    guard.is_held(),
                    "the lease is longer than anything here takes"
                );
                assert!(
                    held.starts_with(self.locks.client_id()) && held.ends_with("=1"),
                    "{held:?}"
                );
                assert!(!held.contains(' '), "{held}");
                assert_eq!(token.int().unsigned_abs(), guard.token().as_u64());
                "acquired"
            }
            Ok(None) => {
                assert_eq!(operation, Operation::AcquireHeld, "nobody else holds it");
                assert_eq!(fields(&mut self.raw, key).await, SOMEBODY);
                "held by another"
            }
            Err(error) => unknown(&error),
        }
    }

    async fn release(&mut self, operation: Operation, key: &str, guard: Guard) -> &'static str {
        match within("an answer", guard.release()).await {
            Ok(Release::Released) => {
                assert_ne!(
                    operation,
                    Operation::ReleaseGone,
                    "there was nothing to release"
                );
                assert!(!exists(&mut self.raw, key).await);
                "released"
            }
            Ok(Release::AlreadyGone) => {
                assert_eq!(
                    operation,
                    Operation::ReleaseGone,
                    "it was there until this release"
                );
                "already gone"
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => unknown(&error),
        }
    }
}

fn unknown(error: &leasehold::Error) -> &'static str {
    match error.kind() {
        ErrorKind::Unknown => "unknown",
        ErrorKind::Unavailable => "nothing was done",
        _ => panic!("a cut is neither an answer nor the server's fault: {error}"),
    }
}

fn token_of(key: &str) -> String {
    format!("redisson_lock_token:{{{key}}}")
}

/// Runs the operation once for each byte and each way to cut there. `every` is the distance of the
/// cut points that end otherwise than by RST.
async fn sweep(operation: Operation, every: u64) -> Said {
    let (lanes, lease) = if operation == Operation::Renew {
        (RENEWAL_LANES, RENEWED)
    } else {
        (LANES, LONG)
    };
    let local = LocalSet::new();
    local
        .run_until(sweep_in_lanes(operation, every, lanes, lease))
        .await
}

async fn sweep_in_lanes(operation: Operation, every: u64, lanes: usize, lease: Duration) -> Said {
    let (request, reply) = Lane::new(lease).await.measure(operation).await;
    // The ids of holds grow by a digit or two on the way.
    let points = (0..=request + 2)
        .map(|after| (true, after))
        .chain((0..=reply + 2).map(|after| (false, after)));
    let cases = points.flat_map(|(to_server, after)| {
        ENDS.map(|how| Case {
            to_server,
            after,
            how,
        })
    });
    let cases: Vec<Case> = cases
        .filter(|case| case.how == Cut::Rst || case.after.is_multiple_of(every))
        .collect();

    let mut running = JoinSet::new();
    for n in 0..lanes {
        let cases: Vec<Case> = cases.iter().skip(n).step_by(lanes).copied().collect();
        running.spawn_local(async move {
            let mut lane = Lane::new(lease).await;
            let mut said = Said::new();
            for (n, case) in cases.into_iter().enumerate() {
                let key = format!("k{n:04}");
                let what = match operation {
                    Operation::Renew => lane.cut_renewal(case, &key).await,
                    _ => lane.cut(operation, case, &key).await,
                };
                *said.entry(what).or_default() += 1;
            }
            said
        });
    }
    let mut said = Said::new();
    while let Some(lane) = running.join_next().await {
        for (what, n) in lane.expect("what was said is true") {
            *said.entry(what).or_default() += n;
        }
    }
    println!(
        "{operation:?}: {request} bytes there, {reply} back, {} cuts: {said:?}",
        cases.len()
    );
    said
}

#[track_caller]
fn assert_said(said: &Said, all: &[&str]) {
    assert!(
        all.iter().all(|what| said.contains_key(what)),
        "{all:?} were to be seen: {said:?}"
    );
}

#[tokio::test]
async fn an_acquire_cut_at_any_byte() {
    assert_said(
        &sweep(Operation::Acquire, 1).await,
        &["acquired", "unknown"],
    );
}

#[tokio::test]
async fn an_acquire_of_a_held_lock_cut_at_any_byte() {
    assert_said(
        &sweep(Operation::AcquireHeld, 1).await,
        &["held by another", "unknown"],
    );
}

#[tokio::test]
async fn an_acquire_by_a_forgotten_script_cut_at_any_byte() {
    assert_said(
        &sweep(Operation::AcquireForgotten, 8).await,
        &["acquired", "unknown"],
    );
}

#[tokio::test]
async fn a_release_cut_at_any_byte() {
    assert_said(
        &sweep(Operation::Release, 1).await,
        &["released", "unknown"],
    );
}

#[tokio::test]
async fn a_release_of_a_lock_that_is_gone_cut_at_any_byte() {
    assert_said(
        &sweep(Operation::ReleaseGone, 1).await,
        &["already gone", "unknown"],
    );
}

#[tokio::test]
async fn a_release_by_a_forgotten_script_cut_at_any_byte() {
    assert_said(
        &sweep(Operation::ReleaseForgotten, 8).await,
        &["released", "unknown"],
    );
}

#[tokio::test]
async fn a_dropped_guard_cut_at_any_byte() {
    assert_said(&sweep(Operation::Drop, 1).await, &["dropped"]);
}

#[tokio::test]
async fn a_renewal_cut_at_any_byte() {
    assert_said(&sweep(Operation::Renew, 1).await, &["renewed"]);
}
