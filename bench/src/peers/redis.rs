//! `redis`: a multiplexed connection without a response timeout (a timer a command) and with TCP_NODELAY.

use bytes::BytesMut;
use redis::aio::MultiplexedConnection;
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
    let info = format!("redis://127.0.0.1:{port}").into_connection_info().expect("an address");
    Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true))).expect("a client")
}

impl Redis {
    async fn evalsha(&mut self, sha: &str, key: &str, args: &[&str]) -> i64 {
        redis::cmd("EVALSHA")
            .arg(sha)
            .arg(1)
            .arg(key)
            .arg(args)
            .query_async(&mut self.connection)
            .await
            .expect("a reply")
    }
}

impl PairClient for Redis {
    async fn connect(port: u16) -> Self {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client(port).get_multiplexed_async_connection_with_config(&config).await.expect("a server");
        Self { connection }
    }

    async fn pair(&mut self, job: &Job) {
        assert_eq!(self.evalsha(&ACQUIRE.sha, &job.key, &[&job.token, LEASE_MS]).await, 1);
        assert_eq!(self.evalsha(&RELEASE.sha, &job.key, &[&job.token]).await, 1);
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
    redis::cmd("EVALSHA").arg(sha).arg(keys.len()).arg(keys).arg(args).get_packed_command()
}
