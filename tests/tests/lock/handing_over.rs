//! A release hands the lock over: it makes the first ticket in line the holder and tells that
//! process alone.
//!
//! Each `Locks` is a process to the server. Leases are 30 s and waits are shorter, unless a test
//! says otherwise: so a waiter that gets its turn was granted it, and has not waited for an expiry.

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks, LostReason, Release, Replicas};
use leasehold_testkit::{Raw, Server, replicas};

use crate::support::{
    assert_everything_expires, calls, exists, fields, in_line, its_turn, line, locks, ms,
    nobody_in_line, pttl, scripts_run, tickets, until, within,
};

async fn clients(server: &Server, count: usize) -> Vec<Locks> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(locks(server).await);
    }
    clients
}

/// A server, and that many processes that contend for its locks.
async fn processes<const N: usize>() -> (Server, Raw, [Locks; N]) {
    let server = Server::start().await;
    let raw = server.raw().await;
    let processes = clients(&server, N).await;
    let processes = processes.try_into().expect("as many as were asked for");
    (server, raw, processes)
}

/// A connection that hears everything that is published from now on.
async fn listener(server: &Server) -> Raw {
    let mut listener = server.raw().await;
    listener.hello3().await;
    listener.send(&["PSUBSCRIBE", "*"]).await.unwrap();
    // Its confirmation.
    listener.push().await;
    listener
}

/// Channels and texts of all messages that `listener` heard.
async fn heard(server: &Server, listener: &mut Raw) -> Vec<(String, String)> {
    let mut raw = server.raw().await;
    raw.cmd(&["PUBLISH", "end", ""]).await;
    let mut messages = Vec::new();
    loop {
        let push = listener.push().await;
        let (channel, message) = (push[2].str(), push[3].str());
        if channel == "end" {
            return messages;
        }
        messages.push((channel.into(), message.into()));
    }
}

#[tokio::test]
async fn a_release_makes_one_grant_that_the_first_process_in_line_hears_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let holder = locks(&server).await;
    let clients = clients(&server, 4).await;
    let mut held = holder.mutex("a").lock().await.unwrap();
    let mut waiters = Vec::new();
    for locks in &clients {
        waiters.push(in_line(&mut raw, locks, "a").await);
    }
    let mut listener = listener(&server).await;
    for (locks, waiter) in clients.iter().zip(waiters) {
        let first = line(&mut raw, "a").await.remove(0);
        held.release().await.unwrap();
        held = its_turn(waiter).await;
        assert_eq!(fields(&mut raw, "a").await, format!("{first}=1"));
        let messages = heard(&server, &mut listener).await;
        let [(channel, message)] = &messages[..] else {
            panic!("one message: {messages:?}");
        };
        assert_eq!(*channel, format!("leasehold:{}", locks.client_id()));
        let words: Vec<_> = message.split(' ').collect();
        let number = first.rsplit_once(':').unwrap().1;
        assert_eq!((words[0], words[1], words[5]), ("G", number, "a"));
        assert_eq!(words[2], held.token().as_u64().to_string());
        assert_eq!(words[4], "1000");
    }
    held.release().await.unwrap();
    assert!(!exists(&mut raw, "a").await);
    assert_eq!(heard(&server, &mut listener).await, []);
}

