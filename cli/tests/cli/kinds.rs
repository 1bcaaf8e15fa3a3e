//! What is more than one lock: several at the same time, and one at several servers.

use std::time::{Duration, Instant};

use leasehold_testkit::process::signal;
use leasehold_testkit::{Scratch, Server, ms, until_for};
use tokio::task::{JoinSet, LocalSet};

use super::promise::{Contender, Run, STUBBORN, family, no_overlap};
use super::support::{
    BOUND, at, code, ended, is_alive, last_json, leasehold, now, output, stderr, stdout, until,
};

const RUN: &str = env!("CARGO_BIN_EXE_leasehold");

/// The lease at several servers: each of them may take a twentieth of it for an answer.
const LONG: &str = "10s";

/// A process that is killed, and the exit code of the first command's `run` then.
const FAULTS: [(&str, Option<i32>); 3] = [
    ("supervisor", None),
    ("watchdog", Some(137)),
    ("command", Some(137)),
];

fn kill(first: &Run, who: &str) {
    let pid = match who {
        "supervisor" => first.supervisor(),
        "watchdog" => first.watchdog(),
        _ => first.command(),
    };
    signal(pid, "KILL");
}

/// Kills each process once, all cases at the same time. `{who}` in an option tells the keys of the cases apart, and `other` is
/// what the second contender wants.
async fn whatever_is_killed(url: &str, lease: &'static str, options: [&[String]; 2], other: &str) {
    let all = LocalSet::new();
    all.run_until(async {
        let mut cases = JoinSet::new();
        for (who, expected) in FAULTS {
            let url = url.to_owned();
            let keys = [format!("{who}:a"), format!("{who}:{other}")];
            let mut options = options.map(<[String]>::to_vec);
            for option in options.iter_mut().flatten() {
                *option = option.replace("{who}", who);
            }
            cases.spawn_local(async move {
                let [first, second] = &options;
                let words = [first, second].map(|words| strs(words));
                let contender = |at: usize| Contender {
                    key: &keys[at],
                    lease,
                    options: &words[at],
                };
                // What a command that ends by itself has started in a session of its own lives on.
                let processes = match who {
                    "command" => (String::new(), 1),
                    _ => (family(), 3),
                };
                let end = no_overlap(
                    &url,
                    [contender(0), contender(1)],
                    (&processes.0, processes.1),
                    async |first| kill(first, who),
                )
                .await;
                assert_eq!(end.status.code(), expected, "{who}: {}", stderr(&end));
            });
        }
        while let Some(case) = cases.join_next().await {
            case.expect("no overlap");
        }
    })
    .await;
}

fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

#[tokio::test]
async fn several_locks_are_held_until_the_command_is_dead_whatever_is_killed() {
    let server = Server::start().await;
    let options = [words(["--also", "{who}:b"]), words(["--wait", "30s"])];
    // The other one wants the second lock only.
    whatever_is_killed(&server.url(), "5s", [&options[0], &options[1]], "b").await;
}

#[tokio::test]
async fn several_locks_end_together() {
    let server = Server::start().await;
    let url = server.url();
    let contender = |key, options| Contender {
        key,
        lease: "4s",
        options,
    };
    let both = [
        contender("a", &["--also", "b"][..]),
        contender("b", &["--wait", "30s"]),
    ];
    let end = no_overlap(&url, both, (STUBBORN, 1), async |first| {
        let command = first.command();
        server.pause();
        until("the command ends", || !is_alive(command)).await;
        server.resume();
    })
    .await;
    assert_eq!(code(&end), 76, "{}", stderr(&end));

    // One of them is broken: the other one is given back, too.
    let mut raw = server.raw().await;
    let run = Run::contend(&url, both[0], STUBBORN);
    run.beats.began().await;
    raw.cmd(&["DEL", "b"]).await;
    let end = run.ends().await;
    assert_eq!(code(&end), 76, "{}", stderr(&end));
    let told = last_json(&end);
    assert_eq!(told["lost"], "the server no longer knows the hold");
    assert_eq!(raw.cmd(&["EXISTS", "a", "b"]).await.int(), 0);

    let run = Run::contend(&url, both[0], STUBBORN);
    dies_within(Duration::from_secs(4), run, || server.kill()).await;
}

/// Kills what the lock of `run` lives by, and sees that its command is dead before the lease is over.
async fn dies_within(lease: Duration, run: Run, kill: impl FnOnce()) {
    run.beats.began().await;
    let command = run.command();
    let before = now();
    kill();
    until("the command ends", || !is_alive(command)).await;
    let lived = run.beats.last().expect("it began").saturating_sub(before);
    assert!(lived < lease.as_nanos(), "{} ms", lived / 1_000_000);
    let end = run.ends().await;
    assert_eq!(code(&end), 76, "{}", stderr(&end));
}

