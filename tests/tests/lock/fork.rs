//! A process that is forked has copies of its parent's locks and connections, and leaves both
//! alone.

use std::future::IntoFuture;
use std::time::Duration;

use leasehold::{ErrorKind, Guard, Locks, LostReason, Mutex, Release};
use leasehold_testkit::Server;
use leasehold_testkit::own_process::{in_a_fork, in_own_process};

use crate::support::{calls, exists, fields, locks, ms, short_locks, within};

async fn every_call_is_refused(locks: &Locks, held: &Mutex) {
    let free = locks.mutex("free");
    let time = Duration::from_secs(5);
    let answers = [
        tokio::time::timeout(time, free.try_lock().into_future())
            .await
            .map(|answer| answer.map(drop)),
        tokio::time::timeout(time, held.lock().into_future())
            .await
            .map(|answer| answer.map(drop)),
        tokio::time::timeout(time, held.holder())
            .await
            .map(|answer| answer.map(drop)),
        tokio::time::timeout(time, held.force_unlock())
            .await
            .map(|answer| answer.map(drop)),
        tokio::time::timeout(time, locks.shutdown()).await,
    ];
    for answer in answers {
        let error = answer.expect("an answer").expect_err("a refusal");
        assert_eq!(error.kind(), ErrorKind::Forked, "{error}");
        assert!(error.to_string().contains("connect anew"), "{error}");
    }
}

async fn a_guard_is_worth_nothing(guard: Guard) {
    assert!(!guard.is_held());
    assert!(guard.valid_for().is_zero());
    assert!(guard.cancellation().is_cancelled());
    assert_eq!(guard.lost().await, LostReason::Forked);
    let error = guard.release().await.expect_err("it is the parent's");
    assert_eq!(error.kind(), ErrorKind::Forked, "{error}");
}

#[test]
fn a_child_neither_uses_nor_ends_the_locks_of_its_parent() {
    in_own_process(async {
        let server = Server::start().await;
        let mut raw = server.raw().await;
        let locks = short_locks(&server, ms(900)).await;
        let (a, b) = (locks.mutex("a"), locks.mutex("b"));
        let (of_a, of_b) = (a.lock().await.unwrap(), b.lock().await.unwrap());
        let before = (fields(&mut raw, "a").await, fields(&mut raw, "b").await);
        raw.cmd(&["CONFIG", "RESETSTAT"]).await;
        let mut copies = Some((of_a, of_b));

        let (locks_too, a_too, url) = (locks.clone(), a.clone(), server.url());
        let copies_too = &mut copies;
        let status = in_a_fork(|| async move {
            let (of_a, of_b) = copies_too.take().expect("both");
            drop(of_a);
            a_guard_is_worth_nothing(of_b).await;
            every_call_is_refused(&locks_too, &a_too).await;
            // It may connect by itself.
            let own = within("a connection", Locks::connect(url)).await.unwrap();
            assert!(own.mutex("a").try_lock().await.unwrap().is_none());
            let of_c = own
                .mutex("c")
                .try_lock()
                .await
                .unwrap()
                .expect("it is free");
            assert_eq!(of_c.release().await.unwrap(), Release::Released);
        });
        assert_eq!(status, 0, "the child failed");

        let (of_a, of_b) = copies.expect("the child took its copies only");
        assert!(of_a.is_held() && of_b.is_held());
        assert_eq!(
            (fields(&mut raw, "a").await, fields(&mut raw, "b").await),
            before
        );
        // The lock `c` of the child itself.
        assert_eq!(calls(&mut raw, "hdel").await, 1);
        // The connection of the parent still has its replies in order, and the leases are renewed.
        for n in 0..50 {
            let guard = locks.mutex(format!("n{n}")).lock().await.unwrap();
            assert_eq!(guard.release().await.unwrap(), Release::Released);
        }
        tokio::time::sleep(ms(1_200)).await;
        assert!(of_a.is_held() && of_b.is_held(), "renewed");
        assert_eq!(of_a.release().await.unwrap(), Release::Released);
        assert_eq!(of_b.release().await.unwrap(), Release::Released);
    });
}

/// An attempt whose reply is still out: giving it up in the child would release what the parent is
/// granted.
#[test]
fn a_child_does_not_withdraw_what_its_parent_has_asked_for() {
    in_own_process(async {
        let server = Server::start().await;
        let mut raw = server.raw().await;
        let locks = locks(&server).await;
        // The scripts are known, so the next attempt is a single request.
        drop(locks.mutex("a").lock().await.unwrap());
        raw.cmd(&["CLIENT", "PAUSE", "1000"]).await;
        let mut asked = Some(Box::pin(locks.mutex("b").lock().into_future()));
        let answer = tokio::time::timeout(ms(200), asked.as_mut().unwrap()).await;
        assert!(answer.is_err(), "the server is paused");

        let in_the_child = &mut asked;
        let status = in_a_fork(|| async move { drop(in_the_child.take()) });
        assert_eq!(status, 0, "the child failed");

        let guard = within("the lock", asked.unwrap()).await.unwrap();
        assert!(exists(&mut raw, "b").await, "it was released by the child");
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    });
}
