//! Several locks at once on one server: all or nothing, one guard, what it costs and what it leaves.

use std::future::IntoFuture;
use std::time::Duration;

use leasehold::{ErrorKind, Interop, Locks, LostReason, MultiGuard, Release};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::{Cut, Fault, Proxy, Raw, Server, calls, ms};

use crate::support::{
    assert_everything_expires, exists, fields, in_line, its_turn, locks, pttl, short_locks, take,
    until, within,
};

/// Upper bound on the operations that a cancelled one may be made anew.
const MANY: usize = 1_000;

async fn all(locks: &Locks, names: &[&str]) -> MultiGuard {
    within("all locks", locks.multi(names).lock().into_future())
        .await
        .unwrap()
}

/// No lock is left of these, and everything else that is has an expiry.
async fn nothing_is_left(raw: &mut Raw, names: &[&str]) {
    for name in names {
        until(&format!("{name} is free"), async || {
            !exists(raw, name).await
        })
        .await;
    }
    assert_everything_expires(raw).await;
}

#[tokio::test]
async fn all_locks_are_taken_for_one_hold_and_released_together() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let guard = all(&ours, &["b", "a", "c"]).await;
    assert!(guard.is_held());
    assert!(guard.valid_for() > Duration::from_secs(20));
    let keys: Vec<&str> = guard.keys().collect();
    assert_eq!(keys.len(), 3);
    let holder = fields(&mut raw, "a").await;
    assert!(holder.starts_with(ours.client_id()), "{holder}");
    for name in ["a", "b", "c"] {
        assert_eq!(
            fields(&mut raw, name).await,
            holder,
            "the same hold at each"
        );
        assert!(pttl(&mut raw, name).await > 20_000);
        let stored = raw
            .cmd(&["GET", &format!("redisson_lock_token:{{{name}}}")])
            .await;
        assert_eq!(guard.tokens()[name].to_string(), stored.str());
        assert!(theirs.mutex(name).try_lock().await.unwrap().is_none());
        assert!(ours.mutex(name).try_lock().await.unwrap().is_none());
    }
    assert!(theirs.multi(["z", "c"]).try_lock().await.unwrap().is_none());
    assert!(
        !exists(&mut raw, "z").await,
        "none is kept where one is not free"
    );
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    nothing_is_left(&mut raw, &["a", "b", "c"]).await;
    let again = theirs.multi(["a", "b", "c"]).try_lock().await.unwrap();
    drop(again.expect("all are free"));
    nothing_is_left(&mut raw, &["a", "b", "c"]).await;
}

#[tokio::test]
async fn a_name_that_is_given_twice_is_one_lock() {
    let server = Server::start().await;
    let locks = Locks::builder(server.url())
        .namespace("shop")
        .connect()
        .await
        .unwrap();
    let multi = locks.multi(vec!["a".to_owned(), "b".into(), "a".into(), "b".into()]);
    let mut keys: Vec<&str> = multi.keys().collect();
    keys.sort_unstable();
    assert_eq!(keys, ["shop:a", "shop:b"]);
    let guard = multi.try_lock().await.unwrap().expect("free");
    let names: Vec<&str> = guard.tokens().into_keys().collect();
    assert_eq!(names, ["a", "b"], "without the namespace");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn lists_that_cannot_be_locked_are_refused_with_a_reason() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let mut raw = server.raw().await;
    let none: [&str; 0] = [];
    let error = locks.multi(none).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadName);
    assert!(error.to_string().contains("empty"), "{error}");
    for bad in ["", "a{b", "{}x"] {
        let error = locks.multi(["good", bad]).try_lock().await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::BadName, bad));
    }
    let long = "x".repeat(5_000);
    let error = locks.multi(["good", &long]).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadName);
    let error = locks
        .multi(["a", "b"])
        .lock()
        .lease(ms(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadLease);
    let error = locks
        .multi(["a", "b"])
        .lock()
        .max_hold(ms(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadLease);
    assert_eq!(raw.cmd(&["DBSIZE"]).await.int(), 0);
}

#[tokio::test]
async fn keys_that_are_no_locks_are_named_and_nothing_is_taken() {
    let server = Server::start().await;
    let (locks, mut raw) = (locks(&server).await, server.raw().await);
    let multi = locks.multi(["a", "b", "c"]);
    let cases = [
        (&["SET", "b", "x"][..], ErrorKind::WrongType),
        (&["HSET", "b", "colour", "red"], ErrorKind::WrongType),
        (&["HSET", "b", "somebody:1", "1"], ErrorKind::NoExpiry),
    ];
    for (command, kind) in cases {
        raw.cmd(command).await;
        for error in [
            multi.try_lock().await.unwrap_err(),
            multi.lock().await.unwrap_err(),
        ] {
            assert_eq!(
                (error.kind(), error.key()),
                (kind, "b"),
                "{command:?}: {error}"
            );
        }
        assert!(!exists(&mut raw, "a").await && !exists(&mut raw, "c").await);
        assert!(exists(&mut raw, "b").await, "nobody's data is deleted");
        raw.cmd(&["DEL", "b"]).await;
    }
    raw.cmd(&["SET", "redisson_lock_token:{b}", "seven"]).await;
    let error = multi.lock().await.unwrap_err();
    assert_eq!(error.key(), "b", "{error}");
    assert!(error.to_string().contains("not a number"), "{error}");
    assert!(!exists(&mut raw, "a").await && !exists(&mut raw, "b").await);
    let kept = raw.cmd(&["GET", "redisson_lock_token:{b}"]).await;
    assert_eq!(kept.str(), "seven");
}

#[tokio::test]
async fn when_one_lock_is_lost_all_are_and_the_others_are_released() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = short_locks(&server, ms(600)).await;
    let theirs = locks(&server).await;
    let guard = all(&ours, &["a", "b", "c"]).await;
    let lost = tokio::spawn(guard.lost());
    let cancelled = guard.cancellation();
    assert!(theirs.mutex("b").force_unlock().await.unwrap());
    let reason = within("the loss", lost).await.unwrap();
    assert_eq!(reason, LostReason::Stolen);
    assert!(!guard.is_held() && guard.valid_for().is_zero());
    assert!(cancelled.is_cancelled());
    // While the guard still exists.
    nothing_is_left(&mut raw, &["a", "c"]).await;
    let done = guard.run(async {}).await;
    assert_eq!(done.unwrap_err().reason(), LostReason::Stolen);
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
}

