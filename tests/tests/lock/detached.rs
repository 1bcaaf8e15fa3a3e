//! Holds that outlive their guards, found by their ids.

use allocation_counter::measure;
use leasehold::{ErrorKind, Interop, Locks, Release};
use leasehold_testkit::{Fault, Proxy, Server};

use super::support::{locks, ms, pttl, take, tickets, until, within};

#[tokio::test]
async fn a_detached_hold_is_extended_and_released_by_its_id_from_elsewhere() {
    let server = Server::start().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let mut raw = server.raw().await;
    let guard = here.mutex("k").lock().lease(ms(5_000)).await.unwrap();
    let lost = guard.lost();
    let id = guard.detach().expect("it is held, once");
    within("its guard is over", lost).await;
    assert!(id.starts_with(here.client_id()), "{id}");
    // Neither the guard's end nor that of its locks releases it.
    here.shutdown().await.unwrap();

    let mutex = there.mutex("k");
    assert!(mutex.try_lock().await.unwrap().is_none());
    let hold = mutex.detached(id.as_str());
    assert_eq!((hold.key(), hold.id()), ("k", id.as_str()));
    let left = hold.remaining().await.unwrap().expect("it is there");
    assert!(left <= ms(5_000) && left > ms(1_000), "{left:?}");
    assert!(hold.extend(ms(60_000)).await.unwrap());
    assert!(pttl(&mut raw, "k").await > 50_000);
    // Never shortened.
    assert!(hold.extend(ms(1_000)).await.unwrap());
    assert!(pttl(&mut raw, "k").await > 50_000);

    // A waiter gets it with the release.
    let waiter = tokio::spawn(mutex.lock().into_future());
    tokio::time::sleep(ms(100)).await;
    assert_eq!(hold.release().await.unwrap(), Release::Released);
    let next = within("the waiter", waiter).await.unwrap().unwrap();

    // The hold is gone: nothing touches the next one.
    assert_eq!(hold.remaining().await.unwrap(), None);
    assert!(!hold.extend(ms(60_000)).await.unwrap());
    assert_eq!(hold.release().await.unwrap(), Release::AlreadyGone);
    assert!(next.is_held());
    assert_eq!(next.release().await.unwrap(), Release::Released);
    assert!(!hold.extend(ms(60_000)).await.unwrap());
    assert_eq!(
        pttl(&mut raw, "k").await,
        -2,
        "an extension creates nothing"
    );
}

#[tokio::test]
async fn a_renewed_hold_is_not_renewed_any_more_once_it_is_detached() {
    let server = Server::start().await;
    let locks = Locks::builder(server.url())
        .lease(ms(300))
        .connect()
        .await
        .unwrap();
    let id = take(&locks, "k").await.detach().expect("it is held");
    tokio::time::sleep(ms(400)).await;
    assert_eq!(
        locks.mutex("k").detached(id).remaining().await.unwrap(),
        None
    );
    assert!(locks.mutex("k").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn only_the_one_guard_of_a_live_hold_is_detached() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let owner = locks.owner();
    let outer = owner.mutex("k").lock().await.unwrap();
    let inner = owner.mutex("k").lock().await.unwrap();
    let inner = inner.detach().expect_err("another guard has it");
    assert!(inner.is_held());
    drop(inner);
    let id = outer.detach().expect("it is alone now");
    assert!(id.starts_with(owner.id()));
    // The owner holds it no more by itself, and nests in nothing.
    assert!(owner.mutex("k").try_lock().await.unwrap().is_none());
    let hold = locks.mutex("k").detached(id);
    assert_eq!(hold.release().await.unwrap(), Release::Released);

    let over = locks.mutex("k").lock().lease(ms(20)).await.unwrap();
    tokio::time::sleep(ms(30)).await;
    assert!(over.detach().is_err());
}

#[tokio::test]
async fn what_cannot_be_used_is_refused() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let mut raw = server.raw().await;
    raw.cmd(&["SET", "string", "x", "EX", "60"]).await;
    let id = take(&locks, "k").await.detach().expect("it is held");
    for bad in [
        "",
        "x",
        ":1",
        &id[1..],
        &id.to_uppercase(),
        &format!("{id} "),
        "mode",
    ] {
        let hold = locks.mutex("k").detached(bad);
        let errors = [
            hold.remaining().await.unwrap_err(),
            hold.extend(ms(1_000)).await.unwrap_err(),
            hold.release().await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Config, "{bad:?}: {error}");
        }
    }
    let hold = locks.mutex("k").detached(id.as_str());
    for bad in [ms(0), ms(9), ms(366 * 86_400_000)] {
        let error = hold.extend(bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadLease, "{error}");
    }
    let error = locks.mutex("").detached(id.as_str()).release().await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::BadName);
    // A key that is no lock has none of our holds.
    let other = locks.mutex("string").detached(id.as_str());
    let error = other.remaining().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert!(!other.extend(ms(1_000)).await.unwrap());
    let left = pttl(&mut raw, "k").await;
    assert!((10_000..=30_000).contains(&left), "{left}");
    server.kill();
    let error = hold.extend(ms(1_000)).await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
        "{error}"
    );
}

