//! The launcher: the process that becomes the command. It exists because some of what is to be set can be set only by the process
//! itself.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use rustix::process::{Signal, getpgrp, getppid, set_parent_process_death_signal};
use rustix::termios::tcgetpgrp;

use super::clock;
use crate::exit;

/// How long one that comes too late waits for its end.
const LATE: Duration = Duration::from_secs(1);
/// How long it waits for the terminal.
const TERMINAL: Duration = Duration::from_secs(2);

/// Becomes the command: `arguments` are the process id of the watchdog, the end of the time in which the command may begin or
/// `immortal`, `foreground` or not, the path of the program, its name, and its arguments.
pub(crate) fn become_command(arguments: &[OsString]) -> ExitCode {
    let [watchdog, latest, foreground, path, name, arguments @ ..] = arguments else {
        return ExitCode::from(exit::USAGE);
    };
    if latest != "immortal" {
        // Kept across the exec, unless that gives the command other rights.
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            let _ = writeln!(
                io::stderr(),
                "leasehold: the command could not be tied to its watchdog: {error}"
            );
            return ExitCode::from(exit::SYSTEM);
        }
        // If the watchdog died before, there is no such signal any more.
        let parent = getppid().map(|parent| parent.as_raw_nonzero().to_string());
        if parent.as_deref() != watchdog.to_str() {
            return ExitCode::from(exit::SYSTEM);
        }
    }
    if foreground == "foreground" {
        await_terminal();
    }
    // The watchdog has blocked all signals, and that is inherited.
    if let Err(error) = SigSet::empty().thread_set_mask() {
        let _ = writeln!(
            io::stderr(),
            "leasehold: the command could not get its signals: {error}"
        );
        return ExitCode::from(exit::SYSTEM);
    }
    let latest = latest.to_str().and_then(|latest| latest.parse().ok());
    if latest.is_some_and(|latest: u64| clock::now() >= Duration::from_nanos(latest)) {
        return come_too_late();
    }
    let error = Command::new(path).arg0(name).args(arguments).exec();
    let _ = writeln!(io::stderr(), "leasehold: cannot run {name:?}: {error}");
    ExitCode::from(code(&error))
}

/// The machine was busy since the watchdog looked at the time.
fn come_too_late() -> ExitCode {
    // The watchdog ends this process, and says why.
    std::thread::sleep(LATE);
    let _ = writeln!(
        io::stderr(),
        "leasehold: the command did not begin in time, while its lock was sure"
    );
    ExitCode::from(exit::SYSTEM)
}

/// Waits until this process group has the terminal, which the supervisor sees to: what reads from it earlier is stopped.
fn await_terminal() {
    let until = Instant::now() + TERMINAL;
    while tcgetpgrp(io::stdin()).is_ok_and(|group| group != getpgrp()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The exit code of a command that cannot be executed, as shells have it.
pub(super) fn code(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    }
}
