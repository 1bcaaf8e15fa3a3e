//! The descriptor by which a command learns that its lock is lost.

use std::fs;
use std::path::PathBuf;

use leasehold_testkit::process::signal;
use leasehold_testkit::{Scratch, Server};
use tokio::process::Child;

use super::support::{children_of, code, ended, is_alive, leasehold, stderr, stdout, until};

/// Says `held` if the descriptor has not ended within a moment, and `told` when it does.
const WAITS: &str = r#"
    timeout 0.2 cat <&"$LEASEHOLD_LOST_FD"
    [ $? = 124 ] && echo held
    echo "$$ $LEASEHOLD_LOST_FD" >"$READY.new"
    mv "$READY.new" "$READY"
    read -r _ <&"$LEASEHOLD_LOST_FD" || echo told
"#;

/// A `run` whose command waits for its descriptor to end.
struct Waiting {
    run: Child,
    ready: PathBuf,
    _dir: Scratch,
}

impl Waiting {
    /// `before` and `after` are what its shell does beside that.
    async fn start(
        server: &Server,
        lease: &str,
        options: &[&str],
        before: &str,
        after: &str,
    ) -> Self {
        let dir = Scratch::new();
        let ready = dir.join("ready");
        let run = leasehold(server)
            .args(["run", "--lease", lease])
            .args(options)
            .args([
                "k",
                "--",
                "sh",
                "-c",
                &format!("{before}\n{WAITS}\n{after}"),
            ])
            .env("READY", &ready)
            // Of a `run` around the tests.
            .env("LEASEHOLD_LOST_FD", "9")
            .spawn()
            .expect("it starts");
        let this = Self {
            run,
            ready,
            _dir: dir,
        };
        until("the command waits", || this.pid().is_some()).await;
        this
    }

    fn command(&self) -> u32 {
        self.pid().expect("it began")
    }

    /// Whether the command has ended.
    fn is_over(&self) -> bool {
        !is_alive(self.command())
    }

    fn pid(&self) -> Option<u32> {
        let (pid, _) = self.told()?;
        Some(pid)
    }

    /// What the command's descriptor is open to.
    fn pipe(&self) -> PathBuf {
        let (pid, number) = self.told().expect("it began");
        fs::read_link(format!("/proc/{pid}/fd/{number}")).expect("it is open")
    }

    /// The process of the command, and the number of its descriptor.
    fn told(&self) -> Option<(u32, u32)> {
        let text = fs::read_to_string(&self.ready).ok()?;
        let (pid, number) = text.trim().split_once(' ')?;
        Some((pid.parse().ok()?, number.parse().ok()?))
    }
}

/// The pipes that a process has open.
fn pipes(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    entries
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("pipe:"))
        .collect()
}

#[tokio::test]
async fn it_ends_when_the_lock_is_lost_also_for_a_command_that_is_spared() {
    let server = Server::start().await;
    for what in ["broken", "frozen"] {
        let waiting = Waiting::start(&server, "3s", &["--on-lost", "ignore"], "", "exit 3").await;
        if what == "broken" {
            server.raw().await.cmd(&["DEL", "k"]).await;
        } else {
            server.pause();
        }
        until(what, || waiting.is_over()).await;
        server.resume();
        let end = ended(waiting.run).await;
        assert_eq!(code(&end), 3, "{what}: {}", stderr(&end));
        assert_eq!(stdout(&end), "held\ntold\n", "{what}");
    }
}

#[tokio::test]
async fn it_ends_with_the_first_signal() {
    let server = Server::start().await;
    // Time enough to say so before SIGKILL.
    let options = ["--grace", "3s"];
    let waiting = Waiting::start(&server, "7s", &options, "trap '' TERM", "exit 3").await;
    server.pause();
    until("the end", || waiting.is_over()).await;
    server.resume();
    let end = ended(waiting.run).await;
    assert_eq!(code(&end), 76, "{}", stderr(&end));
    assert_eq!(stdout(&end), "held\ntold\n");
}

#[tokio::test]
async fn it_ends_with_the_supervisor_and_with_the_watchdog() {
    let server = Server::start().await;
    for who in ["supervisor", "watchdog"] {
        let dir = Scratch::new();
        let told = dir.join("told");
        let after = format!("echo told >'{}'", told.display());
        let waiting = Waiting::start(&server, "30s", &["--on-lost", "ignore"], "", &after).await;
        let supervisor = waiting.run.id().expect("it runs");
        match who {
            "supervisor" => signal(supervisor, "KILL"),
            _ => signal(children_of(supervisor)[0], "KILL"),
        }
        until(who, || told.exists()).await;
        until("its end", || waiting.is_over()).await;
        server.raw().await.cmd(&["DEL", "k"]).await;
    }
}

#[tokio::test]
async fn nothing_but_the_command_has_it_and_the_other_end_is_the_watchdogs() {
    let server = Server::start().await;
    let waiting = Waiting::start(&server, "30s", &[], "exec >/dev/null 2>&1", "").await;
    let supervisor = waiting.run.id().expect("it runs");
    let watchdog = children_of(supervisor)[0];
    let pipe = waiting.pipe();
    let count = |pid| {
        let open = pipes(pid);
        open.iter().filter(|&other| *other == pipe).count()
    };
    assert_eq!((count(supervisor), count(watchdog)), (0, 1));
    signal(supervisor, "TERM");
    assert_eq!(code(&ended(waiting.run).await), 143);
}
