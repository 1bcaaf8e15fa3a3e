//! One of several instances leads, and stops leading when its lease is lost.
//!
//! `cargo run --example leader -- redis://127.0.0.1:6379`

use std::time::Duration;

use leasehold::{Guard, Locks};
use tokio::time::{interval, sleep};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).expect("the URL of a server");
    let locks = Locks::builder(url)
        .namespace("billing")
        .lease(Duration::from_secs(3)) // how long nobody leads after a crash
        .connect()
        .await?;

    for term in 1..=3 {
        let leader = locks.mutex("leader").lock().await?;
        println!("term {term}: leading, with token {}", leader.token());

        // The work is dropped where it stands when the lease is lost; its end resigns.
        match leader.run(lead(&leader)).await {
            Ok(()) => println!("term {term}: resigning"),
            Err(lost) => println!("term {term}: {lost}; waiting to lead again"),
        }
        drop(leader);
        sleep(Duration::from_millis(10)).await;
    }
    locks.shutdown().await?;
    println!("done");
    Ok(())
}

/// The leader's work, in small steps. Whatever it writes elsewhere carries the token.
async fn lead(leader: &Guard) {
    let mut ticks = interval(Duration::from_millis(20));
    for _ in 0..3 {
        ticks.tick().await;
        println!("  tick under token {}", leader.token());
    }
}
