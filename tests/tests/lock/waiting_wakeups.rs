//! Waiting for a lock: how a waiter gets its turn, and what that costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::Locks;
use leasehold_testkit::{Fault, Proxy, Server};

use crate::support::{
    add_mute_user, exists, fields, locks, ms, nobody_in_line, registered, scripts_run, tickets,
    until, within,
};

/// The leases of these tests are 30 s unless they say otherwise, and waits are shorter: so the
/// message of the grant wakes.
#[tokio::test]
async fn a_release_elsewhere_wakes_at_once_and_not_when_the_lease_would_end() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    for _ in 0..20 {
        let guard = ours.mutex("a").lock().await.unwrap();
        let waiter = tokio::spawn(theirs.mutex("a").lock().into_future());
        until("the waiter", async || tickets(&mut raw, "a").await == 1).await;
        drop(guard);
        drop(within("the wake-up", waiter).await.unwrap().unwrap());
    }
    nobody_in_line(&mut raw, "a").await;
}

#[tokio::test]
async fn a_missed_message_is_found_by_the_next_look_and_costs_no_turn() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let (ours, deaf) = (
        locks(&server).await,
        Locks::connect(proxy.url()).await.unwrap(),
    );
    let third = locks(&server).await;
    proxy.to_client(Fault::DropMessages);
    for _ in 0..3 {
        let guard = ours.mutex("a").lock().await.unwrap();
        let waiter = tokio::spawn(deaf.mutex("a").lock().into_future());
        until("the waiter", async || tickets(&mut raw, "a").await == 1).await;
        let next = tokio::spawn(third.mutex("a").lock().into_future());
        until("another one", async || tickets(&mut raw, "a").await == 2).await;
        drop(guard);
        let found = within("the look", waiter).await.unwrap().unwrap();
        assert!(found.is_held() && !next.is_finished());
        drop(found);
        drop(within("the next turn", next).await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_holder_that_died_is_waited_for_until_its_lease_ends() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["HSET", "a", "dead:1", "1"]).await;
    raw.cmd(&["PEXPIRE", "a", "400"]).await;
    let locks = locks(&server).await;
    assert!(
        within(
            "the end of the lease",
            locks.mutex("a").lock().into_future()
        )
        .await
        .unwrap()
        .is_held()
    );
}

#[tokio::test]
async fn a_release_while_the_connection_was_down_is_found_after_reconnecting() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let (ours, theirs) = (
        locks(&server).await,
        Locks::connect(proxy.url()).await.unwrap(),
    );
    for _ in 0..5 {
        let guard = ours.mutex("a").lock().await.unwrap();
        let waiter = tokio::spawn(theirs.mutex("a").lock().into_future());
        until("the waiter", async || tickets(&mut raw, "a").await == 1).await;
        proxy.accept(leasehold_testkit::Accept::Refuse);
        proxy.reset_all();
        drop(guard);
        until("the release", async || !exists(&mut raw, "a").await).await;
        proxy.heal();
        drop(
            within("the look after the gap", waiter)
                .await
                .unwrap()
                .unwrap(),
        );
    }
}

#[tokio::test]
async fn a_client_that_may_not_subscribe_still_gets_its_turn() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    add_mute_user(&mut raw).await;
    let mute = Locks::connect(format!("redis://mute:secret@{}", server.addr()))
        .await
        .unwrap();
    raw.cmd(&["HSET", "a", "dead:1", "1"]).await;
    raw.cmd(&["PEXPIRE", "a", "400"]).await;
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    drop(
        within("the end of the lease", mute.mutex("a").lock().into_future())
            .await
            .unwrap(),
    );
    let asked = scripts_run(&mut raw).await;
    assert!(
        asked < 20,
        "a refused subscription is no reason to poll: {asked} scripts"
    );
}

#[tokio::test]
async fn in_one_process_first_come_is_first_served() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let mut waiters = Vec::new();
    for n in 0..50 {
        let (mutex, served) = (locks.mutex("a"), Arc::clone(&served));
        waiters.push(tokio::spawn(async move {
            let _guard = mutex.lock().await.unwrap();
            assert_eq!(served.fetch_add(1, Ordering::SeqCst), n);
        }));
        tokio::task::yield_now().await;
    }
    drop(guard);
    for waiter in waiters {
        within("a waiter", waiter).await.unwrap();
    }
}

