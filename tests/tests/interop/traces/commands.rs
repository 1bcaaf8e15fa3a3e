//! What clients of a server send, in the form of the recording.

use std::collections::HashMap;

use super::ground::Node;
use crate::monitor::{Line, Monitor};

/// Commands that clients send at any time, and those of the start.
const LEFT_OUT: [&str; 9] = [
    "PING", "INFO", "CLUSTER", "CLIENT", "HELLO", "SELECT", "SCRIPT", "PUBSUB", "READONLY",
];

/// Those of who starts the servers and moves slots.
const NOT_OF_CLIENTS: [&str; 5] = ["KEYS", "MIGRATE", "ASKING", "RESTORE-ASKING", "WAITAOF"];

/// The names that clients and their threads have in the recording.
#[derive(Default)]
pub(super) struct Names {
    clients: Vec<(String, String)>,
    /// By their whole ids.
    threads: Vec<(String, String)>,
}

/// The commands that a server is sent.
pub(super) struct Commands {
    monitor: Monitor,
    is_replica: bool,
}

impl Names {
    pub(super) fn client(&mut self, id: &str, name: &str) {
        self.clients.push((id.into(), name.into()));
    }

    /// `id` is `client:thread`. The number of a thread is one for all clients of a process.
    pub(super) fn thread(&mut self, id: &str, name: &str) {
        self.threads.push((id.into(), name.into()));
    }

    /// The word as the recording has it.
    pub(super) fn applied(&self, word: &str) -> String {
        let mut word = word.to_owned();
        for (id, client) in &self.clients {
            while let Some(at) = word.find(&format!("{id}:")) {
                let behind = &word[at + id.len() + 1..];
                let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
                let (number, rest) = behind.split_at(digits);
                let is_it = |(thread, _): &&(String, String)| *thread == format!("{id}:{number}");
                let of_another =
                    |(thread, _): &&(String, String)| thread.split(':').nth(1) == Some(number);
                let known = self.threads.iter().find(is_it);
                let known = known.or_else(|| self.threads.iter().find(of_another));
                let thread = known.map_or(number, |(_, name)| name);
                word = format!("{}{client}:{thread}{rest}", &word[..at]);
            }
        }
        if let Some((latch, _)) = word
            .rsplit_once(':')
            .filter(|_| word.contains("_unlock_latch:"))
        {
            word = format!("{latch}:R");
        }
        word
    }
}

impl Commands {
    /// `servers` are the addresses of all: a replica is told by its master what to execute.
    pub(super) async fn watch(node: Node, servers: Vec<String>) -> Self {
        let of_clients = move |line: &Line| !servers.contains(&line.from);
        Self {
            monitor: Monitor::start(node.addr, of_clients).await,
            is_replica: node.is_replica,
        }
    }

    /// All commands so far. `scripts` are hashes by name; those of the start are left out unless it is asked for the `whole`.
    pub(super) fn so_far(
        &self,
        names: &Names,
        scripts: &HashMap<String, String>,
        whole: bool,
    ) -> Vec<String> {
        let lines = self.monitor.lines();
        let mut commands: Vec<String> = Vec::new();
        let mut is_left_out = true;
        for (at, line) in lines.iter().enumerate() {
            let words: Vec<_> = line.words.iter().map(|word| names.applied(word)).collect();
            if line.from == "lua" {
                if let Some(script) = commands.last_mut().filter(|_| !is_left_out) {
                    let sign = if script.contains(" > ") { " ; " } else { " > " };
                    script.push_str(sign);
                    script.push_str(&words.join(" "));
                }
                continue;
            }
            // A script that the server does not know runs nothing. It is loaded and sent again.
            let is_unknown = lines.get(at + 1).is_none_or(|next| next.from != "lua");
            is_left_out = leave_out(line, is_unknown, whole);
            if is_left_out {
                continue;
            }
            let command = if line.is("EVALSHA") {
                script(&words, scripts)
            } else {
                words.join(" ")
            };
            let place = if self.is_replica { "replica: " } else { "" };
            commands.push(format!("{place}{command}"));
        }
        commands
    }

    /// The words of the last call of the script with this hash.
    pub(super) fn last(&self, hash: &str) -> Option<Vec<String>> {
        let lines = self.monitor.lines();
        let is_it = |line: &&Line| line.words.get(1).is_some_and(|word| word == hash);
        lines.iter().rfind(is_it).map(|line| line.words.clone())
    }
}

fn leave_out(line: &Line, is_unknown: bool, whole: bool) -> bool {
    let command = line.words[0].to_ascii_uppercase();
    let asks_for_nothing = command == "WAIT" && line.words[1] == "0";
    let at_the_start = LEFT_OUT.contains(&command.as_str())
        || asks_for_nothing
        || command == "EVAL"
        || command == "EVALSHA" && is_unknown;
    NOT_OF_CLIENTS.contains(&command.as_str()) || at_the_start && !whole
}

/// `name keys | arguments`.
fn script(words: &[String], scripts: &HashMap<String, String>) -> String {
    let known = scripts.iter().find(|(_, hash)| **hash == words[1]);
    let name = known.map_or_else(|| format!("unknown-{}", words[1]), |(name, _)| name.clone());
    let count: usize = words[2].parse().unwrap_or_default();
    let (keys, arguments) = words[3..].split_at(count);
    let text = format!("{name} {} | {}", keys.join(" "), arguments.join(" "));
    text.trim_end().to_owned()
}
