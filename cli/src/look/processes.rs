//! The registry of processes: which client of a holder is which process, and where.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_cluster::Client;
use leasehold_resp::{Command, Error, Value};
use serde::Serialize;
use tokio::task::JoinSet;

use super::node::Node;
use super::pace::Pace;
use super::replies::{integer, pairs, text};
use super::shape::client_of;

/// Before the client's UUID in the key of its process.
const PREFIX: &str = "lockp:";
/// Most metadata that is read, as the library writes no more.
const MOST: usize = 16;

/// A process that uses locks, as it says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Process {
    /// The UUID that its holders begin with.
    pub(crate) client: String,
    pub(crate) host: String,
    pub(crate) pid: Option<u32>,
    pub(crate) app: Option<String>,
    pub(crate) version: Option<String>,
    /// When it connected, in milliseconds of the Unix time.
    pub(crate) since: Option<u64>,
    /// What it tells besides.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) meta: BTreeMap<String, String>,
}

/// All processes that are registered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Processes {
    by_client: BTreeMap<String, Process>,
}

impl Processes {
    /// Asks all masters. Those that may not be asked have none: their holders have an unknown host.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub(crate) async fn read(client: &Client, pace: &Arc<Pace>) -> Self {
        let mut looks = JoinSet::new();
        for connection in client.masters() {
            let node = Node::new(connection, pace);
            looks.spawn(async move { registered(&node).await });
        }
        let mut processes = Self::default();
        while let Some(look) = looks.join_next().await {
            for process in look.ok().and_then(Result::ok).unwrap_or_default() {
                processes.insert(process);
            }
        }
        processes
    }

    pub(crate) fn insert(&mut self, process: Process) {
        self.by_client.insert(process.client.clone(), process);
    }

    /// The process of a client, which is told by its UUID or, of a permit, by `<start>…<end>` of it.
    pub(crate) fn of(&self, client: &str) -> Option<&Process> {
        let Some((start, end)) = client.split_once('…') else {
            return self.by_client.get(client);
        };
        let mut alike = self.by_client.range(start.to_owned()..);
        alike
            .by_ref()
            .take_while(|(id, _)| id.starts_with(start))
            .find(|(id, _)| id.ends_with(end))
            .map(|(_, process)| process)
    }

    pub(crate) fn of_host(&self, host: &str) -> Vec<&Process> {
        let is_meant = |process: &&Process| process.host.eq_ignore_ascii_case(host);
        self.by_client.values().filter(is_meant).collect()
    }

    /// All hosts, each once.
    pub(crate) fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<_> = self
            .by_client
            .values()
            .map(|process| &*process.host)
            .collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }
}

impl Process {
    /// `host:pid`, and its application if it says one.
    pub(crate) fn place(&self) -> String {
        let pid = self.pid.map_or_else(String::new, |pid| format!(":{pid}"));
        match &self.app {
            Some(app) => format!("{}{pid} {app}", self.host),
            None => format!("{}{pid}", self.host),
        }
    }

    /// What it tells besides, `name=value` with commas between; nothing if it tells nothing.
    pub(crate) fn told(&self) -> String {
        let told: Vec<_> = self
            .meta
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        told.join(", ")
    }

    /// For how long it has been connected, by the clock here.
    pub(crate) fn connected_for(&self) -> Option<Duration> {
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(self.since?);
        since.elapsed().ok()
    }

    fn from_fields(key: &[u8], fields: &Value) -> Option<Self> {
        let key = std::str::from_utf8(key).ok()?;
        // The UUID of a client, and nothing behind it.
        let client = key.strip_prefix(PREFIX)?;
        client_of(&format!("{client}:0"))?;
        let mut process = Self {
            client: client.to_owned(),
            ..Self::default()
        };
        for (field, value) in pairs(fields) {
            match field.as_str()? {
                "host" => process.host = text(value)?,
                "pid" => process.pid = integer(value).and_then(|pid| pid.try_into().ok()),
                "app" => process.app = text(value).filter(|app| !app.is_empty()),
                "version" => process.version = text(value).filter(|version| !version.is_empty()),
                "meta" => process.meta = metadata(&text(value)?),
                "since" => process.since = integer(value).and_then(|ms| ms.try_into().ok()),
                _ => {}
            }
        }
        (!process.host.is_empty()).then_some(process)
    }
}

/// The lines `name=value`.
fn metadata(lines: &str) -> BTreeMap<String, String> {
    let pairs = lines.lines().take(MOST).filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    pairs.collect()
}

async fn registered(node: &Node) -> Result<Vec<Process>, Error> {
    let keys = node.keys("hash", Some(b"lockp:*")).await?;
    let questions: Vec<_> = keys
        .iter()
        .map(|key| Command::new("HGETALL").arg(key))
        .collect();
    let answers = node.ask_all(&questions).await?;
    let processes = keys.iter().zip(&answers);
    Ok(processes
        .filter_map(|(key, fields)| Process::from_fields(key, fields.as_ref()?))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_find_the_process_of_the_client_that_they_have_a_part_of() {
        let mut processes = Processes::default();
        for (client, host) in [
            ("0190c0de-0000-7000-8000-0000000a0b0c", "a"),
            ("0190c0de-1111-7000-8000-0000000a0b0d", "b"),
        ] {
            processes.insert(Process {
                client: client.into(),
                host: host.into(),
                ..Process::default()
            });
        }
        let host = |client| processes.of(client).map(|process| process.host.as_str());
        assert_eq!(host("0190c0de…0a0b0d"), Some("b"));
        assert_eq!(host("0190c0de-0000-7000-8000-0000000a0b0c"), Some("a"));
        assert_eq!(host("0190c0de…ffffff"), None);
        assert_eq!(host("ffffffff…0a0b0d"), None);
        assert_eq!(processes.hosts(), ["a", "b"]);
    }
}
