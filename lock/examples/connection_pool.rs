//! A pool of five connections to a fragile service, over all processes: nobody opens a sixth, and those of a process that died
//! come back by themselves.
//!
//! `cargo run --example connection_pool -- redis://127.0.0.1:6379`

use std::time::Duration;

use leasehold::{Locks, Semaphore};
use tokio::task::JoinSet;

/// What the service bears.
const CONNECTIONS: u32 = 5;

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let url = std::env::args().nth(1);
    run(url.unwrap_or_else(|| "redis://127.0.0.1:6379".into())).await?;
    Ok(())
}

/// Returns how many requests were answered.
pub async fn run(url: String) -> Result<usize, Failed> {
    let locks = Locks::connect(url).await?;
    let connections = locks.semaphore("fragile:connections", CONNECTIONS);

    let mut requests = JoinSet::new();
    for number in 0..20 {
        let connections = connections.clone();
        requests.spawn(async move { ask(&connections, number).await });
    }
    let mut answered = 0;
    while let Some(answer) = requests.join_next().await {
        println!("{}", answer??);
        answered += 1;
    }

    // A report needs two at once, but gives up when the service is busy.
    match connections
        .try_acquire_many_for(2, Duration::from_secs(1))
        .await?
    {
        Some(both) => {
            println!("a report over {} connections", both.num_permits());
            both.release().await?;
        }
        None => println!("no report today"),
    }
    println!(
        "{} of {CONNECTIONS} are free",
        connections.available().await?
    );
    locks.shutdown().await?;
    Ok(answered)
}

/// One request, which ends where it stands if its permit is lost: somebody else may have the connection then.
async fn ask(connections: &Semaphore, number: u32) -> Result<String, Failed> {
    let permit = connections.acquire().await?;
    let answer = permit.run(async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        format!("answer {number}")
    });
    Ok(answer.await?)
}
