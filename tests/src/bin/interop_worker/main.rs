//! A process of ours for the scenes beside Redisson.
//!
//! `interop_worker hold URL LEASE NAME` takes a lock of every kind, named NAME and the kind, with leases of LEASE milliseconds,
//! says `held` and keeps them until it is killed.

use std::process::ExitCode;
use std::time::Duration;

use leasehold::{Interop, Locks};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["hold", url, lease, name] => {
            let lease = lease.parse().expect("milliseconds");
            hold(url, Duration::from_millis(lease), name).await;
            ExitCode::SUCCESS
        }
        _ => {
            println!("interop_worker hold URL LEASE NAME");
            ExitCode::FAILURE
        }
    }
}

async fn hold(url: &str, lease: Duration, name: &str) {
    let builder = Locks::builder(url).interop(Interop::Redisson).lease(lease);
    let locks = builder.connect().await.expect("the server is up");
    let of = |kind| format!("{name}-{kind}");
    let _held = (
        locks.mutex(of("lock")).lock().await.expect("the mutex"),
        locks
            .fair_mutex(of("fair"))
            .lock()
            .await
            .expect("the fair mutex"),
        locks
            .rw_lock(of("read"))
            .read()
            .await
            .expect("the lock to read"),
        locks
            .rw_lock(of("write"))
            .write()
            .await
            .expect("the lock to write"),
        locks
            .semaphore(of("pes"), 1)
            .acquire()
            .await
            .expect("the permit"),
    );
    println!("held");
    std::future::pending().await
}
