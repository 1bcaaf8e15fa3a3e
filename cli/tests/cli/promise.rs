//! The promise: a command is dead before anybody else can hold its lock, whatever happens to the processes and servers.
//!
//! Each case has a second contender, whose command begins once it has the lock. The last sign of life of the first command has to
//! be older than that.

use std::process::Stdio;
use std::time::Duration;

use leasehold_testkit::process::{freeze, signal, thaw};
use leasehold_testkit::{Scratch, Server, ms};
use tokio::process::Child;
use tokio::task::{JoinSet, LocalSet};

use super::support::{
    Beats, at, beating, children_of, code, ended, is_alive, last_json, now, stderr, stdout, until,
};

/// Of the locks here. The watchdog has a twentieth of it to run in, and a renewal two thirds, on a busy machine too.
const LEASE: &str = "4s";
/// Of those whose supervisor is killed before it could renew anything.
const SHORT: &str = "2s";
/// Ignores what can be ignored.
pub(super) const STUBBORN: &str = "trap '' TERM INT HUP";

/// How often the supervisor is killed as it begins.
const INSTANTS: u64 = 24;

/// A `run` of a command that gives signs of life.
pub(super) struct Run {
    process: Child,
    pub(super) beats: Beats,
}

/// What a `run` is started with.
#[derive(Clone, Copy)]
pub(super) struct Contender<'a> {
    pub(super) key: &'a str,
    pub(super) lease: &'a str,
    pub(super) options: &'a [&'a str],
}

impl Run {
    fn start(url: &str, key: &str, before: &str) -> Self {
        let contender = Contender {
            key,
            lease: LEASE,
            options: &[],
        };
        Self::contend(url, contender, before)
    }

    pub(super) fn contend(url: &str, contender: Contender<'_>, before: &str) -> Self {
        let Contender {
            key,
            lease,
            options,
        } = contender;
        let beats = Beats::new();
        let mut command = at(url);
        command.args(["run", "--json", "--lease", lease]);
        command.args(options).arg(key);
        beating(&mut command, &beats, before);
        Self {
            process: command.spawn().expect("it starts"),
            beats,
        }
    }

    pub(super) fn supervisor(&self) -> u32 {
        self.process.id().expect("it was not waited for")
    }

    pub(super) fn watchdog(&self) -> u32 {
        let children = children_of(self.supervisor());
        assert_eq!(children.len(), 1, "the watchdog");
        children[0]
    }

    pub(super) fn command(&self) -> u32 {
        let children = children_of(self.watchdog());
        assert_eq!(children.len(), 1, "the command");
        children[0]
    }

    pub(super) async fn ends(self) -> std::process::Output {
        ended(self.process).await
    }
}

/// The second contender. Its lease is long: what befalls a busy machine is no fault of this test.
fn behind(key: &str) -> Contender<'_> {
    Contender {
        key,
        lease: "10s",
        options: &["--wait", "30s"],
    }
}

/// Starts two contenders, lets `fault` befall the first, and sees that they do not overlap. `processes` give signs of life in the
/// first command. Returns how the first one ended; it was killed if that was its supervisor.
async fn without_overlap(
    url: String,
    (key, before, processes): (&str, &str, usize),
    fault: impl AsyncFnOnce(&Run),
) -> std::process::Output {
    let first = Contender {
        key,
        lease: LEASE,
        options: &[],
    };
    let both = [first, behind(key)];
    no_overlap(&url, both, (before, processes), fault).await
}

