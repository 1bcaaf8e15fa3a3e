//! What a recorder of `metrics` gets of locks, and whether the dashboard and the alerts ask for that.

use std::collections::{BTreeMap, BTreeSet};
use std::future::IntoFuture;

use leasehold::observer::Metrics;
use leasehold::{Locks, LostReason};
use leasehold_testkit::{Proxy, Sentinels, Server, in_own_process};
use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use serde_json::Value;

use crate::support::{granted, ms, take, until, within};

/// A dashboard of Grafana, and rules of Prometheus.
const DASHBOARD: &str = include_str!("../../../../docs/grafana.json");
const ALERTS: &str = include_str!("../../../../docs/alerts.yaml");

/// The metrics of now.
#[derive(Default)]
struct Seen {
    kinds: BTreeMap<String, MetricKind>,
    described: BTreeSet<String>,
    /// Counters and gauges by `name{label="value",…}`; of histograms the number of values.
    values: BTreeMap<String, f64>,
    /// The names of the labels of each metric.
    labels: BTreeMap<String, BTreeSet<String>>,
}

impl Seen {
    /// Adds what was recorded since.
    fn update(&mut self, snapshotter: &Snapshotter) {
        for (composite, unit, description, value) in snapshotter.snapshot().into_vec() {
            let (kind, key) = composite.into_parts();
            let name = key.name().to_owned();
            if description.is_some() && unit.is_some() {
                self.described.insert(name.clone());
            }
            let mut labels: Vec<_> = key
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            labels.sort();
            let names = key.labels().map(|label| label.key().to_owned());
            self.labels.entry(name.clone()).or_default().extend(names);
            let series = format!("{name}{{{}}}", labels.join(","));
            // A snapshot takes the values out, of gauges too, which rise and fall by steps here.
            let more = match value {
                DebugValue::Counter(more) => more as f64,
                DebugValue::Histogram(more) => more.len() as f64,
                DebugValue::Gauge(more) => more.into_inner(),
            };
            *self.values.entry(series).or_default() += more;
            self.kinds.insert(name, kind);
        }
    }

    fn value(&self, series: &str) -> f64 {
        self.values.get(series).copied().unwrap_or_default()
    }
}

/// Everything happens once that a metric tells of. The names are those of the dashboard and the alerts, with labels that are
/// there.
#[test]
fn every_metric_is_described_recorded_and_shown() {
    in_own_process(async {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        recorder.install().expect("the only one");
        let mut seen = Seen::default();
        let server = Server::start().await;
        let mut raw = server.raw().await;
        let proxy = Proxy::start(server.addr());
        let builder = Locks::builder(proxy.url()).lease(ms(900));
        let locks = builder.observer(Metrics::new()).connect().await.unwrap();
        let lost = take(&locks, "lost").await;
        let kept = take(&locks, "kept").await;
        drop(take(&locks, "released").await);
        assert!(locks.mutex("kept").try_lock().await.unwrap().is_none());
        let waiting = tokio::spawn(locks.mutex("kept").lock().into_future());
        until("it waits", async || locks.stats().waiting() == 1).await;
        raw.cmd(&["DEL", "lost"]).await;
        within("the loss", lost.lost()).await;
        raw.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await;
        until("connections", async || locks.stats().reconnects() == 2).await;
        until("what was told", async || {
            seen.update(&snapshotter);
            seen.value("leasehold_lost_total{primitive=mutex,reason=stolen}") == 1.0
        })
        .await;
        assert_eq!(seen.value("leasehold_held{primitive=mutex}"), 1.0);
        assert_eq!(seen.value("leasehold_waiting{primitive=mutex}"), 1.0);
        let at_once = "leasehold_granted_total{primitive=mutex,way=at_once}";
        assert_eq!(seen.value(at_once), 3.0);
        let not_free = "leasehold_gave_up_total{primitive=mutex,reason=not_free}";
        assert_eq!(seen.value(not_free), 1.0);
        proxy.blackhole();
        assert_eq!(within("the end", kept.lost()).await, LostReason::Expired);
        waiting.abort();
        let _ = waiting.await;
        drop((kept, lost));
        change_the_map().await;
        until("every metric", async || {
            seen.update(&snapshotter);
            let mut missing = used();
            missing.retain(|name, _| !seen.kinds.contains_key(name));
            let held = seen.value("leasehold_held{primitive=mutex}");
            let is_all = missing.is_empty() && held == 0.0;
            is_all
                .then_some(())
                .ok_or_else(|| format!("{missing:?}, {held} held"))
        })
        .await;
        assert_eq!(seen.value("leasehold_waiting{primitive=mutex}"), 0.0);
        assert_shown(&seen);
    });
}

