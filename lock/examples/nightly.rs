//! A nightly job that is started on every host and runs on one of them, once.
//!
//! `cargo run --example nightly -- redis://127.0.0.1:6379`

use std::time::Duration;

use leasehold::Locks;
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).expect("the URL of a server");
    // Three hosts whose clocks start the job at about the same time.
    let hosts = ["a", "b", "c"].map(|host| tokio::spawn(nightly(url.clone(), host)));
    let mut runs = 0;
    for host in hosts {
        runs += u32::from(host.await??);
    }
    println!("ran {runs} time(s)");
    Ok(())
}

/// Runs the job, unless it runs or has run elsewhere. Returns whether it did.
async fn nightly(url: String, host: &'static str) -> Result<bool, leasehold::Error> {
    let locks = Locks::connect(url).await?;
    // The name has the day, so that a host which comes late does not run it again; and the lock is kept, so that it stays
    // taken when the job is over. A job that hangs ends with `max_hold`.
    let job = locks.mutex("report:2026-11-22");
    let Some(guard) = job.try_lock().max_hold(Duration::from_secs(3600)).await? else {
        println!("{host}: somebody else has it");
        return Ok(false);
    };
    let done = guard.run(report(host)).await;
    match done {
        // Hosts whose clocks are late find it taken for a while longer.
        Ok(()) => sleep(Duration::from_millis(500)).await,
        Err(lost) => println!("{host}: stopped, {lost}"),
    }
    guard.release().await?;
    Ok(done.is_ok())
}

async fn report(host: &str) {
    println!("{host}: writing the report");
    sleep(Duration::from_millis(50)).await;
}
