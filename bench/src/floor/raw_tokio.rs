//! raw-tokio: a tokio socket owned by the task that uses it. The 1.00 of every latency here.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::PairClient;
use crate::floor::scan::Scan;
use crate::floor::write;
use crate::scripts::{ACQUIRE, Job, LEASE_MS, RELEASE};

/// One connection.
pub struct RawTokio {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
}

impl RawTokio {
    /// Sends `EVALSHA` and gives back the reply as sent.
    pub async fn evalsha(&mut self, sha: &[u8], keys: &[&[u8]], args: &[&[u8]]) -> &[u8] {
        self.out.clear();
        write::evalsha(&mut self.out, sha, keys, args);
        self.stream.write_all(&self.out).await.expect("a server");
        let mut scan = Scan::default();
        let mut filled = 0;
        loop {
            let n = self
                .stream
                .read(&mut self.input[filled..])
                .await
                .expect("a server");
            assert!(
                n > 0,
                "the server hung up, or the reply is longer than the buffer"
            );
            filled += n;
            if let Some(end) = scan.frame(&self.input[..filled]) {
                return &self.input[..end];
            }
        }
    }
}

impl PairClient for RawTokio {
    async fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port))
            .await
            .expect("a server");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        Self {
            stream,
            out: Vec::with_capacity(1024),
            input: vec![0; 4096],
        }
    }

    async fn pair(&mut self, job: &Job) {
        let (key, token) = (job.key.as_bytes(), job.token.as_bytes());
        let taken = self
            .evalsha(
                ACQUIRE.sha.as_bytes(),
                &[key],
                &[token, LEASE_MS.as_bytes()],
            )
            .await;
        assert_eq!(taken, b":1\r\n", "{}", String::from_utf8_lossy(taken));
        let released = self.evalsha(RELEASE.sha.as_bytes(), &[key], &[token]).await;
        assert_eq!(released, b":1\r\n", "{}", String::from_utf8_lossy(released));
    }
}

/// The same in a runtime with a pending timer, as in every real program.
///
/// Every `epoll_wait` then has a timeout, for which the kernel sets and cancels a timer.
pub struct WithTimer(RawTokio);

impl PairClient for WithTimer {
    async fn connect(port: u16) -> Self {
        tokio::spawn(tokio::time::sleep(std::time::Duration::from_secs(5)));
        Self(RawTokio::connect(port).await)
    }

    async fn pair(&mut self, job: &Job) {
        self.0.pair(job).await;
    }
}