#[tokio::test]
async fn the_leases_of_all_locks_are_renewed_and_a_body_that_hangs_ends() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = short_locks(&server, ms(900)).await;
    let guard = all(&ours, &["a", "b"]).await;
    tokio::time::sleep(ms(2_000)).await;
    assert!(guard.is_held());
    let bounded = ours
        .multi(["c", "d"])
        .lock()
        .max_hold(ms(1_500))
        .await
        .unwrap();
    let reason = within("its end", bounded.lost()).await;
    assert_eq!(reason, LostReason::MaxHold);
    let fixed = ours.multi(["e", "f"]).lock().lease(ms(300)).await.unwrap();
    let work = fixed.run(std::future::pending::<()>()).await;
    assert_eq!(work.unwrap_err().reason(), LostReason::Expired);
    assert!(guard.is_held());
    drop((guard, bounded, fixed));
    nothing_is_left(&mut raw, &["a", "b", "c", "d", "e", "f"]).await;
}

#[tokio::test]
async fn a_wait_ends_with_its_time_and_with_a_release() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let held = take(&theirs, "b").await;
    let multi = ours.multi(["a", "b", "c"]);
    assert!(multi.try_lock_for(ms(100)).await.unwrap().is_none());
    assert!(!exists(&mut raw, "a").await && !exists(&mut raw, "c").await);
    let waiter = tokio::spawn(multi.lock().into_future());
    until("a ticket for the one that is held", async || {
        raw.cmd(&["ZCARD", "leasehold_line:{b}"]).await.int() == 1
    })
    .await;
    assert!(
        !exists(&mut raw, "a").await && !exists(&mut raw, "c").await,
        "it waits holding nothing"
    );
    assert_eq!(held.release().await.unwrap(), Release::Released);
    let guard = within("its turn", waiter).await.unwrap().unwrap();
    let holder = fields(&mut raw, "a").await;
    assert_eq!(fields(&mut raw, "b").await, holder, "the same hold at each");
    assert_eq!(fields(&mut raw, "c").await, holder);
    // And the other way round: single users wait for it.
    let waiter = in_line(&mut raw, &theirs, "c").await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    drop(its_turn(waiter).await);
    nothing_is_left(&mut raw, &["a", "b", "c"]).await;
}

#[tokio::test]
async fn a_thousand_names_are_one_guard() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let names: Vec<String> = (0..1_000).map(|n| format!("account:{n}")).collect();
    let guard = within("all locks", ours.multi(&names).lock().into_future())
        .await
        .unwrap();
    assert_eq!(guard.tokens().len(), 1_000);
    // Once a script. The keeper renews all of them when it has connected.
    assert_eq!(calls(&mut raw, "time").await, 8, "128 at a time");
    assert!(
        theirs
            .mutex("account:999")
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let left = raw.cmd(&["KEYS", "account:*"]).await;
    assert!(left.array().is_empty());

    // One of the last ones is held: all others are given back.
    let held = take(&theirs, "account:998").await;
    let waiter = tokio::spawn(ours.multi(&names).lock().into_future());
    until("it waits holding nothing", async || {
        let waits = raw
            .cmd(&["ZCARD", "leasehold_line:{account:998}"])
            .await
            .int()
            == 1;
        waits && raw.cmd(&["KEYS", "account:*"]).await.array().len() == 1
    })
    .await;
    drop(held);
    let guard = within("its turn", waiter).await.unwrap().unwrap();
    assert!(guard.is_held());
    drop(guard);
    until("all are free", async || {
        raw.cmd(&["KEYS", "account:*"]).await.array().is_empty()
    })
    .await;
}

