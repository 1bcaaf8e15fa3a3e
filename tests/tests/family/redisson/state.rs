//! The keys on the servers, as Redisson reads them, compared with those that were recorded.
//!
//! A hold of ours has an id of its own and a count of one, however often it was taken here. A reader's holds in one process are
//! one, and a read in a write is not written. Those of ours who stand in a fair queue side by side have one entry.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_testkit::{Raw, RawValue};
use serde_json::Value;

use super::recording::{FOR_EVER, number, unspell};

/// How far times may be from the recorded ones, in milliseconds: the recorder waited between its steps.
pub(super) const TOLERANCE: i64 = 4_500;

/// The name for what ours hold.
const OURS: &str = "ours";

/// A key in the spelling that both sides have in common.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Seen {
    value: Vec<String>,
    expiry: i64,
    /// Times of members, in milliseconds.
    times: Vec<i64>,
}

pub(super) type Keys = BTreeMap<String, Seen>;

/// Who is who.
pub(super) struct Names<'a> {
    /// The clients whose part is ours.
    pub(super) clients: &'a [&'a str],
    /// The permits that our part takes.
    pub(super) permits: BTreeSet<String>,
}

impl Names<'_> {
    /// The name of a holder, as it was recorded.
    fn recorded(&self, holder: &str) -> String {
        match holder.split_once(':') {
            Some((client, rest)) if self.clients.contains(&client) => {
                ours(rest.ends_with(":write"))
            }
            _ => holder.to_owned(),
        }
    }

    /// The name of a holder on the server.
    fn actual(&self, holder: &str) -> String {
        if holder.starts_with("leasehold:") {
            return OURS.into();
        }
        let recorded = unspell(holder);
        let is_uuid = holder.len() > 36 && holder.as_bytes()[8] == b'-';
        if is_uuid && recorded == holder {
            return ours(holder.ends_with(":write"));
        }
        recorded
    }

    /// The keys that were recorded, of one server, or with `*` of a cluster.
    pub(super) fn expected(
        &self,
        state: &BTreeMap<String, (String, Value, Value)>,
        server: &str,
        now: i64,
    ) -> Keys {
        let mut keys = Keys::new();
        for (key, (kind, value, expiry)) in state {
            let (at, key) = key.split_once('|').unwrap_or(("", key));
            // Slots of a cluster are elsewhere in the recording.
            if server != "*" && at != server {
                continue;
            }
            let expiry = json_number(expiry, now);
            let texts = |value: &Value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let seen = match kind.as_str() {
                "hash" => {
                    let fields = value.as_object().expect("fields");
                    let fields = fields
                        .iter()
                        .map(|(field, count)| (self.recorded(field), texts(count)));
                    hash(fields.collect(), expiry)
                }
                "list" => {
                    let all = value.as_array().expect("members").iter();
                    let all = all.map(|member| self.recorded(member.as_str().expect("a text")));
                    list(all.collect(), expiry)
                }
                "zset" => {
                    let members = value.as_object().expect("members").iter();
                    let members = members.map(|(member, score)| {
                        let permit = member.strip_prefix("<16 bytes ");
                        let member = match permit {
                            Some(permit) if self.permits.contains(permit.trim_end_matches('>')) => {
                                OURS.into()
                            }
                            Some(permit) => permit.trim_end_matches('>').to_owned(),
                            None => self.recorded(member),
                        };
                        (member, json_number(score, now))
                    });
                    zset(members.collect(), expiry, key)
                }
                _ => string(texts(value), expiry, key),
            };
            add(
                &mut keys,
                self.key(key, |holder| self.recorded(holder)),
                seen,
            );
        }
        tidy(keys)
    }

    /// The keys that servers have and Redisson reads.
    pub(super) async fn found(&self, servers: &mut [Raw]) -> Keys {
        let mut keys = Keys::new();
        for raw in servers {
            self.find(raw, &mut keys).await;
        }
        tidy(keys)
    }

    async fn find(&self, raw: &mut Raw, keys: &mut Keys) {
        let all = raw.cmd(&["KEYS", "*"]).await;
        for key in all.array().iter().map(RawValue::str) {
            if key.starts_with("leasehold") || key.starts_with("lockp:") {
                continue;
            }
            let kind = raw.cmd(&["TYPE", key]).await;
            let expiry = raw.cmd(&["PTTL", key]).await.int();
            let seen = match kind.str() {
                "hash" => {
                    let fields = raw.cmd(&["HGETALL", key]).await;
                    let fields = fields.array().chunks(2);
                    let fields =
                        fields.map(|pair| (self.actual(pair[0].str()), pair[1].str().to_owned()));
                    hash(fields.collect(), expiry)
                }
                "list" => {
                    let all = raw.cmd(&["LRANGE", key, "0", "-1"]).await;
                    let all = all.array().iter().map(|member| self.actual(member.str()));
                    list(all.collect(), expiry)
                }
                "zset" => {
                    let all = raw.cmd(&["ZRANGE", key, "0", "-1", "WITHSCORES"]).await;
                    let all = all.array().chunks(2);
                    let all =
                        all.map(|pair| (self.member(&pair[0]), pair[1].str().parse().unwrap()));
                    zset(all.collect(), expiry, key)
                }
                "string" => match raw.cmd(&["GET", key]).await {
                    RawValue::Null => continue,
                    value => string(value.str().into(), expiry, key),
                },
                // Gone meanwhile.
                _ => continue,
            };
            add(keys, self.key(key, |holder| self.actual(holder)), seen);
        }
    }

    fn member(&self, member: &RawValue) -> String {
        let RawValue::Bulk(bytes) = member else {
            panic!("{member:?}");
        };
        match std::str::from_utf8(bytes) {
            Ok(text) if text.starts_with('P') && text.len() == 16 => {
                text.trim_end_matches('.').to_owned()
            }
            Ok(text) if text.contains(':') => self.actual(text),
            _ => OURS.into(),
        }
    }

    /// The key of a hold has the holder's name in it; ours have one each.
    fn key(&self, key: &str, holder: impl Fn(&str) -> String) -> String {
        let Some((name, rest)) = key.split_once("}:") else {
            return key.to_owned();
        };
        match rest.rsplit_once(":rwlock_timeout:") {
            Some((id, count)) => match holder(id).as_str() {
                OURS => format!("{name}}}:{OURS}"),
                other => format!("{name}}}:{other}:{count}"),
            },
            None => key.to_owned(),
        }
    }
}

