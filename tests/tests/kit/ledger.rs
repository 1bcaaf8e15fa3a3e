//! The guarded ledger refuses what is stale and shows what was lost.

use std::fs::File;
use std::time::Duration;

use leasehold_testkit::ledger::Stale;
use leasehold_testkit::{Ledger, Scratch, ms};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The id of a holder.
const ID: &str = "a:1";

#[tokio::test]
async fn a_write_with_an_older_token_is_refused_and_changes_nothing() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    assert_eq!(ledger.read(), 0);
    assert_eq!(ledger.write(5, ID, 1).await, Ok(()));
    assert_eq!(ledger.write(5, ID, 2).await, Ok(()));
    assert_eq!(
        ledger.write(4, ID, 99).await,
        Err(Stale {
            token: 4,
            newest: 5
        })
    );
    assert_eq!(
        (
            ledger.read(),
            ledger.writes(),
            ledger.refused(),
            ledger.lost_updates()
        ),
        (2, 2, 1, 0)
    );
    // It is on disk, not in the handle.
    assert_eq!(Ledger::open(dir.join("ledger")).read(), 2);
}

#[tokio::test]
async fn an_unguarded_read_change_write_loses_an_update_and_it_shows() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    let (one, other) = (ledger.read(), ledger.read());
    ledger.write(1, ID, one + 1).await.unwrap();
    ledger.write(2, ID, other + 1).await.unwrap();
    assert_eq!(ledger.lost_updates(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_check_of_a_token_and_its_write_are_one_step() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    let mut writers = JoinSet::new();
    for writer in 0..4_u64 {
        let ledger = ledger.clone();
        writers.spawn(async move {
            for n in 0..200 {
                // The value says which token wrote it.
                let token = n * 4 + writer;
                let _ = ledger.write(token, ID, token).await;
                tokio::task::yield_now().await;
            }
        });
    }
    writers.join_all().await;
    // Taken or refused, none is forgotten, and the greatest token wrote last.
    assert_eq!(ledger.writes() + ledger.refused(), 800);
    assert_eq!(ledger.read(), 799);
}

#[tokio::test]
async fn who_has_begun_with_a_newer_token_is_written_over_by_nobody() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    assert_eq!(ledger.begin(5, ID).await, Ok(0));
    assert_eq!(ledger.begin(6, ID).await, Ok(0));
    assert_eq!(
        ledger.write(5, ID, 1).await,
        Err(Stale {
            token: 5,
            newest: 6
        })
    );
    assert_eq!(
        ledger.begin(5, ID).await,
        Err(Stale {
            token: 5,
            newest: 6
        })
    );
    assert_eq!(ledger.write(6, ID, 1).await, Ok(()));
    assert_eq!(
        (ledger.writes(), ledger.refused(), ledger.lost_updates()),
        (1, 2, 0)
    );
}

#[tokio::test]
async fn of_two_holders_with_one_token_the_ledger_takes_one() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    assert_eq!(ledger.begin(5, "a:1").await, Ok(0));
    assert_eq!(ledger.begin(5, "b:1").await, Ok(0));
    let refused = ledger.write(5, "a:1", 1).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "token 5 is stale: it is another holder's, too"
    );
    assert_eq!(ledger.write(5, "b:1", 1).await, Ok(()));
    assert_eq!(ledger.write(5, "b:1", 2).await, Ok(()));
    // A newer token counts whatever the id.
    assert_eq!(ledger.write(6, "a:1", 3).await, Ok(()));
    assert_eq!((ledger.lost_updates(), ledger.refused()), (0, 1));
}

/// As a process that is stopped in the middle of a write.
#[tokio::test]
async fn a_writer_that_is_stopped_keeps_no_reader_waiting() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    ledger.write(5, ID, 1).await.unwrap();
    let stopped = File::options()
        .write(true)
        .open(dir.join("ledger"))
        .unwrap();
    stopped.lock().unwrap();
    let reader = Ledger::open(dir.join("ledger"));
    assert_eq!(
        (
            reader.read(),
            reader.writes(),
            reader.refused(),
            reader.lost_updates()
        ),
        (1, 1, 0, 0)
    );
    // Writers wait, and other tasks of their runtime go on.
    let waits = timeout(ms(50), ledger.write(6, ID, 2)).await;
    assert!(waits.is_err() && reader.read() == 1);
    drop(stopped);
    timeout(Duration::from_secs(20), ledger.write(6, ID, 2))
        .await
        .expect("its turn")
        .unwrap();
    assert_eq!(reader.read(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_never_sees_half_of_a_write() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    let writer = ledger.clone();
    let writing = tokio::spawn(async move {
        for n in 1..=2_000 {
            writer.write(n, ID, n).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    while !writing.is_finished() {
        assert_eq!(ledger.lost_updates(), 0);
        tokio::task::yield_now().await;
    }
    writing.await.unwrap();
    assert_eq!((ledger.read(), ledger.writes()), (2_000, 2_000));
}
