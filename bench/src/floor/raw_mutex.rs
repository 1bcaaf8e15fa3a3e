//! raw-mutex: raw-tokio that sends the very scripts of the mutex, with the same keys and arguments.

use std::fmt::Write;
use std::sync::LazyLock;

use crate::client::PairClient;
use crate::floor::raw_blocking::RawBlocking;
use crate::floor::raw_tokio::RawTokio;
use crate::floor::scan::number;
use crate::scripts::{Job, LEASE_MS, Script};

#[path = "../../../lock/src/protocol/mutex/sources.rs"]
#[expect(dead_code, reason = "only two of the scripts are needed here")]
mod sources;

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ACQUIRE));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RELEASE));

/// One connection and one lock.
pub struct RawMutex {
    raw: RawTokio,
    token_key: String,
    line: String,
    /// Client and number of the acquisition, as the mutex names its holds.
    hold: String,
    acquired: u64,
}

impl PairClient for RawMutex {
    async fn connect(port: u16) -> Self {
        let mut setup = RawBlocking::open(port).expect("a server");
        setup.load(&ACQUIRE).expect("SCRIPT LOAD");
        setup.load(&RELEASE).expect("SCRIPT LOAD");
        let raw = RawTokio::connect(port).await;
        Self {
            raw,
            token_key: String::new(),
            line: String::new(),
            hold: String::new(),
            acquired: 0,
        }
    }

    async fn pair(&mut self, job: &Job) {
        if self.token_key.is_empty() {
            self.token_key = format!("redisson_lock_token:{{{}}}", job.key);
            self.line = format!("leasehold_line:{{{}}}", job.key);
        }
        self.acquired += 1;
        self.hold.clear();
        write!(self.hold, "{}:{}", job.token, self.acquired).expect("memory");

        let (key, counter) = (job.key.as_bytes(), self.token_key.as_bytes());
        let hold = self.hold.as_bytes();
        let token = self
            .raw
            .evalsha(
                ACQUIRE.sha.as_bytes(),
                &[key, counter],
                &[hold, LEASE_MS.as_bytes()],
            )
            .await;
        assert!(
            token[0] == b':' && number(&token[1..token.len() - 2]) > 0,
            "{}",
            String::from_utf8_lossy(token)
        );
        let released = self
            .raw
            .evalsha(
                RELEASE.sha.as_bytes(),
                &[key, counter, self.line.as_bytes()],
                &[hold],
            )
            .await;
        assert_eq!(released, b":1\r\n", "{}", String::from_utf8_lossy(released));
    }
}
