//! Signals to the supervisor.

use std::process::Stdio;

use leasehold_testkit::process::{freeze, signal, thaw};
use leasehold_testkit::{Server, ms, until_for};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::support::{
    BOUND, Beats, ENV, beating, children_of, code, ended, is_alive, leasehold, stderr, until,
};

#[tokio::test]
async fn signals_are_passed_on_to_the_group() {
    let server = Server::start().await;
    let traps = "for s in HUP QUIT USR1 USR2 WINCH; do trap \"echo $s\" $s; done; trap 'echo INT' INT; trap 'echo TERM; exit 9' TERM
        echo ready; while :; do sleep 0.02; done";
    let mut run = leasehold(&server)
        .args(["run", "k", "--", "sh", "-c", traps])
        .spawn()
        .expect("it starts");
    let supervisor = run.id().expect("it runs");
    let mut told = BufReader::new(run.stdout.take().expect("a pipe")).lines();
    let mut tells = async || {
        let line = tokio::time::timeout(BOUND, told.next_line()).await;
        line.expect("it tells").expect("UTF-8")
    };
    assert_eq!(tells().await.as_deref(), Some("ready"));
    for name in ["HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "TERM"] {
        signal(supervisor, name);
        assert_eq!(tells().await.as_deref(), Some(name));
    }
    assert_eq!(tells().await, None);
    let output = ended(run).await;
    assert_eq!(code(&output), 9, "{}", stderr(&output));
    assert_eq!(server.raw().await.cmd(&["EXISTS", "k"]).await.int(), 0);
}

#[tokio::test]
async fn a_signal_while_it_waits_ends_it_and_leaves_nothing_behind() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let holder = leasehold(&server)
        .args(["run", "k", "--", "sleep", "30"])
        .spawn()
        .expect("it starts");
    super::support::until_for_lock(&mut raw, "k").await;
    for (name, expected) in [("TERM", 143), ("INT", 130)] {
        let waits = leasehold(&server)
            .args(["run", "k", "--", "true"])
            .spawn()
            .expect("it starts");
        let line = "leasehold_line:{k}";
        for _ in 0..2_000 {
            if raw.cmd(&["ZCARD", line]).await.int() > 0 {
                break;
            }
            tokio::time::sleep(ms(5)).await;
        }
        signal(waits.id().expect("it runs"), name);
        assert_eq!(code(&ended(waits).await), expected);
        assert_eq!(
            raw.cmd(&["ZCARD", line]).await.int(),
            0,
            "its place is given up"
        );
    }
    drop(holder);
}

#[tokio::test]
async fn a_signal_that_was_ignored_stays_ignored() {
    let server = Server::start().await;
    let mut script = Command::new("sh");
    script
        .args([
            "-c",
            "trap '' HUP; exec \"$0\" run k -- sh -c 'kill -HUP $PPID $$; echo alive'",
            env!("CARGO_BIN_EXE_leasehold"),
        ])
        .env("LEASEHOLD_URL", server.url());
    let output = script.output().await.expect("sh");
    assert_eq!(output.stdout, b"alive\n");
}

#[tokio::test]
async fn a_starter_that_blocks_signals_or_ignores_its_children_changes_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let lock = super::support::output(&server, ["lock", "waits", "--lease", "60s"]).await;
    assert_eq!(code(&lock), 0);
    let script = "trap 'exit 9' USR1; echo \"$$ 1\" > \"$0\"; while :; do sleep 0.02; done";
    for (key, odd, name, expected) in [
        ("children", "--ignore-signal=CHLD", "USR1", 9),
        ("runs", "--block-signal=USR1,TERM,CHLD", "USR1", 9),
        ("waits", "--block-signal=USR1,TERM,CHLD", "TERM", 143),
    ] {
        let beats = Beats::new();
        let mut run = Command::new(ENV[0]);
        run.args([ENV[1], odd, env!("CARGO_BIN_EXE_leasehold")])
            .args(["run", key, "--", "sh", "-c", script])
            .arg(beats.file())
            .env("LEASEHOLD_URL", server.url())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let run = run.spawn().expect("it starts");
        if key == "waits" {
            until_for(BOUND, "it waits", async || {
                raw.cmd(&["ZCARD", "leasehold_line:{waits}"]).await.int() == 1
            })
            .await;
        } else {
            beats.began().await;
        }
        signal(run.id().expect("it runs"), name);
        let output = ended(run).await;
        assert_eq!(code(&output), expected, "{key}: {}", stderr(&output));
    }
}

#[tokio::test]
async fn a_command_that_is_stopped_keeps_its_lock_and_that_is_said() {
    let server = Server::start().await;
    let beats = Beats::new();
    let mut run = leasehold(&server);
    run.args(["run", "--lease", "4s", "k"]);
    beating(&mut run, &beats, "");
    let run = run.spawn().expect("it starts");
    beats.began().await;
    let watchdog = children_of(run.id().expect("it runs"))[0];
    let command = children_of(watchdog)[0];
    freeze(command);
    // Longer than its lease.
    tokio::time::sleep(ms(4_500)).await;
    assert_eq!(server.raw().await.cmd(&["EXISTS", "k"]).await.int(), 1);
    thaw(command);
    let before = beats.last();
    until("it goes on", || beats.last() > before).await;
    signal(run.id().expect("it runs"), "TERM");
    let output = ended(run).await;
    assert_eq!(code(&output), 143);
    assert!(
        stderr(&output).contains("stopped by SIGSTOP"),
        "{}",
        stderr(&output)
    );
    assert!(!is_alive(command));
}
