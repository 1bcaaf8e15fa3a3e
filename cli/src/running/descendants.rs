//! The processes below a process, from `/proc`, and how they are ended.
//!
//! A process that was orphaned is adopted by the nearest ancestor that asked for it, which both the supervisor and its watchdog
//! do. So what a command started stays below them, also in a session of its own.

use std::collections::{HashMap, HashSet};
use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// A process at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    pub(super) group: i32,
    /// Whether it has ended and only its parent has not asked for it yet.
    pub(super) is_over: bool,
    /// When it was started: tells it from another one with the same number.
    started: u64,
}

/// All processes below `root`, itself not among them.
pub(super) fn below(root: Pid) -> Vec<Process> {
    let all: Vec<Process> = all();
    let parents: HashMap<i32, i32> = all
        .iter()
        .map(|process| (process.pid.as_raw_nonzero().get(), process.parent))
        .collect();
    let root = root.as_raw_nonzero().get();
    all.into_iter()
        .filter(|process| is_below(root, process, &parents))
        .collect()
}

/// Sends `signal` to `process`, unless it has ended. Another one that has its number by now gets nothing.
pub(super) fn signal(process: &Process, signal: Signal) {
    match pidfd_open(process.pid, PidfdFlags::empty()) {
        Ok(fd) => {
            // It is the same one still, so it was when the descriptor was made.
            if read(process.pid).is_some_and(|now| now.started == process.started) {
                let _ = pidfd_send_signal(fd, signal);
            }
        }
        Err(rustix::io::Errno::NOSYS) => {
            let _ = kill_process(process.pid, signal);
        }
        Err(_) => {}
    }
}

fn is_below(root: i32, process: &Process, parents: &HashMap<i32, i32>) -> bool {
    let mut seen = HashSet::new();
    let mut parent = process.parent;
    // The numbers are not from one instant, so there might be a circle.
    while parent > 1 && seen.insert(parent) {
        if parent == root {
            return true;
        }
        parent = parents.get(&parent).copied().unwrap_or_default();
    }
    parent == root
}

fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| read(Pid::from_raw(pid)?))
        .collect()
}

fn read(pid: Pid) -> Option<Process> {
    let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = fs::read(path).ok()?;
    parse(pid, &String::from_utf8_lossy(&stat))
}

/// Reads `pid (name) state parent group … start …`. The name may have any bytes in it, parentheses too.
fn parse(pid: Pid, stat: &str) -> Option<Process> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // The state is the third field, and the start the twenty-second.
    let started = fields.nth(16)?.parse().ok()?;
    Some(Process {
        pid,
        parent,
        group,
        is_over: matches!(state, "Z" | "X"),
        started,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_look_like_anything() {
        let pid = Pid::from_raw(42).unwrap();
        let stat = "42 (a) Z (b 1) R 7 40 39 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";
        let read = parse(pid, stat).unwrap();
        assert_eq!((read.parent, read.group, read.is_over), (7, 40, false));
        assert_eq!(read.started, 98_765);
        assert_eq!(parse(pid, "42 (a"), None);
        assert_eq!(parse(pid, "42 (a) R x"), None);
    }

    #[test]
    fn this_process_is_below_its_parent() {
        let own = rustix::process::getpid();
        let parent = rustix::process::getppid().expect("a test runner");
        let found = below(parent).into_iter().find(|process| process.pid == own);
        assert!(found.is_some_and(|process| !process.is_over));
        assert!(below(own).iter().all(|process| process.pid != own));
    }
}
