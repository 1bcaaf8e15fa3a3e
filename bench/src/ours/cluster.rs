//! `leasehold-cluster`: scripts with their SHA-1, repeated where that is safe. The locks use it.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Script, Subscription, SubscriptionEvent, Target};
use leasehold_resp::{Encode, Value};

use crate::client::PairClient;
use crate::ours::resp::endpoint;
use crate::scripts::{self, Job, LEASE_MS};

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(scripts::ACQUIRE.source));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(scripts::RELEASE.source));
static WRITE: LazyLock<Script> =
    LazyLock::new(|| Script::new("redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1"));
static REFUSE: LazyLock<Script> =
    LazyLock::new(|| Script::new("return redis.error_reply(ARGV[1])"));

/// A client.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

impl Cluster {
    async fn eval(&self, script: &Script, keys: &[&[u8]], args: &[&[u8]]) -> Value {
        let deadline = Instant::now() + Duration::from_secs(5);
        self.client
            .eval(&script.call(keys, args), deadline)
            .await
            .expect("a reply")
            .value
    }
}

impl PairClient for Cluster {
    async fn connect(port: u16) -> Self {
        Self {
            client: Client::connect(endpoint(port)).await.expect("a server"),
        }
    }

    async fn pair(&mut self, job: &Job) {
        let (key, token) = (job.key.as_bytes(), job.token.as_bytes());
        let taken = self
            .eval(&ACQUIRE, &[key], &[token, LEASE_MS.as_bytes()])
            .await;
        assert_eq!(taken.as_int(), Some(1));
        let released = self.eval(&RELEASE, &[key], &[token]).await;
        assert_eq!(released.as_int(), Some(1));
    }
}

/// A client of the cluster that the node on a port belongs to.
#[derive(Clone)]
pub struct Sharded(Cluster);

impl Sharded {
    /// Writes at `key`, however long it takes up to half a minute; the port of the node that serves
    /// it behind that.
    pub async fn write(&self, key: &[u8]) -> Option<u16> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let (keys, args): ([&[u8]; 1], [&[u8]; 2]) = ([key], [b"1", LEASE_MS.as_bytes()]);
        self.0
            .client
            .eval(&WRITE.call(&keys, &args), deadline)
            .await
            .expect("a reply");
        self.0.client.node(key).rsplit(':').next()?.parse().ok()
    }

    /// Subscribes to `channel`.
    pub fn subscribe(&self, channel: &str) -> Subscription {
        self.0.client.subscribe(channel.as_bytes())
    }

    /// Waits until the server has confirmed each of them, once more for those that were confirmed before.
    pub async fn all_confirmed(subscriptions: &mut [Subscription]) {
        for subscription in subscriptions {
            while !matches!(subscription.next().await, SubscriptionEvent::Subscribed) {}
        }
    }

    /// Makes the server at `key` refuse a script; if `doubt`, with an error that makes the client
    /// refresh its map.
    pub async fn refused(&self, key: &[u8], doubt: bool) {
        let says: &[u8] = if doubt {
            b"CLUSTERDOWN made up"
        } else {
            b"ERR made up"
        };
        self.0
            .client
            .submit(&REFUSE.call(&[key], &[says]))
            .await
            .expect_err("it says so");
    }
}

impl PairClient for Sharded {
    async fn connect(port: u16) -> Self {
        let target = Target::parse(&format!("redis-cluster://127.0.0.1:{port}")).expect("a target");
        Self(Cluster {
            client: Client::connect(target).await.expect("a cluster"),
        })
    }

    async fn pair(&mut self, job: &Job) {
        self.0.pair(job).await;
    }
}

/// Appends a call of the acquiring script.
pub fn encode(out: &mut Vec<u8>, keys: &[&[u8]], args: &[&[u8]]) {
    ACQUIRE.call(keys, args).encode(out);
}
