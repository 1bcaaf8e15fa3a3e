//! The barrier: who passes it, who leads, and what breaks a generation.

use std::time::{Duration, Instant};

use leasehold::{Barrier, BarrierWaitResult, Error, ErrorKind, Locks};
use leasehold_testkit::cancel::cancel_at;
use leasehold_testkit::own_process::{in_a_fork, in_own_process};
use leasehold_testkit::statistics::subscribers;
use leasehold_testkit::{Cut, Fault, Proxy, Raw, Server};
use tokio::task::JoinHandle;

use crate::support::{
    assert_everything_expires, connect, exists, leased, locks, ms, scripts_run, short_locks, until,
    within,
};

const BARRIER: &str = "leasehold_barrier:{a}";
const PARTIES: &str = "leasehold_arrived:{a}";

type Party = JoinHandle<Result<BarrierWaitResult, Error>>;

/// How many parties have arrived in the present generation.
async fn arrived(raw: &mut Raw) -> i64 {
    let latest = "100000000000000";
    raw.cmd(&["ZCOUNT", PARTIES, "0", latest]).await.int()
}

/// A party of the barrier `a` that waits.
async fn party(raw: &mut Raw, barrier: &Barrier) -> Party {
    // Those of a generation that is lost do not count.
    let before = if exists(raw, BARRIER).await {
        arrived(raw).await
    } else {
        0
    };
    let barrier = barrier.clone();
    let party = tokio::spawn(async move { barrier.wait().await });
    until("it has arrived", async || arrived(raw).await == before + 1).await;
    party
}

async fn outcome(party: Party) -> Result<BarrierWaitResult, Error> {
    within("the end of the generation", party).await.unwrap()
}

async fn assert_broken(party: Party) {
    let error = outcome(party).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
    assert_eq!(error.key(), "a");
}

#[tokio::test]
async fn all_parties_pass_together_and_the_last_one_leads() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let mut before = None;
    for _ in 0..3 {
        let first = party(&mut raw, &ours.barrier("a", 3)).await;
        let second = party(&mut raw, &theirs.barrier("a", 3)).await;
        tokio::time::sleep(ms(50)).await;
        assert!(!first.is_finished() && !second.is_finished());
        assert_everything_expires(&mut raw).await;
        let last = within("the last one", ours.barrier("a", 3).wait())
            .await
            .unwrap();
        assert!(last.is_leader());
        for party in [first, second] {
            let passed = outcome(party).await.unwrap();
            assert!(!passed.is_leader());
            assert_eq!(passed.generation(), last.generation());
        }
        if let Some(before) = before.replace(last.generation()) {
            assert_eq!(last.generation(), before + 1);
        }
    }
    let alone = ours.barrier("alone", 1).wait().await.unwrap();
    assert!(alone.is_leader());
    until("nobody listens any more", async || {
        subscribers(&mut raw, BARRIER).await == 0
    })
    .await;
    assert_everything_expires(&mut raw).await;
}

/// Parties in loops, in several processes: every generation has one leader, and nobody is a generation ahead.
#[tokio::test]
async fn parties_that_go_on_and_on_never_mix_generations() {
    let server = Server::start().await;
    let clients = [locks(&server).await, locks(&server).await];
    let parties: Vec<_> = (0..6)
        .map(|n| {
            let barrier = clients[n % 2].barrier("a", 6);
            tokio::spawn(async move {
                let mut passed = Vec::new();
                for _ in 0..50 {
                    passed.push(barrier.wait().await.unwrap());
                }
                passed
            })
        })
        .collect();
    let mut all = Vec::new();
    for party in parties {
        all.push(within("the last generation", party).await.unwrap());
    }
    for round in 0..50 {
        let generation = all[0][round].generation();
        assert!(all.iter().all(|of| of[round].generation() == generation));
        let leaders = all.iter().filter(|of| of[round].is_leader());
        assert_eq!(leaders.count(), 1, "generation {generation}");
    }
}

#[tokio::test]
async fn a_party_that_dies_breaks_its_generation_within_its_lease() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let lease = ms(900);
    let (ours, dying) = (
        short_locks(&server, lease).await,
        leased(proxy.url(), lease).await,
    );
    let survivors = [
        party(&mut raw, &ours.barrier("a", 4)).await,
        party(&mut raw, &ours.barrier("a", 4)).await,
    ];
    let dead = party(&mut raw, &dying.barrier("a", 4)).await;
    // They are renewed: nothing breaks by itself.
    tokio::time::sleep(lease * 2).await;
    assert_eq!(arrived(&mut raw).await, 3);
    proxy.blackhole();
    let died = Instant::now();
    for party in survivors {
        assert_broken(party).await;
    }
    // Its lease, and what a busy machine takes.
    assert!(died.elapsed() < lease + ms(5_000), "{:?}", died.elapsed());
    // The next generation is not concerned, and the dead one comes back to an end that it is told.
    let barrier = ours.barrier("a", 2);
    let next = party(&mut raw, &barrier).await;
    let last = within("the next one", barrier.wait()).await.unwrap();
    assert_eq!(outcome(next).await.unwrap().generation(), last.generation());
    proxy.heal();
    let error = outcome(dead).await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Broken | ErrorKind::Unavailable),
        "{error}"
    );
}