/// One request to join the line and one release: no attempt fails, whoever waits. Looks at a line
/// in which nothing is lost are rare.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_two_requests_and_one_message_however_many_processes_wait() {
    const ROUNDS: u64 = 10;
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for count in [2, 16, 64] {
        let clients = clients(&server, count).await;
        let holder = locks(&server).await;
        let held = holder.mutex("a").lock().await.unwrap();
        let mut waiters = Vec::new();
        for locks in &clients {
            let mutex = locks.mutex("a");
            waiters.push(tokio::spawn(async move {
                for _ in 0..=ROUNDS {
                    drop(mutex.lock().await.unwrap());
                }
            }));
        }
        until("all of them are in line", async || {
            tickets(&mut raw, "a").await == count as i64
        })
        .await;
        raw.cmd(&["CONFIG", "RESETSTAT"]).await;
        let since = Instant::now();
        drop(held);
        for waiter in waiters {
            within("its turns", waiter).await.unwrap();
        }
        // A waiter looks once a second at most.
        let looks = count as u64 * since.elapsed().as_secs();
        until("the last release", async || !exists(&mut raw, "a").await).await;
        // The first turn of each is asked for before.
        let hand_overs = count as u64 * (ROUNDS + 1);
        let asked = scripts_run(&mut raw).await;
        let least = hand_overs * 2 - count as u64 + 1;
        assert!(
            asked >= least && asked <= hand_overs * 2 + hand_overs / 10 + 3 + looks,
            "{count} processes: {asked} requests for {hand_overs} turns"
        );
        assert!(calls(&mut raw, "publish").await <= hand_overs);
    }
}

#[tokio::test]
async fn the_ticket_of_a_waiter_that_gives_up_is_inherited_by_the_next_one_here() {
    let (_server, mut raw, [holder, ours, theirs]) = processes().await;
    let held = holder.mutex("a").lock().await.unwrap();
    let first = in_line(&mut raw, &ours, "a").await;
    let second = tokio::spawn(ours.mutex("a").lock().into_future());
    let bounded = tokio::spawn(
        ours.mutex("a")
            .try_lock_for(Duration::from_secs(60))
            .into_future(),
    );
    let behind = in_line(&mut raw, &theirs, "a").await;
    let before = line(&mut raw, "a").await;
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    tokio::time::sleep(ms(100)).await;
    assert_eq!(line(&mut raw, "a").await, before);
    assert_eq!(
        calls(&mut raw, "zrem").await + calls(&mut raw, "zadd").await,
        0,
        "nothing is said of it"
    );
    held.release().await.unwrap();
    let second = its_turn(second).await;
    assert_eq!(fields(&mut raw, "a").await, format!("{}=1", before[0]));

    // The third one here is behind the other process, and gives up as the last one.
    assert_eq!(line(&mut raw, "a").await, before[1..]);
    second.release().await.unwrap();
    let behind = its_turn(behind).await;
    until("its own ticket", async || tickets(&mut raw, "a").await == 1).await;
    let ticket = line(&mut raw, "a").await.remove(0);
    assert!(ticket.starts_with(ours.client_id()) && ticket != before[0]);
    bounded.abort();
    nobody_in_line(&mut raw, "a").await;
    behind.release().await.unwrap();
    assert!(!exists(&mut raw, "a").await);
}

#[tokio::test]
async fn the_last_waiter_of_a_process_that_gives_up_takes_its_ticket_along() {
    let (_server, mut raw, [holder, ours, theirs]) = processes().await;
    let held = holder.mutex("a").lock().await.unwrap();
    for _ in 0..5 {
        let waiter = in_line(&mut raw, &ours, "a").await;
        waiter.abort();
        nobody_in_line(&mut raw, "a").await;
        // At the end of its time.
        let tried = theirs.mutex("a").try_lock_for(ms(60));
        assert!(
            within("an end", tried.into_future())
                .await
                .unwrap()
                .is_none()
        );
        nobody_in_line(&mut raw, "a").await;
    }
    held.release().await.unwrap();
    assert!(!exists(&mut raw, "a").await, "granted to nobody");
}

#[tokio::test]
async fn a_shutdown_takes_the_tickets_of_all_waiters_back_before_it_returns() {
    let (_server, mut raw, [holder, ours, theirs]) = processes().await;
    let mut waiting = Vec::new();
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        held.push(holder.mutex(name).lock().await.unwrap());
        waiting.push(in_line(&mut raw, &ours, name).await);
        waiting.push(tokio::spawn(ours.mutex(name).lock().into_future()));
    }
    let behind = in_line(&mut raw, &theirs, "b").await;
    within("the shutdown", ours.shutdown()).await.unwrap();
    for name in ["a", "b", "c"] {
        let left = line(&mut raw, name).await;
        assert_eq!(left.len(), usize::from(name == "b"), "{left:?}");
    }
    for waiter in waiting {
        let ended = within("the end of a wait", waiter).await.unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
    }
    for held in held {
        held.release().await.unwrap();
    }
    let next = its_turn(behind).await;
    assert!(next.is_held() && !exists(&mut raw, "a").await);
}

