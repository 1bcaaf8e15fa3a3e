//! Locks and unlocks once.

use leasehold::{Error, Locks};

fn main() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let locks = Locks::connect("redis://127.0.0.1:6379").await?;
        let guard = locks.mutex("lock").lock().await?;
        println!("{}", guard.token());
        println!("{:?}", guard.release().await?);
        Ok(())
    })
}
