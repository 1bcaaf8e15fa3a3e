//! The plain mutex beside the libraries that write the same: redis-py, redsync and rueidislock. Their programs are in
//! `tests/interop`; a test whose library is not installed says so and passes.
//!
//! `pip install redis` for the Python of `PATH`, or another one in `LEASEHOLD_PYTHON`; `go mod download` in
//! `tests/interop/redsync` and `tests/interop/rueidislock`. Go compiles what it has not compiled before: one that takes longer
//! than some seconds is skipped too, unless `LEASEHOLD_INTEROP` is set.

use std::future::IntoFuture;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Locks, Release};
use leasehold_testkit::Server;
use leasehold_testkit::scratch::Scratch;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::support::{connect, locks, ms, tickets, until, within};

/// How long Go may compile. What it has compiled by then it keeps.
const BUILD: Duration = Duration::from_secs(15);

/// A program that takes the lock `a` with another library, on command.
struct Other {
    _process: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Other {
    async fn start(mut command: Command, server: &Server) -> Self {
        let addr = server.addr();
        let mut process = command
            .args([&addr.ip().to_string(), &addr.port().to_string(), "a"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut this = Self {
            commands: process.stdin.take().unwrap(),
            answers,
            _process: process,
        };
        assert_eq!(this.answer().await, "ready");
        this
    }

    async fn say(&mut self, command: &str) {
        let line = format!("{command}\n");
        self.commands.write_all(line.as_bytes()).await.unwrap();
        self.commands.flush().await.unwrap();
    }

    async fn answer(&mut self) -> String {
        let line = within("an answer", self.answers.next_line()).await;
        line.unwrap().expect("the program runs")
    }

    async fn ask(&mut self, command: &str) -> String {
        self.say(command).await;
        self.answer().await
    }
}

/// Each excludes the other and waits for it, in both directions. `key` is that of its lock `a`.
async fn exclude_each_other(key: &str, command: impl Fn() -> Command) {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let mutex = locks.plain_mutex(key);
    let mut other = Other::start(command(), &server).await;
    for _ in 0..3 {
        let guard = mutex.lock().await.unwrap();
        assert_eq!(other.ask("try").await, "refused");
        other.say("wait").await;
        tokio::time::sleep(ms(200)).await;
        assert!(guard.is_held());
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        assert_eq!(other.answer().await, "taken");

        assert!(mutex.try_lock().await.unwrap().is_none());
        let waiter = tokio::spawn(mutex.lock().into_future());
        until("a ticket", async || tickets(&mut raw, key).await == 1).await;
        assert_eq!(other.ask("unlock").await, "released");
        let guard = within("our turn", waiter).await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

fn interop(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("interop")
        .join(path)
}

/// Whether `command` succeeds.
async fn works(mut command: Command) -> bool {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.await.is_ok_and(|status| status.success())
}

#[tokio::test]
async fn redis_py_and_we_exclude_each_other() {
    let python = std::env::var_os("LEASEHOLD_PYTHON").unwrap_or_else(|| "python3".into());
    let mut import = Command::new(&python);
    import.args(["-c", "import redis"]);
    if !works(import).await {
        println!("skipped: redis-py is not installed");
        return;
    }
    exclude_each_other("a", || {
        let mut command = Command::new(&python);
        command.arg(interop("redis_py.py"));
        command
    })
    .await;
}

/// The program of `tests/interop` in Go, if it can be built without a download and soon.
async fn built(library: &str, scratch: &Scratch) -> Option<PathBuf> {
    let program = scratch.path().join(library);
    let mut build = Command::new("go");
    // What is not downloaded yet stays so.
    build
        .current_dir(interop(library))
        .env("GOPROXY", "off")
        .env("GOTOOLCHAIN", "local")
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .kill_on_drop(true);
    let time = match std::env::var_os("LEASEHOLD_INTEROP") {
        Some(_) => Duration::from_secs(600),
        None => BUILD,
    };
    match tokio::time::timeout(time, works(build)).await {
        Ok(true) => return Some(program),
        Ok(false) => println!("skipped: Go, or {library} in its module cache, is not installed"),
        Err(_) => println!("skipped: Go compiles {library} for the first time"),
    }
    None
}

#[tokio::test]
async fn redsync_and_we_exclude_each_other() {
    let scratch = Scratch::new();
    if let Some(program) = built("redsync", &scratch).await {
        exclude_each_other("a", || Command::new(&program)).await;
    }
}

#[tokio::test]
async fn rueidislock_and_we_exclude_each_other() {
    let scratch = Scratch::new();
    if let Some(program) = built("rueidislock", &scratch).await {
        exclude_each_other("rueidislock:0:a", || Command::new(&program)).await;
    }
}

/// What the libraries above send for a lock of a name is refused where that is a lock of another kind here, and the other way
/// round.
#[tokio::test]
async fn a_plain_lock_and_a_mutex_of_one_name_refuse_each_other() {
    const SET: [&str; 6] = ["SET", "a", "0f5c8d3e", "NX", "PX", "30000"];
    async fn kinds(locks: &Locks) -> Vec<Result<(), Error>> {
        vec![
            locks.mutex("a").lock().await.map(drop),
            locks.fair_mutex("a").lock().await.map(drop),
            locks.rw_lock("a").read().await.map(drop),
            locks.rw_lock("a").write().await.map(drop),
            locks.multi(["b", "a"]).lock().await.map(drop),
            locks.semaphore("a", 2).acquire().await.map(drop),
            locks.latch("a").try_set_count(2).await.map(drop),
        ]
    }
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = connect(server.url()).await;
    assert!(raw.cmd(&SET).await.is_ok());
    for (kind, refused) in within("an answer", kinds(&locks))
        .await
        .into_iter()
        .enumerate()
    {
        let error = refused.expect_err("it is a plain lock");
        assert_eq!(error.kind(), ErrorKind::WrongType, "{kind}: {error}");
    }
    assert_eq!(raw.cmd(&["GET", "a"]).await.str(), "0f5c8d3e");
    raw.cmd(&["DEL", "a"]).await;
    let guard = within("a mutex", locks.mutex("a").lock().into_future());
    let guard = guard.await.unwrap();
    assert!(raw.cmd(&SET).await.is_null(), "they wait for it");
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert!(raw.cmd(&SET).await.is_ok());
}
