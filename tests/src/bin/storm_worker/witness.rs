//! The holder of a lock according to the server, read past the faults and without the library.

use std::time::Duration;

use leasehold::Guard;
use leasehold_testkit::storm::BLOCK;
use leasehold_testkit::{Raw, RawValue};
use tokio::time::sleep;

/// The holders and the counter of tokens, in one step.
const LOOK: &str = "return {redis.call('HKEYS', KEYS[1]), redis.call('GET', KEYS[2])}";

/// A connection of its own, opened again after it was killed.
pub(crate) struct Witness {
    server: String,
    raw: Option<Raw>,
}

impl Witness {
    pub(crate) fn new(server: &str) -> Self {
        Self {
            server: server.into(),
            raw: None,
        }
    }

    /// The id of the hold that `guard` has, as it stands on the server. `None` if the guard was
    /// lost before the server could be asked.
    ///
    /// The guard does not tell its id, but the hold with the newest token is the current one. A hold that is passed on within
    /// its process has tokens of a block, of which the server knows the last.
    ///
    /// Where servers change their roles none is asked (`-` instead of an address), and the hold
    /// gets a name of its own.
    pub(crate) async fn hold(&mut self, guard: &Guard) -> Option<String> {
        if self.server == "-" {
            // With the key: masters give tokens by their own clocks, and two keys may get the same
            // microsecond.
            return guard
                .is_held()
                .then(|| format!("{}:{}:{}", std::process::id(), guard.key(), guard.token()));
        }
        let counter = format!("redisson_lock_token:{{{}}}", guard.key());
        loop {
            if let Some((holder, token)) = self.look(guard.key(), &counter).await {
                let own = guard.token().as_u64();
                if token.is_some_and(|token| (own..own + BLOCK).contains(&token))
                    && holder.is_some()
                {
                    return holder;
                }
                // A guard that still claims to hold means two holders: an id that no other hold has
                // lets the checker find it.
                return guard.is_held().then(|| format!("nobody:{}", guard.token()));
            }
            if !guard.is_held() {
                return None;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn look(&mut self, key: &str, counter: &str) -> Option<(Option<String>, Option<u64>)> {
        let mut raw = match self.raw.take() {
            Some(raw) => raw,
            None => Raw::connect(&self.server).await.ok()?,
        };
        let reply = raw.try_cmd(&["EVAL", LOOK, "2", key, counter]).await.ok()?;
        if reply.error().is_some() {
            return None;
        }
        self.raw = Some(raw);
        let [holders, token] = reply.array() else {
            panic!("two values were asked for: {reply:?}")
        };
        let text = |value: &RawValue| value.str().to_owned();
        // In RESP2 an array that ends with nil is still one of two elements, because false is an
        // element.
        let token = Some(token)
            .filter(|token| !token.is_null())
            .map(|token| token.int().unsigned_abs());
        Some((holders.array().first().map(text), token))
    }
}
