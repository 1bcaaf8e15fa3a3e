//! One instrument for the measurements of many machines: first come, first served, whichever machine asks.
//!
//! `first_come URL LOG NAME`
//!
//! Each process waits for its turn and measures, which is a line in the log when it begins and one when it ends. It gives the
//! instrument back after a minute at the latest, whatever it does with it, and leaves the queue after ten.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;

use leasehold::Locks;

/// For one measurement.
const LONGEST: Duration = Duration::from_secs(60);
/// For one's turn.
const PATIENCE: Duration = Duration::from_secs(600);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [url, log, name] = &arguments[..] else {
        return Err("usage: first_come URL LOG NAME".into());
    };
    let locks = Locks::connect(url).await?;
    let instrument = locks.fair_mutex("lab:spectrometer");
    let queue = instrument.inspect().await?;
    println!("{name}: {} wait already", queue.waiting());

    let turn = instrument.try_lock_for(PATIENCE).max_hold(LONGEST).await?;
    let Some(turn) = turn else {
        return Err("it was not our turn in ten minutes".into());
    };
    let log = OpenOptions::new().append(true).create(true).open(log)?;
    // Ends where it stands when the turn is over: the next one has the instrument then.
    turn.run(measure(log, name)).await??;
    turn.release().await?;
    println!("{name}: done");
    Ok(())
}

async fn measure(mut log: File, name: &str) -> std::io::Result<()> {
    writeln!(log, "{name} begins")?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    writeln!(log, "{name} ends")
}
