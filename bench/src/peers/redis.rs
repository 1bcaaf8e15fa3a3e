//! `redis`: a multiplexed connection without a response timeout (a timer a command) and with
//! TCP_NODELAY.

use bytes::BytesMut;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, Value};

use crate::client::PairClient;
use crate::scripts::{ACQUIRE, Job, LEASE_MS, RELEASE};

/// A shared connection.
#[derive(Clone)]
pub struct Redis {
    connection: MultiplexedConnection,
}

/// A client of the server on `port`, with TCP_NODELAY.
pub fn client(port: u16) -> Client {
    let info = format!("redis://127.0.0.1:{port}")
        .into_connection_info()
        .expect("an address");
    Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true))).expect("a client")
}

async fn evalsha(connection: &mut impl ConnectionLike, sha: &str, key: &str, args: &[&str]) -> i64 {
    redis::cmd("EVALSHA")
        .arg(sha)
        .arg(1)
        .arg(key)
        .arg(args)
        .query_async(connection)
        .await
        .expect("a reply")
}

async fn pair(connection: &mut impl ConnectionLike, job: &Job) {
    assert_eq!(
        evalsha(connection, &ACQUIRE.sha, &job.key, &[&job.token, LEASE_MS]).await,
        1
    );
    assert_eq!(
        evalsha(connection, &RELEASE.sha, &job.key, &[&job.token]).await,
        1
    );
}

impl PairClient for Redis {
    async fn connect(port: u16) -> Self {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client(port)
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("a server");
        Self { connection }
    }

    async fn pair(&mut self, job: &Job) {
        pair(&mut self.connection, job).await;
    }
}

/// A connection to each master of a cluster: `cluster_async`, whose response timeout cannot be
/// turned off.
#[derive(Clone)]
pub struct RedisCluster {
    connection: ClusterConnection,
}

impl PairClient for RedisCluster {
    async fn connect(port: u16) -> Self {
        let client = ClusterClientBuilder::new([format!("redis://127.0.0.1:{port}")])
            .tcp_settings(TcpSettings::default().set_nodelay(true))
            .build()
            .expect("a client");
        Self {
            connection: client.get_async_connection().await.expect("a cluster"),
        }
    }

    async fn pair(&mut self, job: &Job) {
        pair(&mut self.connection, job).await;
    }
}

/// The decoder its connections use: combine, resumable.
#[derive(Default)]
pub struct Decoder {
    codec: redis::ValueCodec,
}

impl Decoder {
    /// The next value of `buf`.
    pub fn next(&mut self, buf: &mut BytesMut) -> Option<Value> {
        tokio_util::codec::Decoder::decode(&mut self.codec, buf).expect("the protocol")
    }
}

/// Encodes `EVALSHA` the way its users do.
pub fn encode(sha: &str, keys: &[&[u8]], args: &[&[u8]]) -> Vec<u8> {
    redis::cmd("EVALSHA")
        .arg(sha)
        .arg(keys.len())
        .arg(keys)
        .arg(args)
        .get_packed_command()
}
