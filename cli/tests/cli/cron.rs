//! Many machines start the same job at the same instant.

use std::fs;

use leasehold_testkit::{Scratch, Server};
use tokio::task::JoinSet;

use super::support::{code, ended, leasehold, stderr};

/// Starts in all, as of three machines, and how many of them at a time.
const STARTS: usize = 1_000;
const AT_A_TIME: usize = 24;

/// Notes that it is at work, and whether somebody else is: a folder can be made once.
const JOB: &str = r#"
    mkdir "$JOB/at-work" || echo overlap >>"$JOB/overlaps"
    sleep 0.03
    echo ran >>"$JOB/runs"
    rmdir "$JOB/at-work"
"#;

#[tokio::test]
async fn a_thousand_starts_at_one_instant_never_overlap() {
    let server = Server::start().await;
    let dir = Scratch::new();
    let (mut starts, mut codes) = (JoinSet::new(), Vec::new());
    for _ in 0..STARTS {
        let mut run = leasehold(&server);
        run.args(["run", "--try", "nightly", "--", "sh", "-c", JOB]);
        run.env("JOB", dir.path());
        let run = run.spawn().expect("it starts");
        starts.spawn(async move {
            let output = ended(run).await;
            (code(&output), stderr(&output))
        });
        if starts.len() >= AT_A_TIME {
            codes.push(starts.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(done) = starts.join_next().await {
        codes.push(done.unwrap());
    }
    let ran = codes.iter().filter(|(code, _)| *code == 0).count();
    let others: Vec<_> = codes
        .iter()
        .filter(|(code, _)| ![0, 75].contains(code))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(!dir.join("overlaps").exists(), "two were at work");
    let runs = fs::read_to_string(dir.join("runs")).expect("some ran");
    assert_eq!(runs.lines().count(), ran);
    assert!((1..STARTS).contains(&ran), "{ran} of {STARTS} ran");
}

#[tokio::test]
async fn a_fast_job_that_keeps_its_lock_runs_once() {
    let server = Server::start().await;
    let dir = Scratch::new();
    let (mut starts, mut ran) = (JoinSet::new(), 0);
    for _ in 0..60 {
        let mut run = leasehold(&server);
        run.args([
            "run",
            "--try",
            "--at-least",
            "1m",
            "nightly",
            "--",
            "sh",
            "-c",
            JOB,
        ]);
        run.env("JOB", dir.path());
        let run = run.spawn().expect("it starts");
        starts.spawn(async move { code(&ended(run).await) });
        if starts.len() >= 12 {
            ran += usize::from(starts.join_next().await.unwrap().unwrap() == 0);
        }
    }
    while let Some(done) = starts.join_next().await {
        ran += usize::from(done.unwrap() == 0);
    }
    assert_eq!(ran, 1);
    assert_eq!(fs::read_to_string(dir.join("runs")).unwrap(), "ran\n");
    let left = server.raw().await.cmd(&["PTTL", "nightly"]).await.int();
    assert!((1..=60_000).contains(&left), "{left}");
}
