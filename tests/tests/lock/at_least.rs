//! Locks that stay taken for a while although they are released: `at_least`.

use std::time::{Duration, Instant};

use leasehold::{
    Acquire, Backoff, Error, ErrorKind, Interop, Locks, LostReason, Release, Replicas, TryAcquire,
};
use leasehold_testkit::{Cluster, Cut, Fault, Proxy, Raw, Server, cancel, replicas};

use crate::scripts::{Ears, sources};
use crate::support::{
    exists, fields, in_line, its_turn, locks, ms, pttl, short_locks, take, until, within,
};

/// Long enough that what a test does meanwhile is done before it is over.
const LONG: Duration = Duration::from_secs(20);

/// Short enough to be waited for.
const SHORT: Duration = Duration::from_millis(1_200);

/// The locks with one holder.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Mutex,
    Fair,
    Plain,
}

const KINDS: [Kind; 3] = [Kind::Mutex, Kind::Fair, Kind::Plain];

impl Kind {
    fn lock(self, locks: &Locks, name: &str) -> Acquire {
        match self {
            Self::Mutex => locks.mutex(name).lock(),
            Self::Fair => locks.fair_mutex(name).lock(),
            Self::Plain => locks.plain_mutex(name).lock(),
        }
    }

    fn try_lock(self, locks: &Locks, name: &str) -> TryAcquire {
        match self {
            Self::Mutex => locks.mutex(name).try_lock(),
            Self::Fair => locks.fair_mutex(name).try_lock(),
            Self::Plain => locks.plain_mutex(name).try_lock(),
        }
    }

    /// The holder on the server.
    async fn holder(self, raw: &mut Raw, name: &str) -> String {
        match self {
            Self::Plain => raw.cmd(&["GET", name]).await.str().into(),
            _ => fields(raw, name).await.replace("=1", ""),
        }
    }
}

fn left(outcome: Result<Release, Error>) -> Duration {
    match outcome {
        Ok(Release::Kept { left }) => left,
        other => panic!("it is kept: {other:?}"),
    }
}

/// The lock stays taken, for what is left of `of` at most.
async fn assert_kept(raw: &mut Raw, name: &str, of: Duration) {
    let ttl = pttl(raw, name).await;
    let of = of.as_millis() as i64;
    assert!(0 < ttl && ttl <= of, "{name} has {ttl} of {of} ms left");
}

#[tokio::test]
async fn a_lock_that_is_released_early_stays_taken_and_then_has_its_next_holder() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    for kind in KINDS {
        let name = format!("{kind:?}");
        let begun = Instant::now();
        let guard = kind.lock(&ours, &name).at_least(SHORT).await.unwrap();
        let (lost, token) = (guard.lost(), guard.token());
        let holder = kind.holder(&mut raw, &name).await;
        let waiters = [&theirs, &ours].map(|locks| {
            let lock = kind.lock(locks, &name);
            tokio::spawn(async move {
                let guard = lock.await.unwrap();
                let granted = (guard.token(), Instant::now());
                assert_eq!(guard.release().await.unwrap(), Release::Released);
                granted
            })
        });
        assert!(left(guard.release().await) <= SHORT);
        assert_eq!(
            within("the end of the guard", lost).await,
            LostReason::Released
        );
        assert_kept(&mut raw, &name, SHORT).await;
        let kept = kind.holder(&mut raw, &name).await;
        assert_eq!(kept, format!("{holder}:kept"));
        for locks in [&ours, &theirs] {
            assert!(kind.try_lock(locks, &name).await.unwrap().is_none());
        }
        let mut last = token;
        let mut granted = Vec::new();
        for waiter in waiters {
            granted.push(within("its turn", waiter).await.unwrap());
        }
        granted.sort_by_key(|(token, _)| *token);
        for (token, at) in granted {
            assert!(token > last, "{token} after {last}");
            assert!(at >= begun + SHORT, "{kind:?} after {:?}", at - begun);
            last = token;
        }
        assert!(!exists(&mut raw, &name).await);
    }
}

#[tokio::test]
async fn a_lock_that_is_held_for_longer_is_released_as_ever() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = short_locks(&server, ms(600)).await;
    let theirs = locks(&server).await;
    for kind in KINDS {
        let name = format!("{kind:?}");
        let guard = kind.lock(&ours, &name).at_least(ms(2_000)).await.unwrap();
        let ttl = pttl(&mut raw, &name).await;
        assert!((601..=2_000).contains(&ttl), "the first lease: {ttl} ms");
        // Beyond the first lease: it was renewed, in leases of the usual length.
        tokio::time::sleep(ms(2_300)).await;
        assert!(guard.is_held());
        assert_kept(&mut raw, &name, ms(600)).await;
        let lock = kind.lock(&theirs, &name);
        let waiter = tokio::spawn(lock.into_future());
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        drop(its_turn(waiter).await);
    }
}

