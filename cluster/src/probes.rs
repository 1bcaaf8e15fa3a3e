//! Connections to servers that serve no key that we know of, but may know who does.
//!
//! They are kept between questions: while a shard is down its successor is asked for again and again, which must not
//! open connections as often.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_resp::{Address, Connection, Endpoint};

/// One connection for each address that was asked last.
#[derive(Debug, Default)]
pub(crate) struct Probes(Mutex<HashMap<Address, Connection>>);

impl Probes {
    /// Connections to exactly these `endpoints`, open or not; those to others end.
    pub(crate) fn only(
        &self,
        endpoints: impl IntoIterator<Item = Endpoint>,
    ) -> Vec<(Connection, Endpoint)> {
        let mut known = self.lock();
        let mut kept = HashMap::new();
        let mut probes = Vec::new();
        for endpoint in endpoints {
            let connection = known
                .remove(&endpoint.address)
                .unwrap_or_else(|| Connection::lazy(endpoint.clone(), None));
            kept.insert(endpoint.address.clone(), connection.clone());
            probes.push((connection, endpoint));
        }
        *known = kept;
        probes
    }

    /// Ends all of them.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Address, Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether to ask there: not where the last attempt to connect failed. The connection goes on trying by itself, and a
/// search that waited for it each time would learn of a successor later than need be.
pub(crate) fn may_answer(connection: &Connection) -> bool {
    // A runtime that has ended has taken its driver along.
    connection.start();
    !connection.is_failing()
}
