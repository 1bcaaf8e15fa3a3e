//! What each primitive costs a server: the commands that it executes for an operation, the call of the script and those within it.
//!
//! The guide `operating` shows this table. A change that adds a command changes it here and there.

use std::pin::pin;
use std::time::Duration;

use leasehold::{
    Backoff, Guard, Locks, MultiGuard, Permit, ReadGuard, Redlock, RedlockGuard, WriteGuard,
};
use leasehold_testkit::{Raw, Server};
use tokio::time::{sleep, timeout};

use crate::support::{commands, executed, ms, scripts_run, within};

/// For what the library does on its own: subscriptions, a connection for renewals. A second later those who wait look.
const QUIET: Duration = ms(300);
/// What else happens, such as a look of a waiter on a machine that is busy, only adds to a count: the least of these is the cost.
const ROUNDS: usize = 3;

/// Commands of one operation each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    /// Taking it while it is free.
    take: u64,
    release: u64,
    /// Beginning to wait for it, from the attempt to a place in line.
    line_up: u64,
    /// The release that lets in who waits in another process, until that one holds it.
    hand_over: u64,
    renew: u64,
}

impl From<[u64; 5]> for Cost {
    fn from([take, release, line_up, hand_over, renew]: [u64; 5]) -> Self {
        Self {
            take,
            release,
            line_up,
            hand_over,
            renew,
        }
    }
}

/// What is held.
trait Held {
    async fn end(self);
}

macro_rules! held {
    ($($guard:ty)*) => {$(
        impl Held for $guard {
            async fn end(self) {
                self.release().await.unwrap();
            }
        }
    )*};
}
held!(Guard ReadGuard WriteGuard MultiGuard Permit RedlockGuard);

struct Bench {
    raw: Raw,
    /// Of two processes.
    locks: [Locks; 2],
    /// Of a process that renews every third of a second.
    renewing: Locks,
}

impl Bench {
    async fn new(server: &Server) -> Self {
        let locks = async |lease| {
            let builder = Locks::builder(server.url()).lease(lease);
            builder.connect().await.unwrap()
        };
        let long = Duration::from_secs(600);
        Self {
            raw: server.raw().await,
            locks: [locks(long).await, locks(long).await],
            renewing: locks(ms(1_000)).await,
        }
    }

    async fn cost<G: Held>(&mut self, take: impl AsyncFn(&Locks) -> G) -> Cost {
        let mut least = self.round(&take).await;
        for _ in 0..ROUNDS {
            let cost = self.round(&take).await;
            least = Cost {
                take: least.take.min(cost.take),
                release: least.release.min(cost.release),
                line_up: least.line_up.min(cost.line_up),
                hand_over: least.hand_over.min(cost.hand_over),
                renew: least.renew,
            };
        }
        least.renew = self.renewal(&take).await;
        least
    }

    async fn round<G: Held>(&mut self, take: &impl AsyncFn(&Locks) -> G) -> Cost {
        let (raw, [one, other]) = (&mut self.raw, &self.locks);
        let free = async || within("a free lock", take(one)).await;
        let (taking, held) = executed(raw, free).await;
        // The renewal thread opens its connection with the first hold.
        sleep(QUIET).await;
        let mut waiting = pin!(take(other));
        let (line_up, in_time) =
            executed(raw, async || timeout(QUIET, &mut waiting).await.is_ok()).await;
        assert!(!in_time, "held by two");
        let turn = async || tokio::join!(held.end(), waiting).1;
        let (hand_over, held) = executed(raw, async || within("its turn", turn()).await).await;
        // The first renewal confirms it.
        sleep(ms(500)).await;
        let (release, ()) = executed(raw, async || held.end().await).await;
        Cost {
            take: taking,
            release,
            line_up,
            hand_over,
            renew: 0,
        }
    }

    /// Commands of a renewal, which is one call of a script while nothing else happens.
    async fn renewal<G: Held>(&mut self, take: &impl AsyncFn(&Locks) -> G) -> u64 {
        let raw = &mut self.raw;
        let held = within("a free lock", take(&self.renewing)).await;
        sleep(QUIET).await;
        let (before, calls_before) = counts(raw).await;
        sleep(ms(1_200)).await;
        let (after, calls_after) = counts(raw).await;
        let calls = calls_after - calls_before;
        held.end().await;
        assert!(calls >= 2, "renewed {calls} times");
        (after - before) / calls
    }
}

/// Commands and calls of scripts that were executed, at one time.
async fn counts(raw: &mut Raw) -> (u64, u64) {
    loop {
        let (before, commands) = (scripts_run(raw).await, commands(raw).await);
        if scripts_run(raw).await == before {
            return (commands, before);
        }
    }
}

