//! Elections: who leads, who follows, and what everybody else is told of it.

use std::ops::ControlFlow;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::{Error, ErrorKind, Leader, Leaders, Leadership, Locks, LostReason, Release};
use leasehold_testkit::own_process::this_test_again;
use leasehold_testkit::{Cluster, Proxy, Raw, Sentinels, Server, process};

use crate::scripts;
use crate::support::{
    assert_everything_expires, connect, exists, leased, locks, ms, pttl, renewed_terms,
    short_locks, tickets, until, within,
};

#[path = "../../../lock/src/protocol/election/sources.rs"]
#[allow(dead_code)]
mod sources;

const ENTRY: &str = "leasehold_leader:{a}";

async fn campaign(locks: &Locks, value: &str) -> Leadership {
    let election = locks.election("a").value(value);
    within("a campaign", election.campaign()).await.unwrap()
}

/// A task that campaigns, and waits in line.
async fn candidate(
    raw: &mut Raw,
    locks: &Locks,
    value: &str,
) -> tokio::task::JoinHandle<Result<Leadership, Error>> {
    let before = tickets(raw, "a").await;
    let election = locks.election("a").value(value);
    let candidate = tokio::spawn(async move { election.campaign().await });
    until("it waits", async || tickets(raw, "a").await > before).await;
    candidate
}

fn value(leader: &Option<Leader>) -> Option<&str> {
    leader.as_ref().and_then(Leader::value)
}

/// What the observer is told next.
async fn next(observer: &mut Leaders) -> Option<Leader> {
    within("a change", observer.next()).await.unwrap()
}

/// Waits until the observer is told of the leader with this value; of those before none is told twice.
async fn sees(observer: &mut Leaders, wanted: Option<&str>) -> Option<Leader> {
    let mut last = None;
    loop {
        let leader = next(observer).await;
        if value(&leader) == wanted {
            return leader;
        }
        assert_ne!(last.as_ref(), Some(&leader), "{wanted:?}");
        last = Some(leader);
    }
}

#[tokio::test]
async fn one_leads_and_hands_over_at_once_when_it_resigns() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (one, two, three) = (
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
    );
    let election = three.election("a");
    assert_eq!(election.leader().await.unwrap(), None);
    let mut observer = election.observe();
    assert_eq!(next(&mut observer).await, None);

    let first = campaign(&one, "one").await;
    assert!(first.is_leader() && first.term().is_leader());
    let leader = election.leader().await.unwrap();
    assert_eq!(value(&leader), Some("one"));
    assert_eq!(leader.as_ref().unwrap().token(), first.token());
    assert_eq!(leader.as_ref().unwrap().client(), one.client_id());
    assert_eq!(next(&mut observer).await, leader);

    let waiting = [
        candidate(&mut raw, &two, "two").await,
        candidate(&mut raw, &three, "three").await,
    ];
    let (lost, term, mut token) = (first.lost(), first.term(), first.token());
    assert_eq!(first.resign().await.unwrap(), Release::Released);
    assert_eq!(within("its end", lost).await, LostReason::Released);
    assert!(!term.is_leader());
    for (waiting, name) in waiting.into_iter().zip(["two", "three"]) {
        let leader = within("its turn", waiting).await.unwrap().unwrap();
        assert!(leader.token() > token);
        token = leader.token();
        let seen = sees(&mut observer, Some(name)).await.unwrap();
        assert_eq!(seen.token(), token);
        assert_everything_expires(&mut raw).await;
        drop(leader);
    }
    assert_eq!(next(&mut observer).await, None);
    assert_eq!(election.leader().await.unwrap(), None);
    assert!(
        !exists(&mut raw, ENTRY).await,
        "nothing is left of the last one"
    );
}

#[tokio::test]
async fn a_leader_stays_known_for_as_long_as_it_leads_and_changes_its_value() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = short_locks(&server, ms(600)).await;
    let theirs = locks(&server).await;
    let leader = campaign(&ours, "before").await;
    raw.cmd(&["PEXPIRE", ENTRY, "1000"]).await;
    until("the entry is kept with the lock", async || {
        pttl(&mut raw, ENTRY).await > 2_000
    })
    .await;
    let election = theirs.election("a");
    // One that comes late.
    let mut observer = election.observe();
    assert_eq!(value(&next(&mut observer).await), Some("before"));
    leader.publish("after").await.unwrap();
    assert_eq!(value(&next(&mut observer).await), Some("after"));
    leader.term().publish("").await.unwrap();
    assert_eq!(value(&next(&mut observer).await), Some(""));

    let nameless = theirs.election("b").campaign().await.unwrap();
    let seen = ours.election("b").leader().await.unwrap().unwrap();
    assert_eq!((seen.value(), seen.token()), (None, nameless.token()));
}