/// A failover that sentinels tell of.
async fn change_the_map() {
    let sentinels = Sentinels::start().await;
    let builder = Locks::builder(sentinels.url()).observer(Metrics::new());
    let locks = builder.connect().await.unwrap();
    drop(granted(&locks, "a").await);
    sentinels.failover().await;
    until("another map", async || locks.stats().map_changes() > 0).await;
}

fn assert_shown(seen: &Seen) {
    let ours: BTreeSet<_> = seen
        .kinds
        .keys()
        .filter(|name| name.starts_with("leasehold_"))
        .collect();
    let described: BTreeSet<_> = seen.described.iter().collect();
    assert_eq!(ours, described, "with a unit and a description each");
    let used = used();
    assert_eq!(
        ours,
        used.keys().collect(),
        "shown on the dashboard or watched by an alert"
    );
    for (name, labels) in &used {
        let known = &seen.labels[name];
        assert!(labels.is_subset(known), "{name}: {labels:?} of {known:?}");
    }
}

/// The metrics that the dashboard and the alerts ask for, and the labels that they select or group by.
fn used() -> BTreeMap<String, BTreeSet<String>> {
    let mut used = BTreeMap::new();
    let mut expressions = Vec::new();
    expressions_of(
        &serde_json::from_str(DASHBOARD).expect("JSON"),
        &mut expressions,
    );
    assert!(expressions.len() >= 10, "{expressions:?}");
    let rules = ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let before = expressions.len();
    expressions.extend(rules.map(str::to_owned));
    assert!(
        expressions.len() >= before + 6,
        "the rules are read: {expressions:?}"
    );
    for expression in &expressions {
        add_names(expression, &mut used);
    }
    used
}

/// The values of `expr`, and the definitions of variables, anywhere in a dashboard.
fn expressions_of(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "expr" => found.push(text.clone()),
                    value => expressions_of(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions_of(value, found)),
        _ => {}
    }
}

/// Adds the metrics of an expression of Prometheus, with the labels in their braces and in the `by (…)` of the expression.
fn add_names(expression: &str, used: &mut BTreeMap<String, BTreeSet<String>>) {
    let mut grouped = BTreeSet::new();
    for by in expression.split("by (").skip(1) {
        let labels = by.split(')').next().unwrap_or_default();
        grouped.extend(labels.split(',').map(|label| label.trim().to_owned()));
    }
    // Of the scrape, and of the buckets of a histogram.
    for foreign in ["le", "job", "instance"] {
        grouped.remove(foreign);
    }
    for part in expression.split("leasehold_").skip(1) {
        let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_');
        let (name, rest) = part.split_at(end.unwrap_or(part.len()));
        let histogram = ["_bucket", "_sum", "_count"];
        let base = histogram
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix));
        let labels = used
            .entry(format!("leasehold_{}", base.unwrap_or(name)))
            .or_default();
        labels.extend(grouped.iter().cloned());
        if let Some(selected) = rest
            .strip_prefix('{')
            .and_then(|rest| rest.split('}').next())
        {
            let names = selected
                .split(',')
                .filter_map(|one| one.split(['=', '!']).next());
            let names = names.map(|name| name.trim().to_owned());
            labels.extend(names.filter(|name| !["job", "instance", ""].contains(&name.as_str())));
        }
    }
}
