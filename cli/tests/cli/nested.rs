//! A `run` inside of another one.

use leasehold_testkit::Server;

use super::support::{code, leasehold, output, stderr, stdout};

const RUN: &str = env!("CARGO_BIN_EXE_leasehold");

#[tokio::test]
async fn a_nested_run_of_the_same_key_runs_under_the_same_hold() {
    let server = Server::start().await;
    let script = r#"
        outer=$LEASEHOLD_TOKEN
        "$0" run k -- sh -c 'echo "$LEASEHOLD_TOKEN $LEASEHOLD_OWNER"' || exit
        echo "$outer $LEASEHOLD_OWNER"
        # Through another key, and back.
        "$0" run other -- sh -c '"$0" run --try k -- echo thrice' "$0" || exit
        # The inner ones have given nothing back.
        "$0" run --try --namespace x free -- true || exit
        env -u LEASEHOLD_OUTER "$0" run --try k -- true
        echo "$?"
    "#;
    let run = output(&server, ["run", "k", "--", "sh", "-c", script, RUN]).await;
    assert_eq!(code(&run), 0, "{}", stderr(&run));
    let text = stdout(&run);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], lines[1], "one token and owner");
    assert_eq!(lines[2..], ["thrice", "75"]);
}

#[tokio::test]
async fn a_nested_run_passes_on_how_its_command_ended() {
    let server = Server::start().await;
    let run = output(
        &server,
        [
            "run", "k", "--", RUN, "run", "k", "--", "sh", "-c", "exit 5",
        ],
    )
    .await;
    assert_eq!(code(&run), 5);
    let run = output(
        &server,
        [
            "run",
            "k",
            "--",
            RUN,
            "run",
            "k",
            "--",
            "sh",
            "-c",
            "kill -USR1 $$",
        ],
    )
    .await;
    assert_eq!(code(&run), 138);
}

#[tokio::test]
async fn an_exclusive_lock_inside_of_a_read_lock_is_refused_and_a_read_lock_nests() {
    let server = Server::start().await;
    let run = output(
        &server,
        ["run", "--shared", "k", "--", RUN, "run", "k", "--", "true"],
    )
    .await;
    assert_eq!(code(&run), 64);
    assert!(stderr(&run).contains("wait for itself"), "{}", stderr(&run));
    let run = output(
        &server,
        [
            "run", "--shared", "k", "--", RUN, "run", "--shared", "k", "--", "echo", "in",
        ],
    )
    .await;
    assert_eq!((code(&run), stdout(&run).as_str()), (0, "in\n"));
}

#[tokio::test]
async fn an_environment_that_outlived_its_run_takes_the_lock_anew() {
    let server = Server::start().await;
    let chain = chain_of_run(&server, &["k"]).await;
    assert!(chain.contains("owner"), "{chain}");
    let holder = leasehold(&server)
        .args(["run", "k", "--", "sleep", "30"])
        .spawn()
        .expect("it starts");
    super::support::until_for_lock(&mut server.raw().await, "k").await;
    let stale = leasehold(&server)
        .env("LEASEHOLD_OUTER", &chain)
        .args(["run", "--try", "k", "--", "true"])
        .spawn()
        .expect("it starts");
    assert_eq!(code(&super::support::ended(stale).await), 75);
    drop(holder);
}

#[tokio::test]
async fn a_hold_that_only_lasts_its_least_time_is_nothing_to_run_under() {
    let server = Server::start().await;
    let chain = chain_of_run(&server, &["--at-least", "60s", "k"]).await;
    // One that names no owner is that of none.
    let mut unnamed: serde_json::Value = serde_json::from_str(&chain).expect("a chain");
    unnamed[0]["owner"] = "".into();
    for chain in [chain, unnamed.to_string()] {
        let left = leasehold(&server)
            .env("LEASEHOLD_OUTER", &chain)
            .args(["run", "--try", "k", "--", "true"])
            .spawn()
            .expect("it starts");
        let left = super::support::ended(left).await;
        assert_eq!(code(&left), 75, "{chain}: {}", stderr(&left));
    }
}

#[tokio::test]
async fn readers_run_together_and_permits_are_counted() {
    let server = Server::start().await;
    let readers = output(
        &server,
        [
            "run",
            "-s",
            "k",
            "--",
            "sh",
            "-c",
            "env -u LEASEHOLD_OUTER \"$0\" run -n -s k -- true",
            RUN,
        ],
    )
    .await;
    assert_eq!(code(&readers), 0, "{}", stderr(&readers));
    let script = "\"$0\" run -n -p 1 --of 2 s -- \"$0\" run -n -p 1 --of 2 s -- true; echo $?; \"$0\" run -n -p 1 --of 2 s -- true; echo $?";
    let permits = output(
        &server,
        [
            "run", "-p", "1", "--of", "2", "s", "--", "sh", "-c", script, RUN,
        ],
    )
    .await;
    assert_eq!(stdout(&permits), "75\n0\n", "{}", stderr(&permits));
}

#[tokio::test]
async fn a_read_lock_and_an_exclusive_one_exclude_each_other() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for (holds, tries) in [
        (&["-s", "k"][..], &["k"][..]),
        (&["k"], &["-s", "k"]),
        (&["--fair", "k"], &["-s", "k"]),
        (&["-s", "k"], &["--fair", "k"]),
    ] {
        let run = |options: &[&str], key_and_more: &[&str], command: &[&str]| {
            let mut run = leasehold(&server);
            run.arg("run").args(options).args(key_and_more).arg("--");
            run.args(command).spawn().expect("it starts")
        };
        let holder = run(&[], holds, &["sleep", "1"]);
        super::support::until_for_lock(&mut raw, "k").await;
        let busy = super::support::ended(run(&["--try"], tries, &["true"])).await;
        assert_eq!(code(&busy), 75, "{tries:?} beside {holds:?}");
        let waited = super::support::ended(run(&["--wait", "20s"], tries, &["true"])).await;
        assert_eq!(code(&waited), 0, "{tries:?} after {holds:?}");
        assert_eq!(code(&super::support::ended(holder).await), 0, "{holds:?}");
    }
}

/// The chain that a command finds in its environment which has run with these arguments.
async fn chain_of_run(server: &Server, arguments: &[&str]) -> String {
    let command = ["--", "sh", "-c", "printf %s \"$LEASEHOLD_OUTER\""];
    let run = output(server, [&["run"], arguments, &command].concat()).await;
    stdout(&run)
}
