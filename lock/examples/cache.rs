//! A cache that one rebuilds and many read.
//!
//! `cargo run --example cache -- redis://127.0.0.1:6379`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{Locks, RwLock};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The cache, which in real life is a file or a table that all processes share.
#[derive(Default)]
struct Cache {
    version: AtomicU64,
    /// Odd while somebody writes.
    state: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).expect("the URL of a server");
    let cache = Arc::new(Cache::default());
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let locks = Locks::connect(url.clone()).await?;
        for reader in 0..4 {
            let (lock, cache) = (locks.rw_lock("cache"), Arc::clone(&cache));
            tasks.spawn(async move {
                for _ in 0..5 {
                    read(&lock, &cache).await?;
                    sleep(Duration::from_millis(reader)).await;
                }
                Ok::<_, leasehold::Error>(())
            });
        }
        let (lock, cache) = (locks.rw_lock("cache"), Arc::clone(&cache));
        tasks.spawn(async move { rebuild(&lock, &cache).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    println!(
        "rebuilt {} times, never read half-written",
        cache.version.load(Ordering::SeqCst)
    );
    Ok(())
}

/// Readers of one process share one lease on the server.
async fn read(lock: &RwLock, cache: &Cache) -> Result<(), leasehold::Error> {
    let _reading = lock.read().await?;
    assert!(cache.state.load(Ordering::SeqCst).is_multiple_of(2));
    Ok(())
}

/// Waits for readers to leave; those that come later wait for it.
async fn rebuild(lock: &RwLock, cache: &Cache) -> Result<(), leasehold::Error> {
    let writing = lock.write().await?;
    cache.state.fetch_add(1, Ordering::SeqCst);
    sleep(Duration::from_millis(5)).await;
    cache.state.fetch_add(1, Ordering::SeqCst);
    let version = cache.version.fetch_add(1, Ordering::SeqCst) + 1;

    // Nobody else writes before this one has read what it wrote, and other readers need not wait for that.
    let reading = writing.downgrade().await?;
    println!("version {version} is there");
    reading.release().await.map(drop)
}
