//! The plain mutex beside the libraries that write the same: redis-py, and redsync. Their programs are in `tests/interop`; a
//! test whose library is not installed says so and passes.
//!
//! `pip install redis` for the Python of `PATH`, or another one in `LEASEHOLD_PYTHON`; `go mod download` in
//! `tests/interop/redsync`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use leasehold::Release;
use leasehold_testkit::Server;
use leasehold_testkit::scratch::Scratch;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::support::{locks, ms, tickets, until, within};

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

/// Each excludes the other and waits for it, in both directions.
async fn exclude_each_other(command: impl Fn() -> Command) {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let mutex = locks.plain_mutex("a");
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
        until("a ticket", async || tickets(&mut raw, "a").await == 1).await;
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
    exclude_each_other(|| {
        let mut command = Command::new(&python);
        command.arg(interop("redis_py.py"));
        command
    })
    .await;
}

#[tokio::test]
async fn redsync_and_we_exclude_each_other() {
    let scratch = Scratch::new();
    let program = scratch.path().join("redsync");
    let mut build = Command::new("go");
    // What is not downloaded yet stays so.
    build
        .current_dir(interop("redsync"))
        .env("GOPROXY", "off")
        .args(["build", "-o"])
        .arg(&program)
        .arg(".");
    if !works(build).await {
        println!("skipped: Go, or redsync in its module cache, is not installed");
        return;
    }
    exclude_each_other(|| Command::new(&program)).await;
}
