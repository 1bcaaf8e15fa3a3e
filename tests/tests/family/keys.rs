//! Turns during which the server forgets scripts or keys, or a key becomes something else.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Release};
use leasehold_testkit::{Raw, ms};

use crate::rows::{PERMITS, POINTS, Point, Row};
use crate::stage::{Stage, for_each_row};
use crate::support::within;

/// Short enough to see renewals, and long enough for the answers of a busy machine.
const LEASE: Duration = Duration::from_secs(3);
/// Of turns that lose keys: what is not given back ends with it, and the machine may be busy.
const LOST_WITHIN: Duration = Duration::from_secs(3);

async fn flushed(row: Row) {
    let mut stage = Stage::new(row, LEASE).await;
    for round in 0..2 {
        let (ours, theirs) = (stage.ours.clone(), stage.theirs.clone());
        let raws = &mut stage.raws;
        let turn = row.turn(&ours, &theirs, async |point| {
            flush(raws).await;
            if point == Point::Held && row.is_lock() {
                // Two renewals later.
                tokio::time::sleep(LEASE).await;
                flush(raws).await;
            }
        });
        let released = within("a turn", turn).await;
        let released = released.unwrap_or_else(|error| panic!("{row:?}: {error}"));
        assert_eq!(released, Release::Released, "{row:?}");
        flush(&mut stage.raws).await;
        stage.nothing_is_left(&format!("flushed, {round}")).await;
    }
}

async fn flush(raws: &mut [Raw]) {
    for raw in raws {
        assert!(raw.cmd(&["SCRIPT", "FLUSH"]).await.is_ok());
    }
}

#[tokio::test]
async fn a_turn_goes_on_when_the_server_forgets_its_scripts() {
    for_each_row(flushed).await;
}

/// What may be said when keys vanish or change: never that it is held by others.
fn assert_said(row: Row, when: &str, error: &Error, kinds: &[ErrorKind]) {
    assert!(kinds.contains(&error.kind()), "{row:?}, {when}: {error}");
    assert!(!error.key().is_empty(), "{row:?}, {when}: {error}");
}

/// One key after the other vanishes at one moment of a turn, with somebody in line or not.
async fn evicted(row: Row) {
    let mut stage = Stage::new(row, LOST_WITHIN).await;
    let mut lost = Vec::new();
    for point in POINTS {
        for has_waiter in [false, true] {
            if has_waiter && !(row.is_lock() && point == Point::Held) {
                continue;
            }
            for nth in 0.. {
                let Some(key) = evict_nth(&mut stage, point, nth, has_waiter).await else {
                    break;
                };
                lost.push(key);
            }
        }
    }
    println!("{row:?}: {lost:?}");
    assert!(!lost.is_empty(), "{row:?} has keys");
}

/// A turn during which the `nth` of the keys that exist is removed. `None` if there are not so many.
async fn evict_nth(
    stage: &mut Stage,
    point: Point,
    nth: usize,
    has_waiter: bool,
) -> Option<String> {
    let row = stage.row;
    stage.start_over().await;
    let (ours, theirs) = (stage.ours.clone(), stage.theirs.clone());
    let mut removed = None;
    let mut waiter = None;
    let raws = &mut stage.raws;
    let turn = row.turn(&ours, &theirs, async |now| {
        if now != point {
            return;
        }
        if has_waiter {
            let theirs = theirs.clone();
            waiter = Some(tokio::task::spawn_local(async move {
                row.turn(&theirs, &theirs, async |_| ()).await
            }));
            tokio::time::sleep(ms(30)).await;
        }
        let keys = Stage::keys(raws).await;
        if let Some((at, key)) = keys.into_iter().nth(nth) {
            // It may have expired since, on a busy machine: then it is gone as well.
            raws[at].cmd(&["DEL", &key]).await;
            let is_hold = ours.names.contains(&key) || key.contains(":rwlock_timeout:");
            let excludes = row == Row::Redlock || row.is_its_key() && !is_hold;
            if point == Point::Held && excludes {
                let intruded = row.intrude(&theirs).await.unwrap();
                assert!(!intruded, "{row:?} without {key}: two have it");
            }
            removed = Some(key);
        }
    });
    let outcome = within("a turn", turn).await;
    let when = format!("{removed:?} gone at {point:?}, with a waiter: {has_waiter}");
    let is_hold = point == Point::Held && removed.as_deref() == Some(&*ours.names[0]);
    match &outcome {
        Ok(Release::Released) => assert!(!(is_hold && row.is_its_key()), "{row:?}, {when}"),
        Ok(other) => assert!(removed.is_some(), "{row:?}, {when}: {other:?}"),
        Err(error) => assert_said(row, &when, error, &[ErrorKind::Lost, ErrorKind::Broken]),
    }
    if let Some(waiter) = waiter {
        let next = within(&format!("{row:?}, {when}: the waiter"), waiter).await;
        if let Err(error) = next.unwrap() {
            assert_said(row, &when, &error, &[ErrorKind::Lost, ErrorKind::Broken]);
        }
    }
    let numbers = ["a", "leasehold_res:{a}"];
    if row == Row::Counting && removed.as_deref().is_some_and(|key| numbers.contains(&key)) {
        // Permits without an owner are known to the server alone, also those that are kept for a waiter.
        stage.raws[0].cmd(&["SET", "a", &PERMITS.to_string()]).await;
    }
    stage.nothing_is_left(&when).await;
    removed
}