#[tokio::test]
async fn every_end_of_a_guard_keeps_the_lock() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = locks(&server).await;
    let job = |name: &str| ours.mutex(name).lock().at_least(LONG);

    drop(job("dropped").await.unwrap());
    let guard = job("panicked").await.unwrap();
    let panicked = tokio::spawn(async move {
        let _guard = guard;
        panic!("on purpose");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    let guard = job("on a thread").await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let guard = job("shut down").await.unwrap();
    ours.shutdown().await.unwrap();
    assert!(!guard.is_held());
    for name in ["dropped", "panicked", "on a thread", "shut down"] {
        until("the end", async || {
            fields(&mut raw, name).await.ends_with(":kept=1")
        })
        .await;
        // Less than the lease of 30 s.
        assert_kept(&mut raw, name, LONG).await;
    }
}

#[tokio::test]
async fn a_process_that_dies_keeps_the_lock_as_well() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = short_locks(&server, ms(300)).await;
    let guard = ours.mutex("a").lock().at_least(LONG).await.unwrap();
    // Nothing renews it any more, as if the process were gone.
    std::mem::forget(guard);
    let ttl = pttl(&mut raw, "a").await;
    assert!(ttl > 15_000, "{ttl} ms");
}

/// A grant of the line has a lease of a second, and what is passed on has what is left of the former one: both until the first
/// renewal, which does not come if the process is gone.
#[tokio::test]
async fn a_process_that_dies_as_soon_as_it_has_its_turn_keeps_the_lock_as_well() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    for kind in KINDS {
        for is_polling in [false, true] {
            let name = format!("{kind:?} {is_polling}");
            let guard = kind.lock(&theirs, &name).await.unwrap();
            let mut lock = kind.lock(&ours, &name).at_least(LONG);
            if is_polling {
                lock = lock.polling(Backoff::default());
            }
            let waiter = tokio::spawn(lock.into_future());
            until("it waits", async || {
                crate::support::tickets(&mut raw, &name).await == 1
            })
            .await;
            guard.release().await.unwrap();
            let guard = its_turn(waiter).await;
            let ttl = pttl(&mut raw, &name).await;
            assert!(ttl > 15_000, "{name}: {ttl} ms");
            drop(guard);
        }
    }
    let former = ours.mutex("a").lock().lease(ms(3_000)).await.unwrap();
    let waiter = tokio::spawn(ours.mutex("a").lock().at_least(LONG).into_future());
    tokio::task::yield_now().await;
    former.release().await.unwrap();
    let guard = its_turn(waiter).await;
    let ttl = pttl(&mut raw, "a").await;
    assert!(ttl > 15_000, "passed on: {ttl} ms");
    drop(guard);
}

#[tokio::test]
async fn a_grant_from_the_line_is_kept_for_the_whole_time_although_its_lease_is_short() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    for kind in KINDS {
        let name = format!("{kind:?}");
        let guard = kind.lock(&theirs, &name).await.unwrap();
        let lock = kind.lock(&ours, &name).at_least(LONG);
        let waiter = tokio::spawn(async move { lock.await?.release().await });
        until("it waits", async || {
            crate::support::tickets(&mut raw, &name).await == 1
        })
        .await;
        guard.release().await.unwrap();
        // The grant's own lease is of a second.
        let left = left(within("its turn", waiter).await.unwrap());
        assert!(left > LONG - Duration::from_secs(15), "{left:?}");
        assert_kept(&mut raw, &name, LONG).await;
    }
}

#[tokio::test]
async fn a_lock_is_not_passed_on_inside_of_the_process_before() {
    let server = Server::start().await;
    let ours = locks(&server).await;
    let first = take(&ours, "a").await;
    let job = ours.mutex("a").lock().at_least(SHORT);
    let next = ours.mutex("a").lock();
    let waiter = tokio::spawn(async move {
        let guard = job.await.unwrap();
        let begun = Instant::now();
        (left(guard.release().await), begun)
    });
    tokio::task::yield_now().await;
    let last = tokio::spawn(async move { (next.await.unwrap(), Instant::now()) });
    tokio::task::yield_now().await;
    // Passed on to the second, and by the second kept from the third.
    first.release().await.unwrap();
    let (_, begun) = within("the second", waiter).await.unwrap();
    let (guard, at) = within("the third", last).await.unwrap();
    assert!(at + ms(50) >= begun + SHORT, "after {:?}", at - begun);
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_release_without_an_answer_is_repeated_and_says_the_same() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let locks = Locks::connect(proxy.url()).await.unwrap();
    for kind in KINDS {
        let name = format!("{kind:?}");
        // A fixed lease, so that the lost reply is not one to the keeper.
        let job = kind.lock(&locks, &name).lease(LONG).at_least(LONG / 2);
        let guard = job.await.unwrap();
        proxy.to_client(Fault::LoseReply {
            nth: 1,
            how: Cut::Rst,
        });
        left(within("the release", guard.release()).await);
        proxy.heal();
        assert_kept(&mut raw, &name, LONG / 2).await;
    }
}

