//! One server, processes that contend for its locks, and every kind of fault: at no time do two
//! hold one lock.
//!
//! 30 seconds, or two minutes and a half with `LEASEHOLD_LONG=1`. `LEASEHOLD_SEED` repeats the
//! choice of faults.

use std::time::Duration;

use leasehold_testkit::history;
use leasehold_testkit::observer::Observer;
use leasehold_testkit::storm::{LEASE, LOCKS};
use leasehold_testkit::until;
use tokio::time::sleep;

use crate::deck::Deck;
use crate::fault::Kind;
use crate::fleet::{Moment, time};
use crate::proxied::Storm;
use crate::verdict::{Verdict, it_was_a_line, nothing_is_left};

/// Worker processes at a time.
const WORKERS: usize = 4;

/// And where they wait in line for each other.
const MANY: usize = 16;

/// Faults of those who wait: at the moment of a grant, while they wait, and while they give up.
const OF_WAITERS: [Kind; 12] = [
    Kind::KillWorker,
    Kind::FreezeWorker,
    Kind::KillWaiter(Moment::Waiting),
    Kind::KillWaiter(Moment::Cancelling),
    Kind::FreezeWaiter(Moment::Waiting),
    Kind::FreezeWaiter(Moment::Cancelling),
    Kind::ClientKill,
    Kind::Blackhole,
    Kind::Cut,
    Kind::LoseReply,
    Kind::DropMessages,
    Kind::RepeatMessages,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_has_one_holder_at_a_time_whatever_happens() {
    let time = time(Duration::from_secs(30));
    let storm = Storm::start("storm-single", WORKERS, &Kind::ALL).await;
    let _evidence = storm.fleet.keep_evidence([storm.server.dir()]);
    let locks: Vec<String> = LOCKS.map(String::from).into();
    let observer = storm.fleet.recorder.client("observer");
    let observer = Observer::start(
        storm.server.addr(),
        locks,
        observer,
        Duration::from_millis(5),
    );
    storm.fleet.progresses().await;
    let faults = storm.rage(time).await;
    let over = history::now();
    // Without faults every process gets its turn.
    sleep(LEASE).await;
    storm.stop().await;
    // The leases of holds that were abandoned at a cut are over by now.
    sleep(LEASE + Duration::from_secs(1)).await;
    drop(observer);
    nothing_is_left(&storm.fleet, [storm.server.raw().await]).await;
    nobody_listens(&storm).await;

    let verdict = storm.fleet.judge(false);
    println!("faults: {:?}", faults.played());
    storm.fleet.everybody_got_something(over).await;
    it_was_a_storm(&verdict, &faults, time, &storm.fleet.evidence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_processes_in_line_each_has_its_turn_whatever_happens_to_others() {
    let time = time(Duration::from_secs(20));
    let storm = Storm::start("storm-line", MANY, &OF_WAITERS).await;
    let _evidence = storm.fleet.keep_evidence([storm.server.dir()]);
    let watch = storm.fleet.watch(storm.server.addr());
    storm.fleet.progresses().await;
    let faults = storm.rage(time).await;
    let over = history::now();
    // Without faults every process gets its turn.
    sleep(LEASE).await;
    storm.stop().await;
    sleep(LEASE + Duration::from_secs(1)).await;
    drop(watch);
    nothing_is_left(&storm.fleet, [storm.server.raw().await]).await;
    nobody_listens(&storm).await;
    let verdict = storm.fleet.judge(false);
    println!("faults: {:?}", faults.played());
    storm.fleet.everybody_got_something(over).await;
    let evidence = storm.fleet.evidence();
    assert!(
        faults.is_through(),
        "{evidence}: a kind of fault never came up: {:?}",
        faults.played()
    );
    assert!(
        verdict.report.handoffs >= 5 * time.as_secs() as usize,
        "{evidence}: few hand-offs: {}",
        verdict.report
    );
    it_was_a_line(&verdict, &evidence);
    let of_process = |kind: &Kind| {
        matches!(
            kind,
            Kind::KillWorker | Kind::FreezeWorker | Kind::KillWaiter(_) | Kind::FreezeWaiter(_)
        )
    };
    let killed: usize = faults
        .played()
        .iter()
        .filter(|&(kind, _)| of_process(kind))
        .map(|(_, times)| times)
        .sum();
    let mut raw = storm.server.raw().await;
    for lock in LOCKS {
        let line = format!("leasehold_line:{{{lock}}}");
        let tickets = raw.cmd(&["ZRANGE", &line, "0", "-1"]).await;
        // Of processes that were killed in line, and stay until a grant skips them or the line expires.
        assert!(
            tickets.array().len() <= killed,
            "{evidence}: {tickets:?} after {killed} were killed"
        );
    }
}

/// A storm in which nothing happens proves nothing.
fn it_was_a_storm(verdict: &Verdict, faults: &Deck<Kind>, time: Duration, evidence: &str) {
    let seconds = time.as_secs() as usize;
    let report = &verdict.report;
    assert!(
        faults.is_through(),
        "{evidence}: a kind of fault never came up: {:?}",
        faults.played()
    );
    assert!(
        faults.played().values().sum::<usize>() >= seconds / 2,
        "{evidence}: few faults: {:?}",
        faults.played()
    );
    assert!(
        report.handoffs >= 5 * seconds,
        "{evidence}: few hand-offs: {report}"
    );
    assert!(
        report.uses.0 >= 5 * seconds,
        "{evidence}: little work: {report}"
    );
    assert!(
        report.losses > 0,
        "{evidence}: nobody was told of a loss: {report}"
    );
    assert!(
        verdict.refused > 0,
        "{evidence}: no stale write came to be refused"
    );
    assert!(
        verdict.grants.values().all(|grants| *grants >= seconds),
        "{evidence}: a lock without work\n{verdict}"
    );
}

/// The sockets of the workers end behind the proxies', a moment after them.
async fn nobody_listens(storm: &Storm) {
    let mut raw = storm.server.raw().await;
    until("nobody listens", async || {
        match raw.cmd(&["PUBSUB", "CHANNELS"]).await.array() {
            [] => Ok(()),
            channels => Err(format!("{channels:?}")),
        }
    })
    .await;
}