#[tokio::test]
async fn a_grant_for_a_ticket_that_was_taken_back_is_handed_on() {
    let (_server, mut raw, [holder, ours, theirs]) = processes().await;
    let held = holder.mutex("a").lock().await.unwrap();
    // From here on it hears of grants.
    in_line(&mut raw, &ours, "a").await.abort();
    nobody_in_line(&mut raw, "a").await;
    let behind = in_line(&mut raw, &theirs, "a").await;
    // As a request of it that ran late, with a grant lease longer than any wait here.
    let left = format!("{}:999999|60000", ours.client_id());
    raw.cmd(&["ZADD", "leasehold_line:{a}", "1", &left]).await;
    held.release().await.unwrap();
    its_turn(behind).await.release().await.unwrap();
    assert!(!exists(&mut raw, "a").await);
    assert_eq!(tickets(&mut raw, "a").await, 0);
}

/// Tickets of processes that are gone, and members that are no tickets.
#[tokio::test]
async fn tickets_that_nobody_serves_are_skipped() {
    let (_server, mut raw, [holder, ours]) = processes().await;
    let held = holder.mutex("a").lock().await.unwrap();
    let waiter = in_line(&mut raw, &ours, "a").await;
    for n in 0..40 {
        let dead = format!("dead{n}:{n}|60000");
        raw.cmd(&["ZADD", "leasehold_line:{a}", "1", &dead]).await;
    }
    for strange in [
        "",
        "x",
        "a:b",
        ":1",
        "a:1|",
        "a:1|0",
        "a:1|99999999",
        "\r\n",
    ] {
        raw.cmd(&["ZADD", "leasehold_line:{a}", "2", strange]).await;
    }
    held.release().await.unwrap();
    assert!(its_turn(waiter).await.is_held());
    assert_eq!(tickets(&mut raw, "a").await, 0);
}

/// Whoever may publish on the channel of a process could send it anything.
#[tokio::test]
async fn messages_that_are_no_grant_of_the_server_grant_nothing() {
    let (_server, mut raw, [holder, ours]) = processes().await;
    let held = holder.mutex("a").lock().await.unwrap();
    let waiter = in_line(&mut raw, &ours, "a").await;
    let ticket = line(&mut raw, "a").await.remove(0);
    let number = ticket.rsplit_once(':').unwrap().1;
    let channel = format!("leasehold:{}", ours.client_id());
    let time = raw.cmd(&["TIME"]).await;
    let now: u64 = time.array()[0].str().parse().unwrap();
    let (past, future) = ((now - 60) * 1_000_000, (now + 60) * 1_000_000);
    for message in [
        "".into(),
        "0".into(),
        "G".into(),
        "G G G G G G".into(),
        format!("G {number}"),
        // Of another hold: it is released, which it is not there for.
        format!("G 999999 1 {past} 1000 a"),
        format!("G 999999 1 {past} 1000 never-used"),
        // Older than the place in line, over, or not yet made: not believed, or asked about.
        format!("G {number} 1 {past} 1000 a"),
        format!("G {number} 1 {future} 0 a"),
        format!("G {number} 1 {future} 1000 a"),
        format!("G {number} 99999999999999999999 {past} 1000 a"),
    ] {
        let receivers = raw.cmd(&["PUBLISH", &channel, &message]).await.int();
        assert_eq!(receivers, 1);
        tokio::time::sleep(ms(30)).await;
        assert!(!waiter.is_finished(), "{message}");
        assert!(held.is_held());
        assert_eq!(line(&mut raw, "a").await, [&*ticket], "{message}");
    }
    held.release().await.unwrap();
    let guard = its_turn(waiter).await;
    assert_eq!(fields(&mut raw, "a").await, format!("{ticket}=1"));
    guard.release().await.unwrap();
}

