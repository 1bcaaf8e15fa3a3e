//! An owner hands its locks to another process by its id.

use leasehold::{ErrorKind, LostReason, Release};
use leasehold_testkit::Server;

use crate::scripts::{self, A, B, C, KEPT, TOKEN, sources};
use crate::support::{locks, ms, short_locks, until, within};

#[tokio::test]
async fn a_lock_is_taken_over_at_once_and_its_former_guards_are_lost() {
    let server = Server::start().await;
    let (here, there) = (
        short_locks(&server, ms(1_500)).await,
        short_locks(&server, ms(1_500)).await,
    );
    let third = locks(&server).await;
    let me = here.owner();
    let guard = me.mutex("a").lock().await.unwrap();
    let inner = me.mutex("a").lock().await.unwrap();
    assert!(third.mutex("a").try_lock().await.unwrap().is_none());

    let heir = there.owner_from(me.id());
    assert_ne!(heir.id(), me.id());
    let taken_over = within("the lock", async { heir.mutex("a").lock().await })
        .await
        .unwrap();
    assert!(taken_over.token() > guard.token());
    let holder = third.mutex("a").holder().await.unwrap().unwrap();
    assert_eq!((holder.client(), holder.count()), (there.client_id(), 1));
    assert!(holder.id().starts_with(heir.id()));

    let reason = within("the loss", guard.lost()).await;
    assert_eq!(reason, LostReason::Stolen);
    assert!(!inner.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::StillHeld);
    assert_eq!(inner.release().await.unwrap(), Release::AlreadyGone);
    assert!(third.mutex("a").try_lock().await.unwrap().is_none());
    let nested = heir.mutex("a").lock().await.unwrap();
    assert_eq!(nested.token(), taken_over.token());
    drop(nested);
    assert_eq!(taken_over.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn it_is_handed_on_again_and_those_who_wait_go_on_waiting() {
    let server = Server::start().await;
    let (first, second, third) = (
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
    );
    let waiter = locks(&server).await;
    let me = first.owner();
    let guard = me.mutex("a").lock().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.mutex("a").lock().await });
    let mutex = first.mutex("a");
    until("the waiter", async || {
        mutex.inspect().await.unwrap().waiting() == 1
    })
    .await;

    let heir = second.owner_from(me.id());
    let taken_over = heir.mutex("a").try_lock().await.unwrap().expect("its own");
    let last = third.owner_from(heir.id());
    let kept = last.mutex("a").lock().lease(ms(20_000)).await.unwrap();
    // The first id leads nowhere any more.
    let late = third
        .owner_from(me.id())
        .mutex("a")
        .try_lock()
        .await
        .unwrap();
    assert!(late.is_none());
    assert!(!waiting.is_finished());
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
    assert_eq!(taken_over.release().await.unwrap(), Release::AlreadyGone);
    let token = kept.token();
    drop(kept);
    let granted = within("its turn", waiting).await.unwrap().unwrap();
    assert!(granted.token() > token);
}

#[tokio::test]
async fn what_the_former_owner_does_not_hold_is_locked_as_usual() {
    let server = Server::start().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let (me, other) = (here.owner(), here.owner());
    let free = there.owner_from(me.id()).mutex("a").lock().await.unwrap();
    let theirs = other.mutex("b").lock().await.unwrap();
    let plain = here.mutex("c").lock().await.unwrap();
    let heir = there.owner_from(me.id());
    for name in ["b", "c"] {
        assert!(
            heir.mutex(name).try_lock().await.unwrap().is_none(),
            "{name}"
        );
    }
    drop(theirs);
    let waited = within("the next turn", async { heir.mutex("b").lock().await });
    assert!(waited.await.unwrap().is_held());
    assert!(free.is_held() && plain.is_held());
}

#[tokio::test]
async fn an_id_of_the_same_locks_is_that_owner_and_a_strange_one_is_refused() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let me = locks.owner();
    let guard = me.mutex("a").lock().await.unwrap();
    let again = locks.owner_from(me.id());
    let nested = again.mutex("a").try_lock().await.unwrap().expect("nests");
    assert_eq!(nested.token(), guard.token());
    for id in [
        "",
        "me",
        locks.client_id(),
        &format!("{}:1", locks.client_id()),
    ] {
        let error = locks.owner_from(id).mutex("b").lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{id}");
    }
}

#[tokio::test]
async fn a_hold_that_owners_share_a_process_with_is_nobody_elses() {
    let server = Server::start().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let me = here.owner();
    let guard = me.mutex("a").lock().await.unwrap();
    let next = here.mutex("a");
    let waiting = tokio::spawn(async move { next.lock().await });
    let mutex = here.mutex("a");
    until("a waiter of the process", async || {
        tokio::task::yield_now().await;
        mutex.try_lock().await.unwrap().is_none()
    })
    .await;
    drop(guard);
    let granted = within("the lock", waiting).await.unwrap().unwrap();
    let heir = there.owner_from(me.id());
    assert!(heir.mutex("a").try_lock().await.unwrap().is_none());
    assert!(granted.is_held());
}

#[tokio::test]
async fn the_script_takes_over_only_from_that_owner_and_may_be_repeated() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let owner = format!("{A}:1000000000007");
    let hold = format!("{owner}0000003");
    let heir = format!("{B}:10000000000010000000");
    scripts::acquire(&mut raw, &hold, "30000").await;
    let others = [
        format!("{A}:1000000000008"),
        format!("{C}:1000000000007"),
        format!("{A}:100000000000"),
    ];
    for other in &others {
        let args = [heir.as_str(), "20000", KEPT, other];
        let reply = scripts::run(&mut raw, sources::TAKE_OVER, &["L", TOKEN], &args).await;
        assert_eq!(reply.int(), -1, "{other}");
    }
    let args = [heir.as_str(), "20000", KEPT, owner.as_str()];
    let first = scripts::run(&mut raw, sources::TAKE_OVER, &["L", TOKEN], &args).await;
    let token = first.int();
    assert!(token > 0);
    let holders = raw.cmd(&["HKEYS", "L"]).await;
    assert_eq!(
        (holders.array().len(), holders.array()[0].str()),
        (1, heir.as_str())
    );
    let again = scripts::run(&mut raw, sources::TAKE_OVER, &["L", TOKEN], &args).await;
    assert_eq!(again.array()[0].int(), token);
    let released = scripts::release(&mut raw, &hold, "P", &[]).await;
    assert_eq!(released.int(), 0, "a late release of the former");
}