#[tokio::test]
async fn several_locks_are_taken_all_or_none_and_told_in_lines() {
    let server = Server::start().await;
    let script = r#"printf '%s|' "$LEASEHOLD_KEY" "$LEASEHOLD_TOKEN" "$LEASEHOLD_OWNER""#;
    let arguments = [
        "run",
        "--json",
        "--namespace",
        "x",
        "b",
        "--also",
        "a",
        "--also",
        "b",
    ];
    let told = output(
        &server,
        [&arguments[..], &["--", "sh", "-c", script]].concat(),
    )
    .await;
    assert_eq!(code(&told), 0, "{}", stderr(&told));
    let json = last_json(&told);
    let (b, a) = (&json["token"], &json["also"][0]["token"]);
    assert!(a.is_u64() && b.is_u64(), "{json}");
    assert_eq!(stdout(&told), format!("b\na|{b}\n{a}||"));
    assert_eq!(
        (&json["key"], &json["also"][0]["key"]),
        (&"x:b".into(), &"x:a".into())
    );
    assert_eq!(
        json["also"].as_array().map(Vec::len),
        Some(1),
        "each of them once"
    );

    let holder = leasehold(&server)
        .args(["run", "b", "--", "sleep", "30"])
        .spawn()
        .expect("it starts");
    let mut raw = server.raw().await;
    super::support::until_for_lock(&mut raw, "b").await;
    for wait in ["--try", "--wait=100ms"] {
        let busy = output(&server, ["run", wait, "a", "--also", "b", "--", "true"]).await;
        assert_eq!(code(&busy), 75, "{}", stderr(&busy));
        assert!(
            stderr(&busy).contains("one of the 2 locks"),
            "{}",
            stderr(&busy)
        );
        assert_eq!(raw.cmd(&["EXISTS", "a"]).await.int(), 0, "none");
    }
    drop(holder);
}

#[tokio::test]
async fn a_run_inside_of_several_locks_needs_none_of_them_and_takes_no_part() {
    let server = Server::start().await;
    let script = r#"
        "$0" run --try a -- echo one || exit
        "$0" run --try b --also a -- echo both || exit
        "$0" run --try c --also d -- echo others || exit
        "$0" run --try b --also c -- true; echo "$?"
        "$0" run --try -s a -- echo shared
        env -u LEASEHOLD_OUTER "$0" run --try b -- true; echo "$?"
    "#;
    let run = output(
        &server,
        ["run", "a", "--also", "b", "--", "sh", "-c", script, RUN],
    )
    .await;
    assert_eq!(code(&run), 0, "{}", stderr(&run));
    let lines = ["one", "both", "others", "64", "shared", "75", ""].join("\n");
    assert_eq!(stdout(&run), lines, "{}", stderr(&run));
    assert!(stderr(&run).contains("`b` is held by the `run` around this one without the others"));
}

/// Servers that have nothing to do with each other.
struct Three([Server; 3]);

impl Three {
    async fn start() -> Self {
        let (a, b, c) = tokio::join!(Server::start(), Server::start(), Server::start());
        Self([a, b, c])
    }

    /// The options for a lock at them.
    fn options(&self, more: &[&str]) -> Vec<String> {
        let urls = self.0.iter();
        let mut options: Vec<_> = urls
            .flat_map(|server| ["--redlock".to_owned(), server.url()])
            .collect();
        options.extend(more.iter().map(|&word| word.to_owned()));
        options
    }
}

#[tokio::test]
async fn a_lock_at_several_servers_is_held_until_the_command_is_dead_whatever_is_killed() {
    let servers = Three::start().await;
    let options = [
        servers.options(&["--durable"]),
        servers.options(&["--durable", "--wait", "60s"]),
    ];
    // The url is for nothing.
    let url = "redis://127.0.0.1:1";
    whatever_is_killed(url, LONG, [&options[0], &options[1]], "a").await;
}

