//! Exit codes, and what is said with them.

use leasehold_testkit::Server;

use super::support::{
    at, code, ended, last_json, leasehold, output, stderr, stdout, until_for_lock,
};

/// Arguments, the exit code, and a part of what is said; nothing if that is empty.
type Case = (&'static [&'static str], i32, &'static str);

const CASES: &[Case] = &[
    (&["run", "k", "--", "true"], 0, ""),
    (&["run", "k", "--", "sh", "-c", "exit 3"], 3, ""),
    (&["run", "k", "--", "sh", "-c", "exit 255"], 255, ""),
    (&["run", "k", "--", "sh", "-c", "kill -TERM $$"], 143, ""),
    (&["run", "k", "--", "sh", "-c", "kill -KILL $$"], 137, ""),
    (
        &["run", "--try", "held", "--", "true"],
        75,
        "`held` is held by others",
    ),
    (
        &["run", "--wait", "100ms", "held", "--", "true"],
        75,
        "`held` is held by others",
    ),
    (
        &["run", "-n", "-E", "9", "held", "--", "true"],
        9,
        "`held` is held by others",
    ),
    (
        &["lock", "held", "--try", "--lease", "1s"],
        75,
        "`held` is held by others",
    ),
    (
        &["run", "--fair", "--try", "held", "--", "true"],
        75,
        "held by others",
    ),
    (&["run", "--try", "string", "--", "true"], 65, "not a lock"),
    (&["run", "k", "--", "no-such-program"], 127, "not found"),
    (&["run", "k", "--", "/no/such/program"], 127, "not found"),
    (&["run", "k", "--", "/dev/null"], 126, "permission denied"),
    (&["run", "k", "--", "/etc"], 126, "it is a directory"),
    (&["run", "k", "--", ""], 127, "not found"),
    (&["run", "k"], 64, "COMMAND"),
    (
        &["run", "--grace", "15s", "k", "--", "true"],
        64,
        "less than half of the lease",
    ),
    (&["run", "--lease", "100ms", "k", "--", "true"], 64, "300ms"),
    (&["run", "--lease", "soon", "k", "--", "true"], 64, "30s"),
    (
        &["run", "--on-lost", "stop", "k", "--", "true"],
        64,
        "signal",
    ),
    (
        &["run", "-s", "--at-least", "1s", "k", "--", "true"],
        64,
        "--at-least",
    ),
    (&["run", "--permits", "2", "k", "--", "true"], 64, "--of"),
    (
        &["run", "-s", "k", "--also", "b", "--", "true"],
        64,
        "--also",
    ),
    (&["run", "k", "--also", "", "--", "true"], 64, "name"),
    (&["run", "k", "--also", "a\nb", "--", "true"], 64, "a line"),
    (&["run", "--durable", "k", "--", "true"], 64, "--redlock"),
    (
        &["run", "--redlock", "nowhere", "k", "--", "true"],
        64,
        "no scheme",
    ),
    (
        &["run", "--permits", "0", "--of", "2", "k", "--", "true"],
        64,
        "permits",
    ),
    (
        &["run", "--permits", "3", "--of", "2", "k", "--", "true"],
        64,
        "permits",
    ),
    (&["run", "", "--", "true"], 64, "name"),
    (&["run", "{a}{b}", "--", "true"], 0, ""),
    (&["unlock", "k", "x"], 64, "leasehold lock"),
    (&["unlock", "k", "x:1:2"], 64, "no hold's id"),
    (&["frobnicate"], 64, "frobnicate"),
    (&["--version"], 0, ""),
    (&["run", "--help"], 0, ""),
];

#[tokio::test]
async fn a_thread_that_cannot_be_started_is_told() {
    let server = Server::start().await;
    // Of no size that there is.
    let mut run = leasehold(&server);
    run.env("RUST_MIN_STACK", (1_u64 << 60).to_string());
    let run = run.args(["run", "k", "--", "echo", "began"]);
    let ran = ended(run.spawn().expect("it starts")).await;
    assert_eq!(code(&ran), 71, "{}", stderr(&ran));
    assert!(
        stderr(&ran).contains("the thread that renews"),
        "{}",
        stderr(&ran)
    );
    assert_eq!(stdout(&ran), "");
}