#[tokio::test]
async fn a_late_write_of_a_former_leader_changes_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let former = campaign(&ours, "former").await;
    let id = ours
        .election("a")
        .leader()
        .await
        .unwrap()
        .unwrap()
        .id()
        .to_owned();
    let waiting = candidate(&mut raw, &theirs, "new").await;
    // It does not know it.
    assert!(theirs.mutex("a").force_unlock().await.unwrap());
    let new = within("its turn", waiting).await.unwrap().unwrap();
    let keys = ["a", ENTRY];
    let announce = async |raw: &mut Raw, id: &str, n: &str, value: &str| {
        let args = [id, n, "9007199254740991", "P", value];
        scripts::run(raw, sources::ANNOUNCE, &keys, &args)
            .await
            .int()
    };
    assert_eq!(announce(&mut raw, &id, "99", "late").await, 0);
    let error = former.publish("late").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(!former.is_leader());
    drop(former);
    let election = ours.election("a");
    assert_eq!(value(&election.leader().await.unwrap()), Some("new"));

    // An announcement of the leader itself that was overtaken.
    let id = election.leader().await.unwrap().unwrap().id().to_owned();
    new.publish("newer").await.unwrap();
    assert_eq!(announce(&mut raw, &id, "0", "overtaken").await, 1);
    assert_eq!(value(&election.leader().await.unwrap()), Some("newer"));
    // An entry that another one left.
    raw.cmd(&["HSET", ENTRY, "id", "c:1"]).await;
    assert_eq!(election.leader().await.unwrap(), None);
    drop(new);
}

#[tokio::test]
async fn a_leader_that_loses_its_lock_is_followed_and_its_work_is_dropped() {
    let server = Server::start().await;
    let ours = short_locks(&server, ms(600)).await;
    let terms = Arc::new(AtomicUsize::new(0));
    let mutex = ours.mutex("a");
    let election = ours.election("a").value("it");
    let mut observer = election.observe();
    assert_eq!(next(&mut observer).await, None);
    let counted = Arc::clone(&terms);
    let run = tokio::spawn({
        let election = election.clone();
        async move {
            let lead = |leader: leasehold::Term| {
                let term = counted.fetch_add(1, Ordering::SeqCst) + 1;
                async move {
                    assert!(leader.is_leader());
                    match term {
                        1 => std::future::pending().await,
                        2 => ControlFlow::Continue(()),
                        _ => ControlFlow::Break(leader.token()),
                    }
                }
            };
            election.run(lead).await
        }
    });
    sees(&mut observer, Some("it")).await;
    assert!(mutex.force_unlock().await.unwrap());
    let last = within("three terms", run).await.unwrap().unwrap();
    assert_eq!(terms.load(Ordering::SeqCst), 3);
    until("the last of them is over", async || {
        next(&mut observer).await.is_none() && election.leader().await.unwrap().is_none()
    })
    .await;
    let next = campaign(&ours, "next").await;
    assert!(next.token() > last);
}

#[tokio::test]
async fn candidates_sit_an_outage_out_and_observers_say_so_and_go_on() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let behind = Locks::builder(proxy.url())
        .lease(ms(600))
        .command_timeout(ms(200))
        .connect()
        .await
        .unwrap();
    let direct = locks(&server).await;
    let mut observer = behind.election("a").observe();
    assert_eq!(next(&mut observer).await, None);
    let run = tokio::spawn({
        let election = behind.election("a").value("behind");
        async move {
            election
                .run(|_| std::future::pending::<ControlFlow<()>>())
                .await
        }
    });
    sees(&mut observer, Some("behind")).await;
    proxy.blackhole();
    proxy.reset_all();
    // The leader cannot know of this one, nor can those who observe from there.
    let other = campaign(&direct, "direct").await;
    let mut late = behind.election("b").observe();
    let error = within("an answer", late.next()).await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown),
        "{error}"
    );
    proxy.heal();
    until("it can be asked again", async || {
        let leader = late.next().await.map_err(|error| error.to_string())?;
        assert_eq!(leader, None);
        Ok::<_, String>(())
    })
    .await;
    // The change was made while nobody there could hear of it.
    sees(&mut observer, Some("direct")).await;
    other.resign().await.unwrap();
    sees(&mut observer, Some("behind")).await;
    run.abort();
}