#[tokio::test]
async fn a_party_that_is_dropped_or_out_of_time_withdraws() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let barrier = locks.barrier("a", 3);
    let waits = party(&mut raw, &barrier).await;
    let dropped = party(&mut raw, &barrier).await;
    dropped.abort();
    until("it has withdrawn", async || arrived(&mut raw).await == 1).await;
    assert_eq!(barrier.wait_for(ms(50)).await.unwrap(), None);
    assert_eq!(barrier.wait_for(Duration::ZERO).await.unwrap(), None);
    assert_eq!(arrived(&mut raw).await, 1);
    // The generation goes on with others.
    let second = party(&mut raw, &barrier).await;
    let last = barrier.wait_for(ms(5_000)).await.unwrap();
    let generation = last.expect("all have arrived").generation();
    for party in [waits, second] {
        assert_eq!(outcome(party).await.unwrap().generation(), generation);
    }
}

#[tokio::test]
async fn parties_agree_on_their_number() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let first = party(&mut raw, &locks.barrier("a", 2)).await;
    let error = locks.barrier("a", 3).wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PartiesDisagree, "{error}");
    assert!(error.to_string().contains('2') && error.to_string().contains('3'));
    locks.barrier("a", 2).wait().await.unwrap();
    outcome(first).await.unwrap();
    // Nobody is there who would disagree.
    let first = party(&mut raw, &locks.barrier("a", 3)).await;
    first.abort();
    until("it has withdrawn", async || arrived(&mut raw).await == 0).await;
    locks.barrier("a", 1).wait().await.unwrap();

    let nobody = locks.barrier("a", 0).wait().await.unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::BadCount);
    let short = locks.barrier("a", 2).lease(ms(1)).wait().await.unwrap_err();
    assert_eq!(short.kind(), ErrorKind::BadLease);
    let name = locks.barrier("a{b", 2).wait().await.unwrap_err();
    assert_eq!(name.kind(), ErrorKind::BadName);
}

/// The renewals are made by a thread of their own.
#[test]
fn a_runtime_that_is_blocked_breaks_nothing() {
    let blocked = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let others = tokio::runtime::Runtime::new().unwrap();
    let lease = ms(900);
    let (server, mut raw) = others.block_on(async {
        let server = Server::start().await;
        let raw = server.raw().await;
        (server, raw)
    });
    let barrier = blocked.block_on(async { short_locks(&server, lease).await.barrier("a", 2) });
    let mut waiting = Box::pin(async move { barrier.wait().await });
    let begun = blocked.block_on(async { tokio::time::timeout(ms(300), waiting.as_mut()).await });
    assert!(begun.is_err());
    std::thread::sleep(lease * 3);
    let last = others.block_on(async {
        assert_eq!(arrived(&mut raw).await, 1, "it was renewed");
        let locks = short_locks(&server, lease).await;
        within("the last one", locks.barrier("a", 2).wait()).await
    });
    let first = blocked.block_on(within("the first one", waiting)).unwrap();
    assert_eq!(first.generation(), last.unwrap().generation());
    others.block_on(async { drop(server) });
}

#[tokio::test]
async fn an_arrival_whose_reply_is_lost_counts_once() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let (ours, cut_off) = (locks(&server).await, connect(proxy.url()).await);
    cut_off.barrier("warm", 1).wait().await.unwrap();
    for how in [Cut::Rst, Cut::Fin] {
        // The first of two, and then the last.
        proxy.to_client(Fault::LoseReply { nth: 1, how });
        let first = party(&mut raw, &cut_off.barrier("a", 2)).await;
        tokio::time::sleep(ms(200)).await;
        assert_eq!(arrived(&mut raw).await, 1);
        assert!(ours.barrier("a", 2).wait().await.unwrap().is_leader());
        assert!(!outcome(first).await.unwrap().is_leader());

        let first = party(&mut raw, &ours.barrier("a", 2)).await;
        proxy.to_client(Fault::LoseReply { nth: 1, how });
        let last = within("the last one", cut_off.barrier("a", 2).wait()).await;
        assert!(last.unwrap().is_leader(), "as the lost reply said");
        assert!(!outcome(first).await.unwrap().is_leader());
        assert_eq!(arrived(&mut raw).await, 0);
    }
}

