//! What observers are told of grants, by every primitive and in every way, and of callers that give up.

use std::future::IntoFuture;

use leasehold::observer::{Observer, Renewed, Waiting, Way};
use leasehold::{Backoff, ErrorKind, Locks, LostReason, Redlock};
use leasehold_testkit::Server;

use crate::observed::Record;
use crate::support::{exists, in_line, its_turn, locks, ms, take, until, within};

#[tokio::test]
async fn each_primitive_tells_its_grant_and_its_release() {
    let server = Server::start().await;
    let (locks, record) = Record::at(&server).await;
    take(&locks, "m").await.release().await.unwrap();
    record
        .is(
            "m",
            &["mutex waiting", "mutex granted at_once", "mutex released"],
        )
        .await;
    drop(locks.fair_mutex("f").lock().await.unwrap());
    let fair = ["waiting", "granted at_once", "released"].map(|what| format!("fair_mutex {what}"));
    record.is("f", &fair.each_ref().map(String::as_str)).await;
    drop(locks.plain_mutex("p").lock().await.unwrap());
    let plain =
        ["waiting", "granted at_once", "released"].map(|what| format!("plain_mutex {what}"));
    record.is("p", &plain.each_ref().map(String::as_str)).await;
    drop(locks.rw_lock("r").read().await.unwrap());
    drop(locks.rw_lock("r").write().await.unwrap());
    let both = [
        "read waiting",
        "read granted at_once",
        "read released",
        "write waiting",
        "write granted at_once",
        "write released",
    ];
    record.is("r", &both).await;
    let stats = locks.stats();
    assert_eq!(
        (stats.acquired(), stats.released(), stats.held()),
        (5, 5, 0)
    );
    assert_eq!(stats.granted(Way::AtOnce), 5);
    assert!(stats.requests() >= 10, "{stats:?}");
}

/// The permits of one acquisition are one hold, whatever becomes of its parts.
#[tokio::test]
async fn permits_are_released_with_their_last_part() {
    let server = Server::start().await;
    let (locks, record) = Record::at(&server).await;
    let mut permit = locks.semaphore("s", 5).acquire_many(3).await.unwrap();
    let part = permit.split(1).unwrap();
    part.release().await.unwrap();
    assert_eq!(locks.stats().held(), 1);
    permit.forget();
    let first = [
        "semaphore waiting",
        "semaphore granted at_once",
        "semaphore released forgotten",
    ];
    record.is("s", &first).await;
    locks.semaphore("c", 5).counting().acquire(2).await.unwrap();
    let counting = [
        "counting_semaphore waiting",
        "counting_semaphore granted at_once",
        "counting_semaphore released forgotten",
    ];
    record.is("c", &counting).await;
    assert_eq!(locks.stats().held(), 0);
}

#[tokio::test]
async fn several_locks_are_told_one_by_one_and_not_before_all_are_there() {
    let server = Server::start().await;
    let (locks, record) = Record::at(&server).await;
    let other = Locks::connect(server.url()).await.unwrap();
    let in_the_way = take(&other, "b").await;
    let multi = locks.multi(["a", "b", "c"]);
    assert!(multi.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(multi.lock().into_future());
    until("it waits", async || {
        other.mutex("b").inspect().await.unwrap().waiting() == 1
    })
    .await;
    assert_eq!((locks.stats().waiting(), locks.stats().acquired()), (3, 0));
    in_the_way.release().await.unwrap();
    let all = within("all of them", waiting).await.unwrap().unwrap();
    assert_eq!((locks.stats().waiting(), locks.stats().held()), (0, 3));
    all.release().await.unwrap();
    let of = |way: &str| {
        [
            "multi waiting".into(),
            "multi gave_up not_free".into(),
            "multi waiting".into(),
            format!("multi granted {way}"),
            "multi released".into(),
        ]
    };
    for (key, way) in [("a", "at_once"), ("b", "handed_over"), ("c", "at_once")] {
        record
            .is(key, &of(way).each_ref().map(String::as_str))
            .await;
    }
}

#[tokio::test]
async fn a_hand_over_by_the_server_and_one_inside_the_process_are_told_apart() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (locks, record) = Record::at(&server).await;
    let other = Locks::connect(server.url()).await.unwrap();
    let theirs = take(&other, "a").await;
    let waiter = in_line(&mut raw, &locks, "a").await;
    theirs.release().await.unwrap();
    drop(its_turn(waiter).await);
    let handed_over = [
        "mutex waiting",
        "mutex granted handed_over",
        "mutex released",
    ];
    record.is("a", &handed_over).await;

    // The second of three has its grant with a block of tokens, since the third waits behind it.
    let first = take(&locks, "b").await;
    let second = tokio::spawn(locks.mutex("b").lock().into_future());
    until("two", async || locks.stats().waiting() == 1).await;
    let third = tokio::spawn(locks.mutex("b").lock().into_future());
    until("three", async || locks.stats().waiting() == 2).await;
    drop(first);
    drop(its_turn(second).await);
    drop(its_turn(third).await);
    assert_eq!(record.count("b", "granted at_once"), 2);
    assert_eq!(record.count("b", "granted passed_on"), 1);
    assert_eq!(record.count("b", "released"), 3);
    record.check();
}

