//! Helpers of the locks' tests.

use std::time::{Duration, Instant};

use leasehold::{Error, Guard, Leadership, Locks};
use leasehold_testkit::until_for;
use leasehold_testkit::wait::{self, Answer};
use leasehold_testkit::{Raw, RawValue, Server};
pub(crate) use leasehold_testkit::{calls, commands, ms};
use tokio::task::JoinHandle;

/// Upper bound on each wait: shorter than the default lease of 30 s, so that no test passes only
/// because a lease has ended.
const BOUND: Duration = Duration::from_secs(20);

/// Awaits `future`, but not for ever.
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    wait::within(BOUND, what, future).await
}

/// Asks again and again until it is so.
pub(crate) async fn until<A: Answer>(what: &str, ask: impl AsyncFnMut() -> A) -> A::Value {
    until_for(BOUND, what, ask).await
}

pub(crate) async fn locks(server: &Server) -> Locks {
    connect(server.url()).await
}

/// Locks with a lease short enough to see it renewed and run out.
pub(crate) async fn short_locks(server: &Server, lease: Duration) -> Locks {
    leased(server.url(), lease).await
}

/// Waits until the server has confirmed a new renewal of each of them. One that is lost meanwhile
/// fails the test.
pub(crate) async fn renewed<'a>(guards: impl IntoIterator<Item = &'a Guard>) {
    let end = |guard: &Guard| Instant::now() + guard.valid_for();
    let mut missing: Vec<_> = guards
        .into_iter()
        .map(|guard| (guard, end(guard)))
        .collect();
    until("renewals", async || {
        missing.retain(|(guard, before)| {
            let later = end(guard) > *before + ms(50);
            assert!(guard.is_held(), "{} was not renewed", guard.key());
            !later
        });
        missing.is_empty()
    })
    .await;
}

/// Waits until the server has confirmed a new renewal of this leadership.
pub(crate) async fn renewed_terms(leader: &Leadership) {
    let end = || Instant::now() + leader.valid_for();
    let before = end();
    until("a renewal", async || {
        assert!(leader.is_leader(), "{} was not renewed", leader.key());
        end() > before + ms(50)
    })
    .await;
}

/// Locks at a server or cluster.
pub(crate) async fn connect(url: impl Into<String>) -> Locks {
    Locks::connect(url).await.expect("the server is up")
}

/// The same with this lease.
pub(crate) async fn leased(url: impl Into<String>, lease: Duration) -> Locks {
    Locks::builder(url)
        .lease(lease)
        .connect()
        .await
        .expect("the server is up")
}

pub(crate) async fn take(locks: &Locks, name: &str) -> Guard {
    within(name, locks.mutex(name).lock().into_future())
        .await
        .unwrap()
}

