//! One of several instances leads, and stops leading when its lease is lost. All of them know who it is.
//!
//! `cargo run --example leader -- redis://127.0.0.1:6379`

use std::ops::ControlFlow;
use std::time::Duration;

use leasehold::{Election, Error, Locks, Term};
use tokio::time::interval;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).expect("the URL of a server");
    let locks = Locks::builder(url)
        .namespace("billing")
        .lease(Duration::from_secs(3)) // how long nobody leads after a crash
        .connect()
        .await?;
    let address = format!("instance {}", std::process::id());
    let election = locks.election("leader").value(address);
    let observing = tokio::spawn(observe(election.clone()));

    let mut terms = 0;
    let lead = |leader: Term| {
        terms += 1;
        let is_last = terms == 3;
        async move {
            // Dropped where it stands when the lease is lost. Then `run` waits to lead again.
            lead(&leader).await;
            if is_last {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(()) // resigns, and campaigns again
            }
        }
    };
    election.run(lead).await?;

    locks.shutdown().await?;
    let ended = observing.await?;
    println!("done: {ended}");
    Ok(())
}

/// The leader's work, in small steps. Whatever it writes elsewhere carries the token.
async fn lead(leader: &Term) {
    let mut ticks = interval(Duration::from_millis(20));
    for _ in 0..3 {
        ticks.tick().await;
        println!("  tick under token {}", leader.token());
    }
}

/// Tells who leads, until these locks are shut down.
async fn observe(election: Election) -> Error {
    let mut leaders = election.observe();
    loop {
        match leaders.next().await {
            Ok(Some(leader)) => println!("{} leads", leader.value().unwrap_or("somebody")),
            Ok(None) => println!("nobody leads"),
            Err(error) => return error,
        }
    }
}
