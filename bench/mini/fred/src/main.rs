//! Locks and unlocks once.

use fred::clients::Client;
use fred::error::Error;
use fred::interfaces::{ClientLike, KeysInterface, LuaInterface};
use fred::types::config::Config;
use fred::types::{Expiration, SetOptions};

const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

fn main() -> Result<(), Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let client = Client::new(
                Config::from_url("redis://127.0.0.1:6379")?,
                None,
                None,
                None,
            );
            client.init().await?;
            let lease = Some(Expiration::PX(30_000));
            let taken: Option<String> = client
                .set("lock", "me", lease, Some(SetOptions::NX), false)
                .await?;
            let released: i64 = client.eval(RELEASE, "lock", "me").await?;
            println!("{taken:?} {released}");
            Ok(())
        })
}