/// The lock, tried for until it is granted, however long a failover takes.
pub(crate) async fn granted(locks: &Locks, name: &str) -> Guard {
    wait::until("the lock is granted", async || {
        match locks.mutex(name).try_lock().await {
            Ok(Some(guard)) => Ok(guard),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// The lock, waited for again and again, however long a failover takes.
#[cfg(feature = "tls")]
pub(crate) async fn taken(locks: &Locks, name: &str) -> Guard {
    until("the lock is granted", async || {
        locks
            .mutex(name)
            .lock()
            .await
            .map_err(|error| error.to_string())
    })
    .await
}

/// Adds the user `mute` with the password `secret`, that may neither publish nor subscribe.
pub(crate) async fn add_mute_user(raw: &mut Raw) {
    let user = [
        "ACL",
        "SETUSER",
        "mute",
        "on",
        ">secret",
        "~*",
        "+@all",
        "resetchannels",
    ];
    let added = raw.cmd(&user).await;
    assert!(added.is_ok(), "{added:?}");
}

pub(crate) async fn exists(raw: &mut Raw, key: &str) -> bool {
    raw.cmd(&["EXISTS", key]).await.int() == 1
}

pub(crate) async fn pttl(raw: &mut Raw, key: &str) -> i64 {
    raw.cmd(&["PTTL", key]).await.int()
}

/// The fields of a lock, sorted: `u:1=2 u:2=1`.
pub(crate) async fn fields(raw: &mut Raw, key: &str) -> String {
    let all = raw.cmd(&["HGETALL", key]).await;
    let mut pairs: Vec<String> = all
        .array()
        .chunks(2)
        .map(|pair| format!("{}={}", pair[0].str(), pair[1].str()))
        .collect();
    pairs.sort();
    pairs.join(" ")
}

/// Number of tickets in the line for the lock `name`.
pub(crate) async fn tickets(raw: &mut Raw, name: &str) -> i64 {
    raw.cmd(&["ZCARD", &format!("leasehold_line:{{{name}}}")])
        .await
        .int()
}

/// Waits until no ticket is in the line of `name`: one that is given up is taken back behind the answer.
pub(crate) async fn nobody_in_line(raw: &mut Raw, name: &str) {
    until("nobody is in line", async || tickets(raw, name).await == 0).await;
}

/// Number of scripts run, by EVAL or EVALSHA.
pub(crate) async fn scripts_run(raw: &mut Raw) -> u64 {
    calls(raw, "eval").await + calls(raw, "evalsha").await
}

/// Runs the operation; with it, how many commands the server executed meanwhile.
pub(crate) async fn executed<T>(raw: &mut Raw, operation: impl AsyncFnOnce() -> T) -> (u64, T) {
    let before = commands(raw).await;
    let done = operation().await;
    (commands(raw).await - before, done)
}

/// Has these processes write their entries, so that what is counted from then on is of locks alone. No reply is under way after
/// it: a guard that is dropped would be released at any time later.
pub(crate) async fn registered<'a>(processes: impl IntoIterator<Item = &'a Locks>) {
    for locks in processes {
        let first = locks.mutex("registered").try_lock().lease(ms(1_000));
        first.await.unwrap().unwrap().release().await.unwrap();
        let id = locks.client_id();
        until("an entry", async || {
            locks.process_of(id).await.unwrap().is_some()
        })
        .await;
    }
}

/// The latest command over the connection for renewals, of the one process that has such a connection; `None` before there is one.
pub(crate) async fn command_for_renewals(raw: &mut Raw) -> Option<String> {
    let clients = raw.cmd(&["CLIENT", "LIST"]).await;
    let mut lines = clients.str().lines();
    let ours = lines.find(|line| line.contains(":renewal "))?;
    let mut fields = ours.split(' ');
    fields.find_map(|field| field.strip_prefix("cmd=").map(str::to_owned))
}

/// The keys on the server, sorted, without the entries of processes.
pub(crate) async fn keys(raw: &mut Raw) -> Vec<String> {
    let all = raw.cmd(&["KEYS", "*"]).await;
    let mut keys: Vec<String> = all.array().iter().map(|key| key.str().into()).collect();
    keys.retain(|key| !key.starts_with("lockp:"));
    keys.sort();
    keys
}

/// Asserts that every key on the server has an expiry.
pub(crate) async fn assert_everything_expires(raw: &mut Raw) {
    for key in raw.cmd(&["KEYS", "*"]).await.array() {
        // One that is gone by now had one.
        let left = pttl(raw, key.str()).await;
        assert!(left != -1, "{} has no expiry", key.str());
    }
}

pub(crate) fn bulk(text: &str) -> RawValue {
    RawValue::Bulk(text.into())
}

/// The tickets in the line for the lock `name`, first to last.
pub(crate) async fn line(raw: &mut Raw, name: &str) -> Vec<String> {
    let key = format!("leasehold_line:{{{name}}}");
    let tickets = raw.cmd(&["ZRANGE", &key, "0", "-1"]).await;
    tickets
        .array()
        .iter()
        .map(|ticket| ticket.str().into())
        .collect()
}

/// A task that waits for the lock `name` with a ticket at the end of the line.
pub(crate) async fn in_line(
    raw: &mut Raw,
    locks: &Locks,
    name: &str,
) -> JoinHandle<Result<Guard, Error>> {
    let waiter = tokio::spawn(locks.mutex(name).lock().into_future());
    until("a ticket in line", async || {
        let line = line(raw, name).await;
        line.last()
            .is_some_and(|last| last.starts_with(locks.client_id()))
    })
    .await;
    waiter
}

/// The guard that a waiter gets.
pub(crate) async fn its_turn(waiter: JoinHandle<Result<Guard, Error>>) -> Guard {
    within("its turn", waiter).await.unwrap().unwrap()
}