/// What only the server can know, its place and the time of a grant, is believed: the README says
/// whom that takes. The hold ends with its first renewal, and harms no other one.
#[tokio::test]
async fn a_grant_that_was_forged_in_every_detail_is_lost_at_its_first_renewal() {
    let (_server, mut raw, [holder, ours]) = processes().await;
    let held = holder.mutex("a").lock().await.unwrap();
    let before = fields(&mut raw, "a").await;
    let waiter = in_line(&mut raw, &ours, "a").await;
    let ticket = line(&mut raw, "a").await.remove(0);
    let number = ticket.rsplit_once(':').unwrap().1;
    let time = raw.cmd(&["TIME"]).await;
    let part = |n: usize| -> u64 { time.array()[n].str().parse().unwrap() };
    let now = part(0) * 1_000_000 + part(1);
    let forged = format!("G {number} {now} {now} 1000 a");
    let channel = format!("leasehold:{}", ours.client_id());
    raw.cmd(&["PUBLISH", &channel, &forged]).await;
    let guard = its_turn(waiter).await;
    let lost = within("the first renewal", guard.lost()).await;
    assert!(
        matches!(lost, LostReason::Stolen | LostReason::Expired),
        "{lost:?}"
    );
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
    assert_eq!(fields(&mut raw, "a").await, before);
    assert!(held.is_held());
    held.release().await.unwrap();
    // Its ticket was left in line.
    let next = within("the next lock", ours.mutex("a").lock().into_future());
    next.await.unwrap().release().await.unwrap();
    nobody_in_line(&mut raw, "a").await;
}

#[tokio::test]
async fn a_fixed_lease_that_was_granted_is_confirmed_once_and_then_runs_out() {
    let (_server, mut raw, [holder, ours]) = processes().await;
    let held = holder.mutex("a").lock().await.unwrap();
    let waiter = tokio::spawn(ours.mutex("a").lock().lease(ms(3_000)).into_future());
    until("its ticket", async || tickets(&mut raw, "a").await == 1).await;
    held.release().await.unwrap();
    let guard = its_turn(waiter).await;
    until("its whole lease", async || {
        pttl(&mut raw, "a").await > 1_000
    })
    .await;
    let left = pttl(&mut raw, "a").await;
    assert!(left <= 3_000, "{left}");
    until("the guard knows of it", async || {
        guard.valid_for() > ms(1_000)
    })
    .await;
    assert!(guard.valid_for() <= ms(3_000));
    let renewals = calls(&mut raw, "pexpire").await;
    assert_eq!(within("its end", guard.lost()).await, LostReason::Expired);
    assert_eq!(calls(&mut raw, "pexpire").await, renewals);
}

#[tokio::test]
async fn a_longest_hold_counts_from_the_grant() {
    let (_server, mut raw, [holder, ours]) = processes().await;
    for longest in [ms(700), ms(2_500)] {
        let held = holder.mutex("a").lock().await.unwrap();
        let waiter = tokio::spawn(ours.mutex("a").lock().max_hold(longest).into_future());
        until("its ticket", async || tickets(&mut raw, "a").await == 1).await;
        // Longer than it may hold.
        tokio::time::sleep(ms(800)).await;
        held.release().await.unwrap();
        let guard = its_turn(waiter).await;
        assert!(guard.is_held() && guard.valid_for() <= longest);
        let end = guard.lost();
        let ended = async {
            let mut longest_ttl = 0;
            while exists(&mut raw, "a").await {
                longest_ttl = longest_ttl.max(pttl(&mut raw, "a").await);
                tokio::time::sleep(ms(20)).await;
            }
            longest_ttl
        };
        let ttl = within("its end on the server", ended).await;
        assert!(u128::try_from(ttl).unwrap() <= longest.as_millis(), "{ttl}");
        within("its end", end).await;
        drop(guard);
    }
}

