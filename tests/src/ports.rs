//! Loopback ports that are unique among all test processes of this machine.
//!
//! `cargo test` runs many binaries in parallel, so a counter inside the process is not enough. A
//! port is taken by locking a file named after it: the kernel lets go of the lock when its process
//! dies, however it dies.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};

/// The pool. A cluster node also listens on its port + 10000, and 32767 is the last port below
/// Linux's ephemeral range: inside of it any outgoing connection may sit on the bus port.
const FIRST: u16 = 21_000;
const COUNT: u16 = 1_768;

/// A loopback port reserved for this process until dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Locked for as long as it is open.
    _lock: File,
}

impl Port {
    /// Reserves a port on which nothing listens now, neither on the port nor on its cluster bus
    /// port.
    ///
    /// # Panics
    ///
    /// When the whole pool is in use.
    #[must_use]
    pub fn reserve() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        // Processes begin at different places, so they seldom try the same file.
        let start = u16::try_from((std::process::id() * 37) % u32::from(COUNT)).unwrap_or(0);
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
            if let Some(port) = Self::try_reserve(FIRST + (start + step) % COUNT) {
                return port;
            }
        }
        panic!("all ports from {FIRST} to {} are in use", FIRST + COUNT - 1)
    }

    /// The number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    fn try_reserve(number: u16) -> Option<Self> {
        let lock = OpenOptions::new()
            .create(true)
            .append(true)
            .open(lock_dir().join(number.to_string()))
            .ok()?;
        lock.try_lock().ok()?;
        (is_free(number) && is_free(number + 10_000)).then_some(Self {
            number,
            _lock: lock,
        })
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Lock files stay: removing one while another process opens it would give the same port to both.
fn lock_dir() -> PathBuf {
    let user = std::env::var("USER").unwrap_or_else(|_| "any".into());
    let dir = std::env::temp_dir().join(format!("leasehold-ports-{user}"));
    std::fs::create_dir_all(&dir)
        .unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
    dir
}
