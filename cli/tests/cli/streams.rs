//! What the command inherits.

use std::process::Stdio;

use leasehold_testkit::Server;
use tokio::io::AsyncWriteExt;

use super::support::{ENV, code, ended, leasehold, output, stderr, stdout};

#[tokio::test]
async fn the_standard_streams_are_the_commands() {
    let server = Server::start().await;
    let mut run = leasehold(&server)
        .args(["run", "k", "--", "sh", "-c", "cat; echo err >&2"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let sent: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut stdin = run.stdin.take().expect("a pipe");
    let input = sent.clone();
    let writes = tokio::spawn(async move {
        stdin.write_all(&input).await.expect("it reads");
    });
    let output = ended(run).await;
    writes.await.unwrap();
    assert_eq!(code(&output), 0);
    assert!(output.stdout == sent, "{} bytes", output.stdout.len());
    assert_eq!(stderr(&output), "err\n");
}

#[tokio::test]
async fn the_command_has_no_descriptors_signals_or_arguments_of_its_supervisor() {
    let server = Server::start().await;
    let script = "ls -l /proc/self/fd | sed 's/.* //' | grep -c .; grep -E 'SigBlk|SigIgn' /proc/self/status";
    let without = tokio::process::Command::new(ENV[0])
        .args([ENV[1], "sh", "-c", script])
        .stdin(Stdio::null())
        .output()
        .await
        .expect("sh");
    // Without the one that it is told of.
    let script = format!("eval \"exec $LEASEHOLD_LOST_FD<&-\"; {script}");
    let run = output(&server, ["run", "k", "--", "sh", "-c", &script]).await;
    assert_eq!(stdout(&run), stdout(&without));
    let run = output(
        &server,
        [
            "run", "k", "--", "printf", "%s|", "a b", "", "$HOME", "*", "--", "-x",
        ],
    )
    .await;
    assert_eq!(stdout(&run), "a b||$HOME|*|--|-x|", "never through a shell");
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_the_command_as_without_a_lock() {
    let server = Server::start().await;
    let mut script = tokio::process::Command::new("sh");
    script
        .args([
            "-c",
            "\"$0\" run k -- yes | head -n 1",
            env!("CARGO_BIN_EXE_leasehold"),
        ])
        .env("LEASEHOLD_URL", server.url());
    let output = tokio::time::timeout(super::support::BOUND, script.output()).await;
    assert_eq!(output.expect("it ends").expect("sh").stdout, b"y\n");
}

#[tokio::test]
async fn a_text_without_an_interpreter_is_not_given_to_a_shell() {
    let server = Server::start().await;
    let dir = leasehold_testkit::Scratch::new();
    let script = dir.join("script");
    std::fs::write(&script, "echo run by a shell\n").expect("written");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("allowed");
    let path = script.to_str().expect("text");
    let run = output(&server, ["run", "k", "--", path]).await;
    assert_eq!(
        (code(&run), stdout(&run).as_str()),
        (126, ""),
        "{}",
        stderr(&run)
    );
    std::fs::write(&script, "#!/bin/sh\necho \"$0\"\n").expect("written");
    let run = output(&server, ["run", "k", "--", path]).await;
    assert_eq!((code(&run), stdout(&run).trim_end()), (0, path));
    std::fs::write(&script, "#!/no/such/interpreter\n").expect("written");
    let run = output(&server, ["run", "k", "--", path]).await;
    assert_eq!(code(&run), 127, "{}", stderr(&run));
}

#[tokio::test]
async fn what_is_left_of_the_group_ends_before_the_lock_is_free_and_a_daemon_lives_on() {
    let server = Server::start().await;
    let beats = super::support::Beats::new();
    let mut run = leasehold(&server);
    run.args(["run", "--grace", "500ms", "k"]);
    // In the background, ignoring the signal, until SIGKILL; and one that made itself a daemon.
    super::support::beating(
        &mut run,
        &beats,
        "(trap '' TERM; \"$@\") & setsid sleep 20 >/dev/null 2>&1 & echo $!; until [ -s \"$BEATS\" ]; do sleep 0.05; done; exit 6",
    );
    let output = ended(run.spawn().expect("it starts")).await;
    let after = super::support::now();
    assert_eq!(code(&output), 6, "{}", stderr(&output));
    assert!(beats.last().expect("it ran") < after);
    for &pid in beats.by_process().keys() {
        assert!(!super::support::is_alive(pid), "{pid} is alive");
    }
    let text = stdout(&output);
    let daemon: u32 = text
        .lines()
        .find_map(|line| line.parse().ok())
        .expect("its number");
    assert!(
        super::support::is_alive(daemon),
        "{daemon} has a session of its own"
    );
    leasehold_testkit::process::signal(daemon, "KILL");
}
