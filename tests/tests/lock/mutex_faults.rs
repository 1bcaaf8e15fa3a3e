//! The mutex under faults: operations that are cut, frozen, lost or cancelled leave nothing behind.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use leasehold::{ErrorKind, Guard, Locks, Release};
use leasehold_testkit::{Accept, Cut, Fault, Proxy, Server};

use crate::support::{exists, fields, locks, ms, nobody_in_line, until, within};

async fn impatient(url: String) -> Locks {
    Locks::builder(url)
        .command_timeout(ms(300))
        .connect_timeout(ms(300))
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn a_dead_server_is_an_error_in_bounded_time_and_not_a_held_lock() {
    let server = Server::start().await;
    let locks = impatient(server.url()).await;
    server.kill();
    for patience in [Duration::ZERO, ms(50), Duration::MAX] {
        let error = within(
            "an answer",
            locks.mutex("a").try_lock_for(patience).into_future(),
        )
        .await
        .unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
            "{error}"
        );
    }
    let error = within("an answer", locks.mutex("a").lock().into_future())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(
        (error.key(), error.node()),
        ("a", server.addr().to_string().as_str())
    );
    let error = within("an answer", locks.mutex("a").holder())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    server.restart().await;
    until("the server is back", async || {
        locks
            .mutex("a")
            .try_lock()
            .await
            .is_ok_and(|guard| guard.is_some())
    })
    .await;
}

#[tokio::test]
async fn connecting_to_nobody_or_to_something_else_says_which() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    proxy.accept(Accept::Refuse);
    let nobody = Locks::connect(proxy.url()).await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::Unavailable, "{nobody}");
    proxy.accept(Accept::Silence);
    let silent = Locks::builder(proxy.url())
        .connect_timeout(ms(200))
        .connect();
    let silent = within("the connect timeout", silent).await.unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::Unavailable, "{silent}");
    let nonsense = Locks::connect("http://example.com").await.unwrap_err();
    assert_eq!(nonsense.kind(), ErrorKind::Config, "{nonsense}");
}

#[tokio::test]
async fn silence_is_unknown_and_what_was_sent_is_taken_back() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = impatient(server.url()).await;
    // Frozen: the request waits in the socket's buffer and runs when the server wakes up.
    server.pause();
    let error = within("the timeout", locks.mutex("a").lock().into_future())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    server.resume();
    until("the acquire has run", async || {
        exists(&mut raw, "redisson_lock_token:{a}").await
    })
    .await;
    until("and was released", async || !exists(&mut raw, "a").await).await;
}

#[tokio::test]
async fn a_reply_lost_after_the_grant_is_asked_for_again_and_counts_once() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let locks = Locks::connect(proxy.url()).await.unwrap();
    for how in [Cut::Rst, Cut::Fin] {
        proxy.to_client(Fault::LoseReply { nth: 1, how });
        let guard = within("the second attempt", locks.mutex("a").lock().into_future())
            .await
            .unwrap();
        let holders = fields(&mut raw, "a").await;
        assert!(
            holders.ends_with("=1") && !holders.contains(' '),
            "{holders}"
        );
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        assert!(!exists(&mut raw, "a").await);
    }
}

/// Polls a lock `polls` times at most, and drops it then. Returns whether it was taken before. The
/// other holder releases it once this waits for a message, at its fourth poll.
async fn drop_after(polls: usize, locks: &Locks, mut foreign: Option<Guard>) -> bool {
    let mut lock = pin!(locks.mutex("a").lock().into_future());
    let mut polled = 0;
    let taken = poll_fn(|cx| {
        polled += 1;
        let taken = lock.as_mut().poll(cx).map(|guard| guard.unwrap().is_held());
        if polled == 4 {
            foreign = None;
        }
        if taken.is_pending() && polled == polls {
            Poll::Ready(false)
        } else {
            taken
        }
    });
    within("the next poll", taken).await
}

#[tokio::test]
async fn a_lock_dropped_at_any_await_leaves_nothing_on_the_server() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    for contended in [false, true] {
        for polls in 1.. {
            let foreign = if contended {
                Some(theirs.mutex("a").lock().await.unwrap())
            } else {
                None
            };
            let taken = drop_after(polls, &ours, foreign).await;
            until("the release", async || !exists(&mut raw, "a").await).await;
            nobody_in_line(&mut raw, "a").await;
            until("the next, with an empty queue", async || {
                ours.mutex("a").try_lock().await.unwrap().is_some()
            })
            .await;
            until("its release", async || !exists(&mut raw, "a").await).await;
            if taken {
                assert!(
                    polls > if contended { 4 } else { 1 },
                    "there were awaits to drop it at"
                );
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_lock_dropped_while_the_server_is_frozen_is_released_when_it_wakes() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    server.pause();
    {
        let mut lock = pin!(locks.mutex("a").lock().into_future());
        assert!(poll_fn(|cx| Poll::Ready(lock.as_mut().poll(cx).is_pending())).await);
    }
    server.resume();
    until("the acquire has run", async || {
        exists(&mut raw, "redisson_lock_token:{a}").await
    })
    .await;
    until("and was released", async || !exists(&mut raw, "a").await).await;
    drop(
        within("the next", locks.mutex("a").lock().into_future())
            .await
            .unwrap(),
    );
}

#[tokio::test]
async fn a_waiter_survives_cuts_at_every_byte_of_its_conversation() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let locks = Locks::connect(proxy.url()).await.unwrap();
    drop(locks.mutex("a").lock().await.unwrap());
    for after in (0..260).step_by(7) {
        for to_server in [true, false] {
            let fault = Fault::Cut {
                after,
                how: Cut::Rst,
            };
            if to_server {
                proxy.to_server(fault)
            } else {
                proxy.to_client(fault)
            }
            let guard = within("the lock", locks.mutex("a").lock().into_future()).await;
            let guard = guard.unwrap_or_else(|error| panic!("cut after {after}: {error}"));
            let holders = fields(&mut raw, "a").await;
            assert!(
                holders.ends_with("=1") && !holders.contains(' '),
                "{holders}"
            );
            drop(guard);
            until("the release", async || !exists(&mut raw, "a").await).await;
        }
    }
}

#[tokio::test]
async fn scripts_flushed_under_way_are_no_error() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    for _ in 0..20 {
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        let guard = locks.mutex("a").lock().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn a_user_without_rights_is_denied_and_not_kept_waiting() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&[
        "ACL", "SETUSER", "guest", "on", ">secret", "~other:*", "&*", "+@all",
    ])
    .await;
    let guest = Locks::connect(format!("redis://guest:secret@{}", server.addr()))
        .await
        .unwrap();
    let error = within("an answer", guest.mutex("a").lock().into_future())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    drop(guest.mutex("other:a").lock().await);
}
