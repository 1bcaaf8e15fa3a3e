//! `fred`, as it comes: with TCP_NODELAY it loses a third of its throughput.

use fred::clients::Client;
use fred::interfaces::{ClientLike, LuaInterface};
use fred::types::config::Config;

use crate::client::PairClient;
use crate::scripts::{ACQUIRE, Job, LEASE_MS, RELEASE};

/// A shared connection.
#[derive(Clone)]
pub struct Fred {
    client: Client,
}

impl Fred {
    async fn evalsha(&self, sha: &str, key: &str, args: Vec<&str>) -> i64 {
        self.client.evalsha(sha, key, args).await.expect("a reply")
    }
}

impl Fred {
    async fn open(url: &str) -> Self {
        let config = Config::from_url(url).expect("an address");
        let client = Client::new(config, None, None, None);
        client.init().await.expect("a server");
        Self { client }
    }
}

impl PairClient for Fred {
    async fn connect(port: u16) -> Self {
        Self::open(&format!("redis://127.0.0.1:{port}")).await
    }

    async fn pair(&mut self, job: &Job) {
        assert_eq!(
            self.evalsha(&ACQUIRE.sha, &job.key, vec![&job.token, LEASE_MS])
                .await,
            1
        );
        assert_eq!(
            self.evalsha(&RELEASE.sha, &job.key, vec![&job.token]).await,
            1
        );
    }
}

/// The same client, told that the server is a node of a cluster.
#[derive(Clone)]
pub struct FredCluster(Fred);

impl PairClient for FredCluster {
    async fn connect(port: u16) -> Self {
        Self(Fred::open(&format!("redis-cluster://127.0.0.1:{port}")).await)
    }

    async fn pair(&mut self, job: &Job) {
        self.0.pair(job).await;
    }
}
