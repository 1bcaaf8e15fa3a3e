//! Requests that arrive after their connection was given up: retransmitted by the client's machine,
//! or left in the receive buffer of a server. The release overtakes them on another connection, and
//! what they take must not stand.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks, LocksBuilder, Replicas};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::{Proxy, Raw, replicas};

use crate::support::{exists, ms, until, within};

/// How long an attempt waits for its answer; after twice as long the connection is given up.
const COMMAND_TIMEOUT: Duration = ms(300);

/// Long enough for what stands to be seen.
const LEASE: Duration = Duration::from_secs(5);

/// The direction in which bytes are late.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Requests,
    Replies,
    Both,
}

/// A master with a replica, and a proxy on the way to it.
struct Stage {
    servers: replicas::Replicas,
    proxy: Proxy,
    raw: Raw,
}

impl Stage {
    async fn new() -> Self {
        let servers = replicas::Replicas::builder().replicas(1).start().await;
        let mut raw = servers.node(0).raw().await;
        for (user, rights) in [("may", "+@all"), ("maynot", "-client|kill")] {
            let mut command = [
                "ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all", rights,
            ];
            if !raw.cmd(&command).await.is_ok() {
                // Redis 6.2 takes away whole commands only.
                command[8] = "-client";
                assert!(raw.cmd(&command).await.is_ok());
            }
        }
        let proxy = Proxy::start(servers.node(0).addr());
        Self {
            servers,
            proxy,
            raw,
        }
    }

    fn builder(&self, may_kill: bool) -> LocksBuilder {
        let user = if may_kill { "may" } else { "maynot" };
        let login = format!("://{user}:secret@");
        Locks::builder(self.proxy.url().replace("://", &login))
            .lease(LEASE)
            .restart_guard(ms(10))
            .command_timeout(COMMAND_TIMEOUT)
    }

    /// Locks with open connections.
    async fn locks(&self, may_kill: bool, replicas: Replicas) -> Locks {
        let locks = self.builder(may_kill).replicated(replicas);
        let locks = locks.connect().await.unwrap();
        until("a lock", async || {
            matches!(locks.mutex("warm").try_lock().await, Ok(Some(_)))
        })
        .await;
        locks
    }
}

async fn nothing_stands(may_kill: bool, replicas: Replicas) {
    let mut stage = Stage::new().await;
    for (number, loss) in [Loss::Requests, Loss::Replies, Loss::Both]
        .into_iter()
        .enumerate()
    {
        let what = format!("{loss:?} of {replicas:?}");
        let name = format!("lock{number}");
        let locks = stage.locks(may_kill, replicas).await;
        let proxy = Proxy::start(stage.servers.node(0).addr());
        let proxy = std::mem::replace(&mut stage.proxy, proxy);
        proxy.hold_up(
            !matches!(loss, Loss::Replies),
            !matches!(loss, Loss::Requests),
        );
        let error = locks.mutex(&name).try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{what}: {error}");

        if may_kill {
            // Waits until the release counts.
            until("everything is answered", async || {
                locks.shutdown().await.is_ok()
            })
            .await;
        } else {
            // The connection is given up, and a release has overtaken the acquire.
            until("the connection is given up", async || proxy.accepts() > 2).await;
            tokio::time::sleep(ms(500)).await;
        }
        proxy.let_one_through();
        let late = Instant::now();
        let mut seen = None;
        // Without the right the release is repeated until no lease of the lost request can be left.
        let patience = if may_kill { ms(500) } else { LEASE - ms(1_500) };
        while late.elapsed() < patience {
            if exists(&mut stage.raw, &name).await {
                seen = Some(late.elapsed());
            } else if seen.is_some() {
                break;
            }
            tokio::time::sleep(ms(20)).await;
        }
        println!("{what}, may kill {may_kill}: last seen {seen:?} after the late request");
        assert!(!may_kill || seen.is_none(), "{what}: it stands");
        assert!(!exists(&mut stage.raw, &name).await, "{what}: it stands");
    }
}

#[tokio::test]
async fn a_lock_of_a_late_request_does_not_stand() {
    nothing_stands(true, Replicas::None).await;
}

#[tokio::test]
async fn a_lock_of_a_late_request_does_not_stand_without_the_right_to_kill() {
    nothing_stands(false, Replicas::None).await;
}

#[tokio::test]
async fn a_replicated_lock_of_a_late_request_does_not_stand() {
    nothing_stands(true, Replicas::All).await;
}

#[tokio::test]
async fn a_replicated_lock_of_a_late_request_does_not_stand_without_the_right_to_kill() {
    nothing_stands(false, Replicas::All).await;
}

/// What was sent at the await at which an acquire is dropped arrives only after the release that follows.
#[tokio::test]
async fn a_replicated_acquire_that_is_dropped_at_any_await_leaves_nothing_later_either() {
    let mut stage = Stage::new().await;
    let mut awaits = 0;
    loop {
        let name = format!("late{awaits}");
        let locks = stage.locks(true, Replicas::All).await;
        let proxy = Proxy::start(stage.servers.node(0).addr());
        let proxy = std::mem::replace(&mut stage.proxy, proxy);
        let mut attempt = pin!(locks.mutex(&name).try_lock().into_future());
        let mut polls = 0;
        let dropped = poll_fn(|cx| {
            if polls == awaits {
                // Before this poll sends anything. The connection with the acquire is the last one; the release goes out
                // on the one before.
                proxy.hold_up_latest();
            }
            polls += 1;
            match attempt.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending if polls > awaits => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        });
        let outcome = within("the await", dropped).await;
        if let Some(outcome) = outcome {
            assert!(outcome.unwrap().is_some(), "nothing was held up");
            break;
        }
        // Drops the attempt; the one in its place is never polled.
        attempt.set(locks.mutex("other").try_lock().into_future());
        until("everything is answered", async || {
            locks.shutdown().await.is_ok()
        })
        .await;
        proxy.let_one_through();
        tokio::time::sleep(ms(300)).await;
        assert!(
            !exists(&mut stage.raw, &name).await,
            "dropped at await {awaits}: it stands"
        );
        awaits += 1;
    }
    assert!(awaits >= 2, "{awaits} awaits");
}

/// The acquire is on an exclusive connection and its release on another one: whichever the server
/// reads first.
#[tokio::test]
async fn a_replicated_acquire_that_is_dropped_at_any_await_leaves_nothing() {
    let mut stage = Stage::new().await;
    let locks = stage.locks(true, Replicas::All).await;
    let mut sweeps = 0;
    for n in 0.. {
        let mut completed = false;
        for freeze in [false, true, true] {
            let name = format!("sweep{n}");
            let attempt = locks.mutex(&name).try_lock().into_future();
            if freeze {
                stage.servers.node(0).pause();
            }
            // A frozen server never lets it complete, or get further than to its first question.
            let outcome = tokio::time::timeout(ms(100), cancel_at(attempt, n)).await;
            completed |= matches!(outcome, Ok(Some(_)));
            drop(outcome);
            stage.servers.node(0).resume();
            until("it is released", async || {
                !exists(&mut stage.raw, &name).await
            })
            .await;
            tokio::time::sleep(ms(30)).await;
            assert!(
                !exists(&mut stage.raw, &name).await,
                "dropped at await {n}: it stands"
            );
        }
        if completed {
            sweeps = n;
            break;
        }
    }
    println!("{sweeps} awaits");
    assert!(sweeps >= 2);
}