#[tokio::test]
async fn the_exit_code_is_the_commands_or_says_what_failed() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["SET", "string", "not a lock", "EX", "600"]).await;
    let holder = leasehold(&server)
        .args(["run", "held", "--", "sleep", "30"])
        .spawn()
        .expect("it starts");
    until_for_lock(&mut raw, "held").await;

    for &(arguments, expected, said) in CASES {
        let output = output(&server, arguments.iter().copied()).await;
        let text = stderr(&output);
        assert_eq!(code(&output), expected, "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: {text}");
        assert_eq!(text.is_empty(), said.is_empty(), "{arguments:?}: {text}");
    }
    // What ran gave its lock back.
    assert_eq!(raw.cmd(&["EXISTS", "k"]).await.int(), 0);
    drop(holder);
}

#[tokio::test]
async fn a_server_that_refuses_or_is_not_there_is_told_without_its_password() {
    let server = Server::builder().requirepass("s3cret").start().await;
    let wrong = server.url().replace("s3cret", "wr0ng");
    let gone = {
        let gone = Server::start().await;
        gone.url().replace("redis://", "redis://:s3cret@")
    };
    for (url, expected) in [
        (wrong, 77),
        (gone, 69),
        ("redis://:s3cret@:x".into(), 64),
        (String::new(), 64),
    ] {
        for arguments in [
            &["run", "k", "--", "true"][..],
            &["run", "--json", "-v", "k", "--", "true"],
            &["lock", "k", "--lease", "1s"],
        ] {
            let run = at(&url).args(arguments).spawn().expect("it starts");
            let output = ended(run).await;
            let text = stderr(&output) + &stdout(&output);
            assert_eq!(code(&output), expected, "{arguments:?}: {text}");
            assert!(
                !text.contains("s3cret") && !text.contains("wr0ng"),
                "{text}"
            );
            assert!(!text.is_empty());
        }
    }
}

#[tokio::test]
async fn with_json_the_last_line_says_what_happened() {
    let server = Server::start().await;
    let run = output(
        &server,
        [
            "run",
            "--json",
            "k",
            "--",
            "sh",
            "-c",
            "echo out; sleep 0.1; exit 4",
        ],
    )
    .await;
    let told = last_json(&run);
    assert_eq!((code(&run), stdout(&run).as_str()), (4, "out\n"));
    assert_eq!(
        (&told["reason"], &told["code"]),
        (&"exited".into(), &4.into())
    );
    assert_eq!(
        (&told["key"], &told["lost"]),
        (&"k".into(), &serde_json::Value::Null)
    );
    assert!(
        told["token"].as_u64().is_some_and(|token| token > 0),
        "{told}"
    );
    assert!(
        told["held_ms"].as_u64().is_some_and(|held| held >= 100),
        "{told}"
    );

    let holder = leasehold(&server)
        .args(["run", "k", "--", "sleep", "30"])
        .spawn()
        .expect("it starts");
    until_for_lock(&mut server.raw().await, "k").await;
    let busy = output(&server, ["run", "--json", "--try", "k", "--", "true"]).await;
    let told = last_json(&busy);
    assert_eq!(
        (code(&busy), &told["reason"], &told["code"]),
        (75, &"busy".into(), &75.into())
    );
    drop(holder);
}

#[tokio::test]
async fn a_key_may_have_any_bytes_that_are_text() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let shows = "printf %s \"$LEASEHOLD_KEY\"";
    for key in [
        "with space",
        "tab\tnew\nline",
        "\u{1b}[31mred",
        "ключ-鍵-🔑",
        "*?[a]",
        "quote'\"`$(false)",
    ] {
        let odd = ["run", "--namespace", "odd", key, "--", "sh", "-c", shows];
        let run = output(&server, odd).await;
        assert_eq!(code(&run), 0, "{key:?}: {}", stderr(&run));
        assert_eq!(stdout(&run), key);
        let held = leasehold(&server)
            .args(["run", key, "--", "sleep", "30"])
            .spawn()
            .expect("it starts");
        until_for_lock(&mut raw, key).await;
        let busy = output(&server, ["run", "--try", key, "--", "true"]).await;
        assert_eq!(code(&busy), 75);
        let said = stderr(&busy);
        assert!(!said.trim_end().contains(char::is_control), "{said:?}");
        drop(held);
    }
}

#[tokio::test]
async fn a_key_that_looks_like_an_option_or_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;

    let server = Server::start().await;
    for key in [&b"-x"[..], b"--", b"\xff\xfe"] {
        let run = leasehold(&server)
            .arg("run")
            .arg(std::ffi::OsStr::from_bytes(key))
            .args(["--", "true"])
            .spawn()
            .expect("it starts");
        assert_eq!(code(&ended(run).await), 64, "{key:?}");
    }
}
