//! Helpers of the cluster client's tests.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Script, Target};
use leasehold_resp::{Command, Error, Value};
pub(crate) use leasehold_testkit::calls;

/// Upper bound on each wait for the client.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// `KEYS[1]` gets the holder `ARGV[1]`, unless it has another one: idempotent, as every script of a
/// lock is.
pub(crate) static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local holder = redis.call('GET', KEYS[1])
         if holder and holder ~= ARGV[1] then return 0 end
         redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000)
         return 1",
    )
});

/// The same with a second key that counts, so that it needs both.
pub(crate) static TAKE_AND_COUNT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local holder = redis.call('GET', KEYS[1])
         if holder and holder ~= ARGV[1] then return 0 end
         redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000)
         redis.call('SET', KEYS[2], 1, 'PX', 60000)
         return 2",
    )
});

pub(crate) async fn client(url: &str) -> Client {
    Client::connect(Target::parse(url).unwrap()).await.unwrap()
}

pub(crate) fn soon() -> Instant {
    Instant::now() + BOUND
}

/// Takes `key` for `holder`: 1 if it has it now, 0 if another holder does.
pub(crate) async fn take(
    client: &Client,
    key: &str,
    holder: &str,
    deadline: Instant,
) -> Result<i64, Error> {
    let done = client
        .eval(
            &TAKE.call(&[key.as_bytes()], &[holder.as_bytes()]),
            deadline,
        )
        .await?;
    Ok(done.value.as_int().unwrap())
}

pub(crate) async fn set(client: &Client, key: &str, value: &str) -> Result<Value, Error> {
    client
        .call(
            key.as_bytes(),
            &Command::new("SET")
                .arg(key)
                .arg(value)
                .arg("PX")
                .arg("60000"),
        )
        .await
}
