//! The terminal, handed to the command and taken back.

use std::io;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Named, pthread_sigmask};
use rustix::process::{Pid, getpgrp, getppid, getsid};
use rustix::termios::{isatty, tcgetpgrp, tcsetpgrp};

/// Whether the command is to have the terminal: standard input and output are one, and it is this process group's. In a pipeline
/// it stays with the others.
pub(super) fn is_ours_to_give() -> bool {
    isatty(io::stdout()) && is_ours()
}

/// Whether standard input is a terminal that this process group has.
pub(super) fn is_ours() -> bool {
    isatty(io::stdin()) && tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
}

/// Gives the terminal to `group`; from another group, too, which has it.
pub(super) fn give_to(group: Pid) {
    // SIGTTOU stops a process that changes a terminal which is another group's.
    let mut blocked = SigSet::empty();
    blocked.add(Named::SIGTTOU);
    let mut former = SigSet::empty();
    if pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&blocked), Some(&mut former)).is_ok() {
        // It may have been closed meanwhile.
        let _ = tcsetpgrp(io::stdin(), group);
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&former), None);
    }
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
