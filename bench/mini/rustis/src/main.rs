//! Locks and unlocks once.

use rustis::Result;
use rustis::client::Client;
use rustis::commands::ScriptingCommands;

const ACQUIRE: &str =
    "if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 else return 0 end";
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect("redis://127.0.0.1:6379").await?;
        let taken: i64 = client.eval(ACQUIRE, "lock", ["me", "30000"]).await?;
        let released: i64 = client.eval(RELEASE, "lock", "me").await?;
        println!("{taken} {released}");
        Ok(())
    })
}