#[tokio::test]
async fn a_waiter_that_asks_again_is_told_as_a_look() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (locks, record) = Record::at(&server).await;
    let other = Locks::connect(server.url()).await.unwrap();
    let theirs = take(&other, "a").await;
    let polling = locks.mutex("a").lock().polling(Backoff::default());
    let waiter = tokio::spawn(polling.into_future());
    until("a ticket", async || {
        exists(&mut raw, "leasehold_line:{a}").await
    })
    .await;
    theirs.release().await.unwrap();
    drop(its_turn(waiter).await);
    let look = ["mutex waiting", "mutex granted look", "mutex released"];
    record.is("a", &look).await;
}

#[tokio::test]
async fn nested_locks_shared_reads_and_conversions_say_so() {
    let server = Server::start().await;
    let (locks, record) = Record::at(&server).await;
    let owner = locks.owner();
    let outer = owner.mutex("a").lock().await.unwrap();
    let inner = owner.mutex("a").lock().await.unwrap();
    drop(outer);
    assert_eq!(locks.stats().held(), 1, "the inner one holds it");
    drop(inner);
    let nested = [
        "mutex waiting",
        "mutex granted at_once",
        "mutex waiting",
        "mutex granted nested",
        "mutex released",
    ];
    record.is("a", &nested).await;

    let lock = locks.rw_lock("r");
    let write = lock.write().await.unwrap();
    let read = write.downgrade().await.unwrap();
    let write = read.try_upgrade().await.unwrap().unwrap();
    drop(write);
    let converted = [
        "write waiting",
        "write granted at_once",
        "read waiting",
        "write released",
        "read granted converted",
        "write waiting",
        "read released",
        "write granted converted",
        "write released",
    ];
    record.is("r", &converted).await;

    let former = locks.owner();
    let held = former.mutex("t").lock().await.unwrap();
    let (heirs, heard) = Record::at(&server).await;
    let taken = heirs
        .owner_from(former.id())
        .mutex("t")
        .lock()
        .await
        .unwrap();
    drop(taken);
    let taken_over = [
        "mutex waiting",
        "mutex granted taken_over",
        "mutex released",
    ];
    heard.is("t", &taken_over).await;
    drop(held);
}

#[tokio::test]
async fn latches_and_barriers_are_passed_and_nothing_is_held() {
    let server = Server::start().await;
    let (locks, record) = Record::at(&server).await;
    let latch = locks.latch("l");
    latch.try_set_count(1).await.unwrap();
    assert!(!latch.wait_for(ms(50)).await.unwrap());
    let waiter = tokio::spawn(latch.wait());
    until("it waits", async || locks.stats().waiting() == 1).await;
    latch.count_down().await.unwrap();
    within("the opening", waiter).await.unwrap().unwrap();
    let opened = [
        "latch waiting",
        "latch gave_up timed_out",
        "latch waiting",
        "latch granted opened",
    ];
    record.is("l", &opened).await;

    let barrier = locks.barrier("b", 2);
    assert!(barrier.wait_for(ms(50)).await.unwrap().is_none());
    let other = tokio::spawn(barrier.wait());
    barrier.wait().await.unwrap();
    within("the other party", other).await.unwrap().unwrap();
    assert_eq!(record.count("b", "granted opened"), 2);
    assert_eq!(record.count("b", "gave_up timed_out"), 1);
    record.check();
    let stats = locks.stats();
    assert_eq!((stats.acquired(), stats.granted(Way::Opened)), (0, 3));
    assert_eq!((stats.lost(), stats.released()), (0, 0));
}

