//! raw-blocking: a blocking socket of the standard library, without a runtime.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::client::PairClient;
use crate::floor::scan::Scan;
use crate::floor::write;
use crate::scripts::{ACQUIRE, Job, LEASE_MS, RELEASE, Script};

/// One connection.
pub struct RawBlocking {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
}

impl RawBlocking {
    /// Connects to the server on `port` of this machine.
    pub fn open(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            out: Vec::with_capacity(4096),
            input: vec![0; 4096],
        })
    }

    /// Any command; its reply as sent.
    pub fn call(&mut self, parts: &[&[u8]]) -> std::io::Result<Vec<u8>> {
        self.out.clear();
        write::request(&mut self.out, parts);
        let len = self.exchange()?;
        Ok(self.input[..len].to_vec())
    }

    /// Loads `script` into the server.
    pub fn load(&mut self, script: &Script) -> std::io::Result<()> {
        let reply = self.call(&[b"SCRIPT", b"LOAD", script.source.as_bytes()])?;
        assert!(
            reply.starts_with(b"$40"),
            "SCRIPT LOAD: {}",
            String::from_utf8_lossy(&reply)
        );
        Ok(())
    }

    fn exchange(&mut self) -> std::io::Result<usize> {
        self.stream.write_all(&self.out)?;
        let mut scan = Scan::default();
        let mut filled = 0;
        loop {
            if filled == self.input.len() {
                self.input.resize(filled * 2, 0);
            }
            let n = self.stream.read(&mut self.input[filled..])?;
            if n == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            filled += n;
            if let Some(end) = scan.frame(&self.input[..filled]) {
                return Ok(end);
            }
        }
    }

    fn expect_one(&mut self) {
        let len = self.exchange().expect("a reply");
        assert_eq!(
            &self.input[..len],
            b":1\r\n",
            "{}",
            String::from_utf8_lossy(&self.input[..len])
        );
    }
}

impl PairClient for RawBlocking {
    async fn connect(port: u16) -> Self {
        Self::open(port).expect("a server")
    }

    async fn pair(&mut self, job: &Job) {
        let (key, token) = (job.key.as_bytes(), job.token.as_bytes());
        self.out.clear();
        write::evalsha(
            &mut self.out,
            ACQUIRE.sha.as_bytes(),
            &[key],
            &[token, LEASE_MS.as_bytes()],
        );
        self.expect_one();
        self.out.clear();
        write::evalsha(&mut self.out, RELEASE.sha.as_bytes(), &[key], &[token]);
        self.expect_one();
    }
}
