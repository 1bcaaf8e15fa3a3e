//! The processes below a process, from `/proc`, and how they are ended.
//!
//! A process that was orphaned is adopted by the nearest ancestor that asked for it, which both the supervisor and its watchdog
//! do. So what a command started stays below them, also in a session of its own.
//!
//! They are found from parent to child, which takes as long as there are descendants: a look at all processes of a busy machine
//! takes longer than there is from SIGKILL to the deadline. A kernel that does not list children leaves only that.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, pidfd_send_signal,
    waitpid,
};

/// How long children are ended at a time.
const BURST: Duration = Duration::from_millis(5);

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
///
/// # Errors
///
/// Those of `/proc`: then nothing is known of them.
pub(super) fn below(root: Pid) -> io::Result<Vec<Process>> {
    if children(getpid())?.is_none() {
        return scanned(root);
    }
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        for pid in children(parent)?.unwrap_or_default() {
            if seen.insert(pid) {
                found.extend(read(pid)?);
                open.push(pid);
            }
        }
    }
    Ok(found)
}

/// Sends `signal` to `process`, unless it has ended. Another one that has its number by now gets nothing.
pub(super) fn signal(process: &Process, signal: Signal) {
    let fd = match pidfd_open(process.pid, PidfdFlags::empty()) {
        Ok(fd) => Some(fd),
        Err(Errno::SRCH) => return,
        // Without a descriptor there is an instant for another one to get its number.
        Err(_) => None,
    };
    // It is the same one still, so it was when the descriptor was made.
    let now = read(process.pid).ok().flatten();
    if now.is_none_or(|now| now.started == process.started) {
        let _ = match fd {
            Some(fd) => pidfd_send_signal(fd, signal),
            None => kill_process(process.pid, signal),
        };
    }
}

/// Kills and reaps the children of this process but for those in `spared`, until there are none or some milliseconds have passed.
/// Returns whether there are none; `None` if that is not known.
///
/// The children of what dies are adopted here, so it goes down the tree. It hits what always starts another one and ends at once,
/// for which everything slower comes too late.
pub(super) fn end_children(spared: &[Pid]) -> Option<bool> {
    let begin = Instant::now();
    loop {
        let mut left = children(getpid()).ok()??;
        left.retain(|child| !spared.contains(child));
        for &child in &left {
            // It is reaped here only, so it has its number still.
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
        if left.is_empty() || begin.elapsed() >= BURST {
            return Some(left.is_empty());
        }
    }
}

/// Reaps the children of this process that have ended, but for `spared`: orphans that it adopted.
pub(super) fn reap_children(spared: Pid) {
    let children = below(getpid()).unwrap_or_default();
    for child in children
        .iter()
        .filter(|child| child.is_over && child.pid != spared)
    {
        // Of those that are not its children it is told nothing.
        let _ = waitpid(Some(child.pid), WaitOptions::NOHANG);
    }
}

/// The children of a process, of all its threads; `None` if the kernel does not list them.
fn children(parent: Pid) -> io::Result<Option<Vec<Pid>>> {
    let tasks = format!("/proc/{}/task", parent.as_raw_nonzero());
    let Some(tasks) = unless_over(fs::read_dir(tasks))? else {
        return Ok(Some(Vec::new()));
    };
    let mut all = Vec::new();
    let mut lists = 0;
    for task in tasks {
        let Some(task) = unless_over(task)? else {
            continue;
        };
        if let Some(text) = unless_over(fs::read_to_string(task.path().join("children")))? {
            lists += 1;
            let pids = text.split_ascii_whitespace();
            all.extend(pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
        }
    }
    Ok((lists > 0 || parent != getpid()).then_some(all))
}

/// The result, or `None` if what it is about has ended or is hidden.
fn unless_over<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(read) => Ok(Some(read)),
        Err(error) => match Errno::from_io_error(&error) {
            // It may be there.
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Err(error),
            _ => Ok(None),
        },
    }
}

/// All processes below `root`, by a look at all there are.
fn scanned(root: Pid) -> io::Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            all.extend(read(pid)?);
        }
    }
    let parents: HashMap<i32, i32> = all
        .iter()
        .map(|process| (process.pid.as_raw_nonzero().get(), process.parent))
        .collect();
    let root = root.as_raw_nonzero().get();
    all.retain(|process| is_below(root, process, &parents));
    Ok(all)
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

/// A process; `None` if it has ended or is hidden.
fn read(pid: Pid) -> io::Result<Option<Process>> {
    let stat = unless_over(fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())))?;
    Ok(stat.and_then(|stat| parse(pid, &String::from_utf8_lossy(&stat))))
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
    fn both_ways_find_what_is_below() {
        let own = getpid();
        let parent = rustix::process::getppid().expect("a test runner");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        for below in [below, scanned] {
            let found = below(parent).unwrap();
            for pid in [own, pid] {
                let found = found.iter().find(|process| process.pid == pid);
                assert!(found.is_some_and(|process| !process.is_over), "{pid:?}");
            }
            assert!(below(own).unwrap().iter().all(|process| process.pid != own));
            assert_eq!(below(pid).unwrap(), []);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(below(pid).unwrap(), []);
    }
}