#[tokio::test]
async fn callers_that_give_up_say_why() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (locks, record) = Record::at(&server).await;
    let other = Locks::connect(server.url()).await.unwrap();
    let theirs = take(&other, "a").await;
    let mutex = locks.mutex("a");
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert!(mutex.try_lock_for(ms(50)).await.unwrap().is_none());
    let cancelled = tokio::time::timeout(ms(50), mutex.lock().into_future());
    assert!(cancelled.await.is_err());
    let waiting = tokio::spawn(mutex.lock().into_future());
    until("it waits", async || locks.stats().waiting() == 1).await;
    raw.cmd(&["SET", "w", "no lock"]).await;
    let wrong = locks.mutex("w").lock().await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::WrongType);
    assert!(locks.mutex("").lock().await.is_err());
    locks.shutdown().await.unwrap();
    assert!(within("the end", waiting).await.unwrap().is_err());
    let all = ["not_free", "timed_out", "cancelled", "closed"];
    let all = all.map(|why| ["mutex waiting".into(), format!("mutex gave_up {why}")]);
    let all: Vec<_> = all.iter().flatten().map(String::as_str).collect();
    record.is("a", &all).await;
    let refused = ["mutex waiting", "mutex gave_up wrong_type"];
    record.is("w", &refused).await;
    let stats = locks.stats();
    assert_eq!(
        (stats.not_free(), stats.timed_out(), stats.cancelled()),
        (1, 1, 1)
    );
    assert_eq!(stats.failed_with(ErrorKind::Closed), 1);
    assert_eq!(stats.failed_with(ErrorKind::BadName), 1);
    assert_eq!(
        (stats.failed(), stats.gave_up(), stats.waiting()),
        (3, 6, 0)
    );
    drop(theirs);
}

#[tokio::test]
async fn a_majority_is_one_lock_whatever_its_nodes_say() {
    let servers = [
        Server::start().await,
        Server::start().await,
        Server::start().await,
    ];
    let record = Record::default();
    let urls = servers.iter().map(Server::url);
    let builder = Redlock::builder(urls).lease(ms(1_200)).durable();
    let red = builder.observer(record.clone()).connect().await.unwrap();
    let guard = red.mutex("a").lock().await.unwrap();
    assert!(red.mutex("a").try_lock().await.unwrap().is_none());
    until("renewals", async || record.count("a", "renewed") >= 2).await;
    servers[2].kill();
    until("a node that does not answer", async || {
        red.stats().failed_renewals() > 0
    })
    .await;
    servers[1].kill();
    assert_eq!(within("the loss", guard.lost()).await, LostReason::Expired);
    drop(guard);
    let events = [
        "redlock waiting",
        "redlock granted at_once",
        "redlock waiting",
        "redlock gave_up not_free",
        "redlock lost expired",
    ];
    record.is("a", &events).await;
    let stats = red.stats();
    assert_eq!((stats.acquired(), stats.lost(), stats.held()), (1, 1, 0));
}

/// Panics in every event that it is told first.
struct Broken;

impl Observer for Broken {
    fn waiting(&self, _: &Waiting<'_>) {
        panic!("an observer that fails");
    }

    fn renewed(&self, _: &Renewed<'_>) {
        panic!("an observer that fails");
    }
}

/// Blocks the thread of its own for ever.
struct Blocked;

impl Observer for Blocked {
    fn renewed(&self, _: &Renewed<'_>) {
        loop {
            std::thread::park();
        }
    }
}

#[tokio::test]
async fn an_observer_that_panics_or_blocks_breaks_no_lock() {
    let server = Server::start().await;
    let record = Record::default();
    let lease = ms(900);
    let builder = Locks::builder(server.url()).lease(lease).observer(Broken);
    let broken = builder.observer(record.clone()).connect().await.unwrap();
    let guard = take(&broken, "a").await;
    until("renewals", async || record.count("a", "renewed") >= 2).await;
    drop(guard);
    let told = ["mutex waiting", "mutex granted at_once", "mutex released"];
    record.is("a", &told).await;

    let builder = Locks::builder(server.url()).lease(lease).observer(Blocked);
    let blocked = builder.connect().await.unwrap();
    let guards: Vec<_> = {
        let mut guards = Vec::new();
        for n in 0..400 {
            guards.push(take(&blocked, &format!("b{n}")).await);
        }
        guards
    };
    until("more than it can be told", async || {
        blocked.stats().untold() > 0
    })
    .await;
    tokio::time::sleep(lease).await;
    assert!(guards.iter().all(leasehold::Guard::is_held));
    assert_eq!(blocked.stats().held(), 400);
    let deleted = locks(&server).await.mutex("b0").force_unlock().await;
    assert!(deleted.unwrap());
    until("the loss is counted", async || blocked.stats().lost() == 1).await;
    assert_eq!(blocked.stats().lost_for(LostReason::Stolen), 1);
    within("a shutdown", blocked.shutdown()).await.unwrap();
    assert_eq!(blocked.stats().held(), 0);
    drop(guards);
}
