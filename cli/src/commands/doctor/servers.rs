//! Settings of the servers: eviction, memory, persistence, replicas, and how long a failure takes to detect.

use std::time::{Duration, Instant};

use leasehold::{Replicas, Warning};
use leasehold_cluster::Target;
use leasehold_resp::{Command, Connection, Value};

use super::finding::{Finding, Level, Report};
use super::{Args, Context, unknown};
use crate::connect;
use crate::look::Looker;
use crate::look::node::Node;
use crate::look::replies::{info, setting};

/// A server that was started less than this ago is worth a note, with leases that are shorter.
const JUST_STARTED: Duration = Duration::from_secs(60);
/// Seconds without a word of a replica.
const LAG: u64 = 10;

pub(super) async fn check(
    looker: &Looker,
    args: &Args,
    context: &Context<'_>,
    report: &mut Report,
) {
    let mut persistence = Vec::new();
    for connection in looker.client.masters() {
        let node = Node::new(connection.clone(), &looker.pace);
        let name = node.name().to_string();
        let facts = match ask(&node).await {
            Ok(facts) => facts,
            Err(error) => {
                report.add(unknown("server", &name, &error));
                continue;
            }
        };
        eviction(&facts, &name, report);
        persistence.push(persisted(&facts, &name, args, report));
        started(&facts, &name, args, report);
        replicas(&facts, &name, looker, args, report);
    }
    detection(looker, args, context, report).await;
    promise(looker, args, persistence.into_iter().min(), report);
}

/// How much a restart forgets, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Persistence {
    Nothing,
    Snapshots,
    EverySecond,
    Always,
}

/// A server's replies about itself.
struct Facts {
    info: String,
    fsync: Option<String>,
    save: Option<String>,
}

async fn ask(node: &Node) -> Result<Facts, leasehold_resp::Error> {
    let all = node.ask(&Command::new("INFO")).await?;
    let config = |name: &str| Command::new("CONFIG").arg("GET").arg(name);
    // Without the right to CONFIG, INFO has to do.
    let fsync = node.ask(&config("appendfsync")).await.ok();
    let save = node.ask(&config("save")).await.ok();
    Ok(Facts {
        info: all.as_str().unwrap_or_default().to_owned(),
        fsync: fsync.as_ref().and_then(setting),
        save: save.as_ref().and_then(setting),
    })
}

impl Facts {
    fn text(&self, field: &str) -> &str {
        info(&self.info, field).unwrap_or_default()
    }

    fn number(&self, field: &str) -> u64 {
        self.text(field).parse().unwrap_or(0)
    }
}

fn eviction(facts: &Facts, node: &str, report: &mut Report) {
    let policy = facts.text("maxmemory_policy");
    let evicts = policy.starts_with("volatile-") || policy.starts_with("allkeys-");
    report.add(if evicts {
        let what = format!("`maxmemory-policy {policy}` evicts locks when memory is full: the next one gets the lock");
        let fix = "CONFIG SET maxmemory-policy noeviction, or keep locks on a server without a cache";
        Finding::new(Level::Fault, "eviction", what).at(node).fix(fix)
    } else {
        Finding::new(Level::Ok, "eviction", policy).at(node)
    });
    let (used, most) = (facts.number("used_memory"), facts.number("maxmemory"));
    if most > 0 && used * 10 > most * 9 {
        let what = format!("{used} of {most} bytes are used: no lock is granted when none is left");
        let finding = Finding::new(Level::Fault, "memory", what).at(node);
        report.add(finding.fix("raise maxmemory, or move other data away"));
    }
}

fn persisted(facts: &Facts, node: &str, args: &Args, report: &mut Report) -> Persistence {
    let snapshots = facts.save.as_deref().is_some_and(|save| !save.is_empty());
    let (kind, what) = match (facts.text("aof_enabled"), facts.fsync.as_deref()) {
        ("1", Some("always")) => (
            Persistence::Always,
            "appendonly, appendfsync always: a restart forgets nothing",
        ),
        ("1", Some("no")) => (
            Persistence::Snapshots,
            "appendonly with appendfsync no: a restart may forget half a minute",
        ),
        ("1", _) => (
            Persistence::EverySecond,
            "appendonly: a restart forgets at most the last second",
        ),
        _ if snapshots => (
            Persistence::Snapshots,
            "snapshots only: a restart forgets the locks since the last one",
        ),
        _ => (
            Persistence::Nothing,
            "none: a restart forgets all locks while their holders go on",
        ),
    };
    let is_covered = args.restart_guard || args.replicated || kind >= Persistence::EverySecond;
    let mut finding = Finding::new(
        if is_covered { Level::Ok } else { Level::Fault },
        "persistence",
        what,
    )
    .at(node);
    if !is_covered {
        finding = finding.fix("appendonly yes, or take all locks with restart_guard (then check with --restart-guard)");
    }
    report.add(finding);
    for (field, what) in [
        (
            "aof_last_write_status",
            "the last write to the append-only file failed",
        ),
        ("rdb_last_bgsave_status", "the last snapshot failed"),
    ] {
        if facts.text(field) == "err" {
            let what = format!("{what}: the server may refuse every lock (MISCONF)");
            let finding = Finding::new(Level::Fault, "persistence", what).at(node);
            report.add(finding.fix("see the server's log and its disk"));
        }
    }
    kind
}

fn started(facts: &Facts, node: &str, args: &Args, report: &mut Report) {
    let up = Duration::from_secs(facts.number("uptime_in_seconds"));
    if up < args.lease.max(JUST_STARTED) && !args.restart_guard && !args.replicated {
        let what = format!(
            "started {} s ago: locks of before may be forgotten and their holders alive",
            up.as_secs()
        );
        report.add(Finding::new(Level::Note, "restart", what).at(node));
    }
}