#[tokio::test]
async fn those_who_give_up_in_the_line_hold_up_nobody() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let foreign = theirs.mutex("a").lock().await.unwrap();
    let mut waiters: Vec<_> = (0..9)
        .map(|_| tokio::spawn(ours.mutex("a").lock().into_future()))
        .collect();
    until("the head", async || tickets(&mut raw, "a").await == 1).await;
    for gone in [8, 4, 3, 0] {
        waiters.remove(gone).abort();
    }
    drop(foreign);
    for waiter in waiters {
        drop(within("a waiter", waiter).await.unwrap().unwrap());
    }
    until("the last release", async || !exists(&mut raw, "a").await).await;
    nobody_in_line(&mut raw, "a").await;
}

#[tokio::test]
async fn many_waiters_cost_the_server_one_contender_and_nothing_while_they_wait() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    registered([&ours, &theirs]).await;
    let guard = theirs
        .mutex("a")
        .lock()
        .lease(Duration::from_secs(60))
        .await
        .unwrap();
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    let waiters: Vec<_> = (0..500)
        .map(|_| tokio::spawn(ours.mutex("a").lock().into_future()))
        .collect();
    until("the head", async || tickets(&mut raw, "a").await == 1).await;
    tokio::time::sleep(ms(300)).await;
    // One attempt, and one place in line.
    assert_eq!(scripts_run(&mut raw).await, 2);
    drop(guard);
    for waiter in waiters {
        drop(within("a waiter", waiter).await.unwrap().unwrap());
    }
    // Passed on in the process, up to 64 times for each time the server is asked.
    let asked = scripts_run(&mut raw).await;
    assert!((10..400).contains(&asked), "{asked}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_process_does_not_starve_another_one() {
    let server = Server::start().await;
    let (busy, other) = (locks(&server).await, locks(&server).await);
    let stop = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (mutex, stop, turns) = (busy.mutex("a"), Arc::clone(&stop), Arc::clone(&turns));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let _guard = mutex.lock().await.unwrap();
                    turns.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for _ in 0..10 {
        let before = turns.load(Ordering::SeqCst);
        drop(
            within(
                "a turn for the other process",
                other.mutex("a").lock().into_future(),
            )
            .await
            .unwrap(),
        );
        let passed_by = turns.load(Ordering::SeqCst) - before;
        assert!(passed_by < 2_000, "passed by {passed_by} times");
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        within("a task", task).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_that_locks_in_a_loop_does_not_starve_another_process() {
    let server = Server::start().await;
    let (busy, other) = (locks(&server).await, locks(&server).await);
    let stop = Arc::new(AtomicBool::new(false));
    let looping = tokio::spawn({
        let (mutex, stop) = (busy.mutex("a"), Arc::clone(&stop));
        async move {
            while !stop.load(Ordering::SeqCst) {
                drop(mutex.lock().await.unwrap());
            }
        }
    });
    for _ in 0..10 {
        drop(
            within(
                "a turn for the other process",
                other.mutex("a").lock().into_future(),
            )
            .await
            .unwrap(),
        );
    }
    stop.store(true, Ordering::SeqCst);
    within("the loop", looping).await.unwrap();
}

#[tokio::test]
async fn a_guard_that_outlives_its_lease_keeps_nobody_here_waiting() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let forgotten = locks.mutex("a").lock().lease(ms(300)).await.unwrap();
    let waiting = locks.mutex("a").lock().await.unwrap();
    assert!(!forgotten.is_held() && waiting.is_held());
    let held = fields(&mut raw, "a").await;
    drop(forgotten);
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(
        fields(&mut raw, "a").await,
        held,
        "its late release touches nothing"
    );
}

#[tokio::test]
async fn waiting_for_many_names_takes_no_more_connections() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let mut guards = Vec::new();
    let mut waiters = Vec::new();
    for n in 0..300 {
        let name = format!("n{n}");
        guards.push(
            ours.mutex(&name)
                .lock()
                .lease(Duration::from_secs(60))
                .await
                .unwrap(),
        );
        waiters.push(tokio::spawn(
            theirs
                .mutex(&name)
                .lock()
                .lease(Duration::from_secs(60))
                .into_future(),
        ));
    }
    until("all waiters", async || {
        raw.cmd(&["KEYS", "leasehold_line:*"]).await.array().len() == 300
    })
    .await;
    let channels = raw.cmd(&["PUBSUB", "CHANNELS"]).await;
    assert_eq!(channels.array().len(), 1, "{channels:?}");
    let clients = raw.cmd(&["CLIENT", "LIST"]).await;
    assert_eq!(
        clients.str().lines().count(),
        3,
        "two clients and the observer"
    );
    drop(guards);
    for waiter in waiters {
        drop(within("a waiter", waiter).await.unwrap().unwrap());
    }
}
