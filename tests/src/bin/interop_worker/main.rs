//! A process of ours for the scenes beside Redisson.
//!
//! - `interop_worker hold URL LEASE NAME` takes a lock of every kind, named NAME and the kind, says `held` and keeps them until it
//!   is killed.
//! - `interop_worker storm URL LEASE DIRECTORY SEED` takes locks and permits of every kind by chance and records what happens,
//!   until the directory has a file `stop`.
//! - `interop_worker storm-broken URL LEASE DIRECTORY SEED` does the same, but now and then it takes another lock than the one that
//!   it writes down: the checker must find that.
//!
//! LEASE is in milliseconds.

mod storm;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use leasehold::{Interop, Locks};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["hold", url, lease, name] => hold(&connect(url, lease).await, name).await,
        [mode @ ("storm" | "storm-broken"), url, lease, dir, seed] => {
            let seed = seed.parse().expect("a seed");
            let is_broken = *mode == "storm-broken";
            storm::run(connect(url, lease).await, Path::new(dir), seed, is_broken).await;
        }
        _ => {
            println!(
                "interop_worker hold URL LEASE NAME | storm URL LEASE DIRECTORY SEED | \
                 storm-broken URL LEASE DIRECTORY SEED"
            );
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

async fn connect(url: &str, lease: &str) -> Locks {
    let lease = Duration::from_millis(lease.parse().expect("milliseconds"));
    let builder = Locks::builder(url).interop(Interop::Redisson).lease(lease);
    builder.connect().await.expect("the server is up")
}

async fn hold(locks: &Locks, name: &str) {
    let of = |kind| format!("{name}-{kind}");
    let (read, write) = (locks.rw_lock(of("read")), locks.rw_lock(of("write")));
    let _held = (
        locks.mutex(of("lock")).lock().await.expect("the mutex"),
        locks
            .fair_mutex(of("fair"))
            .lock()
            .await
            .expect("the fair mutex"),
        read.read().await.expect("the lock to read"),
        write.write().await.expect("the lock to write"),
        locks
            .semaphore(of("pes"), 1)
            .acquire()
            .await
            .expect("the permit"),
    );
    println!("held");
    std::future::pending().await
}
