//! The fair mutex when connections are cut in the middle of its requests, and what its requests cost.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::time::{Duration, Instant};

use leasehold::{Acquire, Error, ErrorKind, Guard, Interop, Locks};
use leasehold_testkit::{Cut, Fault, Proxy, Raw, Server};
use tokio::task::{JoinHandle, JoinSet, LocalSet};

use crate::support::{exists, fields, its_turn, ms, tickets, until, within};

/// Cut points are shared out among lanes, each with a server and a proxy of its own.
const LANES: u64 = 6;

async fn client(url: String, interop: Interop) -> Locks {
    let locks = Locks::builder(url).interop(interop).connect().await;
    locks.expect("the server is up")
}

struct Lane {
    server: Server,
    proxy: Proxy,
    /// Its connection is cut.
    ours: Locks,
    theirs: Locks,
    raw: Raw,
}

impl Lane {
    async fn new(interop: Interop) -> Self {
        let server = Server::start().await;
        let proxy = Proxy::start(server.addr());
        Self {
            ours: client(proxy.url(), interop).await,
            theirs: client(server.url(), interop).await,
            raw: server.raw().await,
            proxy,
            server,
        }
    }

    /// One of ours waits between two of theirs, and its connection suffers `fault`.
    async fn turns(&mut self, fault: Option<Fault>, to_server: bool) -> &'static str {
        let held = self.theirs.fair_mutex("a").lock().await.unwrap();
        if let Some(fault) = fault {
            if to_server {
                self.proxy.to_server(fault);
            } else {
                self.proxy.to_client(fault);
            }
        }
        let cut = self
            .ours
            .fair_mutex("a")
            .try_lock_for(Duration::from_secs(15));
        let cut = tokio::spawn(cut.into_future());
        tokio::time::sleep(ms(1)).await;
        let behind = tokio::spawn(self.theirs.fair_mutex("a").lock().into_future());
        tokio::time::sleep(ms(2)).await;
        drop(held);
        // What is cut may be each connection, after so many bytes.
        tokio::time::sleep(ms(5)).await;
        self.proxy.heal();
        let cut = async {
            match within("an outcome", cut).await.unwrap() {
                Ok(Some(guard)) => self.held(guard).await,
                Ok(None) => panic!("it was not served in 15 s"),
                Err(error) => {
                    let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
                    assert!(kinds.contains(&error.kind()), "{error}");
                    "unknown"
                }
            }
        };
        let behind = async { drop(its_turn(behind).await) };
        let (said, ()) = tokio::join!(cut, behind);
        self.nothing_is_left().await;
        said
    }

    async fn held(&self, guard: Guard) -> &'static str {
        let mut raw = self.server.raw().await;
        let held = fields(&mut raw, "a").await;
        if guard.is_held() {
            assert!(held.starts_with(self.ours.client_id()), "{held:?}");
        }
        // That it is released may have been said on a connection that was cut.
        let _ = within("a release", guard.release()).await;
        "held"
    }

    async fn nothing_is_left(&mut self) {
        let raw = &mut self.raw;
        until("the last release", async || !exists(raw, "a").await).await;
        until("an empty line", async || tickets(raw, "a").await == 0).await;
        for key in ["redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"] {
            assert!(!exists(raw, key).await, "{key}");
        }
    }
}

async fn cuts_at_every_byte(interop: Interop) {
    let mut lane = Lane::new(interop).await;
    lane.turns(None, true).await;
    let bytes = |proxy: &Proxy| (proxy.from_client(), proxy.from_server());
    let before = bytes(&lane.proxy);
    assert_eq!(lane.turns(None, true).await, "held");
    let after = bytes(&lane.proxy);
    let (sent, received) = (after.0 - before.0, after.1 - before.1);
    println!("{sent} bytes of requests, {received} of replies");
    let mut lanes = JoinSet::new();
    for first in 0..LANES {
        lanes.spawn_local(async move {
            let mut lane = Lane::new(interop).await;
            lane.turns(None, true).await;
            let mut said = BTreeMap::new();
            for (to_server, bytes) in [(true, sent), (false, received)] {
                for after in (first..bytes).step_by(LANES as usize) {
                    let how = if (after / LANES).is_multiple_of(2) {
                        Cut::Rst
                    } else {
                        Cut::Fin
                    };
                    let outcome = lane.turns(Some(Fault::Cut { after, how }), to_server);
                    *said.entry(outcome.await).or_insert(0_u64) += 1;
                }
            }
            said
        });
    }
    let mut said = BTreeMap::new();
    for lane in lanes.join_all().await {
        for (outcome, count) in lane {
            *said.entry(outcome).or_insert(0) += count;
        }
    }
    println!("{said:?}");
    assert_eq!(said.values().sum::<u64>(), sent + received);
    assert!(said["held"] * 2 > sent + received, "most are made again");
}

