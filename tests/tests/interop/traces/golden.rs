//! The recording, and how it is compared.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;

use crate::jvm;

#[derive(Deserialize)]
pub(super) struct Golden {
    /// By name.
    pub(super) scripts: HashMap<String, String>,
    pub(super) scenarios: BTreeMap<String, Scene>,
}

#[derive(Deserialize)]
pub(super) struct Scene {
    /// Of clients, by their names.
    #[serde(default)]
    pub(super) options: HashMap<String, String>,
    /// Which server clients use; the first unless it is said.
    #[serde(default)]
    pub(super) servers: HashMap<String, usize>,
    #[serde(default)]
    pub(super) cluster: bool,
    pub(super) steps: Vec<Step>,
}

/// A call, a command by hand, or time that passes.
#[derive(Deserialize)]
pub(super) struct Step {
    #[serde(default)]
    pub(super) by: String,
    #[serde(default)]
    pub(super) call: String,
    /// The result of the call.
    pub(super) gives: Option<String>,
    pub(super) by_hand: Option<Vec<String>>,
    /// In milliseconds.
    pub(super) pass: Option<u64>,
    /// Earlier calls that return now, with their results.
    #[serde(default)]
    pub(super) ends: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) commands: Vec<String>,
}

impl Golden {
    pub(super) fn load() -> Self {
        let path = jvm::home().join("traces.json");
        let text = std::fs::read_to_string(path).expect("the recording is there");
        serde_json::from_str(&text).expect("the recording can be read")
    }
}

impl Scene {
    /// Clients with threads that act, and those of the parts of multi-locks.
    pub(super) fn clients(&self) -> BTreeSet<String> {
        let acting = self.steps.iter().filter_map(|step| step.by.split_once('/'));
        let acting = acting.map(|(client, _)| client.to_owned());
        acting.chain(self.servers.keys().cloned()).collect()
    }

    pub(super) fn actors(&self) -> BTreeSet<String> {
        let by = self.steps.iter().map(|step| step.by.clone());
        by.filter(|by| !by.is_empty()).collect()
    }
}

/// Whether it names a permit: `P12`.
pub(super) fn is_permit(word: &str) -> bool {
    let number = word.strip_prefix('P').unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether `seen` is what was recorded as `expected`, where # is anything without a space.
pub(super) fn fits(expected: &str, seen: &str) -> bool {
    let (expected, seen) = (expected.split(' '), seen.split(' '));
    let same = |(expected, seen): (&str, &str)| match expected.split_once('#') {
        Some((before, behind)) => {
            seen.len() >= before.len() + behind.len()
                && seen.starts_with(before)
                && seen.ends_with(behind)
        }
        None => expected.eq_ignore_ascii_case(seen),
    };
    expected.clone().count() == seen.clone().count() && expected.zip(seen).all(same)
}

/// Number of those that are sent as often as they were recorded.
pub(super) fn timeless(commands: &[String]) -> usize {
    commands.iter().filter(|line| tick(line).is_none()).count()
}

/// What was recorded and not seen, and what was seen and not recorded.
pub(super) fn differences<'a>(
    expected: impl Iterator<Item = &'a String>,
    seen: &[String],
) -> Vec<String> {
    let mut found = Vec::new();
    let mut left: Vec<&str> = seen.iter().map(String::as_str).collect();
    let mut missing_ticks = BTreeSet::new();
    // Those that say the most first, so that one with a # does not take what another one names.
    let mut expected: Vec<_> = expected.collect();
    expected.sort_by_key(|line| line.matches('#').count());
    for line in expected {
        if let Some(tick) = tick(line) {
            if !seen.iter().any(|seen| self::tick(seen) == Some(tick)) {
                missing_ticks.insert(tick);
            }
        } else if let Some(at) = left.iter().position(|seen| fits(line, seen)) {
            left.remove(at);
        } else {
            found.push(format!("not seen: {line}"));
        }
    }
    found.extend(missing_ticks.iter().map(|tick| format!("not seen: {tick}")));
    let unknown = left.iter().filter(|seen| tick(seen).is_none());
    found.extend(unknown.map(|seen| format!("not recorded: {seen}")));
    found
}

/// The script or command, if time decides how often it is sent: a watchdog's, that of a spin lock which finds the lock held, and
/// the end of a subscription, which the next waiter may go on with.
fn tick(line: &str) -> Option<&str> {
    let first = line.split(' ').next()?;
    let spins = first == "spin.acquire" && line.contains(" pttl ");
    (spins || first.ends_with(".renew") || first.ends_with("UNSUBSCRIBE")).then_some(first)
}
