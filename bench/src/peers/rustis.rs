//! `rustis`, as it comes: no command timeout, TCP_NODELAY, RESP3.

use rustis::client::Client;
use rustis::commands::ScriptingCommands;
use rustis::resp::Value;
use rustis::resp::bench_support::{bench_decode_chunked, bench_decode_to};

use crate::client::PairClient;
use crate::scripts::{ACQUIRE, Job, LEASE_MS, RELEASE};

/// A shared connection.
#[derive(Clone)]
pub struct Rustis {
    client: Client,
}

impl PairClient for Rustis {
    async fn connect(port: u16) -> Self {
        Self {
            client: Client::connect(("127.0.0.1", port))
                .await
                .expect("a server"),
        }
    }

    async fn pair(&mut self, job: &Job) {
        let taken: i64 = self
            .client
            .evalsha(&*ACQUIRE.sha, &*job.key, [&*job.token, LEASE_MS])
            .await
            .expect("a reply");
        assert_eq!(taken, 1);
        let released: i64 = self
            .client
            .evalsha(&*RELEASE.sha, &*job.key, &*job.token)
            .await
            .expect("a reply");
        assert_eq!(released, 1);
    }
}

/// The same client, told that the server is a node of a cluster.
#[derive(Clone)]
pub struct RustisCluster(Rustis);

impl PairClient for RustisCluster {
    async fn connect(port: u16) -> Self {
        let url = format!("redis+cluster://127.0.0.1:{port}");
        Self(Rustis {
            client: Client::connect(url).await.expect("a cluster"),
        })
    }

    async fn pair(&mut self, job: &Job) {
        self.0.pair(job).await;
    }
}

/// One complete reply as a value, through the shim it offers to benchmarks (which copies the reply
/// once).
pub fn decode(frame: &[u8]) -> Value {
    bench_decode_to(frame).expect("the protocol")
}

/// One reply that arrives in pieces.
pub fn decode_chunks(chunks: &[&[u8]]) -> Value {
    bench_decode_chunked(chunks).expect("the protocol")
}
