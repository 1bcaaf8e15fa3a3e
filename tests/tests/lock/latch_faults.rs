//! The latch when something goes wrong: messages, replies, keys and connections are lost, futures are dropped.

use std::time::Duration;

use leasehold::{ErrorKind, Interop, Locks, Replicas};
use leasehold_testkit::cancel::at_every_await;
use leasehold_testkit::own_process::{in_a_fork, in_own_process};
use leasehold_testkit::{Accept, Cut, Fault, Proxy, Server, replicas};

use crate::support::{add_mute_user, connect, exists, locks, ms, until, within};

const NOTES: &str = "leasehold_latch:{a}";

/// Waits for the latch `a` in a task, which has looked once.
async fn waiting(locks: &Locks) -> tokio::task::JoinHandle<Result<(), leasehold::Error>> {
    let latch = locks.latch("a");
    let waiter = tokio::spawn(async move { latch.wait().await });
    tokio::time::sleep(ms(150)).await;
    assert!(!waiter.is_finished());
    waiter
}

#[tokio::test]
async fn a_missed_message_is_made_up_for_by_a_look() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let setter = locks(&server).await;
    let deaf = connect(proxy.url()).await;
    proxy.to_client(Fault::DropMessages);
    setter.latch("a").reset(1).await.unwrap();
    let waiter = waiting(&deaf).await;
    setter.latch("a").count_down().await.unwrap();
    within("a look", waiter).await.unwrap().unwrap();

    // Also if it was set again before anybody looked.
    setter.latch("a").reset(1).await.unwrap();
    let waiter = waiting(&deaf).await;
    setter.latch("a").count_down().await.unwrap();
    setter.latch("a").reset(5).await.unwrap();
    within("a look", waiter).await.unwrap().unwrap();
    assert_eq!(setter.latch("a").count().await.unwrap(), 5);
}

#[tokio::test]
async fn an_opening_while_the_connection_was_down_is_found_after_reconnecting() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let setter = locks(&server).await;
    let cut_off = connect(proxy.url()).await;
    for set_again in [false, true] {
        setter.latch("a").reset(1).await.unwrap();
        let waiter = waiting(&cut_off).await;
        proxy.accept(Accept::Refuse);
        proxy.reset_all();
        setter.latch("a").count_down().await.unwrap();
        if set_again {
            setter.latch("a").reset(1).await.unwrap();
        }
        tokio::time::sleep(ms(300)).await;
        assert!(!waiter.is_finished());
        proxy.accept(Accept::Forward);
        within("the opening", waiter).await.unwrap().unwrap();
    }
}

/// Whichever reply is lost, the request was executed, and is repeated.
#[tokio::test]
async fn a_count_whose_reply_is_lost_counts_once() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let cut_off = connect(proxy.url()).await;
    let setter = locks(&server).await;
    setter.latch("a").reset(100).await.unwrap();
    cut_off.latch("a").count_down().await.unwrap();
    for n in 0..20 {
        let how = if n % 2 == 0 { Cut::Rst } else { Cut::Fin };
        proxy.to_client(Fault::LoseReply { nth: 1, how });
        let left = within("a count", cut_off.latch("a").count_down()).await;
        assert_eq!(left.unwrap(), 98 - n);
    }
    assert_eq!(setter.latch("a").count().await.unwrap(), 79);
    // The last one too, whose latch is gone when it is repeated, and setting it.
    setter.latch("a").reset(1).await.unwrap();
    proxy.to_client(Fault::LoseReply {
        nth: 1,
        how: Cut::Rst,
    });
    let left = within("the last count", cut_off.latch("a").count_down()).await;
    assert_eq!(left.unwrap(), 0);
    proxy.to_client(Fault::LoseReply {
        nth: 1,
        how: Cut::Rst,
    });
    let set = within("a set", cut_off.latch("a").try_set_count(7)).await;
    assert!(set.unwrap(), "it was this one that set it");
    assert_eq!(setter.latch("a").count().await.unwrap(), 7);
}

/// Cut after every byte of the request and of the reply, it is counted once.
#[tokio::test]
async fn a_cut_at_any_byte_counts_once() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let cut_off = connect(proxy.url()).await;
    let setter = locks(&server).await;
    setter.latch("a").reset(1_000).await.unwrap();
    cut_off.latch("a").count_down().await.unwrap();
    let mut expected = 999;
    // The request has about 240 bytes, the reply 16.
    let to_server = (0..260).step_by(7).map(|after| (true, after));
    for (to_server, after) in to_server.chain((0..18).map(|after| (false, after))) {
        for how in [Cut::Rst, Cut::Fin] {
            let fault = Fault::Cut { after, how };
            if to_server {
                proxy.to_server(fault);
            } else {
                proxy.to_client(fault);
            }
            let left = within("a count", cut_off.latch("a").count_down()).await;
            expected -= 1;
            assert_eq!(left.unwrap(), expected, "{to_server} {after} {how:?}");
            proxy.heal();
        }
    }
    assert_eq!(setter.latch("a").count().await.unwrap(), expected);
}

