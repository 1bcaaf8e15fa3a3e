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

use crate::exit;

/// How long it waits for the terminal.
const TERMINAL: Duration = Duration::from_secs(2);

/// Becomes the command: `arguments` are the process id of the watchdog, `mortal` or not, `foreground` or not, the path of the
/// program, its name, and its arguments.
pub(crate) fn become_command(arguments: &[OsString]) -> ExitCode {
    let [watchdog, mortal, foreground, path, name, arguments @ ..] = arguments else {
        return ExitCode::from(exit::USAGE);
    };
    if mortal == "mortal" {
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
    let error = Command::new(path).arg0(name).args(arguments).exec();
    let _ = writeln!(io::stderr(), "leasehold: cannot run {name:?}: {error}");
    ExitCode::from(code(&error))
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
