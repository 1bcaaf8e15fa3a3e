//! Locks and unlocks once.

use redis::{RedisResult, Script, Value};

const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

fn main() -> RedisResult<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let client = redis::Client::open("redis://127.0.0.1:6379")?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            let mut set = redis::cmd("SET");
            let taken: Value = set
                .arg("lock")
                .arg("me")
                .arg("NX")
                .arg("PX")
                .arg(30_000)
                .query_async(&mut connection)
                .await?;
            let released: i64 = Script::new(RELEASE)
                .key("lock")
                .arg("me")
                .invoke_async(&mut connection)
                .await?;
            println!("{taken:?} {released}");
            Ok(())
        })
}