/// A lease that is no longer than a grant lease is the grant lease.
#[tokio::test]
async fn a_short_lease_is_granted_whole_and_needs_no_confirmation() {
    let (_server, mut raw, [holder, ours]) = processes().await;
    let held = holder.mutex("a").lock().await.unwrap();
    let waiter = tokio::spawn(ours.mutex("a").lock().lease(ms(600)).into_future());
    until("its ticket", async || tickets(&mut raw, "a").await == 1).await;
    assert!(line(&mut raw, "a").await[0].ends_with("|600"));
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    held.release().await.unwrap();
    let guard = its_turn(waiter).await;
    let left = pttl(&mut raw, "a").await;
    assert!(left <= 600 && guard.valid_for() <= ms(600), "{left}");
    assert_eq!(within("its end", guard.lost()).await, LostReason::Expired);
    // The release, and perhaps a look before it.
    let asked = scripts_run(&mut raw).await;
    assert!(asked <= 2, "{asked}");
}

/// The grant is in the lease of one second until it is confirmed, and never beyond the whole one.
#[tokio::test]
async fn a_grant_is_confirmed_by_its_first_renewal() {
    let (_server, mut raw, [holder, ours]) = processes().await;
    // The renewal comes after a third of a second: who looks later looks at another grant.
    let guard = until("a grant that is looked at in time", async || {
        let held = holder.mutex("a").lock().await.unwrap();
        let waiter = in_line(&mut raw, &ours, "a").await;
        held.release().await.unwrap();
        let guard = its_turn(waiter).await;
        let (valid, left) = (guard.valid_for(), pttl(&mut raw, "a").await);
        if valid <= ms(1_000) && (1..=1_000).contains(&left) {
            return Ok(guard);
        }
        guard.release().await.unwrap();
        Err(format!("{left} ms at the server, {valid:?} here"))
    })
    .await;
    until("the whole lease", async || {
        pttl(&mut raw, "a").await > 20_000
    })
    .await;
    until("the guard knows of it", async || {
        guard.valid_for() > Duration::from_secs(20)
    })
    .await;
    assert!(guard.is_held());
    drop(guard);
    until("the release", async || !exists(&mut raw, "a").await).await;
    assert_everything_expires(&mut raw).await;
}

#[tokio::test]
async fn a_hold_that_replicas_confirm_does_not_start_with_the_grant() {
    let servers = replicas::Replicas::builder().replicas(1).start().await;
    servers.wait_until_linked(1).await;
    let mut raw = servers.node(0).raw().await;
    let connect = async || {
        Locks::builder(servers.url())
            .restart_guard(ms(10))
            .command_timeout(Duration::from_secs(4))
            .connect()
            .await
            .unwrap()
    };
    let (holder, ours) = (connect().await, connect().await);
    let ticket = format!("{}:", ours.client_id());
    // Too few replicas in time are an error to the waiter, as without a line: then once more.
    let guard = until("the replica confirms", async || {
        let held = holder.mutex("a").lock().await.unwrap();
        let lock = ours.mutex("a").lock().replicated(Replicas::All);
        let waiter = tokio::spawn(lock.into_future());
        until("its ticket", async || tickets(&mut raw, "a").await == 1).await;
        servers.node(1).pause();
        held.release().await.unwrap();
        until("it is granted", async || {
            let holders = fields(&mut raw, "a").await;
            holders.starts_with(&ticket) || waiter.is_finished()
        })
        .await;
        tokio::time::sleep(ms(100)).await;
        let too_soon = waiter.is_finished();
        servers.node(1).resume();
        let taken = within("an end", waiter).await.unwrap();
        assert!(!too_soon || taken.is_err(), "no replica had it");
        taken.map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(guard.acknowledged(), 1);
    let mut replica = servers.node(1).raw().await;
    assert!(exists(&mut replica, "a").await);
}
