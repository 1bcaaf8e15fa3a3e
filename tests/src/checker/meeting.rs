//! I14: latches and barriers let everybody through, and nobody too early.

use std::collections::HashMap;

use super::Violation;
use super::facts::{Facts, violation};
use crate::history::{Event, What, micros};

/// What happened to one latch. Each is used once.
#[derive(Default)]
struct Latch<'a> {
    count: u32,
    /// Calls that may have counted, and those that did for certain, in their order.
    tried: Vec<&'a Event>,
    counted: Vec<&'a Event>,
    awaits: Vec<&'a Event>,
    opened: Vec<&'a Event>,
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
    let mut latches: HashMap<&str, Latch<'_>> = HashMap::new();
    for event in facts.events {
        match &event.what {
            What::SetCount { key, count } => latches.entry(key).or_default().count = *count,
            What::CountDown { key } => latches.entry(key).or_default().tried.push(event),
            What::Counted { key } => latches.entry(key).or_default().counted.push(event),
            What::Awaits { key } => latches.entry(key).or_default().awaits.push(event),
            What::Opened { key } => latches.entry(key).or_default().opened.push(event),
            _ => {}
        }
    }
    let mut violations = Vec::new();
    for (key, latch) in latches {
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
    let mut violations = Vec::new();
    for ((key, generation), through) in generations {
        let events: Vec<_> = through.iter().map(|one| one.passed).collect();
        let of_many = through.iter().map(|one| one.parties).max().unwrap_or(0);
        let leaders = events.iter().filter(|event| is_leader(event)).count();
        let first = events.iter().map(|event| event.at).min().unwrap_or(0);
        let arrivals = through.iter().filter_map(|one| one.arrived);
        let last = arrivals.map(|event| event.at).max();
        let wrong = if leaders > 1 {
            "two leaders"
        } else if through.len() > of_many as usize {
            "more parties than it is for"
        } else if last.is_some_and(|last| last > first) {
            "a party that was let through before the last had arrived"
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

fn is_leader(event: &Event) -> bool {
    matches!(event.what, What::Passed { leader: true, .. })
}

fn of_one(a: &Event, b: &Event) -> bool {
    (a.process, &a.client) == (b.process, &b.client)
}