#[tokio::test]
async fn observers_see_an_end_that_nobody_announces() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (short_locks(&server, ms(900)).await, locks(&server).await);
    let mut observer = theirs.election("a").observe();
    let leader = campaign(&ours, "short").await;
    sees(&mut observer, Some("short")).await;
    // As if its process had died, and its lease were over.
    raw.cmd(&["DEL", "a"]).await;
    raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!(next(&mut observer).await, None);
    drop(leader);
    // Many observers of one process ask as one.
    let mut many: Vec<_> = (0..100).map(|_| theirs.election("a").observe()).collect();
    for observer in &mut many {
        assert_eq!(next(observer).await, None);
    }
    let leader = campaign(&ours, "last").await;
    let before = scripts_of(&mut raw).await;
    for observer in &mut many {
        assert_eq!(value(&next(observer).await), Some("last"));
    }
    assert!(scripts_of(&mut raw).await - before < 50);
    theirs.shutdown().await.unwrap();
    let error = within("the end", many[0].next()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    drop(leader);
}

/// Somebody's data at the name of an entry gets no expiry from those who lead: they find it when they announce themselves.
#[tokio::test]
async fn what_is_no_entry_of_the_leader_is_not_made_to_expire() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let args = ["c:1", "30000", "600000"];
    scripts::run(&mut raw, scripts::sources::ACQUIRE, &["a", "t:{a}"], &args).await;
    let other = ["HSET", ENTRY, "id", "7"];
    let of_another_leader = ["HSET", ENTRY, "id", "d:1"];
    let of_another_type = ["SET", ENTRY, "7"];
    for data in [&other[..], &of_another_leader, &of_another_type] {
        raw.cmd(&["DEL", ENTRY]).await;
        raw.cmd(data).await;
        let keys = ["a", ENTRY];
        let renewed = scripts::run(&mut raw, sources::RENEW, &keys, &["c:1", "40000"]).await;
        assert_eq!(renewed.array()[0].int(), 1, "{data:?}");
        let kept = scripts::run(&mut raw, sources::KEEP_ENTRY, &[ENTRY], &["c:1", "40000"]).await;
        assert_eq!(kept.int(), 1, "{data:?}");
        assert_eq!(pttl(&mut raw, ENTRY).await, -1, "{data:?}");
    }
    raw.cmd(&["DEL", ENTRY]).await;
    raw.cmd(&["HSET", ENTRY, "id", "c:1"]).await;
    scripts::run(&mut raw, sources::KEEP_ENTRY, &[ENTRY], &["c:1", "40000"]).await;
    assert!((30_000..=40_000).contains(&pttl(&mut raw, ENTRY).await));
    scripts::run(&mut raw, sources::RENEW, &["a", ENTRY], &["c:1", "60000"]).await;
    assert!((60_000..=70_000).contains(&pttl(&mut raw, ENTRY).await));
}

async fn scripts_of(raw: &mut Raw) -> u64 {
    crate::support::scripts_run(raw).await
}

#[tokio::test]
async fn what_cannot_be_used_is_refused() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    let long = "x".repeat(4_097);
    let error = ours
        .election("a")
        .value(&long)
        .campaign()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let leader = campaign(&ours, &long[1..]).await;
    let error = leader.publish(&long).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(leader.is_leader());
    for (bad, kind) in [("", ErrorKind::BadName), ("{}", ErrorKind::BadName)] {
        let election = ours.election(bad);
        assert_eq!(election.campaign().await.unwrap_err().kind(), kind);
        assert_eq!(election.leader().await.unwrap_err().kind(), kind);
        assert_eq!(election.observe().next().await.unwrap_err().kind(), kind);
    }
    raw.cmd(&["SET", "text", "1", "PX", "60000"]).await;
    let other = ours.election("text");
    assert_eq!(
        other.campaign().await.unwrap_err().kind(),
        ErrorKind::WrongType
    );
    assert_eq!(
        other.leader().await.unwrap_err().kind(),
        ErrorKind::WrongType
    );
    assert_eq!(
        other.observe().next().await.unwrap_err().kind(),
        ErrorKind::WrongType
    );
    // Data of somebody else where the leader would be announced.
    raw.cmd(&["HSET", "leasehold_leader:{b}", "id", "7"]).await;
    let error = ours.election("b").campaign().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert!(
        error.to_string().contains("leasehold_leader:{b}"),
        "{error}"
    );
    assert_eq!(pttl(&mut raw, "leasehold_leader:{b}").await, -1);
    until("it is given back", async || !exists(&mut raw, "b").await).await;

    ours.shutdown().await.unwrap();
    assert!(!leader.is_leader());
    let closed = ours
        .election("a")
        .run(async |_| ControlFlow::Break(()))
        .await;
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::Closed);
}