#[tokio::test]
async fn each_lock_executes_as_many_commands_as_the_guide_says() {
    let server = Server::start().await;
    let mut bench = Bench::new(&server).await;
    macro_rules! table {
        ($($name:literal $take:expr;)*) => {
            [$(($name, bench.cost(async |locks| $take(locks).await.unwrap()).await)),*]
        };
    }
    let mut table = table! {
        "mutex" |locks: &Locks| locks.mutex("mutex").lock().into_future();
        "fair_mutex" |locks: &Locks| locks.fair_mutex("fair").lock().into_future();
        "rw_lock, write" |locks: &Locks| locks.rw_lock("rw").write().into_future();
        "plain_mutex" |locks: &Locks| locks.plain_mutex("plain").lock().into_future();
        "semaphore" |locks: &Locks| locks.semaphore("semaphore", 1).acquire().into_future();
        "multi of 3" |locks: &Locks| locks.multi(["{m}a", "{m}b", "{m}c"]).lock().into_future();
    };
    // Each name is renewed as a mutex is, together with others or not.
    table[5].1.renew = 0;
    // Redis 7.0 extends a lease only with `PEXPIRE … GT`; before it a script reads the lease first.
    let extends_only = bench.raw.cmd(&["PEXPIRE", "none", "1", "GT"]).await;
    let renew = if extends_only.error().is_some() { 4 } else { 3 };
    let expected = [
        ("mutex", [6, 3, 9, 9, renew]),
        ("fair_mutex", [7, 3, 9, 11, renew]),
        ("rw_lock, write", [7, 5, 14, 13, renew]),
        ("plain_mutex", [5, 4, 8, 9, renew]),
        ("semaphore", [11, 9, 15, 14, 6]),
        ("multi of 3", [14, 9, 13, 25, 0]),
    ];
    assert_eq!(table, expected.map(|(name, cost)| (name, Cost::from(cost))));
}

#[tokio::test]
async fn what_waits_for_nobody_executes_as_many_commands_as_the_guide_says() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let long = Duration::from_secs(600);
    let builder = Locks::builder(server.url()).lease(long);
    let locks = builder.connect().await.unwrap();
    let counting = locks.semaphore("counting", 5).counting();
    let latch = locks.latch("latch");
    let barrier = locks.barrier("barrier", 1);
    let polling = locks.mutex("polling");
    macro_rules! table {
        ($($name:literal $operation:expr;)*) => {{
            let mut table = Vec::new();
            for _ in 0..=ROUNDS {
                table.push([$({
                    let (commands, _) = executed(&mut raw, async || $operation.await.unwrap()).await;
                    // What the library does on its own is over.
                    sleep(ms(100)).await;
                    ($name, commands)
                }),*]);
            }
            let least = |n: usize| table.iter().map(|row| row[n]).min();
            (0..table[0].len()).filter_map(least).collect::<Vec<_>>()
        }};
    }
    let mut table = table! {
        "counting, acquire" counting.acquire(2);
        "counting, release" counting.release(2);
        "latch, set" latch.try_set_count(2);
        "latch, count down" latch.count_down();
        "latch, the last count down" latch.count_down();
        "latch, wait where it is open" latch.wait();
        "barrier of one" barrier.wait();
        "mutex, polling" polling.lock().polling(Backoff::default());
    };
    let lock = locks.rw_lock("rw");
    let mut least = [u64::MAX; 3];
    for _ in 0..=ROUNDS {
        let (take, first) = executed(&mut raw, async || lock.read().await.unwrap()).await;
        sleep(ms(100)).await;
        let (share, second) = executed(&mut raw, async || lock.read().await.unwrap()).await;
        first.release().await.unwrap();
        let (release, ()) = executed(&mut raw, async || second.end().await).await;
        sleep(ms(100)).await;
        least = [
            least[0].min(take),
            least[1].min(share),
            least[2].min(release),
        ];
    }
    table.extend([
        ("rw_lock, read", least[0]),
        ("rw_lock, read beside a read of this process", least[1]),
        ("rw_lock, end of the last read", least[2]),
    ]);
    let servers = [
        Server::start().await,
        Server::start().await,
        Server::start().await,
    ];
    // Which lets servers grant that have just been started.
    let builder = Redlock::builder(servers.iter().map(Server::url)).durable();
    let redlock = builder.connect().await.unwrap();
    let mut node = servers[0].raw().await;
    for (fenced, name) in [
        (false, "Redlock, at each node"),
        (true, "Redlock, fenced, at each node"),
    ] {
        let mutex = redlock.mutex("red");
        let mut least = u64::MAX;
        for _ in 0..=ROUNDS {
            let (commands, ()) = executed(&mut node, async || {
                let lock = mutex.lock().lease(long);
                let lock = if fenced { lock.fenced() } else { lock };
                lock.await.unwrap().end().await;
                sleep(ms(100)).await;
            })
            .await;
            least = least.min(commands);
        }
        // A node that answers after the majority has less to do, by one question.
        let is_late = fenced && least == 13;
        table.push((name, least + u64::from(is_late)));
    }
    let expected = [
        ("counting, acquire", 10),
        ("counting, release", 8),
        ("latch, set", 14),
        ("latch, count down", 11),
        ("latch, the last count down", 15),
        ("latch, wait where it is open", 4),
        ("barrier of one", 19),
        ("mutex, polling", 6),
        ("rw_lock, read", 8),
        ("rw_lock, read beside a read of this process", 0),
        ("rw_lock, end of the last read", 5),
        ("Redlock, at each node", 10),
        ("Redlock, fenced, at each node", 14),
    ];
    assert_eq!(table, expected);
}
