//! `leasehold-resp`: the shared connection and the codec.

use bytes::BytesMut;
use leasehold_resp::{Address, Connection, Decoder as RespDecoder, Endpoint, Frame, Value};

use crate::client::PairClient;
use crate::scripts::{ACQUIRE, Job, LEASE_MS, RELEASE};

/// The server on `port` of this machine.
pub fn endpoint(port: u16) -> Endpoint {
    Endpoint::new(Address::Tcp {
        host: "127.0.0.1".into(),
        port,
    })
}

/// A shared connection.
#[derive(Clone)]
pub struct Resp {
    connection: Connection,
}

impl Resp {
    async fn call(&self, parts: &[&[u8]]) -> Value {
        self.connection.send(parts).await.expect("a reply")
    }
}

impl PairClient for Resp {
    async fn connect(port: u16) -> Self {
        Self {
            connection: Connection::connect(endpoint(port)).await.expect("a server"),
        }
    }

    async fn pair(&mut self, job: &Job) {
        let (key, token) = (job.key.as_bytes(), job.token.as_bytes());
        let acquire: [&[u8]; 6] = [
            b"EVALSHA",
            ACQUIRE.sha.as_bytes(),
            b"1",
            key,
            token,
            LEASE_MS.as_bytes(),
        ];
        assert_eq!(self.call(&acquire).await.as_int(), Some(1));
        let release: [&[u8]; 5] = [b"EVALSHA", RELEASE.sha.as_bytes(), b"1", key, token];
        assert_eq!(self.call(&release).await.as_int(), Some(1));
    }
}

/// The decoder its connections use.
#[derive(Default)]
pub struct Decoder {
    decoder: RespDecoder,
}

impl Decoder {
    /// The next frame of `buf`.
    pub fn next(&mut self, buf: &mut BytesMut) -> Option<Frame> {
        self.decoder.decode(buf).expect("the protocol")
    }
}
