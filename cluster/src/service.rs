//! Questions to the servers that monitor a master: the state of the service, and how long it takes to detect a failure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_resp::{Command, Error, Value};

use crate::client::Client;
use crate::listing::Service;
use crate::router::Router;

impl Router {
    /// The state of the service as the sentinels report it: their last reply if that can still be used, unless `anew`.
    /// `None` where there are no sentinels.
    pub(crate) async fn service(&self, anew: bool) -> Option<Result<Arc<Service>, Error>> {
        let sentinels = self.sentinels()?;
        let changes = self.changes();
        if let Some(known) = self.memory().service(changes).filter(|_| !anew) {
            return Some(Ok(known));
        }
        // As old as the oldest of the answers.
        let asked = Instant::now();
        let service = match sentinels.state().await {
            Ok(state) => Arc::new(Service {
                state,
                asked,
                changes,
            }),
            Err(error) => return Some(Err(error)),
        };
        self.memory().remember(&service);
        Some(Ok(service))
    }
}

/// How long it takes until a server that is dead is held to be down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureDetection {
    /// A server that it is about: the master, or one of them.
    pub node: Arc<str>,
    /// The setting that says so.
    pub setting: &'static str,
    /// Its value.
    pub value: Duration,
    /// How long it takes in all.
    pub time: Duration,
}

impl Client {
    /// How long it takes until dead servers are held to be down, by `down-after-milliseconds` of the sentinels or by
    /// `cluster-node-timeout`. `None` for a single server, and if it cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn failure_detection(&self, deadline: Instant) -> Option<FailureDetection> {
        let router = self.router();
        if let Some(service) = router.service(false).await {
            let state = &service.ok()?.state;
            return Some(FailureDetection {
                node: state.master.to_string().into(),
                setting: "down-after-milliseconds",
                value: state.down_after,
                time: state.down_after,
            });
        }
        if !router.is_cluster() {
            return None;
        }
        let setting = "cluster-node-timeout";
        let question = Command::new("CONFIG").arg("GET").arg(setting);
        let (node, answer) = self.ask_masters(&question, 1, deadline).await.pop()?;
        let value = Duration::from_millis(config_value(&answer.ok()?)?);
        Some(FailureDetection {
            node,
            setting,
            value,
            // Suspected after one timeout, and a replica waits for up to another until it stands for election.
            time: value * 2,
        })
    }
}

/// The number in a reply to `CONFIG GET` of one setting.
fn config_value(reply: &Value) -> Option<u64> {
    let value = match reply {
        Value::Map(fields) => &fields.first()?.1,
        reply => reply.as_array()?.get(1)?,
    };
    value.as_str()?.parse().ok()
}
