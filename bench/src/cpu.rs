//! CPU placement and CPU time of processes.

use std::fs;
use std::io::Result;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The CPU seconds this process has used, by the nanosecond.
pub fn of_this_process() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The CPU seconds another process has used, by the tick (10 ms mostly).
pub fn of_process(pid: u32) -> f64 {
    stat_ticks(&format!("/proc/{pid}/stat"), 13..15)
}

/// The CPU seconds of the processes this one has waited for.
pub fn of_children() -> f64 {
    stat_ticks("/proc/self/stat", 15..17)
}

/// The CPU seconds that all processes have used since the machine started.
pub fn of_everybody() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .flat_map(str::parse)
        .collect();
    // user, nice, system, idle, iowait, irq, softirq
    [0, 1, 2, 5, 6]
        .iter()
        .filter_map(|&i| fields.get(i))
        .sum::<f64>()
        / ticks_per_second()
}

/// The first and the last CPU this process may use: the same one, on a machine with a single CPU.
pub fn first_and_last() -> Result<(usize, usize)> {
    let set = sched_getaffinity(None)?;
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    let first = allowed.next().unwrap_or(0);
    Ok((first, allowed.next_back().unwrap_or(first)))
}

/// Runs `spawn` with this thread on `cpu`: the process that it starts inherits that, its threads
/// too.
pub fn pinned<T>(cpu: usize, spawn: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one)?;
    let result = spawn();
    sched_setaffinity(None, &before)?;
    result
}

fn stat_ticks(path: &str, fields: std::ops::Range<usize>) -> f64 {
    let stat = fs::read_to_string(path).unwrap_or_default();
    // The name, in brackets, may contain spaces.
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks: f64 = rest
        .split_whitespace()
        .skip(fields.start - 2)
        .take(fields.len())
        .flat_map(str::parse::<f64>)
        .sum();
    ticks / ticks_per_second()
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}
