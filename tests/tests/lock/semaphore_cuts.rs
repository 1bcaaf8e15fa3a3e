//! The connection of a process that waits for permits, cut at every byte: nothing is taken twice, and nothing stays taken.

use std::collections::BTreeMap;
use std::future::IntoFuture;

use leasehold::{ErrorKind, Locks, Semaphore};
use leasehold_testkit::{Cut, Fault, Proxy, Raw, Server};
use tokio::task::{JoinSet, LocalSet};

use crate::support::{locks, ms, tickets, until, within};

/// Servers that are cut off at a time.
const LANES: u64 = 6;

struct Lane {
    _server: Server,
    raw: Raw,
    proxy: Proxy,
    ours: Semaphore,
    theirs: Semaphore,
    _locks: [Locks; 2],
}

impl Lane {
    async fn new() -> Self {
        let server = Server::start().await;
        let proxy = Proxy::start(server.addr());
        let both = [
            Locks::connect(proxy.url()).await.unwrap(),
            locks(&server).await,
        ];
        let [ours, theirs] = [0, 1].map(|n: usize| both[n].semaphore("a", 5));
        Self {
            raw: server.raw().await,
            _server: server,
            proxy,
            ours,
            theirs,
            _locks: both,
        }
    }

    /// Ours waits for four permits of five, which theirs gives back in two parts, while `fault` waits for its byte.
    async fn turn(&mut self, fault: Option<Fault>, to_server: bool) -> &'static str {
        let mut held = self.theirs.acquire_many(5).await.unwrap();
        match fault {
            Some(fault) if to_server => self.proxy.to_server(fault),
            Some(fault) => self.proxy.to_client(fault),
            None => {}
        }
        let waiter = tokio::spawn(self.ours.try_acquire_many_for(4, ms(15_000)).into_future());
        tokio::time::sleep(ms(3)).await;
        drop(held.split(2));
        tokio::time::sleep(ms(2)).await;
        drop(held);
        tokio::time::sleep(ms(5)).await;
        self.proxy.heal();
        let said = match within("an outcome", waiter).await.unwrap() {
            Ok(Some(permit)) => {
                if permit.is_held() {
                    let taken = self.raw.cmd(&["ZCARD", "{a}:timeout"]).await.int();
                    assert_eq!(taken, 4);
                }
                // That it is released may have been said on a connection that was cut.
                let _ = within("a release", permit.release()).await;
                "held"
            }
            Ok(None) => panic!("it was not served in 15 s"),
            Err(error) => {
                let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
                assert!(kinds.contains(&error.kind()), "{error}");
                "unknown"
            }
        };
        let (raw, theirs) = (&mut self.raw, &self.theirs);
        until("all are free", async || {
            theirs.available().await.unwrap() == 5
        })
        .await;
        until("an empty line", async || tickets(raw, "a").await == 0).await;
        said
    }
}

#[tokio::test]
async fn a_waiter_whose_connection_is_cut_at_any_byte_takes_nothing_twice() {
    LocalSet::new().run_until(cuts_at_every_byte()).await;
}

async fn cuts_at_every_byte() {
    let mut lane = Lane::new().await;
    lane.turn(None, true).await;
    let bytes = |proxy: &Proxy| (proxy.from_client(), proxy.from_server());
    let before = bytes(&lane.proxy);
    assert_eq!(lane.turn(None, true).await, "held");
    let after = bytes(&lane.proxy);
    let (sent, received) = (after.0 - before.0, after.1 - before.1);
    println!("{sent} bytes of requests, {received} of replies");
    let mut lanes = JoinSet::new();
    for first in 0..LANES {
        lanes.spawn_local(async move {
            let mut lane = Lane::new().await;
            lane.turn(None, true).await;
            let mut said = BTreeMap::new();
            for (to_server, bytes) in [(true, sent), (false, received)] {
                for after in (first..bytes).step_by(LANES as usize) {
                    let is_even = (after / LANES).is_multiple_of(2);
                    let how = if is_even { Cut::Rst } else { Cut::Fin };
                    let outcome = lane.turn(Some(Fault::Cut { after, how }), to_server).await;
                    *said.entry(outcome).or_insert(0_u64) += 1;
                }
            }
            said
        });
    }
    let mut said = BTreeMap::new();
    for (outcome, count) in lanes.join_all().await.into_iter().flatten() {
        *said.entry(outcome).or_insert(0) += count;
    }
    println!("{said:?}");
    assert_eq!(said.values().sum::<u64>(), sent + received);
    assert!(said["held"] * 2 > sent + received, "most are made again");
}