fn replicas(facts: &Facts, node: &str, looker: &Looker, args: &Args, report: &mut Report) {
    let lines = facts.info.lines().filter_map(|line| {
        let (name, value) = line.trim_end().split_once(':')?;
        let number = name.strip_prefix("slave")?;
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some(value)
    });
    let lines: Vec<&str> = lines.collect();
    for finding in lines.iter().filter_map(|line| lagging(line, args)) {
        report.add(finding.at(node));
    }
    let fails_over = !matches!(looker.target, Target::Single(_));
    let new = |level, what: String| Finding::new(level, "replicas", what);
    let finding = match (lines.len(), args.replicated) {
        (0, true) => {
            let what = "no replica: locks that replicas must confirm are never granted";
            let fix = "add a replica, or take the locks without `replicated`";
            new(Level::Fault, what.into()).fix(fix)
        }
        (0, false) if fails_over => {
            let what = "no replica: nothing takes over from it";
            new(Level::Note, what.into())
        }
        (0, false) => new(Level::Ok, "none".into()),
        (n, true) => new(
            Level::Ok,
            format!("{n}, all of which must confirm each lock"),
        ),
        (n, false) => {
            let what = "one that becomes master may not know the last grants";
            let fix = "take the locks with replicated(Replicas::All), and check fencing tokens where you write";
            new(Level::Note, format!("{n}, asynchronous: {what}")).fix(fix)
        }
    };
    report.add(finding.at(node));
}

/// The finding of a replica that does not keep up, by its line `ip=…,port=…,state=…,offset=…,lag=…`.
fn lagging(line: &str, args: &Args) -> Option<Finding> {
    let part = |name: &str| {
        let mut parts = line.split(',').filter_map(|part| part.split_once('='));
        parts
            .find(|(key, _)| *key == name)
            .map_or("", |(_, value)| value)
    };
    let (state, lag) = (part("state"), part("lag").parse::<u64>().unwrap_or(0));
    if state == "online" && lag <= LAG {
        return None;
    }
    let (ip, port) = (part("ip"), part("port"));
    let what = format!("replica {ip}:{port} is {state}, its last word {lag} s ago");
    let level = match args.replicated {
        true => Level::Fault,
        false => Level::Note,
    };
    let fix = "see the replica and its link: replicated locks are not granted without it";
    Some(Finding::new(level, "replicas", what).fix(fix))
}

/// How long a failure takes to detect, against the lease.
async fn detection(looker: &Looker, args: &Args, context: &Context<'_>, report: &mut Report) {
    let deadline = Instant::now() + looker.client.command_timeout();
    if let Some(found) = looker.client.failure_detection(deadline).await {
        let ms = found.value.as_millis();
        let what = format!(
            "`{}` is {ms} ms: a dead master is noticed after {:?}, the lease is {:?}",
            found.setting, found.time, args.lease
        );
        let mut finding = Finding::new(Level::Ok, "failover", what).at(&*found.node);
        if let Some(warning) = slow(looker, args, context).await {
            finding.level = Level::Fault;
            finding.fix = Some(warning);
        } else if found.time > args.lease {
            finding.level = Level::Note;
            finding.fix = Some("with a longer lease holders outlive a failover".into());
        }
        report.add(finding);
    }
}

/// The library's own warning for locks that replicas confirm.
async fn slow(looker: &Looker, args: &Args, context: &Context<'_>) -> Option<String> {
    if !args.replicated {
        return None;
    }
    let locks = connect::of_keys(context.global)
        .ok()?
        .lease(args.lease)
        .replicated(Replicas::All);
    let locks = tokio::time::timeout(looker.client.command_timeout(), locks.connect());
    let locks = locks.await.ok()?.ok()?;
    let mut warnings = locks.warnings().iter();
    warnings
        .find(|it| matches!(it, Warning::SlowDetection { .. }))
        .map(ToString::to_string)
}

/// The promise of the chosen mode, as the README's table has it.
fn promise(looker: &Looker, args: &Args, persistence: Option<Persistence>, report: &mut Report) {
    let one_holder = if args.replicated {
        "one holder at a time, also across a failover, a partition or a restart without data, as long as one thing fails at a time \
         and the servers' clocks agree to 1 % of the lease"
    } else if !matches!(looker.target, Target::Single(_)) {
        "one holder at a time if clocks behave, but not across a failover"
    } else if args.restart_guard {
        "one holder at a time if clocks behave, also across a restart: nothing is granted until the longest lease has passed"
    } else {
        match persistence {
            Some(Persistence::Always) => {
                "one holder at a time if clocks behave, also across a restart"
            }
            Some(Persistence::EverySecond) => {
                "one holder at a time if clocks behave; a restart forgets at most the last second"
            }
            _ => {
                "one holder at a time if clocks behave and the server does not restart within a lease"
            }
        }
    };
    let what = format!(
        "{one_holder}. Only a storage that checks fencing tokens makes a write safe whatever fails"
    );
    report.add(Finding::new(Level::Ok, "promise", what));
}

/// The replicas that a master names, to be connected to as it is.
pub(super) fn replicas_of(master: &Connection, info: &Value) -> Vec<leasehold_resp::Endpoint> {
    let Some(info) = leasehold_cluster::replication_info::ReplicationInfo::parse(info) else {
        return Vec::new();
    };
    let endpoint = |replica: &leasehold_cluster::replication_info::ConnectedReplica| {
        let mut endpoint = master.endpoint().clone();
        endpoint.address = leasehold_resp::Address::Tcp {
            host: replica.address.host.clone(),
            port: replica.address.port,
        };
        endpoint.master_only = false;
        endpoint
    };
    info.replicas.iter().map(endpoint).collect()
}
