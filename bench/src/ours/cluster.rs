//! `leasehold-cluster`: scripts that know their SHA-1, repeated where that is safe. What the locks use.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Script};
use leasehold_resp::{Encode, Value};

use crate::client::PairClient;
use crate::ours::resp::endpoint;
use crate::scripts::{self, Job, LEASE_MS};

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(scripts::ACQUIRE.source));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(scripts::RELEASE.source));

/// A client.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

impl Cluster {
    async fn eval(&self, script: &Script, keys: &[&[u8]], args: &[&[u8]]) -> Value {
        let deadline = Instant::now() + Duration::from_secs(5);
        self.client.eval(&script.call(keys, args), deadline).await.expect("a reply").value
    }
}

impl PairClient for Cluster {
    async fn connect(port: u16) -> Self {
        Self { client: Client::connect(endpoint(port)).await.expect("a server") }
    }

    async fn pair(&mut self, job: &Job) {
        let (key, token) = (job.key.as_bytes(), job.token.as_bytes());
        let taken = self.eval(&ACQUIRE, &[key], &[token, LEASE_MS.as_bytes()]).await;
        assert_eq!(taken.as_int(), Some(1));
        let released = self.eval(&RELEASE, &[key], &[token]).await;
        assert_eq!(released.as_int(), Some(1));
    }
}

/// Appends a call of the acquiring script.
pub fn encode(out: &mut Vec<u8>, keys: &[&[u8]], args: &[&[u8]]) {
    ACQUIRE.call(keys, args).encode(out);
}
