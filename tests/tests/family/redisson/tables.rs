//! Which parts this library plays in the recorded scenarios, and where it differs by design.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::recording::Scenario;

/// In place of a client, where all of them are Redisson's.
pub(super) const NOBODY: &str = "nobody";

/// A scenario, the client whose part is ours, and steps of it.
pub(super) type Steps<'a> = (&'a str, &'a str, RangeInclusive<usize>);

/// Scenarios without a part for this library, and why.
const NOT_PLAYED: [(&str, &str); 9] = [
    (
        "lock_replay",
        "a script of Redisson's is sent again by hand",
    ),
    (
        "resend_single",
        "Redisson repeats what a slow server has done",
    ),
    (
        "resend_replicated",
        "Redisson repeats what a slow server has done",
    ),
    (
        "resend_unlock",
        "Redisson repeats what a slow server has done",
    ),
    (
        "resend_cluster",
        "Redisson repeats what a slow server has done",
    ),
    ("resend_cluster_no_replica", "as the one before"),
    (
        "wait_fails",
        "a replica is frozen, which no other client sees",
    ),
    ("cluster_migrate", "Redisson is deaf after a slot has moved"),
    ("multi_order", "one client locks at three servers: see red"),
];

/// Parts that are not ours in scenarios that are played. One locks at three servers (see red); of the other each nested lock
/// changes the lease.
const NOT_OURS: [(&str, &str); 2] = [("multi", "C1"), ("lock_nested_lease", "C1")];

/// Steps in which the client's own commands are played in our place, since ours refuses what they do: names with braces that
/// are no hash tag, waiting for a lock that has no expiry, writing beside an own read, and permits of a semaphore that was
/// never set, which for ours has the number of its handle.
pub(super) const THEIRS: &[Steps<'_>] = &[
    ("lock_basic", "C1", 24..=25),
    ("cluster_lock", "C1", 7..=13),
    ("cluster_fair_rw", "C1", 27..=27),
    ("fenced", "C2", 20..=20),
    ("lock_expiry_wait", "C2", 5..=11),
    ("rw_downgrade", "C1", 8..=8),
    ("sem", "C1", 20..=20),
];

/// Steps after which the keys differ. A waiter in a fair queue without a time gets one, so that it ends. A lock object of
/// Redisson's keeps the lease of an earlier call. Beside Redisson a read has its watchdog's lease at most. A guard takes along
/// what a lock left that was removed by force. Ours hear those who do not publish in shards.
pub(super) const OTHER_KEYS: &[Steps<'_>] = &[
    ("cluster_shard_off", "C2", 2..=3),
    ("fair_lost_zset", "C1", 5..=5),
    ("rw", "C1", 10..=14),
    ("rw_expiry", "C2", 9..=13),
    ("rw_downgrade", "C2", 12..=17),
];

/// Steps in which others hear more than was recorded: a downgrade wakes readers, a release wakes those who wait without spinning,
/// and those who do not listen in shards.
pub(super) const MORE_MESSAGES: &[Steps<'_>] = &[
    ("cluster_fair_rw", "C1", 11..=11),
    ("rw_downgrade", "C1", 4..=4),
    ("spin", "C2", 7..=7),
    ("cluster_shard_off", "C2", 8..=8),
];

/// The steps that are not played to the end, since what was recorded is what ours avoids: waiters that are lost, wait for ever, or
/// stay in the queue when they were interrupted; polls in a loop; leases of earlier calls, or of nested ones that add up; a large
/// request that is passed by small ones; one of five that wakes when five permits come free; questions about permits by their ids; a lease that ends in a
/// pause, which is not made here.
pub(super) const AVOIDED: &[Steps<'_>] = &[
    ("fair_lost_zset", "C1", 6..=7),
    ("fair_lost_zset", "C3", 6..=7),
    ("fair_killed", NOBODY, 6..=7),
    ("lock_nested_lease", NOBODY, 10..=17),
    ("fair_killed", "C1", 6..=7),
    ("fair_killed", "C2", 6..=7),
    ("fair_timeout", "C3", 6..=15),
    ("lock_expiry_wait", "C1", 12..=20),
    ("rw", "C3", 18..=25),
    ("rw_expiry", "C1", 19..=22),
    ("spin", "C1", 7..=9),
    ("sem", "C2", 5..=23),
    ("sem_async", "C2", 6..=15),
    ("pes", "C1", 12..=40),
];

/// The lease of those that are renewed: Redisson's watchdog.
pub(super) fn lease(scenario: &str, client: &str) -> Duration {
    let is_short = ["watchdog", "watchdog_threads", "cluster_watchdog"].contains(&scenario)
        || (scenario, client) == ("rw_expiry", "C3");
    Duration::from_secs(if is_short { 3 } else { 30 })
}

pub(super) fn is_played(scenario: &str) -> bool {
    !NOT_PLAYED.iter().any(|(other, _)| *other == scenario)
}

/// The parts that this library plays, of all scenarios.
pub(super) fn parts(scenarios: &BTreeMap<String, Scenario>) -> Vec<(String, String)> {
    let mut parts = Vec::new();
    for (name, scenario) in scenarios {
        if !is_played(name) {
            continue;
        }
        for client in scenario.clients() {
            let is_other = |(of, who): &(&str, &str)| *of == name.as_str() && *who == client;
            if !NOT_OURS.iter().any(is_other) {
                parts.push((name.clone(), client));
            }
        }
    }
    parts
}