#[tokio::test]
async fn a_lock_at_several_servers_ends_with_a_majority_of_them() {
    let servers = Three::start().await;
    let options = [
        servers.options(&["--durable"]),
        servers.options(&["--durable", "--wait", "60s"]),
    ];
    let words = options.each_ref().map(|words| strs(words));
    let contender = |at: usize| Contender {
        key: "k",
        lease: LONG,
        options: &words[at],
    };
    let [a, b, c] = &servers.0;
    let end = no_overlap(
        &a.url(),
        [contender(0), contender(1)],
        (&family(), 3),
        async |first| {
            let command = first.command();
            a.pause();
            b.pause();
            until("the command ends", || !is_alive(command)).await;
            a.resume();
            b.resume();
        },
    )
    .await;
    assert_eq!(code(&end), 76, "{}", stderr(&end));
    assert_eq!(last_json(&end)["reason"], "lost");

    // One of them is missed by nobody: the lock is renewed without it.
    let dir = Scratch::new();
    let done = dir.join("done");
    let script = "echo \"$LEASEHOLD_TOKEN\"; until [ -e \"$DONE\" ]; do sleep 0.05; done; exit 3";
    let mut run = at(&a.url());
    run.args(["run", "--json", "--lease", "20s"]);
    run.args(&words[0]).args(["k", "--", "sh", "-c", script]);
    let run = run.env("DONE", &done).spawn().expect("it starts");
    let mut raw = b.raw().await;
    super::support::until_for_lock(&mut raw, "k").await;
    c.kill();
    let mut left = raw.cmd(&["PTTL", "k"]).await.int();
    let renewed = async || {
        let before = std::mem::replace(&mut left, raw.cmd(&["PTTL", "k"]).await.int());
        left > before
    };
    until_for(BOUND, "a renewal", renewed).await;
    std::fs::write(&done, "").expect("written");
    let end = ended(run).await;
    assert_eq!(code(&end), 3, "{}", stderr(&end));
    let token = last_json(&end)["token"].as_u64().expect("a token");
    assert_eq!(stdout(&end), format!("{token}\n"));
    assert_eq!(raw.cmd(&["EXISTS", "k"]).await.int(), 0);

    // Another one leaves no majority.
    let run = Run::contend(&a.url(), contender(0), STUBBORN);
    dies_within(Duration::from_secs(10), run, || b.kill()).await;
}

#[tokio::test]
async fn a_lock_at_several_servers_waits_for_their_age_nests_and_is_busy() {
    let begin = Instant::now();
    let servers = Three::start().await;
    let [a, ..] = &servers.0;
    let urls: Vec<_> = servers.0.iter().map(Server::url).collect();
    let leasehold = |arguments: &[&str]| {
        let mut command = at(&a.url());
        command
            .args(arguments)
            .env("LEASEHOLD_REDLOCK", urls.join(" "));
        ended(command.spawn().expect("it starts"))
    };
    // None of them is trusted before it is older than the longest lease.
    let old = [
        "run",
        "--longest-lease",
        "2s",
        "--lease",
        "1s",
        "k",
        "--",
        "true",
    ];
    assert_eq!(code(&leasehold(&old).await), 0);
    assert!(begin.elapsed() >= ms(2_000), "{:?}", begin.elapsed());

    let script = r#"
        "$0" run --durable k -- sh -c 'echo "$LEASEHOLD_TOKEN"' || exit
        echo "$LEASEHOLD_TOKEN"
        # 69: on a busy machine too few nodes may answer in time.
        for _ in 1 2 3 4 5 6 7 8 9; do
            env -u LEASEHOLD_OUTER "$0" run --durable --try k -- true
            ended=$?
            [ "$ended" = 69 ] || break
        done
        echo "$ended"
        env -u LEASEHOLD_REDLOCK "$0" run --try k -- true; echo "$?"
        "$0" run --durable other -- echo other
    "#;
    let run = leasehold(&["run", "--durable", "k", "--", "sh", "-c", script, RUN]).await;
    assert_eq!(code(&run), 0, "{}", stderr(&run));
    let text = stdout(&run);
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0] == lines[1] && lines[0].parse::<u64>().is_ok(),
        "{lines:?}"
    );
    assert_eq!(lines[2..], ["75", "64", "other"], "{}", stderr(&run));
    assert!(
        stderr(&run).contains("by a majority of several servers"),
        "{}",
        stderr(&run)
    );

    let refused = leasehold(&["run", "--fair", "k", "--", "true"]).await;
    assert_eq!(code(&refused), 64);
    assert!(
        stderr(&refused).contains("--redlock"),
        "{}",
        stderr(&refused)
    );
    let url = a.url();
    let twice = [
        "run",
        "--redlock",
        &url,
        "--redlock",
        &url,
        "k",
        "--",
        "true",
    ];
    let refused = output(a, twice).await;
    assert_eq!(code(&refused), 64, "{}", stderr(&refused));
}
