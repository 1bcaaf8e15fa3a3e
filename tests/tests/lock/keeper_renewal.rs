//! The keeper renews held locks only.

use std::time::{Duration, Instant};

use leasehold::{Locks, LostReason, Release};
use leasehold_testkit::{Accept, Proxy, Raw, Server, in_own_process};

use crate::support::{
    calls, command_for_renewals, exists, locks, ms, pttl, registered, scripts_run, short_locks,
    until, within,
};

/// Keeper threads of this process. A thread's name is cut to 15 bytes.
fn keepers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux");
    let name = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
    };
    threads
        .filter_map(name)
        .filter(|name| name.trim_end() == "leasehold-keepe")
        .count()
}

#[tokio::test]
async fn a_lock_outlives_its_lease_as_long_as_its_guard_lives() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(1_500)).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let end = Instant::now() + ms(4_000);
    while Instant::now() < end {
        assert!(guard.is_held());
        let ttl = pttl(&mut raw, "a").await;
        assert!((1..=1_500).contains(&ttl), "{ttl}");
        tokio::time::sleep(ms(20)).await;
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// A blocking call in a task, which stops its runtime.
#[tokio::test]
async fn a_blocked_runtime_does_not_lose_its_locks() {
    let server = Server::start().await;
    let locks = short_locks(&server, ms(1_500)).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    std::thread::sleep(ms(3_500));
    assert!(guard.is_held());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_thousand_locks_are_renewed_by_a_handful_of_commands() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, Duration::from_secs(3)).await;
    let mut guards = Vec::new();
    for n in 0..1_000 {
        guards.push(locks.mutex(format!("n{n}")).lock().await.unwrap());
    }
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    let from = Instant::now();
    until("four rounds of renewals", async || {
        calls(&mut raw, "hexists").await >= 4_000
    })
    .await;
    let renewals = calls(&mut raw, "hexists").await;
    let commands = scripts_run(&mut raw).await;
    assert!(guards.iter().all(leasehold::Guard::is_held));
    // Once a second each, give or take ten per cent and the edges.
    let rounds = from.elapsed().as_secs() + 2;
    assert!(
        renewals <= 1_000 * rounds * 13 / 10,
        "{renewals} renewals in {rounds} rounds"
    );
    assert!(
        commands <= renewals / 30,
        "{commands} commands for {renewals} renewals"
    );
}

/// Whether the latest command over the connection for renewals is a script. A count of scripts
/// would include the entry of the process.
async fn has_renewed(raw: &mut Raw) -> bool {
    let command = command_for_renewals(raw).await;
    command.is_some_and(|command| command.starts_with("eval"))
}

/// No renewal falls into this test: only the restart can reveal the loss. It may come before or
/// after the keeper is connected.
#[tokio::test]
async fn a_server_that_restarted_and_forgot_a_lock_is_noticed_at_once() {
    for connected in [false, true] {
        let server = Server::start().await;
        let mut raw = server.raw().await;
        let locks = short_locks(&server, Duration::from_secs(600)).await;
        registered([&locks]).await;
        raw.cmd(&["CONFIG", "RESETSTAT"]).await;
        let guard = locks.mutex("a").lock().await.unwrap();
        if connected {
            until("the keeper has looked at it", async || {
                has_renewed(&mut raw).await
            })
            .await;
        }
        server.restart().await;
        let reason = within("the end of the hold", guard.lost()).await;
        // A keeper that was not connected yet detects the loss, but not its reason.
        assert!(
            reason == LostReason::NodeGone || !connected && reason == LostReason::Stolen,
            "{reason}"
        );
    }
}

#[tokio::test]
async fn nothing_is_renewed_after_its_release() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(600)).await;
    for n in 0..20 {
        let guard = locks.mutex("a").lock().await.unwrap();
        // Up to and around the moment of a renewal.
        tokio::time::sleep(ms(170 + 3 * n)).await;
        guard.release().await.unwrap();
        raw.cmd(&["CONFIG", "RESETSTAT"]).await;
        assert!(!exists(&mut raw, "a").await);
    }
    let mut guards = Vec::new();
    for n in 0..50 {
        guards.push(locks.mutex(format!("n{n}")).lock().await.unwrap());
    }
    tokio::time::sleep(ms(230)).await;
    for guard in guards {
        guard.release().await.unwrap();
    }
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    tokio::time::sleep(ms(700)).await;
    assert_eq!(scripts_run(&mut raw).await, 0);
    assert!(!exists(&mut raw, "a").await);
}