#[tokio::test]
async fn inspecting_tells_the_count_and_who_was_counted() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a").expiry(ms(60_000));
    let seen = latch.inspect().await.unwrap();
    assert_eq!((seen.count(), seen.remaining()), (0, None));
    latch.reset(3).await.unwrap();
    latch.count_down_as("x").await.unwrap();
    latch.count_down().await.unwrap();
    let seen = latch.inspect().await.unwrap();
    assert_eq!(seen.count(), 1);
    assert_eq!(seen.participants(), ["x"]);
    assert!(seen.remaining().unwrap() <= ms(60_000));
}

#[tokio::test]
async fn what_vanishes_is_not_open() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a");
    for keys in [&["a"][..], &["a", NOTES]] {
        latch.reset(2).await.unwrap();
        let waiter = waiting(&locks).await;
        let del: Vec<_> = ["DEL"].iter().chain(keys).collect();
        raw.cmd(&del).await;
        let error = within("a look", waiter).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
    }
    // With the notes gone as well, it is one that was never set.
    assert_eq!(latch.count().await.unwrap(), 0);
    latch.reset(2).await.unwrap();
    raw.cmd(&["DEL", "a"]).await;
    for refused in [latch.count().await, latch.count_down().await] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Broken);
    }
    assert_eq!(latch.wait().await.unwrap_err().kind(), ErrorKind::Broken);
    assert!(latch.try_set_count(1).await.unwrap());
    assert_eq!(latch.count_down().await.unwrap(), 0);
    latch.wait().await.unwrap();

    // Redisson opens a latch so.
    let beside = Locks::builder(server.url())
        .interop(Interop::Redisson)
        .connect()
        .await
        .unwrap();
    latch.reset(2).await.unwrap();
    let waiter = waiting(&beside).await;
    raw.cmd(&["DEL", "a"]).await;
    within("a look", waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn lost_notes_cost_no_waiter_anything() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a");
    latch.reset(3).await.unwrap();
    latch.count_down().await.unwrap();
    let waiter = waiting(&locks).await;
    raw.cmd(&["DEL", NOTES]).await;
    assert_eq!(latch.count_down().await.unwrap(), 1);
    assert!(!latch.wait_for(ms(100)).await.unwrap());
    assert!(!waiter.is_finished());
    raw.cmd(&["DEL", NOTES]).await;
    assert_eq!(latch.count_down().await.unwrap(), 0);
    within("the opening", waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn other_data_is_refused_and_left_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a");
    for (key, make) in [
        ("a", &["HSET", "a", "u:1", "1"][..]),
        ("a", &["SET", "a", "yes"]),
        (NOTES, &["SET", NOTES, "x"]),
    ] {
        if key == NOTES {
            latch.reset(2).await.unwrap();
            raw.cmd(&["DEL", NOTES]).await;
        }
        raw.cmd(make).await;
        let before = raw.cmd(&["DUMP", key]).await;
        let mut errors = vec![
            latch.reset(2).await.unwrap_err(),
            latch.count_down().await.unwrap_err(),
            latch.count_down_as("x").await.unwrap_err(),
            latch.count().await.unwrap_err(),
            latch.wait().await.unwrap_err(),
        ];
        errors.push(latch.try_set_count(2).await.unwrap_err());
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
            assert_eq!(error.key(), "a");
        }
        assert_eq!(raw.cmd(&["DUMP", key]).await, before);
        raw.cmd(&["DEL", key]).await;
    }
    // Of a waiter that is there already.
    latch.reset(1).await.unwrap();
    let waiter = waiting(&locks).await;
    raw.cmd(&["DEL", "a"]).await;
    raw.cmd(&["HSET", "a", "u:1", "1"]).await;
    let error = within("a look", waiter).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType);
}

#[tokio::test]
async fn what_cannot_be_used_is_refused() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a");
    for count in [0, 1 << 53, u64::MAX] {
        for refused in [
            latch.try_set_count(count).await.map(drop),
            latch.reset(count).await,
        ] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::BadCount);
        }
    }
    assert!(latch.try_set_count((1 << 53) - 1).await.unwrap());
    assert_eq!(latch.count_down().await.unwrap(), (1 << 53) - 2);
    let long = "x".repeat(4_097);
    let refused = latch.count_down_as(&long).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::BadName);
    for name in ["", "a{b", "{}"] {
        let latch = locks.latch(name);
        for refused in [
            latch.count().await.map(drop),
            latch.count_down().await.map(drop),
            latch.wait().await,
            latch.reset(1).await,
        ] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::BadName, "{name}");
        }
    }
    let forever = latch.clone().expiry(Duration::MAX);
    let refused = forever.reset(1).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::BadLease);
}

