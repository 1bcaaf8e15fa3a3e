//! A nightly job that is started on every host and runs on one of them, once.
//!
//! `cargo run --example nightly -- redis://127.0.0.1:6379`

use std::time::Duration;

use leasehold::{Locks, Release};
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
    let job = locks.mutex("nightly-report");
    // It stays taken for a minute although the report is done sooner: a host whose clock is behind comes late and finds that. A
    // report that hangs ends with `max_hold`.
    let attempt = job
        .try_lock()
        .at_least(Duration::from_secs(60))
        .max_hold(Duration::from_secs(3600));
    let Some(guard) = attempt.await? else {
        println!("{host}: another host has it, or had it just now");
        return Ok(false);
    };
    let done = guard.run(report(host)).await;
    if let Err(lost) = &done {
        println!("{host}: stopped, {lost}");
    }
    if let Release::Kept { left } = guard.release().await? {
        println!("{host}: done, and nobody repeats it for {left:.0?}");
    }
    Ok(done.is_ok())
}

async fn report(host: &str) {
    println!("{host}: writing the report");
    sleep(Duration::from_millis(50)).await;
}
