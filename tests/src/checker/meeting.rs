//! I14: latches and barriers let everybody through, and nobody too early.

use std::collections::HashMap;

use super::Violation;
use super::facts::{Facts, violation};
use crate::history::{Event, What, micros};

/// Events of one latch. Each is used once.
#[derive(Default)]
struct Latch<'a> {
    count: u32,
    /// Calls that may have counted, and those that did for certain, in their order.
    tried: Vec<&'a Event>,
    counted: Vec<&'a Event>,
    awaits: Vec<&'a Event>,
    opened: Vec<&'a Event>,
    /// Counts that it showed: the time of the question, its answer, and the count.
    shown: Vec<(u64, &'a Event, u32)>,
}

/// A party's arrival at a barrier.
struct Arrival {
    at: u64,
    /// When it went on, and whether that was because the barrier let it.
    end: Option<(u64, bool)>,
}

/// A party that passed a barrier.
struct Through<'a> {
    passed: &'a Event,
    arrived: Option<&'a Event>,
    /// How many the barrier is for.
    parties: u32,
}

/// I14: nobody passes a latch before it was counted down to zero, and everybody passes it soon afterwards.
pub(super) fn latches_open_at_zero(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (key, latch) in latches(facts) {
        let last = (latch.count as usize).saturating_sub(1);
        // Without as many calls it cannot have opened at all.
        let earliest = latch.tried.get(last).map_or(u64::MAX, |event| event.at);
        if let Some(early) = latch.opened.iter().find(|opened| opened.at < earliest) {
            let message = format!("{key} let somebody through before its count was zero");
            let mut found = violation("I14", message, &[early]);
            found.excused = facts.may_lose_locks((0, early.at));
            violations.push(found);
        }
        let Some(zero) = latch.counted.get(last) else {
            continue;
        };
        for waiter in &latch.awaits {
            let due = facts.due(zero.at.max(waiter.at), micros(facts.limits.handoff), |_| {
                true
            });
            let is_through = latch
                .opened
                .iter()
                .any(|opened| of_one(opened, waiter) && opened.at <= due);
            let died = facts.deaths.contains_key(&waiter.process);
            if !is_through && !died && due <= facts.end {
                let message = format!("{key} is at zero, and somebody still waits for it");
                violations.push(violation("I14", message, &[zero, waiter]));
            }
        }
    }
    violations
}

/// I14: the count that a latch shows is that of the calls: no call counts twice, and none that was answered is missing.
pub(super) fn counts_are_true(facts: &Facts<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (key, latch) in latches(facts) {
        for (asked, event, count) in latch.shown {
            let of = |calls: &[&Event], by| calls.partition_point(|call| call.at < by);
            let left = |counted: usize| (latch.count as usize).saturating_sub(counted);
            let (least, most) = (
                left(of(&latch.tried, event.at)),
                left(of(&latch.counted, asked)),
            );
            if !(least..=most).contains(&(count as usize)) {
                let message = format!("{key} shows {count}, not {least} to {most}");
                let mut found = violation("I14", message, &[event]);
                found.excused = facts.may_lose_locks((0, event.at));
                violations.push(found);
            }
        }
    }
    violations
}

/// I14: a generation of a barrier has one leader, as many parties as it is for, and nobody passes before the last has arrived.
pub(super) fn barriers_let_all_parties_through_together(facts: &Facts<'_>) -> Vec<Violation> {
    let mut arrived: HashMap<(u32, &str, &str), (&Event, u32)> = HashMap::new();
    let mut generations: HashMap<(&str, u64), Vec<Through<'_>>> = HashMap::new();
    for event in facts.events {
        match &event.what {
            What::Arrive { key, parties } => {
                arrived.insert((event.process, &event.client, key), (event, *parties));
            }
            What::Passed {
                key, generation, ..
            } => {
                let party = (event.process, event.client.as_str(), key.as_str());
                let (arrived, parties) = arrived.remove(&party).unzip();
                let through = Through {
                    passed: event,
                    arrived,
                    parties: parties.unwrap_or(0),
                };
                generations
                    .entry((key, *generation))
                    .or_default()
                    .push(through);
            }
            _ => {}
        }
    }
    let arrivals = arrivals(facts);
    let mut violations = Vec::new();
    for ((key, generation), through) in generations {
        let events: Vec<_> = through.iter().map(|one| one.passed).collect();
        let of_many = through.iter().map(|one| one.parties).max().unwrap_or(0);
        let leaders = events.iter().filter(|event| is_leader(event)).count();
        let first = events.iter().map(|event| event.at).min().unwrap_or(0);
        let arrived = through.iter().filter_map(|one| one.arrived);
        let last = arrived.map(|event| event.at).max();
        let silent = last.map_or(of_many as usize, |last| {
            let members = arrivals.get(key).map_or(&[][..], Vec::as_slice);
            let counts = |arrival: &&Arrival| arrival.may_count_in((last, first), facts.lease());
            members.iter().filter(counts).count()
        });
        let wrong = if leaders > 1 {
            "two leaders"
        } else if leaders == 0 && through.len() == of_many as usize {
            "no leader"
        } else if through.len() > of_many as usize {
            "more parties than it is for"
        } else if last.is_some_and(|last| last > first) {
            "a party that was let through before the last had arrived"
        } else if through.len() + silent < of_many as usize {
            "fewer parties than it is for"
        } else {
            continue;
        };
        let message = format!("generation {generation} of {key} has {wrong}");
        let mut found = violation("I14", message, &events);
        found.excused = facts.may_lose_locks((0, facts.end));
        violations.push(found);
    }
    violations
}