#[tokio::test]
async fn who_holds_each_and_who_waits_can_be_asked() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let held = take(&theirs, "b").await;
    let waiter = in_line(&mut raw, &ours, "b").await;
    let multi = ours.multi(["a", "b"]);
    let found = multi.inspect().await.unwrap();
    assert!(found["a"].holders().is_empty());
    assert_eq!(found["b"].holders()[0].client(), theirs.client_id());
    assert_eq!(found["b"].waiting(), 1);
    drop(held);
    drop(its_turn(waiter).await);
    let guard = all(&ours, &["a", "b"]).await;
    let found = multi.inspect().await.unwrap();
    for (name, token) in guard.tokens() {
        assert_eq!(found[name].holders()[0].token(), Some(token));
    }
}

/// The reply ends anywhere: the request is made again under the same id, or fails, and nothing is left.
#[tokio::test]
async fn a_reply_that_is_cut_anywhere_leaves_nothing_behind() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let ours = locks_at(&proxy).await;
    let theirs = locks(&server).await;
    drop(all(&ours, &["a", "b"]).await);
    nothing_is_left(&mut raw, &["a", "b"]).await;
    // A reply with the tokens has about 70 bytes, one about a lock that is held about 15.
    for (after, is_held) in (0..80)
        .map(|n| (n, false))
        .chain((0..20).map(|n| (n, true)))
    {
        let held = if is_held {
            theirs.mutex("b").try_lock().await.unwrap()
        } else {
            None
        };
        proxy.to_client(Fault::Cut {
            after,
            how: Cut::Rst,
        });
        let tried = within("an answer", ours.multi(["a", "b"]).try_lock().into_future()).await;
        match tried {
            Ok(Some(guard)) if !is_held => drop(guard),
            Ok(None) if is_held => {}
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
                "cut after {after}: {error}"
            ),
            other => panic!("cut after {after}: {other:?}"),
        }
        drop(held);
        proxy.heal();
        nothing_is_left(&mut raw, &["a", "b"]).await;
    }
}

async fn locks_at(proxy: &Proxy) -> Locks {
    Locks::builder(proxy.url())
        .command_timeout(ms(1_000))
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn the_commands_on_the_server_are_few() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    // A fixed lease, since the keeper renews when it has connected.
    let multi = locks.multi(["a", "b", "c", "d"]);
    let fixed = async || multi.lock().lease(Duration::from_secs(30)).await.unwrap();
    drop(fixed().await);
    nothing_is_left(&mut raw, &["a", "b", "c", "d"]).await;
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    let guard = fixed().await;
    let counted = async |raw: &mut Raw| {
        let mut counts = Vec::new();
        for command in [
            "evalsha", "eval", "pttl", "time", "set", "hset", "pexpire", "hdel",
        ] {
            counts.push(calls(raw, command).await);
        }
        counts
    };
    assert_eq!(
        counted(&mut raw).await,
        [1, 0, 4, 1, 4, 4, 4, 0],
        "1 + 1 + 4 m"
    );
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(counted(&mut raw).await, [5, 0, 4, 1, 4, 4, 4, 4]);
    assert_eq!(calls(&mut raw, "exists").await, 4, "3 m");
}

#[tokio::test]
async fn redissons_locks_and_ours_exclude_each_other() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap();
    raw.cmd(&["HSET", "b", "java:7", "1"]).await;
    raw.cmd(&["PEXPIRE", "b", "30000"]).await;
    let multi = locks.multi(["a", "b"]);
    assert!(multi.try_lock().await.unwrap().is_none());
    let waiter = tokio::spawn(multi.lock().into_future());
    until("it listens to Redisson's releases", async || {
        let heard = raw
            .cmd(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{b}"])
            .await;
        heard.get("redisson_lock__channel:{b}").unwrap().int() == 1
    })
    .await;
    raw.cmd(&["DEL", "b"]).await;
    raw.cmd(&["PUBLISH", "redisson_lock__channel:{b}", "0"])
        .await;
    let guard = within("its turn", waiter).await.unwrap().unwrap();
    // As Redisson expects, the counters have no expiry.
    assert_eq!(pttl(&mut raw, "redisson_lock_token:{a}").await, -1);
    let token = guard.tokens()["a"].as_u64();
    let incremented = raw.cmd(&["INCR", "redisson_lock_token:{a}"]).await.int();
    assert_eq!(incremented as u64, token + 1);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let again = multi.try_lock().await.unwrap().expect("free");
    assert!(
        again.tokens()["a"].as_u64() > token + 1,
        "also where Java increments"
    );
}

