//! Helpers of the command's tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use leasehold_testkit::{Raw, Scratch, Server, until_for};
use tokio::process::{Child, Command};

/// Upper bound on each wait.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// The command, for this server.
pub(crate) fn leasehold(server: &Server) -> Command {
    at(&server.url())
}

/// Becomes a command with every signal as it is by default: a shell starts what is to run in the background with INT and QUIT
/// ignored, and so the tests may be.
pub(crate) const ENV: [&str; 2] = ["/usr/bin/env", "--default-signal"];

/// The command, for the server of this URL.
pub(crate) fn at(url: &str) -> Command {
    let mut command = Command::new(ENV[0]);
    command.args([ENV[1], env!("CARGO_BIN_EXE_leasehold")]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LEASEHOLD_") {
            command.env_remove(name);
        }
    }
    command
        .env("LEASEHOLD_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs the command line to its end.
pub(crate) async fn output<'a>(
    server: &Server,
    arguments: impl IntoIterator<Item = &'a str>,
) -> Output {
    let mut command = leasehold(server);
    command.args(arguments);
    ended(command.spawn().expect("it starts")).await
}

/// The end of a process that was started.
pub(crate) async fn ended(child: Child) -> Output {
    tokio::time::timeout(BOUND, child.wait_with_output())
        .await
        .expect("it ends")
        .expect("it was started")
}

/// The exit code; that of an end by a signal is none.
pub(crate) fn code(output: &Output) -> i32 {
    output
        .status
        .code()
        .unwrap_or_else(|| panic!("{}: {}", output.status, stderr(output)))
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The last line of the standard error, as JSON.
pub(crate) fn last_json(output: &Output) -> serde_json::Value {
    let text = stderr(output);
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error} in {text:?}"))
}

/// Asks again and again until it is so.
pub(crate) async fn until(what: &str, mut ask: impl FnMut() -> bool) {
    until_for(BOUND, what, async || ask()).await;
}

/// Until the lock is held.
pub(crate) async fn until_for_lock(raw: &mut Raw, key: &str) {
    until_for(BOUND, key, async || {
        raw.cmd(&["EXISTS", key]).await.int() == 1
    })
    .await;
}

/// The processes that this one has started and that have not ended.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("Linux");
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| {
            stat(pid).is_some_and(|fields| fields[1] == parent.to_string() && fields[0] != "Z")
        })
        .collect()
}

/// Whether it runs, or is stopped.
pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|fields| fields[0] != "Z")
}

/// The state, the parent, the group and more of a process.
pub(crate) fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

/// A file with the signs of life of a command's processes.
pub(crate) struct Beats {
    file: PathBuf,
    _dir: Scratch,
}

impl Beats {
    pub(crate) fn new() -> Self {
        let dir = Scratch::new();
        Self {
            file: dir.join("beats"),
            _dir: dir,
        }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The first and the last sign of each process, in nanoseconds since the machine was started.
    pub(crate) fn by_process(&self) -> BTreeMap<u32, (u128, u128)> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let mut all = BTreeMap::new();
        // The last line may be incomplete.
        for line in text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
        {
            let (pid, time) = line.trim().split_once(' ').expect("two numbers");
            let (pid, time) = (pid.parse().unwrap(), time.parse().unwrap());
            let (_, last) = all.entry(pid).or_insert((time, time));
            *last = time;
        }
        all
    }

    pub(crate) fn first(&self) -> Option<u128> {
        self.by_process().values().map(|&(first, _)| first).min()
    }

    pub(crate) fn last(&self) -> Option<u128> {
        self.by_process().values().map(|&(_, last)| last).max()
    }

    pub(crate) async fn began(&self) {
        self.began_with(1).await;
    }

    /// Until so many processes have given a sign.
    pub(crate) async fn began_with(&self, processes: usize) {
        until("the command begins", || {
            self.by_process().len() >= processes
        })
        .await;
    }
}

/// Adds to `command` what gives signs of life into `beats` until it is ended; in a shell after `before`, which may say `"$@"` to
/// start it more often.
pub(crate) fn beating(command: &mut Command, beats: &Beats, before: &str) {
    let helper = std::env::current_exe().expect("this test");
    command
        .env("BEATS", beats.file())
        .args(["--", "sh", "-c", &format!("{before}\nexec \"$@\""), "sh"])
        .arg(helper)
        .args(["--exact", "support::signs_of_life", "--nocapture"]);
}

/// Nanoseconds since the machine was started.
pub(crate) fn now() -> u128 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(
        time.tv_sec.cast_unsigned(),
        time.tv_nsec.cast_unsigned() as u32,
    )
    .as_nanos()
}

/// No test by itself: the command of others, which gives signs of life every other millisecond, for a minute at most.
#[test]
fn signs_of_life() {
    use std::io::Write;

    let Some(path) = std::env::var_os("BEATS") else {
        return;
    };
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("the file");
    let pid = std::process::id();
    for _ in 0..30_000 {
        // One write, so that several processes can share the file.
        file.write_all(format!("{pid} {}\n", now()).as_bytes())
            .expect("written");
        std::thread::sleep(Duration::from_millis(2));
    }
}