#[tokio::test]
async fn a_future_that_is_dropped_counts_once_with_its_repetition() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a");
    latch.reset(1_000).await.unwrap();
    let round = std::cell::Cell::new(0_u64);
    let (_, awaits) = at_every_await(
        || {
            let (latch, participant) = (latch.clone(), format!("p{}", round.get()));
            async move { latch.count_down_as(participant).await.unwrap() }
        },
        |_| {
            let (latch, participant) = (latch.clone(), format!("p{}", round.get()));
            round.set(round.get() + 1);
            let left = 1_000 - round.get();
            async move {
                assert_eq!(latch.count_down_as(participant).await.unwrap(), left);
                assert_eq!(latch.count().await.unwrap(), left);
            }
        },
    )
    .await;
    assert!(awaits >= 1);

    // A waiter leaves nothing, and hinders nobody.
    let mut raw = server.raw().await;
    for n in 0..6 {
        let wait = latch.wait();
        assert!(
            leasehold_testkit::cancel::cancel_at(wait, n)
                .await
                .is_none()
        );
        let rest = latch.wait_for(ms(20));
        assert!(!within("another waiter", rest).await.unwrap());
    }
    until("nobody listens", async || {
        leasehold_testkit::statistics::subscribers(&mut raw, NOTES).await == 0
    })
    .await;
}

