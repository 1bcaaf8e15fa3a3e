//! A child process that cannot outlive the test, however the test ends.
//!
//! `Drop` does not run when a test process is killed (a timeout of the runner, an abort, an
//! out-of-memory kill). So a small shell stands between: it holds a pipe whose other end only the
//! test process has, and the kernel closes that end whatever happens. At end of file the shell
//! kills the child and removes its directory.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// `$1` the child's directory, `$2` its log, then its command line.
///
/// The reader stops the child before it removes the directory, so that nothing is written there in
/// between. The child is reaped only by the outer shell, which ends the reader at once: its id
/// cannot belong to anyone else.
///
/// SIGHUP is ignored: when the test process is killed, its end leaves this group orphaned, and a
/// group that is orphaned with a stopped member gets SIGHUP from the kernel. The reader has just
/// stopped the child and would die before it could kill it.
const WATCH: &str = r#"
trap '' HUP
dir=$1; log=$2; shift 2
exec 3<&0
"$@" >>"$log" 2>&1 3<&- &
child=$!
( read -r word <&3 || { kill -STOP $child; rm -rf "$dir"; }; kill -KILL $child ) >/dev/null 2>&1 &
reader=$!
echo $child
exec >/dev/null
wait $child
kill -KILL $reader
"#;

/// A running child under its watching shell.
#[derive(Debug)]
pub struct Watched {
    shell: Child,
    /// The pipe that keeps the child alive. A line means "kill it, I take care of the directory".
    lifeline: Option<ChildStdin>,
    pid: u32,
}

impl Watched {
    /// Starts `program` in `dir`, with its output appended to `log`.
    ///
    /// If this process dies without dropping the value, the child is killed and `dir` is removed.
    ///
    /// # Panics
    ///
    /// When there is no `sh`.
    #[must_use]
    pub fn spawn(program: &Path, args: &[String], dir: &Path, log: &Path) -> Self {
        let mut shell = Command::new("sh")
            .args(["-c", WATCH, "watch"])
            .args([dir, log, program])
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A Ctrl-C in the terminal goes to the whole group; it must not kill the watcher before
            // its child.
            .process_group(0)
            .spawn()
            .expect("cannot start sh");
        let lifeline = shell.stdin.take();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("stdout is piped"))
            .read_line(&mut line)
            .expect("sh is readable");
        let pid = line
            .trim()
            .parse()
            .expect("the shell prints the child's process id");
        Self {
            shell,
            lifeline,
            pid,
        }
    }

    /// The child's process id (not the shell's).
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether the child still runs (or is stopped by a signal).
    pub fn is_running(&mut self) -> bool {
        matches!(self.shell.try_wait(), Ok(None))
    }

    /// SIGKILL, and waits until the child is really gone.
    pub fn kill(&mut self) {
        if let Some(mut lifeline) = self.lifeline.take() {
            // Fails when the child ended before and took the shell with it.
            let _ = lifeline.write_all(b"kill\n");
        }
        let _ = self.shell.wait();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends the signal with this name (`STOP`, `CONT`, `TERM`, …) to a process.
///
/// # Panics
///
/// When the process does not exist.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("sh")
        .args(["-c", &format!("kill -{name} {pid}")])
        .status()
        .expect("cannot start sh");
    assert!(status.success(), "cannot send SIG{name} to process {pid}");
}

/// Stops a process with SIGSTOP and waits until it no longer runs: a stop takes effect only when
/// each of the process's threads is next scheduled. Where there is no `/proc` the signal has to do.
///
/// # Panics
///
/// When the process does not exist.
pub fn freeze(pid: u32) {
    signal(pid, "STOP");
    let give_up = Instant::now() + Duration::from_secs(10);
    while Path::new("/proc/self/stat").exists() && !is_stopped(pid) && Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a process is stopped by a signal, or dead. Always `false` without `/proc`.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    // "pid (name) state …", and the name may contain anything.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    matches!(state, Some('T' | 'Z'))
}

/// Lets a stopped process run on.
///
/// # Panics
///
/// When the process does not exist.
pub fn thaw(pid: u32) {
    signal(pid, "CONT");
}
