//! floor-grant: a contended lock whose queue is in the server and whose grants are pushes.
//!
//! Taking the lock either succeeds or queues, in one command; releasing it hands it to the head of
//! the queue and notifies that waiter on the connection it already has. There is no polling and no
//! second request.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::client::{Locker, Waiting};
use crate::floor::mux::Mux;
use crate::floor::raw_blocking::RawBlocking;
use crate::scripts::{LEASE_MS, Script};

/// KEYS: lock, queue. ARGV: waiter, lease in ms. 1: taken; 0: queued, a push announces the grant.
static LOCK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end \
         redis.call('rpush', KEYS[2], ARGV[1]) \
         redis.call('pexpire', KEYS[2], ARGV[2]) \
         return 0",
    )
});

/// KEYS: lock, queue. ARGV: waiter, lease in ms. 1: handed on or freed; 0: not held by
/// this waiter.
static UNLOCK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end \
         local next = redis.call('lpop', KEYS[2]) \
         if not next then redis.call('del', KEYS[1]) return 1 end \
         redis.call('set', KEYS[1], next, 'PX', ARGV[2]) \
         redis.call('publish', string.match(next, '^[^ ]+'), string.match(next, '[^ ]+$')) \
         return 1",
    )
});

/// A shared connection that receives the grants of its own waiters.
#[derive(Clone)]
pub struct Grant {
    mux: Mux,
    /// Its own; its waiters are this and a number.
    channel: String,
}

/// A held lock.
pub struct Held {
    key: String,
    queue: String,
    waiter: String,
}

impl Waiting for Grant {
    async fn connect(port: u16, waiters: usize) -> Self {
        let mut setup = RawBlocking::open(port).expect("a server");
        setup.load(&LOCK).expect("SCRIPT LOAD");
        setup.load(&UNLOCK).expect("SCRIPT LOAD");
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let channel = format!("floor-grant:{}", NEXT.fetch_add(1, Relaxed));
        Self {
            mux: Mux::open(port, &[&[b"SUBSCRIBE", channel.as_bytes()]], waiters).await,
            channel,
        }
    }
}

impl Locker for Grant {
    type Guard = Held;

    async fn lock(&self, key: &str, waiter: usize) -> Held {
        let held = Held {
            key: key.into(),
            queue: format!("{key}:queue"),
            waiter: format!("{} {waiter}", self.channel),
        };
        let keys: [&[u8]; 2] = [held.key.as_bytes(), held.queue.as_bytes()];
        let args: [&[u8]; 2] = [held.waiter.as_bytes(), LEASE_MS.as_bytes()];
        if self.mux.evalsha(LOCK.sha.as_bytes(), &keys, &args).await == 0 {
            self.mux.pushed(waiter).await;
        }
        held
    }

    async fn unlock(&self, held: Held) {
        let keys: [&[u8]; 2] = [held.key.as_bytes(), held.queue.as_bytes()];
        let args: [&[u8]; 2] = [held.waiter.as_bytes(), LEASE_MS.as_bytes()];
        assert_eq!(
            self.mux.evalsha(UNLOCK.sha.as_bytes(), &keys, &args).await,
            1
        );
    }
}
