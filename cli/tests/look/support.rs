//! Running the program, and locks for it to look at.

use std::process::{Output, Stdio};
use std::time::Duration;

use leasehold::Locks;
use leasehold_testkit::{Raw, Server};
use tokio::process::Command;

/// Upper bound on one run. It ends hangs and promises no speed.
const BOUND: Duration = Duration::from_secs(60);

/// A client that no test connects: its locks are written by hand.
pub(crate) const MADE_UP: &str = "0190c0de-0000-7000-8000-0000000a0b0c";

/// What a run has left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// The lines of JSON.
    pub(crate) fn rows(&self) -> Vec<serde_json::Value> {
        let row = |line: &str| serde_json::from_str(line).expect("a line of JSON");
        self.out.lines().map(row).collect()
    }

    /// The row of a key.
    pub(crate) fn row(&self, key: &str) -> serde_json::Value {
        let mut rows = self.rows().into_iter();
        rows.find(|row| row["key"] == key)
            .unwrap_or_else(|| panic!("no `{key}` in: {}", self.out))
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let key = |row: serde_json::Value| row["key"].as_str().expect("a key").to_owned();
        self.rows().into_iter().map(key).collect()
    }
}

/// The program with these arguments, at the server of `url`.
pub(crate) fn program(url: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LEASEHOLD_")) {
        command.env_remove(name);
    }
    command
        .env("LEASEHOLD_URL", url)
        .env("NO_COLOR", "1")
        .kill_on_drop(true);
    command
}

/// Runs it to its end, without a terminal.
pub(crate) async fn run(url: &str, args: &[&str]) -> Ran {
    let output = program(url).args(args).stdin(Stdio::null()).output();
    let Output {
        status,
        stdout,
        stderr,
    } = tokio::time::timeout(BOUND, output)
        .await
        .unwrap_or_else(|_| panic!("{args:?} did not end"))
        .expect("the program runs");
    Ran {
        code: status.code().expect("an exit code"),
        out: String::from_utf8(stdout).expect("UTF-8"),
        err: String::from_utf8(stderr).expect("UTF-8"),
    }
}

pub(crate) async fn locks(url: &str) -> Locks {
    Locks::connect(url).await.expect("a connection")
}

/// Writes a mutex that a made-up client holds.
pub(crate) async fn hold(raw: &mut Raw, key: &str, client: &str, ms: Option<u64>) {
    raw.cmd(&["HSET", key, &format!("{client}:7"), "1"]).await;
    if let Some(ms) = ms {
        raw.cmd(&["PEXPIRE", key, &ms.to_string()]).await;
    }
}

/// Registers a process of a made-up client.
pub(crate) async fn register(raw: &mut Raw, client: &str, host: &str) {
    let key = format!("lockp:{client}");
    let fields = [
        "host",
        host,
        "pid",
        "4711",
        "app",
        "shop",
        "version",
        "0.1.0",
        "since",
        "1795000000000",
    ];
    raw.cmd(&[&["HSET", &key][..], &fields].concat()).await;
    raw.cmd(&["PEXPIRE", &key, "60000"]).await;
}

/// A client whose locks are made up, other than [`MADE_UP`].
pub(crate) fn client(number: u32) -> String {
    format!("{number:08x}-0000-7000-8000-0000000a0b0c")
}

/// Waits until so many are in the line of a mutex.
pub(crate) async fn until_waiting(server: &Server, key: &str, waiting: u64) {
    let locks = locks(&server.url()).await;
    leasehold_testkit::until("a place in line", async || {
        locks
            .mutex(key)
            .inspect()
            .await
            .is_ok_and(|seen| seen.waiting() == waiting)
    })
    .await;
}
