//! What the tests of the locks share.

use std::future::Future;
use std::time::{Duration, Instant};

use leasehold::{Guard, Locks};
use leasehold_testkit::{Raw, RawValue, Server};

/// A bound against hangs: no test waits for anything that takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) async fn locks(server: &Server) -> Locks {
    Locks::connect(server.url())
        .await
        .expect("the server is up")
}

/// Locks with a lease short enough to see it renewed and run out.
pub(crate) async fn short_locks(server: &Server, lease: Duration) -> Locks {
    Locks::builder(server.url())
        .lease(lease)
        .connect()
        .await
        .expect("the server is up")
}

/// Awaits `future`, but not for ever.
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("no end of waiting: {what}"))
}

/// Asks again and again until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < give_up, "no end of waiting: {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// Waits until the server has confirmed a renewal of each of them that is newer than what they know already. One that is
/// lost meanwhile is not waited for.
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

/// How many connections listen on the channel of the lock `name`.
pub(crate) async fn listeners(raw: &mut Raw, name: &str) -> i64 {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    raw.cmd(&["PUBSUB", "NUMSUB", &channel])
        .await
        .get(&channel)
        .expect("the channel is named")
        .int()
}

/// How often the server ran `command` since its statistics were reset.
pub(crate) async fn calls(raw: &mut Raw, command: &str) -> u64 {
    let info = raw.cmd(&["INFO", "commandstats"]).await;
    let prefix = format!("cmdstat_{command}:calls=");
    let line = info
        .str()
        .lines()
        .find_map(|line| line.strip_prefix(&prefix))
        .map(str::to_owned);
    line.map_or(0, |line| {
        line.split(',')
            .next()
            .and_then(|n| n.parse().ok())
            .expect("a number of calls")
    })
}

/// Scripts, whether by text or by name.
pub(crate) async fn scripts_run(raw: &mut Raw) -> u64 {
    calls(raw, "eval").await + calls(raw, "evalsha").await
}

/// Everything on the server must end by itself.
pub(crate) async fn assert_everything_expires(raw: &mut Raw) {
    for key in raw.cmd(&["KEYS", "*"]).await.array() {
        assert!(
            pttl(raw, key.str()).await > 0,
            "{} has no expiry",
            key.str()
        );
    }
}

pub(crate) fn bulk(text: &str) -> RawValue {
    RawValue::Bulk(text.into())
}
