//! Writes the server's own state of a lock into the history.

use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep};

use crate::history::{Holder, Recorder, What, now};
use crate::raw::{Raw, RawValue};

/// The hash and its expiry in one step: two requests could see two different holders.
const LOOK: &str = "return {redis.call('HGETALL', KEYS[1]), redis.call('PTTL', KEYS[1])}";

/// Reads the lock `key` (a hash: holder's id to count) once and records its state.
///
/// # Errors
///
/// Those of the connection, or the server's error reply. Nothing is recorded then.
pub async fn look(raw: &mut Raw, recorder: &Recorder, key: &str) -> std::io::Result<()> {
    let asked = now();
    let reply = raw.try_cmd(&["EVAL", LOOK, "1", key]).await?;
    if let Some(refusal) = reply.error() {
        return Err(std::io::Error::other(refusal.to_owned()));
    }
    let [fields, pttl] = reply.array() else {
        panic!("two values were asked for: {reply:?}")
    };
    let holders = fields
        .array()
        .chunks_exact(2)
        .filter(|field| field[0] != RawValue::Bulk(b"mode".to_vec()));
    let holders = holders
        .map(|field| Holder {
            id: field[0].str().into(),
            count: field[1].int(),
        })
        .collect();
    recorder.record(What::Server {
        key: key.into(),
        asked,
        holders,
        pttl: pttl.int(),
    });
    Ok(())
}

/// Looks at the locks again and again until dropped. While the server does not answer, nothing is
/// written.
#[derive(Debug)]
pub struct Observer {
    task: JoinHandle<()>,
}

impl Observer {
    /// Watches `keys` on the server at `addr`, each about every `period`.
    #[must_use]
    pub fn start(
        addr: std::net::SocketAddr,
        keys: Vec<String>,
        recorder: Recorder,
        period: Duration,
    ) -> Self {
        let task = tokio::spawn(async move {
            loop {
                if let Ok(mut raw) = Raw::connect(addr).await {
                    while look_at_all(&mut raw, &recorder, &keys).await.is_ok() {
                        sleep(period).await;
                    }
                }
                sleep(period).await;
            }
        });
        Self { task }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn look_at_all(raw: &mut Raw, recorder: &Recorder, keys: &[String]) -> std::io::Result<()> {
    for key in keys {
        look(raw, recorder, key).await?;
    }
    Ok(())
}
