//! Spans and events for `tracing`, with the field names of OpenTelemetry's conventions for databases.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::field::Empty;
use tracing::{Span, debug, info, info_span, warn};

use super::{
    GaveUp, GaveUpReason, Granted, LeaseLost, MapChanged, Observer, Reconnected, Released,
    RenewalFailed, Renewed, Waiting,
};

/// The value of `db.system.name`. Valkey speaks the protocol of Redis, and the conventions know no other name for it.
const SYSTEM: &str = "redis";

/// Part of a lease. What is renewed so much later than planned is worth a warning.
const LATE_PART: u32 = 6;

/// Tells `tracing` what happens to locks. Needs the feature `tracing`.
///
/// | span or event | level | when |
/// |---|---|---|
/// | span `leasehold.acquire` | info | from the call until the lock is there, or the caller gave up; a child of the caller's span |
/// | span `leasehold.hold` | info | from the grant until the release or the loss; it follows from the acquire |
/// | `lease lost` | warn | in the span of the hold |
/// | `renewal failed`, `renewed late` | warn | in the span of the hold |
/// | `renewed` | debug | in the span of the hold |
/// | `reconnected`, `map changed` | info | in no span |
///
/// Fields of both spans: `db.system.name`, `db.namespace` (the number of the database), `db.operation.name`, `server.address`,
/// `server.port`, `leasehold.key`, `leasehold.primitive`, `leasehold.acquisition`, `leasehold.way`, `leasehold.token`,
/// `leasehold.outcome`, and `error.type` after an error or a loss. Spans are opened and closed, and never entered: what they
/// measure is the time in between.
///
/// **Keys may be personal data** (`user:jane@example.org`), and traces are kept elsewhere and for longer than a lock:
/// [`without_keys`](Self::without_keys) leaves them out. Passwords and values are in no event.
///
/// ```
/// use leasehold::observer::Traces;
///
/// let locks = leasehold::Locks::builder("redis://127.0.0.1:6379").observer(Traces::new().without_keys());
/// ```
pub struct Traces {
    with_keys: bool,
    /// By the number of the acquisition: the span of the acquire, and then that of the hold.
    spans: Mutex<HashMap<u64, Span>>,
}

/// The parts of a server's name.
struct Server<'a> {
    address: Option<&'a str>,
    port: Option<u64>,
}

impl Traces {
    /// With keys.
    #[must_use]
    pub fn new() -> Self {
        Self {
            with_keys: true,
            spans: Mutex::default(),
        }
    }

    /// Leaves out the keys, which may be personal data.
    #[must_use]
    pub const fn without_keys(mut self) -> Self {
        self.with_keys = false;
        self
    }