/// Set in the process of a candidate to the URL of the server.
const CANDIDATE: &str = "LEASEHOLD_CANDIDATE";

/// A process that does not outlive the test.
struct Candidate(Child);

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(server: &Server) -> Candidate {
    let test = "election::a_process_that_is_killed_or_frozen_is_followed";
    let mut command = this_test_again(test);
    command.env(CANDIDATE, server.url()).stdout(Stdio::null());
    Candidate(command.spawn().expect("a process can be started"))
}

#[tokio::test]
async fn a_process_that_is_killed_or_frozen_is_followed() {
    if let Ok(url) = std::env::var(CANDIDATE) {
        let locks = leased(url, ms(1_500)).await;
        let value = format!("process {}", std::process::id());
        let leader = locks.election("a").value(value).campaign().await.unwrap();
        leader.lost().await;
        let late = leader.publish("late").await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Lost);
        return;
    }
    let server = Server::start().await;
    let ours = short_locks(&server, ms(1_500)).await;
    let mut observer = ours.election("a").observe();
    for is_killed in [true, false] {
        let mut candidate = spawn(&server);
        let name = format!("process {}", candidate.0.id());
        let first = sees(&mut observer, Some(&name)).await.unwrap();
        if is_killed {
            candidate.0.kill().unwrap();
        } else {
            process::freeze(candidate.0.id());
        }
        let leader = campaign(&ours, "ours").await;
        assert!(leader.token() > first.token());
        sees(&mut observer, Some("ours")).await;
        if !is_killed {
            process::thaw(candidate.0.id());
            let ended = tokio::task::spawn_blocking(move || candidate.0.wait().unwrap()).await;
            assert!(ended.unwrap().success(), "its late value was refused");
        }
        let leads = ours.election("a").leader().await.unwrap();
        assert_eq!(value(&leads), Some("ours"));
        drop(leader);
    }
}

#[tokio::test]
async fn every_shard_of_a_cluster_has_elections_also_while_a_slot_moves() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let (ours, theirs) = (
        leased(cluster.url(), ms(3_000)).await,
        connect(cluster.url()).await,
    );
    for shard in 0..2 {
        let name = cluster.key_at(shard, "k").await;
        let mut observer = theirs.election(&name).observe();
        assert_eq!(next(&mut observer).await, None);
        let leader = ours.election(&name).value("it").campaign().await.unwrap();
        sees(&mut observer, Some("it")).await;
        leader.resign().await.unwrap();
        assert_eq!(next(&mut observer).await, None);
    }
    // One of the two keys is moved, and the other one not yet.
    let name = cluster.key_at(0, "moving").await;
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    let leader = ours.election(&name).value("it").campaign().await.unwrap();
    migration.begin().await;
    migration.move_keys(&[&name]).await;
    renewed_terms(&leader).await;
    migration.move_all_keys().await;
    migration.finish().await;
    renewed_terms(&leader).await;
    let leads = theirs.election(&name).leader().await.unwrap();
    assert_eq!(value(&leads), Some("it"));
}

#[tokio::test]
async fn a_failover_is_followed_and_no_former_leader_is_told_after_it() {
    let sentinels = Sentinels::start().await;
    sentinels.wait_until_ready().await;
    let locks = Locks::builder(sentinels.url()).lease(ms(2_000));
    let ours = locks.connect().await.unwrap();
    let mut observer = ours.election("a").observe();
    let terms = Arc::new(AtomicUsize::new(0));
    let run = tokio::spawn({
        let (election, terms) = (ours.election("a"), Arc::clone(&terms));
        async move {
            let lead = |leader: leasehold::Term| {
                let term = terms.fetch_add(1, Ordering::SeqCst);
                async move {
                    // A failure here is a loss that follows.
                    let _ = leader.publish(format!("term {term}")).await;
                    std::future::pending::<ControlFlow<()>>().await
                }
            };
            election.run(lead).await
        }
    });
    let first = sees(&mut observer, Some("term 0")).await.unwrap();
    let master = sentinels.master().await.expect("a master");
    sentinels.node(master).kill();
    let mutex = ours.mutex("a");
    let mut last = first.token();
    // The replica has the lock, so the first leader may go on there. It is deposed then.
    until("the lock is forced at the new master", async || {
        mutex
            .force_unlock()
            .await
            .map_err(|error| error.to_string())
    })
    .await;
    until("the next leader", async || {
        let leader = match observer.next().await {
            Ok(Some(leader)) => leader,
            Ok(None) => return false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                return false;
            }
        };
        assert!(last <= leader.token());
        last = leader.token();
        last > first.token() && leader.value().is_some_and(|value| value != "term 0")
    })
    .await;
    run.abort();
}