/// I14: as soon as as many parties wait at a barrier as it is for, some of them are let through.
pub(super) fn complete_generations_are_let_through(facts: &Facts<'_>) -> Vec<Violation> {
    let mut waiting: HashMap<&str, HashMap<(u32, &str), &Event>> = HashMap::new();
    // Since when a barrier has had enough parties without any that was let through.
    let mut complete: HashMap<&str, (&Event, u32)> = HashMap::new();
    let mut violations = Vec::new();
    for event in facts.events {
        for (key, (since, parties)) in &complete {
            let due = facts.due(since.at, micros(facts.limits.handoff), |_| true);
            if event.at > due {
                let message = format!("{parties} parties wait at {key}, and nobody goes on");
                violations.push(violation("I14", message, &[since, event]));
            }
        }
        complete.retain(|_, (since, _)| {
            event.at <= facts.due(since.at, micros(facts.limits.handoff), |_| true)
        });
        let party = (event.process, event.client.as_str());
        match &event.what {
            What::Arrive { key, parties } => {
                let waiting = waiting.entry(key).or_default();
                waiting.insert(party, event);
                if waiting.len() >= *parties as usize {
                    complete.entry(key).or_insert((event, *parties));
                }
            }
            What::Passed { key, .. } => {
                waiting.entry(key).or_default().remove(&party);
                // The others of its generation are let through one after the other.
                complete.remove(key.as_str());
            }
            What::Withdrawn { key } => {
                let waiting = waiting.entry(key).or_default();
                waiting.remove(&party);
                let is_short = |(_, parties): &(_, u32)| waiting.len() < *parties as usize;
                if complete.get(key.as_str()).is_some_and(is_short) {
                    complete.remove(key.as_str());
                }
            }
            What::Died { pid } => {
                for parties in waiting.values_mut() {
                    parties.retain(|(process, _), _| process != pid);
                }
                complete.clear();
            }
            _ => {}
        }
    }
    violations
}

/// The arrivals at each barrier.
fn arrivals<'a>(facts: &Facts<'a>) -> HashMap<&'a str, Vec<Arrival>> {
    let mut arrivals: HashMap<&str, Vec<Arrival>> = HashMap::new();
    let mut open: HashMap<(u32, &str, &str), usize> = HashMap::new();
    for event in facts.events {
        let (key, passed) = match &event.what {
            What::Arrive { key, .. } => {
                let arrivals = arrivals.entry(key).or_default();
                open.insert((event.process, &event.client, key), arrivals.len());
                arrivals.push(Arrival {
                    at: event.at,
                    end: facts.deaths.get(&event.process).map(|at| (*at, false)),
                });
                continue;
            }
            What::Passed { key, .. } => (key, true),
            What::Withdrawn { key } => (key, false),
            _ => continue,
        };
        let party = (event.process, event.client.as_str(), key.as_str());
        if let Some(index) = open.remove(&party) {
            arrivals.entry(key).or_default()[index].end = Some((event.at, passed));
        }
    }
    arrivals
}

impl Arrival {
    /// Whether a barrier that was complete at some time in the span may have counted a party that it did not let through: one
    /// that gave up or died counts until its lease is over.
    fn may_count_in(&self, span: (u64, u64), lease: u64) -> bool {
        let until = match self.end {
            Some((_, true)) => return false,
            Some((end, false)) => end.saturating_add(lease),
            None => u64::MAX,
        };
        self.at <= span.1 && span.0 <= until
    }
}

fn latches<'a>(facts: &Facts<'a>) -> HashMap<&'a str, Latch<'a>> {
    let mut latches: HashMap<&str, Latch<'_>> = HashMap::new();
    for event in facts.events {
        match &event.what {
            What::SetCount { key, count } => latches.entry(key).or_default().count = *count,
            What::CountDown { key } => latches.entry(key).or_default().tried.push(event),
            What::Counted { key } => latches.entry(key).or_default().counted.push(event),
            What::Awaits { key } => latches.entry(key).or_default().awaits.push(event),
            What::Opened { key } => latches.entry(key).or_default().opened.push(event),
            What::Counts { key, asked, count } => {
                let shown = &mut latches.entry(key).or_default().shown;
                shown.push((*asked, event, *count));
            }
            _ => {}
        }
    }
    latches
}

fn is_leader(event: &Event) -> bool {
    matches!(event.what, What::Passed { leader: true, .. })
}

fn of_one(a: &Event, b: &Event) -> bool {
    (a.process, &a.client) == (b.process, &b.client)
}