#[tokio::test]
async fn a_missed_message_is_made_up_for_by_a_look() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let (ours, deaf) = (locks(&server).await, connect(proxy.url()).await);
    proxy.to_client(Fault::DropMessages);
    let first = party(&mut raw, &deaf.barrier("a", 2)).await;
    ours.barrier("a", 2).wait().await.unwrap();
    outcome(first).await.unwrap();
    // Also while the connection is away.
    let first = party(&mut raw, &deaf.barrier("a", 2)).await;
    proxy.reset_all();
    ours.barrier("a", 2).wait().await.unwrap();
    outcome(first).await.unwrap();
}

#[tokio::test]
async fn a_generation_that_the_server_loses_is_broken_for_all_of_its_parties() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let clients = [
        short_locks(&server, ms(900)).await,
        short_locks(&server, ms(900)).await,
    ];
    let barrier = clients[0].barrier("a", 3);
    for lost in [&[BARRIER][..], &[PARTIES], &[BARRIER, PARTIES]] {
        let old = [
            party(&mut raw, &barrier).await,
            party(&mut raw, &clients[1].barrier("a", 3)).await,
        ];
        let del: Vec<_> = ["DEL"].iter().chain(lost).collect();
        raw.cmd(&del).await;
        for party in old {
            assert_broken(party).await;
        }
        // The next ones pass.
        let new = [
            party(&mut raw, &barrier).await,
            party(&mut raw, &barrier).await,
        ];
        let last = within("the last one", barrier.wait()).await.unwrap();
        assert!(last.is_leader());
        for party in new {
            assert_eq!(
                outcome(party).await.unwrap().generation(),
                last.generation()
            );
        }
    }
}

#[tokio::test]
async fn one_that_arrives_after_a_loss_shares_no_generation_with_those_before() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(900)).await;
    for lost in [BARRIER, PARTIES] {
        let barrier = locks.barrier("a", 2);
        let old = party(&mut raw, &barrier).await;
        raw.cmd(&["DEL", lost]).await;
        let new = tokio::spawn({
            let barrier = barrier.clone();
            async move { barrier.wait().await }
        });
        assert_broken(old).await;
        // The new one is in the same generation where only the parties were lost: then it hears the same.
        if lost == PARTIES {
            assert_broken(new).await;
        } else {
            within("the last one", barrier.wait()).await.unwrap();
            outcome(new).await.unwrap();
        }
    }
}

#[tokio::test]
async fn other_data_is_refused_and_left_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    for key in [BARRIER, PARTIES] {
        raw.cmd(&["SET", key, "x"]).await;
        let error = locks.barrier("a", 2).wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        assert_eq!(raw.cmd(&["GET", key]).await.str(), "x");
        raw.cmd(&["DEL", key]).await;
    }
    assert_eq!(arrived(&mut raw).await, 0);
}

#[tokio::test]
async fn a_wait_that_is_dropped_anywhere_leaves_no_party() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let barrier = locks.barrier("a", 2);
    for n in 0..8 {
        let dropped = cancel_at(barrier.wait(), n).await;
        assert!(dropped.is_none(), "nobody else arrives");
        until(
            &format!("dropped at await {n}: a party is left"),
            async || arrived(&mut raw).await == 0,
        )
        .await;
        // With two of its own it passes.
        let (first, last) = tokio::join!(barrier.wait(), barrier.wait());
        assert!(first.unwrap().is_leader() != last.unwrap().is_leader());
    }
    assert_everything_expires(&mut raw).await;
}

/// A party that withdraws leaves a mark for ten minutes: they do not pile up beyond that.
#[tokio::test]
async fn marks_of_those_who_withdrew_are_removed() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let barrier = locks.barrier("a", 2);
    assert_eq!(barrier.wait_for(ms(1)).await.unwrap(), None);
    let marks = async |raw: &mut Raw| raw.cmd(&["ZCOUNT", PARTIES, "-inf", "(0"]).await.int();
    assert_eq!(marks(&mut raw).await, 1);
    let long_ago = "-1000000000000";
    for n in 0..10 {
        raw.cmd(&["ZADD", PARTIES, long_ago, &format!("t:c:{n}")])
            .await;
    }
    assert_eq!(barrier.wait_for(ms(1)).await.unwrap(), None);
    assert_eq!(marks(&mut raw).await, 2);
    // Nor do those who arrived in generations long ago.
    for _ in 0..40 {
        let (first, last) = tokio::join!(barrier.wait(), barrier.wait());
        assert!(first.unwrap().is_leader() != last.unwrap().is_leader());
    }
    assert!(raw.cmd(&["ZCARD", PARTIES]).await.int() <= 2 + 17 * 2);
    assert!(raw.cmd(&["HLEN", BARRIER]).await.int() <= 3 + 16);
}

