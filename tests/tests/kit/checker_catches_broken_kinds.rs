//! The checker is itself under test here: for each kind of synchronizer clients with a known flaw, on a real server, must be
//! caught by the rule of that kind, and the same clients without a flaw must not be.

use std::sync::Arc;

use leasehold_testkit::broken_family::{
    Kind, barrier, fair, latch, majority, permits, rw, together,
};
use leasehold_testkit::checker::{Report, check};
use leasehold_testkit::{Scratch, Server, history};
use tokio::task::JoinSet;

/// Upper bound on the runs of a flaw: on a busy machine it may not show in each of them.
const RUNS: usize = 6;

/// The clients with each flaw break the rule by which it is known, and sound ones break none. All run at the same time.
async fn each_is_caught<K: Kind>() {
    let shared = Arc::new(servers::<K>().await);
    let mut kinds = JoinSet::new();
    for &flaw in K::ALL {
        let shared = Arc::clone(&shared);
        kinds.spawn(async move {
            if K::SHARES {
                is_caught(flaw, &shared).await;
            } else {
                is_caught(flaw, &servers::<K>().await).await;
            }
        });
    }
    kinds.join_all().await;
}

async fn servers<K: Kind>() -> Vec<Server> {
    let mut servers = Vec::new();
    for _ in 0..K::SERVERS {
        servers.push(Server::start().await);
    }
    servers
}

async fn is_caught<K: Kind>(flaw: K, servers: &[Server]) {
    let Some(rule) = flaw.rule() else {
        let report = report(flaw, servers).await;
        assert!(report.events > 100, "it has done little: {report}");
        return report.assert_clean();
    };
    let mut last = None;
    for run in 1..=RUNS {
        let report = report(flaw, servers).await;
        if report.broken().contains(rule) {
            return println!("{flaw:?}: {rule} in run {run}");
        }
        last = Some(report);
    }
    let report = last.expect("there was a run");
    panic!("{rule} was not seen broken by {flaw:?}: {report}");
}

async fn report<K: Kind>(flaw: K, servers: &[Server]) -> Report {
    let dir = Scratch::new();
    flaw.run(servers, dir.path()).await;
    check(&history::read(dir.path()), &K::LIMITS)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_not_served_in_order_is_caught() {
    each_is_caught::<fair::Flaw>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_beside_a_writer_is_caught() {
    each_is_caught::<rw::Flaw>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_above_the_capacity_are_caught() {
    each_is_caught::<permits::Flaw>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_several_locks_is_caught() {
    each_is_caught::<together::Flaw>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_without_the_majority_is_caught() {
    each_is_caught::<majority::Flaw>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_that_miscounts_is_caught() {
    each_is_caught::<latch::Flaw>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_that_miscounts_is_caught() {
    each_is_caught::<barrier::Flaw>().await;
}
