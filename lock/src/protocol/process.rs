//! The entry of a process on the server: which host, process and application a client id belongs to.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use leasehold_cluster::Script;
use leasehold_resp::{Command, Value};
use uuid::Uuid;

use super::call::{Call, Part};
use super::inspect::text;
use crate::process::Process;
use crate::state::deadline::millis;

static REGISTER: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("process/register.lua")));

const FIELDS: [&str; 5] = ["host", "pid", "app", "version", "since"];
/// Only there if there is anything in it.
const METADATA: &str = "meta";

/// The key of the entry of this client. The namespace is no part of it: a client id is unique without.
pub(crate) fn key(client: &str) -> String {
    format!("lockp:{client}")
}

/// Writes the entry at `key` for this long, or keeps it.
pub(crate) fn register<'a>(key: &'a str, process: &'a Process, lasts: Duration) -> Call<'a> {
    let mut call = Call::new(&REGISTER);
    call.key(key).arg(millis(lasts));
    let since = process.since.duration_since(SystemTime::UNIX_EPOCH);
    let values: [Part<'_>; 5] = [
        process.host.as_str().into(),
        u64::from(process.pid).into(),
        process.application.as_str().into(),
        process.version.as_str().into(),
        since.map_or(0, millis).into(),
    ];
    for (field, value) in FIELDS.into_iter().zip(values) {
        call.arg(field).arg(value);
    }
    if !process.metadata.is_empty() {
        call.arg(METADATA).arg(process.metadata.as_str());
    }
    call
}

/// Removes the entry at `key`.
pub(crate) fn unregister(key: &str) -> Call<'_> {
    let mut call = Call::new(&REGISTER);
    call.key(key).arg(0);
    call
}

/// The question who a client is; `None` if that is no client's id, so that there is no entry.
pub(crate) fn ask(client: &str) -> Option<(String, Command)> {
    Uuid::try_parse(client).ok()?;
    let key = key(client);
    let mut command = Command::new("HMGET").arg(key.as_str());
    for field in FIELDS.into_iter().chain([METADATA]) {
        command = command.arg(field);
    }
    Some((key, command))
}

/// Reads the answer; `None` if there is no entry, or something else.
pub(crate) fn read(reply: &Value) -> Option<Process> {
    let [host, pid, application, version, since, metadata] = reply.as_array()? else {
        return None;
    };
    let since: u64 = text(since)?.parse().ok()?;
    Some(Process {
        host: text(host)?,
        pid: text(pid)?.parse().ok()?,
        application: text(application)?,
        version: text(version).unwrap_or_default(),
        since: SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(since))?,
        metadata: text(metadata).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::Bulk(text.to_owned().into())
    }

    #[test]
    fn only_an_entry_that_is_whole_is_one() {
        let entry = |values: [&str; 5]| {
            let values = values.map(bulk).into_iter();
            Value::Array(values.chain([Value::Null]).collect())
        };
        let read_one = read(&entry(["web-1", "42", "billing", "1.2", "1700000000000"])).unwrap();
        assert_eq!(read_one.to_string(), "billing 1.2, process 42 on web-1");
        assert_eq!(
            read_one.since(),
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
        );
        for broken in [
            entry(["web-1", "none", "billing", "", "1"]),
            entry(["web-1", "42", "billing", "", "-1"]),
            entry(["web-1", "42", "billing", "", "99999999999999999999"]),
            Value::Array([Value::Null, Value::Null].into()),
            Value::Array(vec![Value::Null; 6]),
            bulk("x"),
        ] {
            assert!(read(&broken).is_none(), "{broken:?}");
        }
        let told = ["web-1", "42", "billing", "", "1", "job=nightly\nforged\n=x"];
        let told = read(&Value::Array(told.map(bulk).into())).unwrap();
        let metadata: Vec<_> = told.metadata().into_iter().collect();
        assert_eq!(metadata, [("", "x"), ("job", "nightly")]);
    }

    #[test]
    fn nothing_but_a_client_is_asked_for() {
        assert!(ask("8d5f5f3e-3c1f-4a80-9d0b-1f2d3c4b5a69").is_some());
        for other in ["", "x", "{a}", "8d5f5f3e-3c1f-4a80-9d0b-1f2d3c4b5a69:7"] {
            assert!(ask(other).is_none(), "{other}");
        }
    }
}
