//! The least rights of users of all primitives but the mutex, as their documentation lists them: with all of them everything works
//! and nothing is denied, and without any one of them nothing goes wrong in silence.

use std::time::Duration;

use leasehold::{Backoff, Error, ErrorKind, Locks};
use leasehold_testkit::{Raw, Server};

use crate::support::{ms, within};

/// Of those who wait, well below the bound of a test.
const PATIENCE: Duration = Duration::from_secs(5);

/// What each of these takes: scripts, and what every connection asks.
const ALL: &[&str] = &["+eval", "+evalsha", "+time", "+pttl", "+pexpire", "+info"];

/// The entry that tells whose a lock is.
const PROCESS: &[&str] = &["~lockp:*", "+hset"];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Latch,
    Barrier,
    Plain,
    Polling,
    Fair,
    ReadWrite,
    Semaphore,
    Counting,
    Multi,
    Election,
}

impl Kind {
    fn rights(self) -> Vec<&'static str> {
        let own: &[&str] = match self {
            Self::Latch => &[
                "~shop:*",
                "~leasehold_latch:{shop:*",
                "&leasehold_latch:{shop:*",
                "+get",
                "+set",
                "+decr",
                "+del",
                "+zscore",
                "+zadd",
                "+zrem",
                "+zremrangebyscore",
                "+zrangebyscore",
                "+publish",
                "+subscribe",
                "+unsubscribe",
            ],
            Self::Barrier => &[
                "~leasehold_barrier:{shop:*",
                "~leasehold_arrived:{shop:*",
                "&leasehold_barrier:{shop:*",
                "+hget",
                "+hset",
                "+hdel",
                "+hgetall",
                "+zscore",
                "+zadd",
                "+zrem",
                "+zcount",
                "+zremrangebyscore",
                "+zrangebyscore",
                "+publish",
                "+subscribe",
                "+unsubscribe",
            ],
            Self::Plain => &[
                "~shop:*",
                "~leasehold_token:{shop:*",
                "~leasehold_line:{shop:*",
                "&leasehold:*",
                "+get",
                "+set",
                "+del",
                "+exists",
                "+zpopmin",
                "+zrevrange",
                "+zadd",
                "+zrank",
                "+zscore",
                "+zrem",
                "+zrange",
                "+zcard",
                "+publish",
                "+subscribe",
                "+unsubscribe",
            ],
            Self::Polling => &[
                "~shop:*",
                "~redisson_lock_token:{shop:*",
                "~leasehold_line:{shop:*",
                "+hexists",
                "+hset",
                "+hdel",
                "+hscan",
                "+set",
                "+get",
                "+exists",
                "+zpopmin",
                "+zcard",
                "+zrevrange",
                "+zadd",
                "+zrank",
                "+zscore",
                "+zrem",
            ],
            Self::Fair => &[
                "~shop:*",
                "~redisson_lock_token:{shop:*",
                "~leasehold_line:{shop:*",
                "&leasehold:*",
                "+get",
                "+set",
                "+zcard",
                "+exists",
                "+hdel",
                "+hset",
                "+hscan",
                "+hexists",
                "+del",
                "+zrevrange",
                "+zrem",
                "+zrange",
                "+zpopmin",
                "+zadd",
                "+zrank",
                "+zscore",
                "+publish",
                "+subscribe",
                "+unsubscribe",
            ],
            Self::ReadWrite => &[
                "~shop:*",
                "~{shop:*",
                "~redisson_lock_token:{shop:*",
                "~leasehold_line:{shop:*",
                "&leasehold:*",
                "+hdel",
                "+set",
                "+get",
                "+zcard",
                "+del",
                "+hset",
                "+hmget",
                "+hlen",
                "+hscan",
                "+zrange",
                "+zrevrange",
                "+zrem",
                "+zadd",
                "+zrank",
                "+publish",
                "+subscribe",
                "+unsubscribe",
            ],
            Self::Semaphore => &[
                "~shop:*",
                "~{shop:*",
                "~leasehold_line:{shop:*",
                "&leasehold:*",
                "~leasehold_cap:{shop:*",
                "+get",
                "+zcard",
                "+set",
                "+zrange",
                "+zrem",
                "+zadd",
                "+zremrangebyscore",
                "+zscore",
                "+zrangebyscore",
                "+zcount",
                "+zrank",
                "+zrevrange",
                "+publish",
                "+subscribe",
                "+unsubscribe",
            ],
            Self::Counting => &[
                "~shop:*",
                "~leasehold_line:{shop:*",
                "&leasehold:*",
                "~leasehold_res:{shop:*",
                "~leasehold_op:{shop:*",
                "+get",
                "+set",
                "+zrange",
                "+zrangebyscore",
                "+zcard",
                "+zrem",
                "+zadd",
                "+zrevrange",
                "+zscore",
                "+zrank",
                "+publish",
                "+subscribe",
                "+unsubscribe",
            ],
            Self::Multi => &[
                "~shop:*",
                "~redisson_lock_token:{shop:*",
                "~leasehold_line:{shop:*",
                "&leasehold:*",
                "+get",
                "+set",
                "+hdel",
                "+hset",
                "+exists",
                "+hscan",
                "+hexists",
                "+zrevrange",
                "+zrem",
                "+zcard",
                "+zrange",
                "+zadd",
                "+zpopmin",
                "+zscore",
                "+zrank",
                "+publish",
                "+subscribe",
                "+unsubscribe",
            ],
            Self::Election => &[
                "~shop:*",
                "~redisson_lock_token:{shop:*",
                "~leasehold_line:{shop:*",
                "~leasehold_leader:{shop:*",
                "&leasehold:*",
                "&leasehold_leader:{shop:*",
                "+hget",
                "+hmget",
                "+get",
                "+del",
                "+set",
                "+hdel",
                "+hset",
                "+exists",
                "+hscan",
                "+hexists",
                "+zcard",
                "+zrevrange",
                "+zrem",
                "+zadd",
                "+zpopmin",
                "+zscore",
                "+zrank",
                "+publish",
                "+subscribe",
                "+unsubscribe",
            ],
        };
        [ALL, own, PROCESS].concat()
    }

    async fn run(self, ours: &Locks, theirs: &Locks) -> Result<(), Error> {
        match self {
            Self::Latch => {
                let latch = ours.latch("a");
                latch.reset(3).await?;
                latch.try_set_count(1).await?;
                latch.count_down_as("x").await?;
                latch.expiry(ms(60_000)).reset(2).await?;
                let latch = theirs.latch("a");
                latch.count_down().await?;
                latch.inspect().await?;
                let waits = async { latch.wait().await };
                let opens = async {
                    tokio::time::sleep(ms(100)).await;
                    ours.latch("a").count_down().await
                };
                let (waited, counted) = tokio::join!(waits, opens);
                counted?;
                waited
            }
            Self::Barrier => {
                let (barrier, other) = (ours.barrier("a", 2), theirs.barrier("a", 2));
                barrier.wait_for(ms(20)).await?;
                barrier.inspect().await?;
                let late = async {
                    tokio::time::sleep(ms(100)).await;
                    other.wait().await
                };
                let (first, last) = tokio::join!(barrier.wait_for(ms(1_000)), late);
                last?;
                first?;
                Ok(())
            }
            Self::Plain => {
                let guard = ours.plain_mutex("a").lock().await?;
                theirs.plain_mutex("a").inspect().await?;
                let waits = theirs.plain_mutex("a").try_lock_for(ms(5_000));
                let release = async {
                    tokio::time::sleep(ms(100)).await;
                    guard.release().await
                };
                let (next, released) = tokio::join!(waits.into_future(), release);
                released?;
                drop(next?);
                Ok(())
            }
            Self::Polling => {
                let guard = ours.mutex("a").lock().await?;
                let waits = theirs.mutex("a").try_lock_for(ms(5_000));
                let waits = waits.polling(Backoff::default());
                let release = async {
                    tokio::time::sleep(ms(100)).await;
                    guard.release().await
                };
                let (next, released) = tokio::join!(waits.into_future(), release);
                released?;
                next?.expect("its turn").release().await?;
                Ok(())
            }
            Self::Fair => {
                let guard = ours.fair_mutex("a").lock().await?;
                theirs.fair_mutex("a").inspect().await?;
                theirs.fair_mutex("a").holder().await?;
                theirs.fair_mutex("a").try_lock_for(ms(20)).await?;
                let waits = theirs.fair_mutex("a").try_lock_for(PATIENCE);
                let (next, released) = beside(waits.into_future(), guard.release()).await;
                released?;
                // Long enough to be renewed.
                tokio::time::sleep(ms(800)).await;
                theirs.fair_mutex("a").force_unlock().await?;
                drop(next?);
                Ok(())
            }
            Self::ReadWrite => {
                let reading = ours.rw_lock("a").read().await?;
                theirs.rw_lock("a").inspect().await?;
                theirs.rw_lock("a").remaining().await?;
                theirs.rw_lock("a").try_write_for(ms(20)).await?;
                let other = theirs.rw_lock("a").read().await?;
                other.release().await?;
                let waits = theirs.rw_lock("a").try_write_for(PATIENCE);
                let (next, released) = beside(waits.into_future(), reading.release()).await;
                released?;
                tokio::time::sleep(ms(800)).await;
                if let Some(writing) = next? {
                    let reading = writing.downgrade().await?;
                    drop(reading.try_upgrade().await?);
                }
                let reading = theirs.rw_lock("a").try_read().await?;
                ours.rw_lock("a").force_unlock().await?;
                drop(reading);
                Ok(())
            }
            Self::Semaphore => {
                let permits = ours.semaphore("a", 3);
                let three = permits.acquire_many(3).await?;
                theirs.semaphore("a", 3).inspect().await?;
                theirs.semaphore("a", 3).available().await?;
                theirs.semaphore("a", 3).try_acquire_for(ms(20)).await?;
                let other = theirs.semaphore("a", 3);
                let waits = other.try_acquire_many_for(2, PATIENCE);
                let (next, released) = beside(waits.into_future(), three.release()).await;
                released?;
                tokio::time::sleep(ms(800)).await;
                drop(next?);
                permits.set_permits(4).await?;
                permits.set_permits(3).await
            }
            Self::Counting => {
                let (permits, other) = (
                    ours.semaphore("a", 3).counting(),
                    theirs.semaphore("a", 3).counting(),
                );
                permits.acquire(3).await?;
                other.available().await?;
                other.try_acquire_for(1, ms(20)).await?;
                let waits = other.try_acquire_for(2, PATIENCE);
                let (taken, released) = beside(waits, permits.release(3)).await;
                released?;
                if taken? {
                    other.release(2).await?;
                }
                permits.try_set_permits(4).await?;
                permits.set_permits(3).await
            }
            Self::Multi => {
                let (one, other) = (ours.multi(["a", "b"]), theirs.multi(["b", "a"]));
                let guard = one.lock().await?;
                other.inspect().await?;
                other.try_lock_for(ms(20)).await?;
                let waits = other.try_lock_for(PATIENCE);
                let (next, released) = beside(waits.into_future(), guard.release()).await;
                released?;
                tokio::time::sleep(ms(800)).await;
                drop(next?);
                Ok(())
            }
            Self::Election => {
                let (one, other) = (ours.election("a").value("one"), theirs.election("a"));
                let mut leaders = other.observe();
                leaders.next().await?;
                let leader = one.campaign().await?;
                leaders.next().await?;
                leader.publish("two").await?;
                let (next, resigned) = beside(other.campaign(), leader.resign()).await;
                resigned?;
                tokio::time::sleep(ms(800)).await;
                other.leader().await?;
                next?.resign().await?;
                Ok(())
            }
        }
    }
}