    fn key<'a>(&self, key: &'a str) -> Option<&'a str> {
        self.with_keys.then_some(key)
    }

    fn put(&self, acquisition: u64, span: Span) {
        if !span.is_disabled() {
            self.spans().insert(acquisition, span);
        }
    }

    fn take(&self, acquisition: u64) -> Span {
        self.spans().remove(&acquisition).unwrap_or_else(Span::none)
    }

    fn get(&self, acquisition: u64) -> Span {
        self.spans()
            .get(&acquisition)
            .cloned()
            .unwrap_or_else(Span::none)
    }

    fn spans(&self) -> MutexGuard<'_, HashMap<u64, Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Traces {
    fn waiting(&self, event: &Waiting<'_>) {
        let server = Server::of(event.server);
        let span = info_span!(
            target: "leasehold",
            "leasehold.acquire",
            otel.kind = "client",
            db.system.name = SYSTEM,
            db.namespace = %event.database,
            db.operation.name = "acquire",
            server.address = server.address,
            server.port = server.port,
            leasehold.key = self.key(event.key),
            leasehold.primitive = event.primitive.as_str(),
            leasehold.acquisition = event.acquisition,
            leasehold.way = Empty,
            leasehold.token = Empty,
            leasehold.outcome = Empty,
            "error.type" = Empty,
        );
        self.put(event.acquisition, span);
    }

    fn granted(&self, event: &Granted<'_>) {
        let acquire = self.take(event.acquisition);
        let token = event.token.map(|token| token.as_u64());
        acquire.record("leasehold.way", event.way.as_str());
        acquire.record("leasehold.token", token);
        acquire.record("leasehold.outcome", "granted");
        if !event.way.begins_a_hold() {
            return;
        }
        let server = Server::of(event.server);
        let hold = info_span!(
            target: "leasehold",
            "leasehold.hold",
            db.system.name = SYSTEM,
            db.namespace = %event.database,
            db.operation.name = "hold",
            server.address = server.address,
            server.port = server.port,
            leasehold.key = self.key(event.key),
            leasehold.primitive = event.primitive.as_str(),
            leasehold.acquisition = event.acquisition,
            leasehold.way = event.way.as_str(),
            leasehold.token = token,
            leasehold.outcome = Empty,
            "error.type" = Empty,
        );
        hold.follows_from(&acquire);
        self.put(event.acquisition, hold);
    }

    fn gave_up(&self, event: &GaveUp<'_>) {
        let acquire = self.take(event.acquisition);
        match event.reason {
            GaveUpReason::Failed(kind) => {
                acquire.record("leasehold.outcome", "failed");
                acquire.record("error.type", kind.as_str());
            }
            reason => {
                acquire.record("leasehold.outcome", reason.as_str());
            }
        }
    }

    fn renewed(&self, event: &Renewed<'_>) {
        let hold = self.get(event.acquisition);
        let (key, late) = (self.key(event.key), seconds(event.late));
        if event.late >= event.lease / LATE_PART {
            warn!(
                target: "leasehold",
                parent: &hold,
                { leasehold.key = key, leasehold.late = late },
                "renewed late"
            );
        } else {
            debug!(
                target: "leasehold",
                parent: &hold,
                { leasehold.key = key, leasehold.late = late },
                "renewed"
            );
        }
    }

    fn renewal_failed(&self, event: &RenewalFailed<'_>) {
        let hold = self.get(event.acquisition);
        warn!(
            target: "leasehold",
            parent: &hold,
            { leasehold.key = self.key(event.key), leasehold.left = seconds(event.left) },
            "renewal failed"
        );
    }

    fn lost(&self, event: &LeaseLost<'_>) {
        let hold = self.take(event.acquisition);
        hold.record("leasehold.outcome", "lost");
        hold.record("error.type", event.reason.as_str());
        warn!(
            target: "leasehold",
            parent: &hold,
            {
                leasehold.key = self.key(event.key),
                leasehold.primitive = event.primitive.as_str(),
                leasehold.held = seconds(event.held),
                "error.type" = event.reason.as_str(),
            },
            "lease lost"
        );
    }

    fn released(&self, event: &Released<'_>) {
        let hold = self.take(event.acquisition);
        hold.record("leasehold.outcome", "released");
    }

    fn map_changed(&self, event: &MapChanged) {
        info!(
            target: "leasehold",
            { db.system.name = SYSTEM, leasehold.masters = event.masters as u64 },
            "map changed"
        );
    }

    fn reconnected(&self, event: &Reconnected<'_>) {
        let server = Server::of(event.server);
        info!(
            target: "leasehold",
            {
                db.system.name = SYSTEM,
                server.address = server.address,
                server.port = server.port,
                leasehold.after = seconds(event.after),
                leasehold.for_renewals = event.for_renewals,
            },
            "reconnected"
        );
    }
}

impl Default for Traces {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces")
            .field("with_keys", &self.with_keys)
            .finish_non_exhaustive()
    }
}

impl<'a> Server<'a> {
    /// Of `host:port`, `[address]:port`, or the path of a socket, which has no port.
    fn of(server: &'a str) -> Self {
        let parts = server
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (address, port) = match parts {
            Some((host, port)) => (host.trim_matches(['[', ']']), Some(port)),
            None => (server, None),
        };
        Self {
            address: (!address.is_empty()).then_some(address),
            port,
        }
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_as_address_and_port() {
        for (server, address, port) in [
            ("10.0.0.1:6379", Some("10.0.0.1"), Some(6379)),
            ("[::1]:7000", Some("::1"), Some(7000)),
            ("/run/redis.sock", Some("/run/redis.sock"), None),
            ("", None, None),
        ] {
            let parts = Server::of(server);
            assert_eq!((parts.address, parts.port), (address, port), "{server}");
        }
    }
}