fn ours(writes: bool) -> String {
    if writes {
        format!("{OURS}:write")
    } else {
        OURS.into()
    }
}

fn json_number(value: &Value, now: i64) -> i64 {
    match value {
        Value::Number(exact) => exact.as_i64().expect("a number"),
        Value::String(text) => number(text, now).expect("a number"),
        other => panic!("{other}"),
    }
}

fn hash(fields: Vec<(String, String)>, expiry: i64) -> Seen {
    let one = |(field, count): (String, String)| {
        let is_ours = field.starts_with(OURS);
        (field, if is_ours { "1".into() } else { count })
    };
    let mut fields: BTreeMap<_, _> = fields.into_iter().map(one).collect();
    if fields.contains_key("ours:write") {
        fields.remove(OURS);
    }
    let value = fields.into_iter();
    Seen {
        value: value
            .map(|(field, count)| format!("{field}={count}"))
            .collect(),
        expiry,
        times: Vec::new(),
    }
}

fn list(mut members: Vec<String>, expiry: i64) -> Seen {
    members.dedup_by(|a, b| a == b && a == OURS);
    Seen {
        value: members,
        expiry,
        times: Vec::new(),
    }
}

fn zset(mut members: Vec<(String, i64)>, expiry: i64, key: &str) -> Seen {
    members.sort();
    if !key.ends_with(":timeout") {
        // Of a fair queue: by when its members count as dead, which ours decide for themselves.
        members.dedup_by(|a, b| a.0 == b.0 && a.0 == OURS);
        members.iter_mut().for_each(|member| member.1 = 0);
    }
    let (value, times) = members.into_iter().unzip();
    Seen {
        value,
        expiry,
        times,
    }
}

fn string(value: String, expiry: i64, key: &str) -> Seen {
    // Tokens only have to grow.
    let is_token = key.starts_with("redisson_lock_token:");
    Seen {
        value: vec![if is_token { "token".into() } else { value }],
        expiry,
        times: Vec::new(),
    }
}

fn add(keys: &mut Keys, key: String, seen: Seen) {
    let known = keys.entry(key).or_insert_with(|| seen.clone());
    known.expiry = known.expiry.max(seen.expiry);
}

/// Who writes has no read beside it.
fn tidy(mut keys: Keys) -> Keys {
    let writes = |seen: &Seen| seen.value.iter().any(|field| field == "ours:write=1");
    let written: Vec<_> = keys
        .iter()
        .filter(|(_, seen)| writes(seen))
        .map(|(key, _)| format!("{{{key}}}:{OURS}"))
        .collect();
    keys.retain(|key, _| !written.contains(key));
    keys
}

/// Whether the keys are the recorded ones; what differs if not.
pub(super) fn compare(found: &Keys, expected: &Keys) -> Result<(), String> {
    for (key, seen) in found {
        // A mutex of ours counts its tokens where a fenced lock does.
        if !expected.contains_key(key) && !key.starts_with("redisson_lock_token:") {
            return Err(format!("{key} {seen:?} is not expected"));
        }
    }
    for (key, expected) in expected {
        let Some(seen) = found.get(key) else {
            return Err(format!("{key} {expected:?} is missing"));
        };
        if seen.value != expected.value {
            return Err(format!(
                "{key} is {:?}, not {:?}",
                seen.value, expected.value
            ));
        }
        let is_late = if expected.expiry < 0 {
            seen.expiry != expected.expiry
        } else {
            // The hash of a read-write lock may live longer than its longest hold.
            let reads = seen.value.iter().any(|field| field == "mode=read");
            seen.expiry < expected.expiry - TOLERANCE
                || seen.expiry < 1
                || seen.expiry > expected.expiry + TOLERANCE && !reads
        };
        if is_late {
            return Err(format!(
                "{key} expires in {}, not {}",
                seen.expiry, expected.expiry
            ));
        }
        for ((member, seen), expected) in seen.value.iter().zip(&seen.times).zip(&expected.times) {
            let is_ours = member == OURS && *expected == FOR_EVER;
            if !is_ours && (seen - expected).abs() > TOLERANCE {
                return Err(format!("{key}: {member} until {seen}, not {expected}"));
            }
        }
    }
    Ok(())
}
