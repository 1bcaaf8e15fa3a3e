//! A write to SQLite that is fenced by the token of the lock: a holder that was stopped, and does not know yet that it lost the
//! lock, changes nothing.
//!
//! `cargo run --example fenced -- redis://127.0.0.1:6379`

use std::time::Duration;

use leasehold::{FencingToken, Locks};
use rusqlite::Connection;
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).expect("the URL of a server");
    let database = Connection::open_in_memory()?;
    database.execute_batch(
        "CREATE TABLE report (id INTEGER PRIMARY KEY, text TEXT NOT NULL, token INTEGER NOT NULL);
         INSERT INTO report VALUES (1, 'empty', 0);",
    )?;
    let slow = Locks::connect(url.clone()).await?;
    let quick = Locks::connect(url).await?;

    // The first holder is stopped for longer than its lease: a long collection of garbage, a suspended laptop.
    let stale = slow
        .mutex("report")
        .lock()
        .lease(Duration::from_millis(50))
        .await?;
    sleep(Duration::from_millis(100)).await;
    let fresh = quick.mutex("report").lock().await?;
    println!(
        "fresh write: {}",
        write(&database, fresh.token(), "of the second holder")?
    );
    // It does not ask `is_held()`, and even that would be too early by the time the write arrives.
    println!(
        "stale write: {}",
        write(&database, stale.token(), "of the first holder")?
    );

    let text: String = database.query_row("SELECT text FROM report", [], |row| row.get(0))?;
    println!("the report is {text}");
    Ok(())
}

/// Writes unless a greater token has written. Returns whether it did.
fn write(database: &Connection, token: FencingToken, text: &str) -> rusqlite::Result<bool> {
    // Tokens have 53 bits.
    let token = token.as_u64().cast_signed();
    let changed = database.execute(
        "UPDATE report SET text = ?1, token = ?2 WHERE id = 1 AND token <= ?2",
        (text, token),
    )?;
    Ok(changed == 1)
}