#[tokio::test]
async fn dropped_at_any_await_it_leaves_nothing_behind() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let names = ["a", "b", "c"];
    for busy in [None, Some("b")] {
        let (mut n, mut tries) = (0, 0);
        loop {
            if let Some(name) = busy {
                let guard = take(&theirs, name).await;
                tokio::spawn(async move {
                    tokio::time::sleep(ms(20)).await;
                    drop(guard);
                });
            }
            let completed = cancel_at(ours.multi(names).lock().into_future(), n).await;
            let is_done = completed.is_some();
            drop(completed);
            nothing_is_left(&mut raw, &names).await;
            let next = within("the next", ours.multi(names).lock().into_future()).await;
            assert_eq!(next.unwrap().release().await.unwrap(), Release::Released);
            assert_eq!(raw.cmd(&["EXISTS", "leasehold_line:{b}"]).await.int(), 0);
            if is_done {
                break;
            }
            (n, tries) = (n + 1, tries + 1);
            assert!(tries < MANY);
        }
        assert!(n > usize::from(busy.is_some()), "{n} awaits");
    }
}

#[tokio::test]
async fn what_a_lost_reply_took_is_given_back() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let ours = Locks::builder(format!("redis://{}", proxy.addr()))
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    drop(all(&ours, &["a", "b"]).await);
    nothing_is_left(&mut raw, &["a", "b"]).await;
    // Executed, and asked for again under the same id.
    proxy.to_client(Fault::LoseReply {
        nth: 1,
        how: Cut::Rst,
    });
    let guard = all(&ours, &["a", "b"]).await;
    assert_eq!(fields(&mut raw, "a").await, fields(&mut raw, "b").await);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    nothing_is_left(&mut raw, &["a", "b"]).await;
    // Executed, and never answered.
    proxy.to_client(Fault::Blackhole);
    let error = ours.multi(["a", "b"]).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    proxy.heal();
    nothing_is_left(&mut raw, &["a", "b"]).await;
}

#[tokio::test]
async fn it_goes_on_after_the_server_forgot_its_scripts() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = short_locks(&server, ms(900)).await;
    let guard = all(&ours, &["a", "b"]).await;
    raw.cmd(&["SCRIPT", "FLUSH"]).await;
    tokio::time::sleep(ms(1_500)).await;
    assert!(guard.is_held(), "renewed");
    raw.cmd(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    raw.cmd(&["SCRIPT", "FLUSH"]).await;
    drop(all(&ours, &["a", "b"]).await);
    nothing_is_left(&mut raw, &["a", "b"]).await;
}

#[tokio::test]
async fn an_evicted_key_is_lost_or_harmless() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = short_locks(&server, ms(600)).await;
    let guard = all(&ours, &["a", "b"]).await;
    let before = guard.tokens()["a"];
    raw.cmd(&["DEL", "redisson_lock_token:{a}"]).await;
    tokio::time::sleep(ms(700)).await;
    assert!(guard.is_held(), "a counter is not the lock");
    raw.cmd(&["DEL", "a"]).await;
    assert_eq!(within("the loss", guard.lost()).await, LostReason::Stolen);
    drop(guard);
    let again = all(&ours, &["a", "b"]).await;
    assert!(again.tokens()["a"] > before, "tokens go on growing");
}

#[tokio::test]
async fn shut_down_it_gives_everything_back() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let guard = all(&ours, &["a", "b"]).await;
    let held = take(&theirs, "d").await;
    let waiter = tokio::spawn(ours.multi(["c", "d"]).lock().into_future());
    until("a ticket", async || {
        raw.cmd(&["ZCARD", "leasehold_line:{d}"]).await.int() == 1
    })
    .await;
    within("the shutdown", ours.shutdown()).await.unwrap();
    let waited = within("the waiter", waiter).await.unwrap();
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(within("the end", guard.lost()).await, LostReason::Closed);
    assert!(!exists(&mut raw, "a").await && !exists(&mut raw, "b").await);
    assert!(!exists(&mut raw, "c").await);
    assert_eq!(raw.cmd(&["ZCARD", "leasehold_line:{d}"]).await.int(), 0);
    assert_eq!(held.release().await.unwrap(), Release::Released);
}