#[tokio::test]
async fn the_hold_of_a_fair_mutex_is_found_and_handed_on() {
    let server = Server::start().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let mut raw = server.raw().await;
    let guard = here.fair_mutex("k").lock().await.unwrap();
    let fair = there.fair_mutex("k");
    let waiter = tokio::spawn(async move { fair.lock().await });
    until("it waits", async || tickets(&mut raw, "k").await == 1).await;
    let hold = there.mutex("k").detached(guard.detach().unwrap());
    assert!(hold.extend(ms(60_000)).await.unwrap());
    assert_eq!(hold.release().await.unwrap(), Release::Released);
    drop(within("its turn", waiter).await.unwrap().unwrap());
}

#[tokio::test]
async fn beside_redisson_a_release_by_id_is_announced() {
    let server = Server::start().await;
    let locks = Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap();
    let id = take(&locks, "k").await.detach().expect("it is held");
    let hold = locks.mutex("k").detached(id);
    assert!(hold.extend(ms(60_000)).await.unwrap());
    assert_eq!(hold.release().await.unwrap(), Release::Released);
    assert!(locks.mutex("k").try_lock().await.unwrap().is_some());
}

/// What is detached is forgotten here, also by its owner: one that lives long may detach any number of holds.
#[test]
fn an_owner_keeps_nothing_of_what_it_has_detached() {
    const HOLDS: usize = 400;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.block_on(Server::start());
    let locks = runtime.block_on(locks(&server));
    let owner = locks.owner();
    let kept = |is_detached: bool| {
        let all = async || {
            for n in 0..HOLDS {
                let mutex = owner.mutex(format!("{n} {is_detached}"));
                let guard = mutex.lock().lease(ms(60_000)).await.unwrap();
                if is_detached {
                    let id = guard.detach().expect("it is held, once");
                    mutex.detached(id).release().await.unwrap();
                } else {
                    guard.release().await.unwrap();
                }
            }
        };
        measure(|| runtime.block_on(all())).bytes_current
    };
    let _first = kept(false);
    let (released, detached) = (kept(false), kept(true));
    assert!(
        detached < released + 100 * HOLDS as i64,
        "{detached} bytes are left of what was detached, {released} of what was released"
    );
}

/// Extending and releasing by an id are the same if they are done twice, so nothing keeps a loop from that.
#[tokio::test]
async fn without_an_answer_it_can_be_called_again() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let locks = Locks::builder(proxy.url())
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let guard = locks.mutex("k").lock().lease(ms(60_000)).await.unwrap();
    let hold = locks.mutex("k").detached(guard.detach().unwrap());
    assert!(hold.extend(ms(60_000)).await.unwrap());
    proxy.to_client(Fault::Blackhole);
    let error = hold.extend(ms(60_000)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(!error.to_string().contains("look before"), "{error}");
    let error = hold.release().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(!error.to_string().contains("is being removed"), "{error}");
    proxy.heal();
    proxy.reset_all();
    until("it is released", async || match hold.release().await {
        Ok(Release::Released | Release::AlreadyGone) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}