/// The same, of contenders that may be different.
pub(super) async fn no_overlap(
    url: &str,
    [first, second]: [Contender<'_>; 2],
    (before, processes): (&str, usize),
    fault: impl AsyncFnOnce(&Run),
) -> std::process::Output {
    let key = first.key;
    let first = Run::contend(url, first, before);
    first.beats.began_with(processes).await;
    let second = Run::contend(url, second, "");
    // In line, or at least under way.
    tokio::time::sleep(ms(200)).await;
    assert!(second.beats.first().is_none(), "{key}: both run");
    fault(&first).await;
    second.beats.began().await;
    tokio::time::sleep(ms(100)).await;
    let (last, begin) = (first.beats.last().unwrap(), second.beats.first().unwrap());
    assert!(
        last < begin,
        "{key}: the first command lived for {:?} beside the second",
        Duration::from_nanos((last - begin) as u64)
    );
    for &pid in first.beats.by_process().keys() {
        assert!(!is_alive(pid), "{key}: {pid} of the first command is alive");
    }
    signal(second.supervisor(), "TERM");
    assert_eq!(code(&second.ends().await), 143, "{key}");
    first.ends().await
}

/// Starts one more that gives signs of life in its group and one in a session of its own.
pub(super) fn family() -> String {
    format!("{STUBBORN}; \"$@\" & setsid \"$@\" &")
}

#[tokio::test]
async fn no_overlap_when_the_supervisor_is_killed() {
    let server = Server::start().await;
    let kills = async |first: &Run| signal(first.supervisor(), "KILL");
    let end = without_overlap(server.url(), ("k", &family(), 3), kills).await;
    assert_eq!(end.status.code(), None);
}

#[tokio::test]
async fn the_launcher_starts_nothing_after_the_deadline() {
    let (before, after) = (now(), now() + Duration::from_secs(60).as_nanos());
    for (latest, expected) in [(before, (71, "")), (after, (0, "began\n"))] {
        let mut launcher = tokio::process::Command::new(env!("CARGO_BIN_EXE_leasehold"));
        launcher.arg("__launch").arg(std::process::id().to_string());
        launcher.arg(latest.to_string());
        launcher.args(["background", "/bin/sh", "sh", "-c", "echo began"]);
        let launched = launcher.output().await.expect("it starts");
        assert_eq!((code(&launched), &*stdout(&launched)), expected, "{latest}");
    }
}

/// Starts itself anew and ends, again and again; a shell that nests too deep is replaced. Ends when its file is gone.
const RESTLESS: &str =
    "h() { echo >> \"$LIVES\" || exit; n=$((n + 1)); [ $n -lt 500 ] || exec sh \"$0\"; h & }
n=0
h
";

#[tokio::test]
async fn what_starts_itself_anew_again_and_again_is_ended_too() {
    let server = Server::start().await;
    let dir = Scratch::new();
    let (script, lives) = (dir.join("restless.sh"), dir.join("lives"));
    std::fs::write(&script, RESTLESS).unwrap();
    let mut first = at(&server.url());
    first
        .args(["run", "--lease", LEASE, "k", "--", "sh", "-c"])
        .args(["setsid sh \"$0\" & exec sleep 60"])
        .arg(&script)
        .env("LIVES", &lives)
        .stderr(Stdio::null());
    let first = first.spawn().expect("it starts");
    let count = || std::fs::metadata(&lives).map_or(0, |file| file.len());
    until("it has had some lives", || count() > 20).await;
    signal(first.id().unwrap(), "KILL");
    let counts = "wc -c < \"$0\"; sleep 0.3; wc -c < \"$0\"";
    let mut second = at(&server.url());
    second.args(["run", "--wait", "30s", "k", "--", "sh", "-c", counts]);
    let second = ended(second.arg(&lives).spawn().expect("it starts")).await;
    assert_eq!(code(&second), 0, "{}", stderr(&second));
    let told = stdout(&second);
    let mut told = told.lines();
    assert_eq!(
        told.next(),
        told.next(),
        "it lived beside the second command"
    );
}

#[tokio::test]
async fn no_overlap_when_the_supervisor_is_stopped() {
    let server = Server::start().await;
    let stops = async |first: &Run| {
        let (supervisor, command) = (first.supervisor(), first.command());
        freeze(supervisor);
        until("the command ends", || !is_alive(command)).await;
        // Not before the other one holds the lock.
        tokio::spawn(async move {
            tokio::time::sleep(ms(1_500)).await;
            thaw(supervisor);
        });
    };
    let end = without_overlap(server.url(), ("k", &family(), 3), stops).await;
    assert_eq!(code(&end), 76, "{}", stderr(&end));
    assert_eq!(last_json(&end)["reason"], "lost");
}

#[tokio::test]
async fn no_overlap_when_the_watchdog_is_killed() {
    let server = Server::start().await;
    let kills = async |first: &Run| signal(first.watchdog(), "KILL");
    let end = without_overlap(server.url(), ("k", &family(), 3), kills).await;
    assert_eq!(code(&end), 137, "{}", stderr(&end));
}

#[tokio::test]
async fn no_overlap_when_the_command_is_killed() {
    let server = Server::start().await;
    let kills = async |first: &Run| signal(first.command(), "KILL");
    let end = without_overlap(server.url(), ("k", "", 1), kills).await;
    assert_eq!(code(&end), 137, "{}", stderr(&end));
    assert_eq!(last_json(&end)["reason"], "killed");
}

#[tokio::test]
async fn a_watchdog_that_is_stopped_is_continued() {
    let server = Server::start().await;
    let stops = async |first: &Run| {
        let command = first.command();
        freeze(first.watchdog());
        signal(command, "KILL");
    };
    let end = without_overlap(server.url(), ("k", "", 1), stops).await;
    assert_eq!(code(&end), 137, "{}", stderr(&end));
    assert!(stderr(&end).contains("the watchdog does not answer"));
}

#[tokio::test]
async fn no_overlap_when_the_server_is_frozen() {
    let server = Server::start().await;
    let url = server.url();
    let freezes = async |first: &Run| {
        let pids: Vec<u32> = first.beats.by_process().into_keys().collect();
        server.pause();
        until("the command ends", || {
            !pids.iter().any(|&pid| is_alive(pid))
        })
        .await;
        server.resume();
    };
    let end = without_overlap(url, ("k", &family(), 3), freezes).await;
    assert_eq!(code(&end), 76, "{}", stderr(&end));
    assert_eq!(last_json(&end)["reason"], "lost");
}

#[tokio::test]
async fn no_overlap_when_the_watchdog_is_stopped_and_the_server_frozen() {
    let server = Server::start().await;
    let end = without_overlap(server.url(), ("both", STUBBORN, 1), async |first| {
        let (watchdog, command) = (first.watchdog(), first.command());
        server.pause();
        // Stopped again whenever the supervisor continues it.
        while is_alive(command) {
            signal(watchdog, "STOP");
            tokio::time::sleep(ms(1)).await;
        }
        server.resume();
    })
    .await;
    assert_eq!(code(&end), 76, "{}", stderr(&end));
}

#[tokio::test]
async fn a_server_that_dies_takes_the_command_along_within_the_lease() {
    let server = Server::start().await;
    let run = Run::start(&server.url(), "k", STUBBORN);
    run.beats.began().await;
    let (beats, command) = (run.beats.file().to_owned(), run.command());
    tokio::time::sleep(ms(300)).await;
    let before = now();
    server.kill();
    until("the command ends", || !is_alive(command)).await;
    let lived = run.beats.last().unwrap().saturating_sub(before);
    assert!(beats.exists());
    assert!(
        lived < ms(4_000).as_nanos(),
        "longer than the lease: {} ms",
        lived / 1_000_000
    );
    let end = run.ends().await;
    assert_eq!(code(&end), 76, "{}", stderr(&end));
}

#[tokio::test]
async fn the_supervisor_may_be_killed_at_any_instant() {
    let server = Server::start().await;
    let all = LocalSet::new();
    all.run_until(async {
        let mut cases = JoinSet::new();
        for number in 0..INSTANTS {
            cases.spawn_local(killed_at(server.url(), number));
            if cases.len() >= 6 {
                cases.join_next().await.unwrap().expect("no overlap");
            }
        }
        while let Some(case) = cases.join_next().await {
            case.expect("no overlap");
        }
    })
    .await;
}

/// Kills the supervisor at one of the instants from before it has connected until its command runs.
async fn killed_at(url: String, number: u64) {
    let key = format!("instant-{number}");
    let first = Contender {
        key: &key,
        lease: SHORT,
        options: &[],
    };
    let first = Run::contend(&url, first, STUBBORN);
    tokio::time::sleep(Duration::from_micros(12_500 * number)).await;
    signal(first.supervisor(), "KILL");
    let second = Run::contend(&url, behind(&key), "");
    second.beats.began().await;
    tokio::time::sleep(ms(100)).await;
    let begin = second.beats.first().unwrap();
    if let Some(last) = first.beats.last() {
        assert!(last < begin, "{key}: {} ns too long", last - begin);
    }
    signal(second.supervisor(), "KILL");
    let pids: Vec<u32> = second.beats.by_process().into_keys().collect();
    until("the second one ends", || {
        !pids.iter().any(|&pid| is_alive(pid))
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_is_broken_ends_the_command_with_its_next_renewal() {
    let server = Server::start().await;
    let run = Run::start(&server.url(), "k", STUBBORN);
    run.beats.began().await;
    server.raw().await.cmd(&["DEL", "k"]).await;
    let end = run.ends().await;
    assert_eq!(code(&end), 76);
    let told = last_json(&end);
    assert_eq!(
        told["lost"], "the server no longer knows the hold",
        "{told}"
    );
}

#[tokio::test]
async fn the_longest_hold_ends_the_command_and_the_grace_lets_it_clean_up() {
    let server = Server::start().await;
    let begin = std::time::Instant::now();
    let cleans_up = "trap 'echo cleaned; exit 7' TERM; while :; do sleep 0.02; done";
    let run = super::support::output(
        &server,
        [
            "run",
            "--lease",
            "10s",
            "--max-hold",
            "4s",
            "--grace",
            "2s",
            "--json",
            "k",
            "--",
            "sh",
            "-c",
            cleans_up,
        ],
    )
    .await;
    assert_eq!(code(&run), 76, "{}", stderr(&run));
    assert_eq!(stdout(&run), "cleaned\n");
    // The first signal came a grace before the end.
    assert!(begin.elapsed() >= ms(1_800));
    let told = last_json(&run);
    assert_eq!(told["reason"], "lost", "{told}");
}

#[tokio::test]
async fn on_lost_says_which_signal_comes_first_or_none() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let begins = |key: &str, on_lost: &str, script: &str| {
        super::support::leasehold(&server)
            .args([
                "run",
                "--lease",
                "10s",
                "--max-hold",
                "4s",
                "--grace",
                "2s",
                "--on-lost",
                on_lost,
                key,
            ])
            .args(["--", "sh", "-c", script])
            .spawn()
            .expect("it starts")
    };
    let traps = "trap 'echo usr1; exit 7' USR1; while :; do sleep 0.02; done";
    let (usr1, kill, ignore) = (
        begins("usr1", "SIGUSR1", traps),
        begins(
            "kill",
            "kill",
            "trap 'echo term' TERM; while :; do sleep 0.02; done",
        ),
        begins("ignore", "ignore", "sleep 5; echo done; exit 3"),
    );
    let (usr1, kill, ignore) = tokio::join!(ended(usr1), ended(kill), ended(ignore));
    assert_eq!(
        (code(&usr1), usr1.stdout.as_slice()),
        (76, b"usr1\n".as_slice())
    );
    assert_eq!((code(&kill), kill.stdout.as_slice()), (76, b"".as_slice()));
    assert_eq!(
        (code(&ignore), ignore.stdout.as_slice()),
        (3, b"done\n".as_slice())
    );
    assert!(
        stderr(&ignore).contains("the lock is lost"),
        "{}",
        stderr(&ignore)
    );
    for key in ["usr1", "kill", "ignore"] {
        assert_eq!(raw.cmd(&["EXISTS", key]).await.int(), 0, "{key}");
    }
}
