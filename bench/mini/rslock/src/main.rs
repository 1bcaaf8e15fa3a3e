//! Locks and unlocks once.

use std::time::Duration;

use rslock::{LockError, LockManager};

fn main() -> Result<(), LockError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let locks = LockManager::new(vec!["redis://127.0.0.1:6379"]);
            let guard = locks.acquire("lock", Duration::from_secs(30)).await?;
            println!("{}", guard.lock.validity_time);
            guard.release().await;
            Ok(())
        })
}
