//! The terminal, handed to the command and taken back.

use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Named, pthread_sigmask};
use rustix::process::{Pid, getpgrp, getppid, getsid};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

/// Whether the command is to have the terminal: standard input and output are one, and it is this process group's. In a pipeline
/// it stays with the others.
pub(super) fn is_ours_to_give() -> bool {
    isatty(io::stdin()) && isatty(io::stdout()) && is_ours()
}

/// Whether this process group has the terminal that controls it.
pub(super) fn is_ours() -> bool {
    terminal().is_some_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

/// Gives the terminal to `group`; from another group, too, which has it.
pub(super) fn give_to(group: Pid) {
    let Some(terminal) = terminal() else {
        return;
    };
    // SIGTTOU stops a process that changes a terminal which is another group's.
    let mut blocked = SigSet::empty();
    blocked.add(Named::SIGTTOU);
    let mut former = SigSet::empty();
    if pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&blocked), Some(&mut former)).is_ok() {
        // It may have been closed meanwhile.
        let _ = tcsetpgrp(terminal, group);
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&former), None);
    }
}

/// The terminal that controls this process, whatever its standard streams are.
fn terminal() -> Option<File> {
    File::open("/dev/tty").ok()
}

/// Takes the terminal back.
pub(super) fn take_back() {
    give_to(getpgrp());
}

/// Whether there is a shell that would continue this process if it stopped.
pub(super) fn has_job_control() -> bool {
    getppid().is_some_and(|parent| match (getsid(Some(parent)), getsid(None)) {
        (Ok(of_parent), Ok(own)) => of_parent == own,
        _ => false,
    })
}
