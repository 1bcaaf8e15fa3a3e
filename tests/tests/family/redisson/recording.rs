//! The recorded scenarios, and the spelling of what varies in them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Scenarios of live Redisson clients, by their names: each with its calls, the commands that the server ran for them, the
/// messages and the keys afterwards.
const RECORDED: &str = include_str!("../../../data/redisson-traces.json");

/// A permit without a lease, as Redisson writes it.
pub(super) const FOR_EVER: i64 = 922_337_203_685_477;

#[derive(Deserialize)]
pub(super) struct Scenario {
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Step {
    /// The client and its thread, `C1/T1`; `-` for the passage of time, and for what was done by hand.
    pub(super) by: String,
    pub(super) call: String,
    #[serde(default)]
    pub(super) result: Value,
    #[serde(default)]
    pub(super) commands: Vec<Command>,
    /// Calls of earlier steps that ended in this one.
    #[serde(default)]
    pub(super) returned_now: BTreeMap<String, Value>,
    #[serde(default)]
    pub(super) messages: Vec<String>,
    /// The keys, each with its type, value and expiry; `None` if they were not read.
    #[serde(default)]
    pub(super) state: Option<BTreeMap<String, (String, Value, Value)>>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Command {
    pub(super) from: String,
    #[serde(default)]
    pub(super) server: String,
    pub(super) script: Option<String>,
    pub(super) cmd: Option<String>,
    #[serde(default)]
    pub(super) keys: Vec<String>,
    #[serde(default)]
    pub(super) argv: Vec<String>,
    #[serde(default)]
    pub(super) reply: Value,
}

pub(super) fn scenarios() -> BTreeMap<String, Scenario> {
    let mut scenarios: BTreeMap<String, Scenario> =
        serde_json::from_str(RECORDED).expect("what was recorded");
    for step in scenarios.values_mut().flat_map(|one| &mut one.steps) {
        // The first use of a script, before its text is loaded.
        step.commands.retain(|command| {
            let reply = command.reply.as_str().unwrap_or_default();
            !(reply.starts_with("-NOSCRIPT") || command.script.is_some() && command.cmd.is_some())
        });
        for command in &mut step.commands {
            // What a replica was asked, its master answers as well.
            command.server = command.server.replace('S', "M");
        }
    }
    scenarios
}

impl Scenario {
    /// The clients in it.
    pub(super) fn clients(&self) -> Vec<String> {
        let calls = self.steps.iter().filter_map(|step| step.client());
        let clients: std::collections::BTreeSet<_> = calls.map(String::from).collect();
        clients.into_iter().collect()
    }

    /// Whether somebody listens or publishes in shards.
    pub(super) fn uses_shards(&self) -> bool {
        let mut commands = self.steps.iter().flat_map(|step| &step.commands);
        commands.any(|command| {
            let text = command.cmd.as_deref().unwrap_or_default();
            text.starts_with("SSUBSCRIBE") || command.argv.iter().any(|arg| arg == "SPUBLISH")
        })
    }

    /// The servers in it; one without a name if there is only one.
    pub(super) fn servers(&self) -> Vec<String> {
        let commands = self.steps.iter().flat_map(|step| &step.commands);
        let servers: std::collections::BTreeSet<_> =
            commands.map(|command| command.server.clone()).collect();
        servers.into_iter().collect()
    }
}

impl Step {
    pub(super) fn client(&self) -> Option<&str> {
        self.by.split_once('/').map(|(client, _)| client)
    }
}

impl Command {
    /// Whether it takes what it asks for, as it was recorded.
    pub(super) fn takes(&self) -> bool {
        let Some(script) = &self.script else {
            return false;
        };
        let taken = match &self.reply {
            Value::Null => true,
            Value::String(text) => text == "OK",
            Value::Array(pair) => pair[0] == -1,
            number => script == "sem.try_acquire" && *number == 1,
        };
        taken && (script.contains("acquire"))
    }
}

/// A client of Redisson's has a UUID for a name: `C1:T7` is its thread 7.
pub(super) fn spell(text: &str) -> String {
    let mut spelled = text.to_owned();
    for n in 1..=5 {
        spelled = spelled.replace(&format!("C{n}:T"), &format!("{}:", uuid(n)));
    }
    spelled
}

/// The recorded spelling of a text from the server.
pub(super) fn unspell(text: &str) -> String {
    let mut unspelled = text.to_owned();
    for n in 1..=5 {
        unspelled = unspelled.replace(&format!("{}:", uuid(n)), &format!("C{n}:T"));
    }
    unspelled
}

fn uuid(n: u32) -> String {
    format!("00000000-0000-4000-8000-00000000000{n}")
}

/// A number that was recorded as it is, rounded (`~29900`) or from the time of its command on (`now+5000`).
pub(super) fn number(text: &str, now: i64) -> Option<i64> {
    if let Some(rest) = text.strip_prefix("now") {
        let rest = rest.strip_prefix('+').unwrap_or(rest);
        return Some(
            now + if rest.is_empty() {
                0
            } else {
                rest.parse().ok()?
            },
        );
    }
    text.strip_prefix('~').unwrap_or(text).parse().ok()
}

/// The bytes of an argument.
pub(super) fn argument(text: &str, now: i64) -> Vec<u8> {
    if let Some(permit) = text.strip_prefix("<16 bytes ") {
        return permit_id(permit.trim_end_matches('>'));
    }
    if text.starts_with("now") || text.starts_with('~') {
        let number = number(text, now).expect("a number");
        return number.to_string().into_bytes();
    }
    spell(text).into_bytes()
}

/// The id of the permit `P1` of Redisson's.
pub(super) fn permit_id(name: &str) -> Vec<u8> {
    let mut id = name.as_bytes().to_vec();
    id.resize(16, b'.');
    id
}
