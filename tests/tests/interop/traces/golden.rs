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
    /// Of each master.
    #[serde(default)]
    pub(super) replicas: usize,
    /// Clients in a process of their own.
    #[serde(default)]
    pub(super) apart: Vec<String>,
    /// Whether what clients send at their start was recorded too, and scripts that a server does not know.
    #[serde(default)]
    pub(super) from_the_start: bool,
    /// Whether each renewal that was recorded has to come, as it was recorded.
    #[serde(default)]
    pub(super) renewals: bool,
    pub(super) steps: Vec<Step>,
}

/// A call, or something else that happens, and what comes of it.
#[derive(Deserialize)]
pub(super) struct Step {
    #[serde(default)]
    pub(super) by: String,
    #[serde(default)]
    pub(super) call: String,
    /// The result of the call, or the reply to what is sent again.
    pub(super) gives: Option<String>,
    /// The answers to the call come so many milliseconds late.
    pub(super) late: Option<u64>,
    #[serde(flatten)]
    pub(super) event: Option<Event>,
    /// At least so many commands are sent in this step: those that are sent in a loop are not counted one by one.
    #[serde(default)]
    pub(super) at_least: usize,
    /// Calls that go on at the end of the step.
    #[serde(default)]
    pub(super) blocks: Vec<String>,
    /// What keys hold at the end of the step.
    #[serde(default)]
    pub(super) state: BTreeMap<String, String>,
    /// Earlier calls that return now, with their results.
    #[serde(default)]
    pub(super) ends: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) commands: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// So many milliseconds.
    Pass(u64),
    /// A command that is none of Redisson's.
    ByHand(Vec<String>),
    /// The last call of the script of this name, sent once more.
    Again(String),
    /// The process of this client is killed.
    Kill(String),
    /// The process of this client is frozen, so that another client is first.
    Pause(String),
    Resume(String),
    /// The server of this number.
    Freeze(usize),
    /// The slot of this key goes to another master.
    Move(String),
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

    /// Whether answers come late.
    pub(super) fn is_delayed(&self) -> bool {
        self.steps.iter().any(|step| step.late.is_some())
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
pub(super) fn differences(scene: &Scene, seen: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut left: Vec<&str> = seen.iter().map(String::as_str).collect();
    let mut missing_ticks = BTreeSet::new();
    // Those that say the most first, so that one with a # does not take what another one names.
    let mut expected: Vec<_> = scene.steps.iter().flat_map(|step| &step.commands).collect();
    expected.sort_by_key(|line| line.matches('#').count());
    for line in expected {
        if let Some(tick) = tick(line) {
            let is_same = |seen: &String| match tick {
                "lock.renew" | "read.renew" if scene.renewals => fits(line, seen),
                _ => self::tick(seen) == Some(tick),
            };
            if !seen.iter().any(is_same) {
                missing_ticks.insert(if scene.renewals { line } else { tick });
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

/// The script or command, if time decides how often it is sent: a watchdog's, that of a spin lock which finds the lock held, that
/// of a fair lock which is free for another, the end of a subscription, which the next waiter may go on with, and what a
/// client asks of servers by itself.
fn tick(line: &str) -> Option<&str> {
    let first = line.split(' ').next()?;
    let spins = first == "spin.acquire" && line.contains(" pttl ");
    let loops = first == "fair.acquire"
        && line.contains(" ; exists redisson_lock_queue:{F} ; lindex")
        && line.ends_with(" ; pttl F");
    let asks = ["PING", "CLUSTER", "INFO"].contains(&first);
    let ends = first.ends_with(".renew") || first.ends_with("UNSUBSCRIBE");
    (spins || loops || asks || ends).then_some(first)
}