#[tokio::test]
async fn a_release_that_is_dropped_anywhere_keeps_the_lock() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    for n in 0.. {
        let name = format!("a{n}");
        let guard = locks.mutex(&name).lock().at_least(LONG).await.unwrap();
        let done = cancel::cancel_at(guard.release(), n).await;
        until("the end", async || {
            fields(&mut raw, &name).await.ends_with(":kept=1")
        })
        .await;
        assert_kept(&mut raw, &name, LONG).await;
        if done.is_some() {
            break;
        }
    }
}

#[tokio::test]
async fn a_lock_that_was_lost_is_not_kept_and_not_taken_from_others() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    for kind in KINDS {
        let name = format!("{kind:?}");
        let guard = kind.lock(&ours, &name).at_least(LONG).await.unwrap();
        raw.cmd(&["DEL", &name]).await;
        let other = kind.lock(&theirs, &name).lease(ms(15_000)).await.unwrap();
        let holder = kind.holder(&mut raw, &name).await;
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
        assert_eq!(kind.holder(&mut raw, &name).await, holder);
        assert_kept(&mut raw, &name, ms(15_000)).await;
        assert!(other.is_held());

        let name = format!("{kind:?} that is gone");
        let guard = kind.lock(&ours, &name).at_least(LONG).await.unwrap();
        raw.cmd(&["DEL", &name]).await;
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
        assert!(!exists(&mut raw, &name).await);
    }
}

#[tokio::test]
async fn what_runs_late_finds_nothing_of_a_lock_that_is_kept() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let hold = crate::scripts::ticket(crate::scripts::A, 1);
    crate::scripts::acquire(&mut raw, &hold, "30000").await;
    let keep = async |raw: &mut Raw, ms: &str, may_grow: &str| {
        let args = [&hold, ms, may_grow, "P", "", ""];
        crate::scripts::run(raw, sources::KEEP, &["L"], &args)
            .await
            .int()
    };
    assert_eq!(keep(&mut raw, "5000", "1").await, -5_000);
    // The same again: nothing is longer for it.
    let again = keep(&mut raw, "60000", "1").await;
    assert!((-5_000..0).contains(&again), "{again}");
    let renewal = [&hold, "60000"];
    let one = crate::scripts::run(&mut raw, sources::RENEW_ONE, &["L"], &renewal).await;
    assert_eq!(one.int(), 0);
    for script in [sources::RENEW, sources::RENEW_REPLICATED] {
        let all = crate::scripts::run(&mut raw, script, &["L"], &renewal).await;
        assert_eq!(all.array()[0].int(), 0);
    }
    assert!(
        crate::scripts::acquire(&mut raw, &hold, "60000")
            .await
            .int()
            < -1
    );
    assert_eq!(
        crate::scripts::release(&mut raw, &hold, "P", &[])
            .await
            .int(),
        0
    );
    assert_kept(&mut raw, "L", ms(5_000)).await;
    assert_eq!(fields(&mut raw, "L").await, format!("{hold}:kept=1"));

    // One that was lost here keeps what it has at most.
    raw.cmd(&["DEL", "L"]).await;
    crate::scripts::acquire(&mut raw, &hold, "1000").await;
    let kept = keep(&mut raw, "5000", "0").await;
    assert!((-1_000..0).contains(&kept), "{kept}");
}

#[tokio::test]
async fn contradictions_and_locks_with_several_holders_are_refused() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let job = || locks.mutex("a").lock().at_least(LONG);
    let refused = [
        (job().max_hold(LONG - ms(1)).await, "`max_hold`"),
        (job().lease(LONG - ms(1)).await, "`lease`"),
        (job().at_least(Duration::ZERO).await, "10ms"),
        (job().at_least(LONG * 10_000_000).await, "365 days"),
    ];
    for (refused, text) in refused {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadLease, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let rw = locks.rw_lock("rw");
    let refused = [
        rw.read().at_least(LONG).await.err(),
        rw.write().at_least(LONG).await.err(),
        locks.semaphore("s", 2).acquire().at_least(LONG).await.err(),
    ];
    for error in refused {
        let error = error.expect("it is refused");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("one holder"), "{error}");
    }
    assert_eq!(raw.cmd(&["DBSIZE"]).await.int(), 0, "nothing was taken");
    // Just as long is none.
    drop(job().lease(LONG).max_hold(LONG).await.unwrap());
}

