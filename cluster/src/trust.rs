//! Whether a master may grant anything, for locks that need no replica's confirmation.

use std::time::{Duration, Instant};

use leasehold_resp::Error;

use crate::client::Client;
use crate::master_link::MasterLink;
use crate::redirect::RetryState;

impl Client {
    /// For how long the data of the master of `key` may have lost locks of up to `guard`, by a restart or a promotion; zero if
    /// they have not. Once a master is known that takes no round trip.
    ///
    /// # Errors
    ///
    /// The master could not be reached or asked by `deadline`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn untrusted_for(
        &self,
        key: &[u8],
        guard: Duration,
        deadline: Instant,
    ) -> Result<Duration, Error> {
        let retry = RetryState::new(deadline, false);
        let node = self.node_for(key, &retry).await?;
        let link = MasterLink::open(self.router(), &node, key, false, deadline).await;
        link?.untrusted_for(guard).await
    }
}
