//! The checker is itself under test here: real clients with a known flaw, on a real server, must be
//! caught by the invariant the flaw breaks, and the same client without a flaw must not be.

use leasehold_testkit::broken::{Flaw, LIMITS, workload};
use leasehold_testkit::checker::{Report, check};
use leasehold_testkit::{Scratch, Server, history};

async fn verdict(flaw: Flaw) -> Report {
    let server = Server::start().await;
    let dir = Scratch::new();
    workload(flaw, &server, dir.path()).await;
    let report = check(&history::read(dir.path()), &LIMITS);
    assert!(
        report.grants > 0 && report.faults == 3,
        "the workload has done too little: {report}"
    );
    println!("{flaw:?}: {report}");
    report
}

#[track_caller]
fn assert_breaks(report: &Report, invariant: &str) {
    assert!(
        report.broken().contains(invariant),
        "{invariant} was not seen broken: {report}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_flaw_is_clean() {
    verdict(Flaw::None).await.assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_without_owner_check_is_caught() {
    let report = verdict(Flaw::ReleaseWithoutOwnerCheck).await;
    // It ended the hold of another, and a third one got the lock beside that one.
    assert_breaks(&report, "I1");
    assert_breaks(&report, "I3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_after_release_is_caught() {
    assert_breaks(&verdict(Flaw::RenewalAfterRelease).await, "I4");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_taken_for_no_is_caught() {
    assert_breaks(&verdict(Flaw::TimeoutTakenForNo).await, "I9");
}