#[tokio::test]
async fn locks_that_nest_are_kept_for_the_longest_of_their_times() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let owner = locks.owner();
    let outer = owner.mutex("a").lock().await.unwrap();
    let inner = owner.mutex("a").lock().at_least(LONG).await.unwrap();
    drop(inner);
    assert!(outer.is_held());
    assert!(left(outer.release().await) <= LONG);
    assert_kept(&mut raw, "a", LONG).await;
    // Nobody acts under it, so the owner does not hold it either, and nobody takes it over from the owner.
    assert!(owner.mutex("a").try_lock().await.unwrap().is_none());
    let heir = locks_of(&server, owner.id()).await;
    assert!(heir.mutex("a").try_lock().await.unwrap().is_none());

    let fixed = owner.mutex("b").lock().lease(LONG / 2).await.unwrap();
    let error = owner.mutex("b").lock().at_least(LONG).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Nested, "{error}");
    assert!(error.to_string().contains("`at_least`"), "{error}");
    assert_eq!(fixed.release().await.unwrap(), Release::Released);
}

/// The owner of another process that takes over from the one with this id.
async fn locks_of(server: &Server, id: &str) -> leasehold::Owner {
    locks(server).await.owner_from(id)
}

#[tokio::test]
async fn it_is_told_who_keeps_it_and_force_unlock_ends_that() {
    let server = Server::start().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let mutex = ours.mutex("a");
    let guard = mutex.lock().at_least(LONG).await.unwrap();
    assert!(!mutex.holder().await.unwrap().unwrap().is_kept());
    let mut raw = server.raw().await;
    let waiter = in_line(&mut raw, &theirs, "a").await;
    drop(guard);
    until("the end", async || {
        let holder = mutex.holder().await.unwrap().unwrap();
        holder.is_kept() && holder.client() == ours.client_id()
    })
    .await;
    assert!(mutex.remaining().await.unwrap().unwrap() <= LONG);
    assert!(mutex.inspect().await.unwrap().holders()[0].is_kept());
    assert!(mutex.force_unlock().await.unwrap());
    drop(its_turn(waiter).await);
}

#[tokio::test]
async fn those_who_wait_as_redisson_does_are_told_to_look_how_long_it_is_now() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let ours = Locks::builder(server.url()).interop(Interop::Redisson);
    let ours = ours.connect().await.unwrap();
    let mut waiter = Ears::plain(&server, "redisson_lock__channel:{a}").await;
    let guard = ours.mutex("a").lock().at_least(LONG).await.unwrap();
    left(guard.release().await);
    assert_eq!(waiter.heard().await, ["0"]);
    // What its scripts ask for: a hash of holders with counts, and an expiry.
    let holders = fields(&mut raw, "a").await;
    assert!(holders.starts_with(ours.client_id()), "{holders}");
    assert!(holders.ends_with(":kept=1"), "{holders}");
    assert_kept(&mut raw, "a", LONG).await;

    let fair = ours.fair_mutex("f");
    left(fair.lock().at_least(SHORT).await.unwrap().release().await);
    drop(within("its end", fair.lock().into_future()).await.unwrap());
}

#[tokio::test]
async fn replicas_and_each_shard_of_a_cluster_keep_it() {
    let servers = replicas::Replicas::builder().replicas(1).start().await;
    let locks = Locks::builder(servers.url())
        .restart_guard(ms(10))
        .lease(ms(600))
        .connect()
        .await
        .unwrap();
    let guard = until("a lock that its replica has", async || {
        let job = locks.mutex("a").try_lock().at_least(LONG);
        let granted = job.replicated(Replicas::All).await;
        granted
            .map_err(|error| error.to_string())?
            .ok_or_else(|| "held".into())
    })
    .await;
    // What replicas have confirmed lasts as long.
    let mut replica = servers.node(1).raw().await;
    assert!(pttl(&mut replica, "a").await > 10_000);
    left(guard.release().await);
    until("the replica", async || {
        fields(&mut replica, "a").await.ends_with(":kept=1")
    })
    .await;

    let cluster = Cluster::builder().replicas(0).start().await;
    let locks = crate::support::connect(cluster.url()).await;
    for shard in 0..3 {
        let name = cluster.key_at(shard, "k").await;
        let guard = locks.mutex(&name).lock().at_least(SHORT).await.unwrap();
        left(guard.release().await);
        assert!(locks.mutex(&name).try_lock().await.unwrap().is_none());
        drop(take(&locks, &name).await);
    }
}