#[tokio::test]
async fn a_waiter_that_is_never_polled_again_holds_up_no_other() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a");
    latch.reset(1).await.unwrap();
    let mut stuck = Vec::new();
    for _ in 0..3 {
        // It begins the look, and is not polled when the answer is there.
        let mut waiter = Box::pin(latch.wait());
        std::future::poll_fn(|cx| {
            assert!(waiter.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        stuck.push(waiter);
    }
    let other = waiting(&locks).await;
    latch.count_down().await.unwrap();
    within("the opening", other).await.unwrap().unwrap();
    for waiter in stuck {
        within("its own turn", waiter).await.unwrap();
    }
}

#[tokio::test]
async fn a_user_without_pub_sub_hears_of_the_opening_by_looks() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    add_mute_user(&mut raw).await;
    let url = format!("redis://mute:secret@{}", server.addr());
    let mute = connect(url).await;
    mute.latch("a").reset(1).await.unwrap();
    let waiter = waiting(&mute).await;
    assert_eq!(mute.latch("a").count_down().await.unwrap(), 0);
    within("a look", waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a");
    for _ in 0..2 {
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        latch.reset(2).await.unwrap();
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(latch.count_down().await.unwrap(), 1);
        let waiter = waiting(&locks).await;
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        assert_eq!(latch.count_down().await.unwrap(), 0);
        within("the opening", waiter).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_shutdown_wakes_those_who_wait() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let latch = locks.latch("a");
    latch.reset(1).await.unwrap();
    let waiters = [waiting(&locks).await, waiting(&locks).await];
    locks.shutdown().await.unwrap();
    for waiter in waiters {
        let error = within("the end", waiter).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
    for refused in [
        latch.wait().await,
        latch.reset(1).await,
        latch.count_down().await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
    }
}

#[test]
fn a_child_does_not_use_the_latches_of_its_parent() {
    in_own_process(async {
        let server = Server::start().await;
        let locks = locks(&server).await;
        let latch = locks.latch("a");
        latch.reset(1).await.unwrap();
        let mut waiting = Some(Box::pin({
            let latch = latch.clone();
            async move { latch.wait().await }
        }));
        let begun = tokio::time::timeout(ms(200), waiting.as_mut().unwrap()).await;
        assert!(begun.is_err());
        let (copy, in_the_child) = (latch.clone(), &mut waiting);
        let status = in_a_fork(|| async move {
            let mut waiter = in_the_child.take().expect("the copy");
            for refused in [
                within("an answer", waiter.as_mut()).await,
                copy.wait().await,
                copy.reset(3).await,
                copy.count_down().await.map(drop),
            ] {
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Forked);
            }
            drop(waiter);
        });
        assert_eq!(status, 0, "the child failed");
        assert_eq!(latch.count_down().await.unwrap(), 0);
        within("the opening", waiting.unwrap()).await.unwrap();
    });
}

#[tokio::test]
async fn a_server_that_is_gone_is_told_at_once_and_an_outage_is_sat_out() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let locks = Locks::builder(proxy.url())
        .command_timeout(ms(300))
        .connect()
        .await
        .unwrap();
    let latch = locks.latch("a");
    latch.reset(1).await.unwrap();
    let waiter = waiting(&locks).await;
    proxy.accept(Accept::Refuse);
    proxy.reset_all();
    let error = within("an answer", latch.wait()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    tokio::time::sleep(ms(1_500)).await;
    assert!(!waiter.is_finished(), "five times the command timeout");
    proxy.accept(Accept::Forward);
    until("it is back", async || {
        let counted = latch.count_down_as("x").await;
        counted.map_err(|error| error.to_string())
    })
    .await;
    within("the opening", waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_count_that_replicas_must_confirm_is_on_them_or_an_error() {
    let servers = replicas::Replicas::builder().replicas(2).start().await;
    let mut master = servers.node(0).raw().await;
    master.cmd(&["SET", "probe", "1", "PX", "60000"]).await;
    assert_eq!(master.cmd(&["WAIT", "2", "20000"]).await.int(), 2);
    let locks = Locks::builder(servers.url())
        .command_timeout(ms(700))
        .replicated(Replicas::All)
        .connect()
        .await
        .unwrap();
    let latch = locks.latch("a");
    until("it is set", async || {
        latch.reset(3).await.map_err(|error| error.to_string())
    })
    .await;
    for left in [2, 1] {
        until("it is counted", async || {
            match latch.count_down_as(format!("p{left}")).await {
                Ok(n) if n == left => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        for replica in 1..=2 {
            let mut raw = servers.node(replica).raw().await;
            assert_eq!(raw.cmd(&["GET", "a"]).await.str(), left.to_string());
        }
    }
    servers.node(1).pause();
    until("the master counts its replicas", async || {
        match latch.count_down_as("last").await {
            Err(error) if error.kind() == ErrorKind::NotReplicated => {
                assert!(
                    error.to_string().contains("which their master has"),
                    "{error}"
                );
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    // The master has it. Repeated, it is not counted again, and still to be confirmed.
    assert!(!exists(&mut master, "a").await);
    let alone = latch.clone().replicated(Replicas::AtLeast(1));
    until("one is enough", async || {
        alone.reset(2).await.map_err(|error| error.to_string())
    })
    .await;
    servers.node(1).resume();
    until("both have it", async || {
        let counted = latch.count_down_as("x").await;
        counted.map_err(|error| error.to_string())
    })
    .await;
}

/// One of its replicas would be promoted next, with the latch. A sentinel names the empty master until then.
#[tokio::test]
async fn a_master_that_came_back_empty_opens_no_latch_that_replicas_confirmed() {
    let servers = replicas::Replicas::builder().replicas(2).start().await;
    let connect = async |lease| {
        let builder = Locks::builder(servers.url())
            .command_timeout(ms(700))
            .lease(lease)
            .replicated(Replicas::All);
        builder.connect().await.unwrap()
    };
    let locks = connect(Duration::from_secs(120)).await;
    let latch = locks.latch("a");
    until("it is set", async || {
        latch.reset(2).await.map_err(|error| error.to_string())
    })
    .await;
    for replica in 1..=2 {
        let mut raw = servers.node(replica).raw().await;
        raw.cmd(&["REPLICAOF", "NO", "ONE"]).await;
        assert_eq!(raw.cmd(&["GET", "a"]).await.str(), "2");
    }
    let waiter = waiting(&locks).await;
    servers.node(0).restart().await;

    let is_doubted = |error: &leasehold::Error| {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        error.to_string().contains("may have lost")
    };
    until("the count is doubted", async || {
        is_doubted(&latch.count().await.unwrap_err())
    })
    .await;
    assert!(is_doubted(&latch.count_down_as("x").await.unwrap_err()));
    assert!(!within("the time", latch.wait_for(ms(600))).await.unwrap());
    assert!(!waiter.is_finished());

    // Without replicas nothing is promised, and a latch that nobody has set is open.
    let alone = latch.clone().replicated(Replicas::None);
    assert_eq!(alone.count_down_as("x").await.unwrap(), 0);
    within("a look", alone.wait()).await.unwrap();
    assert!(!waiter.is_finished(), "the look of another one is no proof");

    // Data that are older than all leases are all there is.
    let later = connect(ms(1_000)).await.latch("a");
    let count = until("the count is believed", async || {
        later.count().await.map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(count, 0);
    assert_eq!(later.count_down_as("x").await.unwrap(), 0);
    within("the opening", later.wait()).await.unwrap();
    // What is set there counts at once.
    until("replicas are back", async || {
        for replica in 1..=2 {
            let mut raw = servers.node(replica).raw().await;
            let port = servers.node(0).addr().port().to_string();
            raw.cmd(&["REPLICAOF", "127.0.0.1", &port]).await;
        }
        latch.reset(1).await.map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(latch.count_down_as("y").await.unwrap(), 0);
    within("the opening", waiter).await.unwrap().unwrap();
}
