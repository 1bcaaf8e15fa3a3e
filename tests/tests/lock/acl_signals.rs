//! The least rights that latches, barriers, plain mutexes and waiters that poll need, as their documentation lists them: with all of
//! them everything works and nothing is denied, and without any one of them nothing goes wrong in silence.

use leasehold::{Backoff, Error, ErrorKind, Locks};
use leasehold_testkit::{Raw, Server};

use crate::support::{ms, within};

/// What each of these takes: scripts, and what every connection asks.
const ALL: &[&str] = &["+eval", "+evalsha", "+time", "+pttl", "+pexpire", "+info"];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Latch,
    Barrier,
    Plain,
    Polling,
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
                "+zrevrange",
                "+zadd",
                "+zrank",
                "+zscore",
                "+zrem",
            ],
        };
        [ALL, own].concat()
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
        }
    }
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

#[tokio::test]
async fn the_rights_suffice_and_each_is_missed_aloud() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for kind in [Kind::Latch, Kind::Barrier, Kind::Plain, Kind::Polling] {
        let rights = kind.rights();
        raw.cmd(&["FLUSHALL"]).await;
        let [ours, theirs] = clients(&server, &mut raw, "all", &rights).await;
        raw.cmd(&["ACL", "LOG", "RESET"]).await;
        for _ in 0..2 {
            let run = within("all operations", kind.run(&ours, &theirs)).await;
            run.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
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
            let run = within("an outcome", kind.run(&ours, &theirs)).await;
            if let Err(error) = run {
                assert_eq!(
                    error.kind(),
                    ErrorKind::Denied,
                    "{kind:?} {missing}: {error}"
                );
            }
        }
    }
}
