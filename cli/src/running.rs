//! Running a command under a lock.
//!
//! Three processes take part. The supervisor holds the lock and renews it. The watchdog, its child, starts the command and ends it
//! when the deadline of the lock comes near without a newer one, or the supervisor is gone. The launcher is the command's process
//! before it becomes the command.
//!
//! | ends or stops | seen by | then |
//! |---|---|---|
//! | the command | the watchdog | what is left of its group is ended, then the lock is released |
//! | the supervisor is killed | the watchdog: the socket ends | the command gets its first signal at once, and SIGKILL in time |
//! | the supervisor is stopped | the watchdog: no newer deadline | the same, before the deadline |
//! | the watchdog is killed | the kernel, the supervisor | the command gets SIGKILL as its parent died, what is left from the supervisor |
//! | the watchdog is stopped | the supervisor: no answers | is continued; ends the command itself at the deadline |
//! | the server | the supervisor: the deadline does not move | the watchdog ends the command before it |

mod clock;
mod descendants;
pub(crate) mod hold;
mod launch;
pub(crate) mod limits;
pub(crate) mod messages;
pub(crate) mod nested;
pub(crate) mod program;
pub(crate) mod servers;
pub(crate) mod signals;
pub(crate) mod supervisor;
mod terminal;
mod watch;
mod watchdog;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// The first argument of a watchdog.
const WATCH: &str = "__watch";
/// The first argument of a launcher.
const LAUNCH: &str = "__launch";

/// The role of this process, if it is one of the hidden ones.
pub(crate) fn hidden() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (role, arguments) = arguments.split_first()?;
    match role.to_str()? {
        WATCH => Some(watchdog::watch_over(arguments)),
        LAUNCH => Some(launch::become_command(arguments)),
        _ => None,
    }
}

/// This program, also if its file was replaced by another one meanwhile.
fn own_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}
