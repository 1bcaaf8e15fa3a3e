//! The rights of this user: what each primitive takes, and what is missing.
//!
//! The server is asked by `redis.acl_check_cmd` in a script that runs none of the commands, so it takes no right that a user of
//! locks does not have. Redis 7 and later and Valkey know it.

mod needs;

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum;
use leasehold_cluster::{Channels, Target};
use leasehold_resp::{Command, ServerErrorKind, Value};

use super::finding::{Finding, Level, Report};
use super::unknown;
use crate::look::Looker;
use crate::look::replies::text;
pub(crate) use needs::Primitive;
use needs::{Needs, rest};

/// Commands that take no key; every connection and every script uses them.
const COMMON: &[&str] = &[
    "evalsha",
    "time",
    "info",
    "publish",
    "subscribe",
    "unsubscribe",
];
/// Commands for the map of a cluster.
const CLUSTER: &[(&str, &[&str])] = &[
    ("+cluster|slots", &["CLUSTER", "SLOTS"]),
    ("+pubsub|shardnumsub", &["PUBSUB", "SHARDNUMSUB"]),
    ("+asking", &["ASKING"]),
];
/// The name that the rights are asked for, behind the namespace.
const PROBE: &str = "leasehold-doctor";
/// A client that does not exist: its channel has no listener.
pub(super) const CLIENT: &str = "00000000-0000-0000-0000-000000000000";

/// Called without keys: one that this user has no right to would be refused.
const CHECK: &str = include_str!("rights.lua");

pub(super) async fn check(looker: &Looker, kinds: &[Primitive], report: &mut Report) {
    let user = user(looker).await;
    for kind in kinds {
        let name = kind
            .to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned());
        let questions = questions(looker, &kind.needs());
        let answers = match ask(looker, &questions).await {
            Ok(Some(answers)) => answers,
            Ok(None) => {
                let what =
                    "this server cannot be asked for rights (Redis 7 and later and Valkey can)";
                return report.add(Finding::new(Level::Note, "rights", what));
            }
            Err(error) => {
                let denied = matches!(
                    error.as_server().map(|it| it.kind()),
                    Some(ServerErrorKind::NoPerm)
                );
                if !denied {
                    return report.add(unknown("rights", error.node(), &error));
                }
                let what = format!(
                    "user `{user}` may not run scripts, and so not lock: {}",
                    error.detail()
                );
                let fix = format!("ACL SETUSER {user} +eval +evalsha");
                return report.add(
                    Finding::new(Level::Fault, "rights", what)
                        .at(error.node())
                        .fix(fix),
                );
            }
        };
        let missing = missing(&questions, &answers);
        report.add(if missing.is_empty() {
            Finding::new(
                Level::Ok,
                "rights",
                format!("user `{user}` has all that a {name} takes"),
            )
        } else {
            let what = format!(
                "user `{user}` lacks {} of the rights that a {name} takes",
                missing.len()
            );
            let fix = format!("ACL SETUSER {user} {}", missing.join(" "));
            Finding::new(Level::Fault, "rights", what).fix(fix)
        });
    }
    registry(looker, &user, report).await;
}

/// Whether `ls` and `who` can tell where the locks of this user are held. Locks do not need it.
async fn registry(looker: &Looker, user: &str, report: &mut Report) {
    let question = |word: &str| Question {
        right: format!("+{word}"),
        pattern: Some("~lockp:*".into()),
        command: [&[word, &format!("lockp:{CLIENT}")], rest(word)]
            .concat()
            .iter()
            .map(|word| word.as_bytes().to_vec())
            .collect(),
    };
    let questions = ["hset", "pexpire"].map(question);
    let Ok(Some(answers)) = ask(looker, &questions).await else {
        return;
    };
    let missing = missing(&questions, &answers);
    if !missing.is_empty() {
        let what = format!("what user `{user}` holds is of an unknown host: it may not register");
        let fix = format!("ACL SETUSER {user} {}", missing.join(" "));
        report.add(Finding::new(Level::Note, "rights", what).fix(fix));
    }
}

/// The name of the user, for messages.
async fn user(looker: &Looker) -> String {
    let probe = looker.prefixed_probe();
    let answer = looker
        .client
        .call(&probe, &Command::new("ACL").arg("WHOAMI"))
        .await;
    let own = || {
        let mut target = looker.target.clone();
        let user = target
            .servers_mut()
            .first()
            .and_then(|endpoint| endpoint.user.clone());
        user.unwrap_or_else(|| "default".into())
    };
    answer.ok().as_ref().and_then(text).unwrap_or_else(own)
}