#[tokio::test]
async fn a_fixed_lease_is_never_renewed() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(300)).await;
    let guard = locks.mutex("a").lock().lease(ms(900)).await.unwrap();
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    assert_eq!(within("the end", guard.lost()).await, LostReason::Expired);
    assert_eq!(scripts_run(&mut raw).await, 0);
    assert_eq!(keepers_of(&mut raw).await, 1, "no keeper is connected");
}

/// Number of connections besides the test's own.
async fn keepers_of(raw: &mut Raw) -> usize {
    raw.cmd(&["CLIENT", "LIST"]).await.str().lines().count() - 1
}

#[tokio::test]
async fn a_body_that_hangs_keeps_the_lock_for_its_longest_hold_and_no_longer() {
    let server = Server::start().await;
    let (ours, theirs) = (short_locks(&server, ms(1_500)).await, locks(&server).await);
    let guard = ours.mutex("a").lock().max_hold(ms(3_000)).await.unwrap();
    tokio::time::sleep(ms(2_000)).await;
    assert!(guard.is_held(), "renewed until then");
    assert_eq!(within("the end", guard.lost()).await, LostReason::MaxHold);
    drop(
        within("the next", theirs.mutex("a").lock().into_future())
            .await
            .unwrap(),
    );

    // Our clock is the careful one: a release comes in time, if the machine is not too busy for that each time.
    for _ in 0..10 {
        let short = ours.mutex("b").lock().max_hold(ms(1_400)).await.unwrap();
        assert_eq!(within("the end", short.lost()).await, LostReason::MaxHold);
        if short.release().await.unwrap() == Release::Released {
            return;
        }
    }
    panic!("it ends at the server first");
}

#[tokio::test]
async fn a_connection_that_breaks_is_no_loss_while_the_lease_lasts() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(2_000)).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    for _ in 0..15 {
        tokio::time::sleep(ms(200)).await;
        raw.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await;
        assert!(guard.is_held());
    }
    drop(guard);
    until("the release", async || !exists(&mut raw, "a").await).await;
}

#[tokio::test]
async fn an_outage_shorter_than_the_lease_is_no_loss() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let locks = Locks::builder(proxy.url())
        .lease(ms(3_000))
        .connect()
        .await
        .unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    for silent in [true, false] {
        if silent {
            proxy.blackhole();
        } else {
            proxy.accept(Accept::Refuse);
            proxy.reset_all();
        }
        tokio::time::sleep(ms(900)).await;
        proxy.heal();
        let valid = guard.valid_for();
        until("a renewal", async || guard.valid_for() > valid + ms(100)).await;
        assert!(guard.is_held());
    }
}

#[tokio::test]
async fn a_server_that_forgot_its_scripts_is_told_again() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(1_500)).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    for _ in 0..10 {
        tokio::time::sleep(ms(300)).await;
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        assert!(guard.is_held());
    }
}

#[tokio::test]
async fn a_lock_dropped_while_the_server_is_away_is_freed_when_it_is_back() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let locks = Locks::connect(proxy.url()).await.unwrap();
    let guards = [
        locks.mutex("a").lock().await.unwrap(),
        locks.mutex("b").lock().await.unwrap(),
    ];
    proxy.accept(Accept::Refuse);
    proxy.reset_all();
    drop(guards);
    tokio::time::sleep(ms(100)).await;
    assert!(exists(&mut raw, "a").await);
    proxy.heal();
    until("the releases", async || {
        !exists(&mut raw, "a").await && !exists(&mut raw, "b").await
    })
    .await;
}

/// Runs in a process of its own: it counts threads, and the other tests start keepers too.
#[test]
fn the_thread_starts_with_the_first_need_and_ends_with_the_last_guard() {
    in_own_process(async {
        let server = Server::start().await;
        let locks = locks(&server).await;
        drop(locks.mutex("a").lock().lease(ms(500)).await.unwrap());
        assert_eq!(keepers(), 0, "nothing to renew");
        let guard = locks.mutex("a").lock().await.unwrap();
        // The thread sets its own name after its start.
        until("the thread", async || keepers() == 1).await;
        drop(locks.mutex("b").lock().await.unwrap());
        drop(locks);
        tokio::time::sleep(ms(50)).await;
        assert_eq!(keepers(), 1, "the guard is still there");
        drop(guard);
        until("the end of the thread", async || keepers() == 0).await;
    });
}
