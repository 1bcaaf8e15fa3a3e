//! The machine and the versions behind the figures.

use std::fs;
use std::process::Command;

use crate::harness::{Effort, Harness};

/// Machine, versions and the command that repeats the run.
pub fn describe(harness: &Harness) -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1))
        .unwrap_or("a CPU");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("?");
    let rustc = Command::new("rustc")
        .arg("--version")
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    let rustc = String::from_utf8_lossy(&rustc);
    let command = match harness.effort {
        Effort::Quick => "make bench ARGS='--quick --write'",
        Effort::Normal => "make bench ARGS=--write",
        Effort::Full => "make bench ARGS='--full --write'",
    };
    let placement = if harness.has_two_cpus() {
        ""
    } else {
        "- One CPU only: what is said to be on two is on one, and throughput is not comparable.\n"
    };
    format!(
        "- Machine: {model}, {cpus} CPUs, Linux {}, load {load} at the start\n\
         - Server: {}\n\
         - Clients: {}; {}; plain release profile\n\
         {placement}\
         - Again: `{command}`\n",
        kernel.trim(),
        harness.server.version,
        versions(&[
            "tokio",
            "redis",
            "fred",
            "rustis",
            "rslock",
            "redis-protocol"
        ]),
        rustc.trim(),
    )
}

/// The versions of some crates, from this workspace's lock file.
fn versions(crates: &[&str]) -> String {
    let lock = include_str!("../Cargo.lock");
    let version = |name: &&str| {
        let entry = lock
            .split("[[package]]")
            .find(|entry| entry.contains(&format!("\nname = \"{name}\"\n")))?;
        let version = entry
            .lines()
            .find_map(|line| line.strip_prefix("version = "))?;
        Some(format!("{name} {}", version.trim_matches('"')))
    };
    crates
        .iter()
        .filter_map(version)
        .collect::<Vec<_>>()
        .join(", ")
}