#[tokio::test]
async fn a_turn_survives_the_loss_of_any_key() {
    for_each_row(evicted).await;
}

/// One key after the other becomes one of another type, which belongs to somebody else.
async fn changed(row: Row) {
    let mut stage = Stage::new(row, LOST_WITHIN).await;
    for point in POINTS {
        for nth in 0.. {
            if !change_nth(&mut stage, point, nth).await {
                break;
            }
        }
    }
}

/// A turn during which the `nth` of the keys that exist changes. False if there are not so many.
async fn change_nth(stage: &mut Stage, point: Point, nth: usize) -> bool {
    let row = stage.row;
    stage.start_over().await;
    let (ours, theirs) = (stage.ours.clone(), stage.theirs.clone());
    let mut changed = None;
    let raws = &mut stage.raws;
    let turn = row.turn(&ours, &theirs, async |now| {
        if now == point
            && let Some((at, key)) = Stage::keys(raws).await.into_iter().nth(nth)
        {
            make_foreign(&mut raws[at], &key).await;
            changed = Some((at, key));
        }
    });
    let outcome = within("a turn", turn).await;
    let Some((at, key)) = changed else {
        assert_eq!(outcome.unwrap(), Release::Released);
        return false;
    };
    let when = format!("{key} changed at {point:?}");
    // A wrong type by its code, or by the words of the script that found it.
    let kinds = [
        ErrorKind::WrongType,
        ErrorKind::Server,
        ErrorKind::Lost,
        ErrorKind::Broken,
    ];
    if let Err(error) = &outcome {
        assert_said(row, &when, error, &kinds);
    }
    // Others are told as well, or are not concerned.
    let tried = within("another turn", row.turn(&theirs, &theirs, async |_| ())).await;
    if let Err(error) = &tried {
        assert_said(row, &when, error, &kinds);
    }
    let raw = &mut stage.raws[at];
    // A key with the id of the hold in its name is nobody else's.
    let is_of_the_hold = key.contains(":rwlock_timeout:");
    let is_theirs = is_of_the_hold || is_foreign(raw, &key).await;
    assert!(is_theirs, "{row:?}, {when}: it is gone");
    let is_main = row.is_its_key() && ours.names.contains(&key);
    let is_told = !matches!(outcome, Ok(Release::Released));
    assert!(!is_main || is_told, "{row:?}, {when}: it is gone");
    raw.cmd(&["DEL", &key]).await;
    stage.nothing_is_left(&when).await;
    true
}

/// Replaces a key by one of another type.
async fn make_foreign(raw: &mut Raw, key: &str) {
    let kind = raw.cmd(&["TYPE", key]).await;
    raw.cmd(&["DEL", key]).await;
    if kind.str() == "list" {
        raw.cmd(&["SET", key, "theirs"]).await;
    } else {
        raw.cmd(&["RPUSH", key, "theirs"]).await;
    }
    raw.cmd(&["PEXPIRE", key, "600000"]).await;
}

async fn is_foreign(raw: &mut Raw, key: &str) -> bool {
    let kind = raw.cmd(&["TYPE", key]).await;
    if kind.str() == "list" {
        raw.cmd(&["LINDEX", key, "0"]).await.str() == "theirs"
    } else {
        kind.str() == "string" && raw.cmd(&["GET", key]).await.str() == "theirs"
    }
}

#[tokio::test]
async fn a_turn_finds_any_key_of_another_type_and_leaves_it_alone() {
    for_each_row(changed).await;
}
