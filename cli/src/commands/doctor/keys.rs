//! Locks without an expiry, and places in lines whose clients do not listen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_cluster::Channels;
use leasehold_resp::{Command, Value};

use super::finding::{Finding, Level, Report};
use super::unknown;
use crate::look::Looker;
use crate::look::node::Node;
use crate::look::replies::{integer, pairs, text};
use crate::look::seen::Seen;
use crate::look::shape::{Ticket, prefixed};
use crate::look::survey::Wanted;
use crate::look::text::{escaped, shortened};

/// Findings of one kind that are listed by name.
const LISTED: usize = 5;
/// Columns of a key in a finding.
const KEY: usize = 50;
/// Between two looks at a place whose client does not listen: it may just have come or gone.
const AGAIN: Duration = Duration::from_millis(1_200);
/// Channels that are asked for at once.
const BATCH: usize = 100;

/// A client that has places in the line of a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    key: Vec<u8>,
    client: String,
}

pub(super) async fn check(looker: &Looker, report: &mut Report) {
    let wanted = Wanted {
        pattern: looker.pattern(None),
        tickets: 100,
    };
    let (survey, _) = looker.survey(&wanted).await;
    for error in &survey.failures {
        report.add(unknown("locks", error.node(), error));
    }
    if survey.failures.len() == survey.masters {
        return;
    }
    let held = survey.locks.iter().filter(|seen| seen.is_held()).count();
    let waiting: u64 = survey.locks.iter().map(|seen| seen.waiting).sum();
    let what = format!("{held} held, {waiting} waiting");
    report.add(Finding::new(Level::Ok, "locks", what));
    without_expiry(&survey.locks, report);
    dead_places(looker, places(&survey.locks), &wanted, report).await;
}

fn without_expiry(locks: &[Seen], report: &mut Report) {
    let endless: Vec<&Seen> = locks.iter().filter(|seen| seen.never_expires()).collect();
    for seen in endless.iter().take(LISTED) {
        let key = shown(&seen.key);
        let what =
            format!("`{key}` is held without an expiry: nobody frees it if its holder is dead");
        let fix = format!(
            "find out whose it is (`leasehold inspect '{key}'`), then `leasehold break '{key}'`"
        );
        report.add(
            Finding::new(Level::Fault, "expiry", what)
                .at(&*seen.node)
                .fix(fix),
        );
    }
    if let Some(more) = endless.len().checked_sub(LISTED).filter(|more| *more > 0) {
        let what = format!("{more} more locks are held without an expiry");
        report.add(
            Finding::new(Level::Fault, "expiry", what)
                .fix("`leasehold ls` lists them with the TTL NEVER"),
        );
    }
    if endless.is_empty() {
        report.add(Finding::new(
            Level::Ok,
            "expiry",
            "every lock that is held has one",
        ));
    }
}

/// Places whose messages must be heard for a line to move on at once.
fn places(locks: &[Seen]) -> BTreeSet<Place> {
    let mut places = BTreeSet::new();
    for seen in locks {
        let tickets = seen
            .tickets
            .iter()
            .filter_map(|ticket| Ticket::read(ticket));
        for ticket in tickets.filter(|ticket| !ticket.polls) {
            places.insert(Place {
                key: seen.key.clone(),
                client: ticket.client.to_owned(),
            });
        }
    }
    places
}

async fn dead_places(
    looker: &Looker,
    places: BTreeSet<Place>,
    wanted: &Wanted,
    report: &mut Report,
) {
    let silent = match silent(looker, &places).await {
        Ok(silent) => silent,
        Err(error) => return report.add(unknown("lines", error.node(), &error)),
    };
    let mut dead = BTreeSet::new();
    if !silent.is_empty() {
        tokio::time::sleep(AGAIN).await;
        let (survey, _) = looker.survey(wanted).await;
        let still = self::places(&survey.locks);
        let still: BTreeSet<Place> = silent.intersection(&still).cloned().collect();
        dead = self::silent(looker, &still).await.unwrap_or_default();
    }
    let mut by_key: BTreeMap<&[u8], usize> = BTreeMap::new();
    for place in &dead {
        *by_key.entry(&place.key).or_default() += 1;
    }
    for (key, clients) in by_key.iter().take(LISTED) {
        let what = format!(
            "clients in the line of `{}` that do not listen: {clients}. They are dead, frozen, cut off, or may not subscribe",
            shown(key)
        );
        let fix = "they are skipped, or cost a second each, and their places end a minute after the last look; see \
                   `leasehold inspect`, and the rights of the user";
        report.add(Finding::new(Level::Fault, "lines", what).fix(fix));
    }
    if let Some(more) = by_key.len().checked_sub(LISTED).filter(|more| *more > 0) {
        let what = format!("the same in {more} more lines");
        report.add(Finding::new(Level::Fault, "lines", what));
    }
    if dead.is_empty() {
        let what = "every client that waits listens";
        report.add(Finding::new(Level::Ok, "lines", what));
    }
}

/// Those that nobody subscribes to the channel of.
async fn silent(
    looker: &Looker,
    places: &BTreeSet<Place>,
) -> Result<BTreeSet<Place>, leasehold_resp::Error> {
    let is_sharded = looker.client.channels() == Channels::Sharded;
    let mut by_channel: BTreeMap<Vec<u8>, Vec<&Place>> = BTreeMap::new();
    for place in places {
        let channel = match is_sharded {
            true => [
                &prefixed("leasehold_line", &place.key),
                &b":"[..],
                place.client.as_bytes(),
            ]
            .concat(),
            false => format!("leasehold:{}", place.client).into_bytes(),
        };
        by_channel.entry(channel).or_default().push(place);
    }
    let mut heard = BTreeSet::new();
    for master in looker.client.masters() {
        let node = Node::new(master, &looker.pace);
        let channels: Vec<_> = by_channel.keys().collect();
        for batch in channels.chunks(BATCH) {
            let subcommand = if is_sharded { "SHARDNUMSUB" } else { "NUMSUB" };
            let question = Command::new("PUBSUB").arg(subcommand);
            let question = batch
                .iter()
                .fold(question, |question, channel| question.arg(channel));
            heard.extend(listened_to(&node.ask(&question).await?));
        }
    }
    let silent = by_channel
        .into_iter()
        .filter(|(channel, _)| !heard.contains(channel));
    Ok(silent
        .flat_map(|(_, places)| places.into_iter().cloned())
        .collect())
}

fn listened_to(reply: &Value) -> Vec<Vec<u8>> {
    let counts = pairs(reply).into_iter();
    counts
        .filter(|(_, count)| integer(count).is_some_and(|count| count > 0))
        .filter_map(|(channel, _)| Some(text(channel)?.into_bytes()))
        .collect()
}

fn shown(key: &[u8]) -> String {
    shortened(&escaped(key), KEY)
}
