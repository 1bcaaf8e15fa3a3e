//! One server, processes that fight over its locks, and every fault there is: at no time do two hold one lock.
//!
//! 30 seconds, or two minutes and a half with `LEASEHOLD_LONG=1`. `LEASEHOLD_SEED` draws the same faults again.

mod storm_support;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use leasehold_testkit::chance::Chance;
use leasehold_testkit::checker::{self, Limits};
use leasehold_testkit::history::{self, Event, What};
use leasehold_testkit::observer::Observer;
use leasehold_testkit::storm::{LEASE, LOCKS};
use leasehold_testkit::until;
use storm_support::{Kind, Storm};
use tokio::time::sleep;

/// Bounds against hangs, for a machine that has much else to do. Whoever was refused or cancelled may leave a hold for one
/// lease if the way to the server is cut just then.
const LIMITS: Limits = Limits {
    lease: LEASE,
    loss_notice: Duration::from_secs(5),
    handoff: Duration::from_secs(10),
    overrun: Duration::from_secs(10),
    cleanup: Duration::from_secs(4),
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_has_one_holder_at_a_time_whatever_happens() {
    let long = std::env::var_os("LEASEHOLD_LONG").is_some();
    let time = Duration::from_secs(if long { 150 } else { 30 });
    let seed = Chance::seed();
    println!("LEASEHOLD_SEED={seed}");

    let storm = Storm::start(seed).await;
    let locks: Vec<String> = LOCKS.map(String::from).into();
    let observer = storm.recorder.client("observer");
    let observer = Observer::start(storm.server.addr(), locks, observer, Duration::from_millis(5));
    let faults = storm.rage(time, &mut Chance::new(seed)).await;
    // Without faults everybody gets his turn.
    sleep(LEASE).await;
    storm.stop().await;
    // What the last ones left behind, if their way was cut, is over by now.
    sleep(LEASE + Duration::from_secs(1)).await;
    drop(observer);
    nothing_is_left(&storm).await;

    let events = history::read(storm.dir.path());
    let report = checker::check(&events, &LIMITS);
    let ledgers = storm.ledgers();
    let refused: u64 = ledgers.iter().map(|ledger| ledger.refused()).sum();
    println!("{report}faults: {faults:?}\nlongest wait: {:?}, {refused} stale writes refused", longest_wait(&events));

    assert_eq!(storm.logs(), "", "LEASEHOLD_SEED={seed}: workers contradict each other");
    assert!(report.violations.is_empty(), "LEASEHOLD_SEED={seed}\n{report}");
    for (ledger, name) in ledgers.iter().zip(LOCKS) {
        assert_eq!(ledger.lost_updates(), 0, "LEASEHOLD_SEED={seed}: {name}");
    }
    assert!(faults.values().all(|n| *n > 0), "a kind of fault never came up: {faults:?}");
    it_was_a_storm(&report, &faults, refused, time);
}

/// A test in which nothing happens proves nothing.
fn it_was_a_storm(report: &checker::Report, faults: &BTreeMap<Kind, usize>, refused: u64, time: Duration) {
    let seconds = time.as_secs() as usize;
    assert!(faults.values().sum::<usize>() >= seconds / 2, "few faults: {faults:?}");
    assert!(report.handoffs >= 5 * seconds, "few hand-offs: {report}");
    assert!(report.uses.0 >= 5 * seconds, "little work: {report}");
    assert!(report.losses > 0, "nobody was told of a loss: {report}");
    assert!(refused > 0, "no stale write came to be refused");
}

/// Every lock is free, every key expires, nobody listens.
async fn nothing_is_left(storm: &Storm) {
    let mut raw = storm.server.raw().await;
    let keys = raw.cmd(&["KEYS", "*"]).await;
    let mut left = Vec::new();
    for key in keys.array().iter().map(|key| key.str()) {
        let ttl = raw.cmd(&["PTTL", key]).await.int();
        if LOCKS.contains(&key) || ttl == -1 {
            left.push(key.to_owned());
        }
    }
    storm.recorder.record(What::Quiesced { keys: left });
    // The sockets of the workers end behind the proxy's, a moment after them.
    until("nobody listens", async || match raw.cmd(&["PUBSUB", "CHANNELS"]).await.array() {
        [] => Ok(()),
        channels => Err(format!("{channels:?}")),
    })
    .await;
}

/// The longest time from a request to its grant.
fn longest_wait(events: &[Event]) -> Duration {
    let mut asked = HashMap::new();
    let mut longest = 0;
    for event in events {
        match &event.what {
            What::Invoke { call, .. } => _ = asked.insert((event.process, *call), event.at),
            What::Ok { call, .. } => {
                let since = asked.get(&(event.process, *call)).copied().unwrap_or(event.at);
                longest = longest.max(event.at - since);
            }
            _ => {}
        }
    }
    Duration::from_micros(longest)
}
