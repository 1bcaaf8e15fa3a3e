//! The guarded ledger refuses what is stale and shows what was lost.

use std::sync::Barrier;

use leasehold_testkit::ledger::Stale;
use leasehold_testkit::{Ledger, Scratch};

#[test]
fn a_write_with_an_older_token_is_refused_and_changes_nothing() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    assert_eq!(ledger.read(), 0);
    assert_eq!(ledger.write(5, 1), Ok(()));
    assert_eq!(ledger.write(5, 2), Ok(()));
    assert_eq!(
        ledger.write(4, 99),
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

#[test]
fn an_unguarded_read_change_write_loses_an_update_and_it_shows() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    let (one, other) = (ledger.read(), ledger.read());
    ledger.write(1, one + 1).unwrap();
    ledger.write(2, other + 1).unwrap();
    assert_eq!(ledger.lost_updates(), 1);
}

#[test]
fn the_check_of_a_token_and_its_write_are_one_step() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (ledger, start) = (&ledger, &start);
            scope.spawn(move || {
                start.wait();
                for n in 0..200 {
                    // The value says which token wrote it.
                    let token = n * 4 + thread;
                    let _ = ledger.write(token, token);
                }
            });
        }
    });
    // Taken or refused, none is forgotten, and the greatest token wrote last.
    assert_eq!(ledger.writes() + ledger.refused(), 800);
    assert_eq!(ledger.read(), 799);
}

#[test]
fn who_has_begun_with_a_newer_token_is_written_over_by_nobody() {
    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    assert_eq!(ledger.begin(5), Ok(0));
    assert_eq!(ledger.begin(6), Ok(0));
    assert_eq!(
        ledger.write(5, 1),
        Err(Stale {
            token: 5,
            newest: 6
        })
    );
    assert_eq!(
        ledger.begin(5),
        Err(Stale {
            token: 5,
            newest: 6
        })
    );
    assert_eq!(ledger.write(6, 1), Ok(()));
    assert_eq!(
        (ledger.writes(), ledger.refused(), ledger.lost_updates()),
        (1, 2, 0)
    );
}