#[tokio::test]
async fn a_waiter_whose_connection_is_cut_at_any_byte_holds_up_nobody() {
    LocalSet::new()
        .run_until(cuts_at_every_byte(Interop::Off))
        .await;
}

#[tokio::test]
async fn a_waiter_whose_connection_is_cut_at_any_byte_holds_up_nobody_beside_redisson() {
    LocalSet::new()
        .run_until(cuts_at_every_byte(Interop::Redisson))
        .await;
}

/// Commands that the server ran since its statistics were reset, by name.
async fn commands(raw: &mut Raw) -> BTreeMap<String, u64> {
    let statistics = raw.cmd(&["INFO", "commandstats"]).await;
    let lines = statistics.str().lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse().ok()?;
        Some((name.to_owned(), calls))
    });
    // Ours, of the test.
    let own = ["info", "config|resetstat", "config", "zcard", "exists|test"];
    lines
        .filter(|(name, _)| !own.contains(&name.as_str()))
        .collect()
}

/// A task that waits with a ticket of its own.
async fn in_line(raw: &mut Raw, acquire: Acquire) -> JoinHandle<Result<Guard, Error>> {
    let before = tickets(raw, "a").await;
    let waiter = tokio::spawn(acquire.into_future());
    until("in line", async || tickets(raw, "a").await > before).await;
    waiter
}

/// What each operation costs: the scripts, and the commands in them. Without Redisson, and beside it.
#[tokio::test]
async fn every_operation_runs_so_many_commands() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for (interop, take, give_back, stand, hand_over) in [
        (Interop::Off, 7, 3, 9, 11),
        (Interop::Redisson, 7, 3, 15, 16),
    ] {
        let ours = client(server.url(), interop).await;
        let theirs = client(server.url(), interop).await;
        // A fixed lease, so that no renewal is counted.
        let fair = |locks: &Locks| locks.fair_mutex("a").lock().lease(ms(900));
        let measured = async |raw: &mut Raw, what: &str| {
            let commands = commands(raw).await;
            println!("{interop:?} {what}: {commands:?}");
            raw.cmd(&["CONFIG", "RESETSTAT"]).await;
            commands.values().sum::<u64>()
        };
        drop(fair(&ours).await.unwrap().release().await);
        raw.cmd(&["CONFIG", "RESETSTAT"]).await;
        let held = fair(&ours).await.unwrap();
        assert_eq!(measured(&mut raw, "take").await, take);
        held.release().await.unwrap();
        assert_eq!(measured(&mut raw, "give back").await, give_back);
        // Somebody who waits already, and has subscribed.
        let held = fair(&ours).await.unwrap();
        let first = in_line(&mut raw, fair(&theirs)).await;
        tokio::time::sleep(ms(50)).await;
        raw.cmd(&["CONFIG", "RESETSTAT"]).await;
        let second = in_line(&mut raw, fair(&theirs)).await;
        assert_eq!(measured(&mut raw, "stand in line").await, stand);
        held.release().await.unwrap();
        assert_eq!(measured(&mut raw, "hand over").await, hand_over);
        its_turn(first).await.release().await.unwrap();
        its_turn(second).await.release().await.unwrap();
    }
}

/// A process that is cut off costs two grants, however many of its waiters stand in front; when it
/// is back, they have their turns in their old order.
async fn cut_off_with_many_waiters(interop: Interop) {
    const WAITERS: usize = 12;
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let near = client(server.url(), interop).await;
    let far = Locks::builder(proxy.url())
        .interop(interop)
        .command_timeout(Duration::from_secs(18))
        .connect()
        .await
        .unwrap();
    let held = near.fair_mutex("a").lock().await.unwrap();
    let mut cut_off = Vec::new();
    for _ in 0..WAITERS {
        cut_off.push(in_line(&mut raw, far.fair_mutex("a").lock()).await);
    }
    let behind = in_line(&mut raw, near.fair_mutex("a").lock()).await;
    proxy.stall();
    drop(held);
    let since = Instant::now();
    let guard = within("the one behind", behind).await.unwrap().unwrap();
    let waited = since.elapsed();
    // Two grants of a second each, the pauses of two looks, and time for a busy machine; not a grant for each of them.
    assert!(waited < Duration::from_secs(11), "{waited:?}");
    proxy.heal();
    until("they are back", async || {
        let waiters = near.fair_mutex("a").inspect().await.unwrap();
        waiters.waiters().len() == WAITERS
    })
    .await;
    drop(guard);
    let mut token = None;
    for waiter in cut_off {
        let guard = within("its turn", waiter).await.unwrap().unwrap();
        assert!(token < Some(guard.token()), "tokens grow");
        token = Some(guard.token());
    }
}

#[tokio::test]
async fn a_process_that_is_cut_off_costs_two_grants_whatever_waits_there() {
    cut_off_with_many_waiters(Interop::Off).await;
}

#[tokio::test]
async fn a_process_that_is_cut_off_costs_two_grants_beside_redisson() {
    cut_off_with_many_waiters(Interop::Redisson).await;
}
