//! Turns whose replies are cut off or lost.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Release};
use leasehold_testkit::{Cut, Fault, ms};

use crate::rows::{Point, Row};
use crate::stage::{Stage, for_each_row};
use crate::support::{until, within};

const LEASE: Duration = Duration::from_secs(30);
/// Of what is renewed while its connections are cut.
const RENEWED: Duration = Duration::from_secs(3);
/// Bytes of the longest reply to a renewal.
const RENEWAL: u64 = 8;

/// Bytes of requests between two cuts there. Replies are cut at every one.
const REQUEST_STEP: usize = 23;

/// An answer that cannot be had is unknown, or was never asked for.
fn is_told(row: Row, when: &str, turn: Result<Release, Error>) -> bool {
    match turn {
        Ok(Release::Released) => true,
        Ok(other) => panic!("{row:?}, {when}: {other:?}, and nobody took it away"),
        Err(error) => {
            let kinds = [ErrorKind::Unknown, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{row:?}, {when}: {error}");
            false
        }
    }
}

async fn cut_at_every_byte(row: Row, is_busy: bool) {
    let mut stage = Stage::new(row, LEASE).await;
    let turn = async |stage: &Stage| {
        if is_busy {
            stage.contended_turn(ms(4)).await
        } else {
            stage.turn().await
        }
    };
    let bytes = |stage: &Stage| (stage.proxy().from_client(), stage.proxy().from_server());
    let (mut sent, mut received) = (u64::MAX, u64::MAX);
    // In the first ones connections are made for waiters and renewals.
    for _ in 0..6 {
        let before = bytes(&stage);
        turn(&stage).await.unwrap();
        let after = bytes(&stage);
        sent = sent.min(after.0 - before.0);
        received = received.min(after.1 - before.1);
    }
    let connections = stage.proxy().accepts();
    let requests = (0..sent).step_by(REQUEST_STEP).map(|after| (true, after));
    let replies = (0..=received).map(|after| (false, after));
    let (mut told, mut cuts) = (0, 0);
    for (to_server, after) in requests.chain(replies) {
        let how = if after % 2 == 0 { Cut::Rst } else { Cut::Fin };
        let fault = Fault::Cut { after, how };
        if to_server {
            stage.proxy().to_server(fault);
        } else {
            stage.proxy().to_client(fault);
        }
        let when = format!("cut to the server: {to_server}, after {after}");
        let outcome = turn(&stage).await;
        stage.proxy().heal();
        told += usize::from(is_told(row, &when, outcome));
        cuts += 1;
        stage.nothing_is_left(&when).await;
    }
    let connections = stage.proxy().accepts() - connections;
    println!(
        "{row:?}: {sent} bytes there, {received} back: {told} of {cuts} were answered, {connections} connections"
    );
    assert!(told * 3 >= cuts, "{row:?}: most are made again");
    assert!(connections > received / 2, "{row:?}: {connections} cuts");
}

#[tokio::test]
async fn a_turn_cut_at_any_byte_of_its_replies_leaves_nothing() {
    for_each_row(|row| cut_at_every_byte(row, false)).await;
}

#[tokio::test]
async fn a_turn_that_is_waited_for_and_cut_at_any_byte_leaves_nothing() {
    for_each_row(async |row| {
        // The others' waiters are cut at every byte elsewhere.
        let rows = [
            Row::Owner,
            Row::Read,
            Row::Write,
            Row::Plain,
            Row::Polling,
            Row::Multi,
            Row::Counting,
        ];
        if rows.contains(&row) {
            cut_at_every_byte(row, true).await;
        }
    })
    .await;
}

/// What the server has executed is there once, although it was asked for again.
async fn each_reply_lost(row: Row) {
    let mut stage = Stage::new(row, LEASE).await;
    stage.turn().await.unwrap();
    for how in [Cut::Rst, Cut::Fin] {
        for nth in 1.. {
            stage.proxy().to_client(Fault::LoseReply { nth, how });
            let when = format!("without reply {nth}");
            let turn = {
                let (ours, theirs) = (stage.ours.clone(), stage.theirs.clone());
                let turn = row.turn(&ours, &theirs, async |point| {
                    if point == Point::Held {
                        stage.assert_held_once(&when).await;
                        if row.is_lock() {
                            let intruded = row.intrude(&theirs).await.unwrap();
                            assert!(!intruded, "{row:?}, {when}: two have it");
                        }
                    }
                });
                within("a turn", turn).await
            };
            // It may be one about the entry of the process, for which nobody here waits.
            let lost = until("a lost reply", async || stage.proxy().is_over());
            let was_lost = tokio::time::timeout(ms(300), lost).await.is_ok();
            stage.proxy().heal();
            is_told(row, &when, turn);
            stage.nothing_is_left(&when).await;
            if !was_lost {
                // There are no more of them.
                assert!(nth > 1, "{row:?}: {nth} replies");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_turn_whose_reply_is_lost_is_had_once() {
    for_each_row(each_reply_lost).await;
}

/// Renewals are made again over the next connection: nothing is lost, whichever byte of their replies the last one ended at.
async fn renewals_cut_at_every_byte(row: Row) {
    let is_renewed = row.is_lock() && row != Row::Counting;
    if !is_renewed {
        return;
    }
    let mut stage = Stage::new(row, RENEWED).await;
    let held = within("a free lock", row.take(&stage.ours)).await.unwrap();
    let held = held.expect("in time");
    for after in 0..=RENEWAL {
        let connections = stage.proxy().accepts();
        let how = if after % 2 == 0 { Cut::Rst } else { Cut::Fin };
        stage.proxy().to_client(Fault::Cut { after, how });
        until(&format!("{row:?}: a cut after {after}"), async || {
            stage.proxy().accepts() > connections
        })
        .await;
        // Renewed since then.
        until(&format!("{row:?}: a renewal after {after}"), async || {
            assert!(
                held.valid_for() > Duration::ZERO,
                "{row:?}: lost by a cut after {after}"
            );
            held.valid_for() > RENEWED - ms(200)
        })
        .await;
        stage.assert_held_once(&format!("cut after {after}")).await;
    }
    stage.proxy().heal();
    let released = within("a release", row.give_back(held)).await;
    is_told(row, "after cuts", released);
    stage.nothing_is_left("after cuts").await;
}

#[tokio::test]
async fn a_renewal_cut_at_any_byte_of_its_reply_is_made_again() {
    for_each_row(renewals_cut_at_every_byte).await;
}
