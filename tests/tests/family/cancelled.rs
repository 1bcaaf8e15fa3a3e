//! Turns that are dropped at each of their awaits.

use std::time::Duration;

use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::ms;

use crate::rows::Row;
use crate::stage::{Stage, for_each_row};

/// Longer than any wait: what is gone was given back and has not expired.
const LEASE: Duration = Duration::from_secs(30);
/// Tries to reach each await of a turn, also on a busy machine.
const MANY: usize = 300;

async fn dropped_everywhere(row: Row, is_busy: bool) {
    let mut stage = Stage::new(row, LEASE).await;
    // Of taking it, and of giving it back.
    let least = 2;
    let (mut n, mut tries) = (0, 0);
    loop {
        let is_done = if is_busy {
            cancel_at(stage.contended_turn(ms(8)), n).await.is_some()
        } else {
            cancel_at(stage.turn(), n).await.is_some()
        };
        stage
            .nothing_is_left(&format!("dropped at await {n}"))
            .await;
        n += usize::from(!is_done);
        tries += 1;
        assert!(tries < MANY, "{row:?}: {n} awaits");
        if is_done && n >= least {
            break;
        }
    }
    println!("{row:?}: {n} awaits");
}

#[tokio::test]
async fn a_turn_that_is_dropped_at_any_await_leaves_nothing() {
    for_each_row(|row| dropped_everywhere(row, false)).await;
}

#[tokio::test]
async fn a_turn_that_is_waited_for_and_dropped_at_any_await_leaves_nothing() {
    for_each_row(async |row| {
        if row.is_lock() {
            dropped_everywhere(row, true).await;
        }
    })
    .await;
}