#[tokio::test]
async fn inspecting_tells_who_has_arrived() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let barrier = locks.barrier("a", 3);
    assert!(barrier.inspect().await.unwrap().holders().is_empty());
    let first = party(&mut raw, &barrier).await;
    let before = barrier.wait_for(ms(20)).await.unwrap();
    assert_eq!(before, None);
    let second = party(&mut raw, &barrier).await;
    let seen = barrier.inspect().await.unwrap();
    assert_eq!(seen.holders().len(), 2);
    for holder in seen.holders() {
        assert_eq!(holder.client(), locks.client_id());
        let remaining = holder.remaining().expect("a lease");
        assert!(remaining > Duration::ZERO && remaining <= Duration::from_secs(30));
    }
    drop((first, second));
}

/// Cut after every byte of the request and of the reply, an arrival counts once or was never made.
#[tokio::test]
async fn a_cut_at_any_byte_arrives_once() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let (ours, cut_off) = (locks(&server).await, connect(proxy.url()).await);
    cut_off.barrier("warm", 1).wait().await.unwrap();
    for after in 0..44 {
        let how = if after % 2 == 0 { Cut::Rst } else { Cut::Fin };
        let first = party(&mut raw, &ours.barrier("a", 2)).await;
        if after % 3 == 0 {
            proxy.to_server(Fault::Cut {
                after: after * 7,
                how,
            });
        } else {
            proxy.to_client(Fault::Cut { after, how });
        }
        let last = within("the last one", cut_off.barrier("a", 2).wait()).await;
        assert!(last.unwrap().is_leader(), "cut after {after}");
        assert!(!outcome(first).await.unwrap().is_leader());
        proxy.heal();
        assert_eq!(arrived(&mut raw).await, 0);
    }
}

/// A thousand parties of one process share a subscription, and their looks.
#[tokio::test]
async fn many_parties_share_their_looks() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let parties = 500;
    let barrier = locks.barrier("a", parties);
    let before = scripts_run(&mut raw).await;
    let all: Vec<_> = (0..parties)
        .map(|_| {
            let barrier = barrier.clone();
            tokio::spawn(async move { barrier.wait().await })
        })
        .collect();
    let mut leaders = 0;
    for party in all {
        leaders += u32::from(outcome(party).await.unwrap().is_leader());
    }
    assert_eq!(leaders, 1);
    let scripts = scripts_run(&mut raw).await - before;
    assert!(
        scripts < u64::from(parties) + 100,
        "{scripts} scripts for {parties} arrivals"
    );
}

#[tokio::test]
async fn a_shutdown_withdraws_those_who_wait() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let leaving = party(&mut raw, &ours.barrier("a", 3)).await;
    let staying = party(&mut raw, &theirs.barrier("a", 3)).await;
    ours.shutdown().await.unwrap();
    assert_eq!(arrived(&mut raw).await, 1, "it is withdrawn by then");
    let error = outcome(leaving).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    let refused = ours.barrier("a", 3).wait().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    let second = party(&mut raw, &theirs.barrier("a", 3)).await;
    theirs.barrier("a", 3).wait().await.unwrap();
    outcome(staying).await.unwrap();
    outcome(second).await.unwrap();
}

#[test]
fn a_child_neither_arrives_nor_withdraws_for_its_parent() {
    in_own_process(async {
        let server = Server::start().await;
        let mut raw = server.raw().await;
        let locks = locks(&server).await;
        let barrier = locks.barrier("a", 2);
        let mut waiting = Some(Box::pin({
            let barrier = barrier.clone();
            async move { barrier.wait().await }
        }));
        let begun = tokio::time::timeout(ms(300), waiting.as_mut().unwrap()).await;
        assert!(begun.is_err());
        let (copy, in_the_child) = (barrier.clone(), &mut waiting);
        let status = in_a_fork(|| async move {
            let mut waiter = in_the_child.take().expect("the copy");
            for refused in [
                within("an answer", waiter.as_mut()).await,
                copy.wait().await,
            ] {
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Forked);
            }
            drop(waiter);
        });
        assert_eq!(status, 0, "the child failed");
        assert_eq!(arrived(&mut raw).await, 1);
        barrier.wait().await.unwrap();
        within("the other", waiting.unwrap()).await.unwrap();
    });
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks: Locks = locks(&server).await;
    for _ in 0..2 {
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        let first = party(&mut raw, &locks.barrier("a", 2)).await;
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        locks.barrier("a", 2).wait().await.unwrap();
        outcome(first).await.unwrap();
    }
}