/// Both, the second a little later.
async fn beside<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let later = async {
        tokio::time::sleep(ms(100)).await;
        second.await
    };
    tokio::join!(first, later)
}

/// Two clients of a user with only these rights.
async fn clients(server: &Server, raw: &mut Raw, user: &str, rights: &[&str]) -> [Locks; 2] {
    let mut command = vec!["ACL", "SETUSER", user];
    command.extend(["reset", "resetchannels", "on", ">secret"]);
    command.extend(rights);
    let made = raw.cmd(&command).await;
    assert!(made.is_ok(), "{made:?}");
    let url = format!("redis://{user}:secret@{}", server.addr());
    let connect = async || {
        let builder = Locks::builder(&url).namespace("shop").lease(ms(2_000));
        builder.connect().await.unwrap()
    };
    [connect().await, connect().await]
}

async fn the_rights_suffice_and_each_is_missed_aloud(kind: Kind) {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let rights = kind.rights();
    let [ours, theirs] = clients(&server, &mut raw, "all", &rights).await;
    raw.cmd(&["ACL", "LOG", "RESET"]).await;
    for _ in 0..2 {
        let run = within("all operations", kind.run(&ours, &theirs)).await;
        if let Err(error) = run {
            let log = raw.cmd(&["ACL", "LOG"]).await;
            panic!("{kind:?}: {error}: {log:?}");
        }
    }
    drop((ours, theirs));
    let log = raw.cmd(&["ACL", "LOG"]).await;
    let denied = log.array().iter();
    let denied = denied.map(|entry| entry.get("object").unwrap().str());
    // Every handshake tries `CLIENT SETINFO`, whose denial has no effect.
    let denied: Vec<_> = denied
        .filter(|object| !object.starts_with("client"))
        .collect();
    assert!(denied.is_empty(), "{kind:?}: {denied:?}");
    for missing in &rights {
        let fewer: Vec<_> = rights.iter().copied().filter(|r| r != missing).collect();
        raw.cmd(&["FLUSHALL"]).await;
        let [ours, theirs] = clients(&server, &mut raw, "fewer", &fewer).await;
        let what = format!("an outcome of {kind:?} without {missing}");
        if let Err(error) = within(&what, kind.run(&ours, &theirs)).await {
            // A script that was stopped behind its first write is asked again, and finds what the first one left.
            let is_told = matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unknown);
            assert!(is_told, "{kind:?} without {missing}: {error}");
        }
    }
}

macro_rules! each {
    ($($test:ident $kind:ident)*) => {$(
        #[tokio::test]
        async fn $test() {
            the_rights_suffice_and_each_is_missed_aloud(Kind::$kind).await;
        }
    )*};
}

each! {
    latch Latch
    barrier Barrier
    plain_mutex Plain
    polling Polling
    fair_mutex Fair
    rw_lock ReadWrite
    semaphore Semaphore
    counting Counting
    multi Multi
    election Election
}