/// One question: a command with its arguments, the right to it, and the pattern of the key that it is asked for.
#[derive(Clone, Debug)]
struct Question {
    right: String,
    pattern: Option<String>,
    command: Vec<Vec<u8>>,
}

fn questions(looker: &Looker, needs: &Needs) -> Vec<Question> {
    let mut all = of_connections(looker, needs);
    let probe = looker.prefixed_probe();
    for word in needs.commands {
        for derived in needs.keys {
            let mut command = vec![word.as_bytes().to_vec(), derived.of(&probe)];
            command.extend(rest(word).iter().map(|arg| arg.as_bytes().to_vec()));
            all.push(Question {
                right: format!("+{word}"),
                pattern: Some(format!("~{}", derived.pattern(looker))),
                command,
            });
        }
    }
    all
}

/// Checks of rights without a key: scripts, messages, and the map of a cluster.
fn of_connections(looker: &Looker, needs: &Needs) -> Vec<Question> {
    let sharded = looker.client.channels() == Channels::Sharded;
    let channel = needs.channel(&looker.prefixed_probe(), sharded);
    let mut all = Vec::new();
    for word in COMMON {
        let name = match (*word, sharded) {
            (word @ ("publish" | "subscribe" | "unsubscribe"), true) => format!("s{word}"),
            (word, _) => word.to_owned(),
        };
        let mut command = vec![name.clone().into_bytes()];
        match *word {
            "evalsha" => command.extend([b"0".repeat(40), b"0".to_vec()]),
            "publish" => command.extend([channel.clone(), Vec::new()]),
            "subscribe" => command.push(channel.clone()),
            _ => {}
        }
        let has_channel = matches!(*word, "publish" | "subscribe");
        all.push(Question {
            right: format!("+{name}"),
            pattern: has_channel.then(|| format!("&{}", needs.channel_pattern(looker, sharded))),
            command,
        });
    }
    if matches!(looker.target, Target::Cluster { .. }) {
        for (right, command) in CLUSTER {
            all.push(Question {
                right: (*right).to_owned(),
                pattern: None,
                command: command
                    .iter()
                    .map(|word| word.as_bytes().to_vec())
                    .collect(),
            });
        }
    }
    all
}

/// The answers to all questions; `None` from a server that cannot tell.
async fn ask(
    looker: &Looker,
    questions: &[Question],
) -> Result<Option<Vec<bool>>, leasehold_resp::Error> {
    let mut eval = Command::new("EVAL").arg(CHECK).arg("0");
    for question in questions {
        eval = eval.arg_int(question.command.len() as i64);
        eval = question
            .command
            .iter()
            .fold(eval, |eval, word| eval.arg(word));
    }
    let answer = looker.client.call(&looker.prefixed_probe(), &eval).await?;
    let Some(answers) = answer.as_array() else {
        return Ok(None);
    };
    Ok(Some(
        answers
            .iter()
            .map(|answer| *answer == Value::Integer(1))
            .collect(),
    ))
}

/// The rights that explain what was refused: to a command if it is refused at every key, and to a key if it is refused to every
/// command that may be used elsewhere.
fn missing(questions: &[Question], answers: &[bool]) -> Vec<String> {
    let all = || questions.iter().zip(answers);
    let mut by_right: BTreeMap<&str, bool> = BTreeMap::new();
    let mut by_pattern: BTreeMap<&str, bool> = BTreeMap::new();
    for (question, allowed) in all() {
        *by_right.entry(&question.right).or_default() |= allowed;
        if let Some(pattern) = &question.pattern {
            *by_pattern.entry(pattern).or_default() |= allowed;
        }
    }
    let no_key = by_pattern
        .iter()
        .filter(|(pattern, _)| pattern.starts_with('~'))
        .all(|(_, allowed)| !allowed);
    let mut missing = BTreeSet::new();
    for (pattern, allowed) in &by_pattern {
        if !allowed {
            missing.insert((*pattern).to_owned());
        }
    }
    for (question, allowed) in all() {
        let right = &*question.right;
        let is_keyed = question
            .pattern
            .as_ref()
            .is_some_and(|pattern| pattern.starts_with('~'));
        // Without any key nothing can be said of the commands that take one.
        if *allowed || by_right[right] || is_keyed && no_key {
            continue;
        }
        let is_its_channel = question
            .pattern
            .as_ref()
            .is_some_and(|pattern| pattern.starts_with('&') && !by_pattern[&**pattern]);
        if !is_its_channel {
            missing.insert(right.to_owned());
        }
    }
    missing.into_iter().collect()
}

impl Looker {
    /// A name that no lock has, in the namespace.
    fn prefixed_probe(&self) -> Vec<u8> {
        format!("{}{PROBE}", self.names()).into_bytes()
    }
}
