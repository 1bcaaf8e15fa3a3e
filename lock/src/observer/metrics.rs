//! Counters, gauges and histograms for the facade `metrics`.

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::{
    GaveUp, Granted, LeaseLost, MapChanged, Observer, Primitive, Reconnected, Released,
    RenewalFailed, Renewed, Waiting,
};

const WAITING: &str = "leasehold_waiting";
const HELD: &str = "leasehold_held";
const GRANTED: &str = "leasehold_granted_total";
const GAVE_UP: &str = "leasehold_gave_up_total";
const RELEASED: &str = "leasehold_released_total";
const LOST: &str = "leasehold_lost_total";
const RENEWALS: &str = "leasehold_renewals_total";
const FAILED_RENEWALS: &str = "leasehold_failed_renewals_total";
const RECONNECTS: &str = "leasehold_reconnects_total";
const MAP_CHANGES: &str = "leasehold_map_changes_total";
const WAIT: &str = "leasehold_wait_seconds";
const HOLD: &str = "leasehold_hold_seconds";
const RENEWAL_LATENESS: &str = "leasehold_renewal_lateness_seconds";

/// Tells the facade `metrics` what happens to locks, for Prometheus or whichever exporter is installed. Needs the feature
/// `metrics`.
///
/// | name | type | labels | |
/// |---|---|---|---|
/// | `leasehold_waiting` | gauge | `primitive` | callers that wait |
/// | `leasehold_held` | gauge | `primitive` | holds |
/// | `leasehold_granted_total` | counter | `primitive`, `way` | callers that got what they waited for |
/// | `leasehold_gave_up_total` | counter | `primitive`, `reason` | callers that did not |
/// | `leasehold_released_total` | counter | `primitive` | holds that ended with their guards |
/// | `leasehold_lost_total` | counter | `primitive`, `reason` | holds that ended before |
/// | `leasehold_renewals_total` | counter | `primitive` | leases that were renewed |
/// | `leasehold_failed_renewals_total` | counter | `primitive` | renewals without an answer, which are tried again |
/// | `leasehold_reconnects_total` | counter | `server` | connections that were made again |
/// | `leasehold_map_changes_total` | counter | | changes of the cluster's map or the master |
/// | `leasehold_wait_seconds` | histogram | `primitive`, `way` | how long callers waited that got it |
/// | `leasehold_hold_seconds` | histogram | `primitive` | how long it was held |
/// | `leasehold_renewal_lateness_seconds` | histogram | `primitive` | how much later than planned leases were renewed |
///
/// The values of `primitive`, `way` and `reason` are those of [`Primitive::as_str`], [`Way::as_str`](super::Way::as_str),
/// [`GaveUpReason::as_str`](super::GaveUpReason::as_str) and [`LostReason::as_str`](crate::LostReason::as_str). Keys are no
/// labels: there would be a series for each, and they may be personal data.
///
/// ```
/// use leasehold::observer::Metrics;
///
/// // … behind `PrometheusBuilder::new().install()?`, or that of another exporter.
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Metrics::new());
/// ```
#[derive(Clone, Debug)]
pub struct Metrics(());

impl Metrics {
    /// Describes the metrics to the recorder, which is to be installed by then.
    #[must_use]
    pub fn new() -> Self {
        describe();
        Self(())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for Metrics {
    fn waiting(&self, event: &Waiting<'_>) {
        rise(WAITING, event.primitive);
    }

    fn granted(&self, event: &Granted<'_>) {
        let (primitive, way) = (event.primitive.as_str(), event.way.as_str());
        fall(WAITING, event.primitive);
        counter!(GRANTED, "primitive" => primitive, "way" => way).increment(1);
        histogram!(WAIT, "primitive" => primitive, "way" => way).record(event.waited);
        if event.way.begins_a_hold() {
            rise(HELD, event.primitive);
        }
    }

    fn gave_up(&self, event: &GaveUp<'_>) {
        let (primitive, reason) = (event.primitive.as_str(), event.reason.as_str());
        fall(WAITING, event.primitive);
        counter!(GAVE_UP, "primitive" => primitive, "reason" => reason).increment(1);
    }

    fn renewed(&self, event: &Renewed<'_>) {
        count(RENEWALS, event.primitive);
        let primitive = event.primitive.as_str();
        histogram!(RENEWAL_LATENESS, "primitive" => primitive).record(event.late);
    }

    fn renewal_failed(&self, event: &RenewalFailed<'_>) {
        count(FAILED_RENEWALS, event.primitive);
    }

    fn lost(&self, event: &LeaseLost<'_>) {
        let (primitive, reason) = (event.primitive.as_str(), event.reason.as_str());
        counter!(LOST, "primitive" => primitive, "reason" => reason).increment(1);
        ended(event.primitive, event.held);
    }

    fn released(&self, event: &Released<'_>) {
        count(RELEASED, event.primitive);
        ended(event.primitive, event.held);
    }

    fn map_changed(&self, _: &MapChanged) {
        counter!(MAP_CHANGES).increment(1);
    }

    fn reconnected(&self, event: &Reconnected<'_>) {
        counter!(RECONNECTS, "server" => event.server.to_owned()).increment(1);
    }
}

fn rise(name: &'static str, primitive: Primitive) {
    gauge!(name, "primitive" => primitive.as_str()).increment(1);
}

fn fall(name: &'static str, primitive: Primitive) {
    gauge!(name, "primitive" => primitive.as_str()).decrement(1);
}

fn count(name: &'static str, primitive: Primitive) {
    counter!(name, "primitive" => primitive.as_str()).increment(1);
}

fn ended(primitive: Primitive, held: Duration) {
    fall(HELD, primitive);
    histogram!(HOLD, "primitive" => primitive.as_str()).record(held);
}

fn describe() {
    let count = Unit::Count;
    describe_gauge!(WAITING, count, "Callers that wait");
    describe_gauge!(HELD, count, "Holds");
    let grants = "Callers that got what they waited for";
    describe_counter!(GRANTED, count, grants);
    describe_counter!(GAVE_UP, count, "Callers that did not get it");
    describe_counter!(RELEASED, count, "Holds that ended with their guards");
    describe_counter!(LOST, count, "Holds that ended before their guards");
    describe_counter!(RENEWALS, count, "Leases that were renewed");
    let failed = "Renewals without an answer, which are tried again";
    describe_counter!(FAILED_RENEWALS, count, failed);
    describe_counter!(RECONNECTS, count, "Connections that were made again");
    let changes = "Changes of the cluster's map or the master";
    describe_counter!(MAP_CHANGES, count, changes);
    let seconds = Unit::Seconds;
    describe_histogram!(WAIT, seconds, "How long callers waited that got it");
    describe_histogram!(HOLD, seconds, "How long it was held");
    let lateness = "How much later than planned leases were renewed";
    describe_histogram!(RENEWAL_LATENESS, seconds, lateness);
}
