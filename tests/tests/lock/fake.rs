//! The fake for users' tests: its clock, and everything that a test can make it do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::observer::Primitive;
use leasehold::testing::{Fake, What};
use leasehold::{Error, ErrorKind, FencingToken, Locks, LostReason, Release};
use leasehold_testkit::in_own_process;

use crate::support::{until, within};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[tokio::test]
async fn what_is_renewed_lasts_and_what_is_not_ends_when_the_clock_moves() {
    let fake = Fake::new();
    let locks = fake.locks().await.unwrap();
    let renewed = locks.mutex("renewed").lock().await.unwrap();
    let fixed = locks.mutex("fixed").lock().lease(secs(30)).await.unwrap();
    let bounded = locks
        .mutex("bounded")
        .lock()
        .max_hold(secs(70))
        .await
        .unwrap();
    fake.advance(secs(29)).await;
    assert!(renewed.is_held() && fixed.is_held() && bounded.is_held());
    fake.advance(secs(2)).await;
    assert!(renewed.is_held() && bounded.is_held());
    assert!(!fixed.is_held());
    assert_eq!(fixed.lost().await, LostReason::Expired);
    fake.advance(secs(3600)).await;
    assert!(renewed.is_held());
    assert_eq!(bounded.lost().await, LostReason::MaxHold);
    assert!(locks.mutex("fixed").try_lock().await.unwrap().is_some());
    assert_eq!(renewed.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn moving_the_clock_takes_little_time_and_is_what_waits_wait_for() {
    let fake = Fake::new();
    let locks = fake.locks().await.unwrap();
    let theirs = fake.hold("a").await;
    let mutex = locks.mutex("a");
    let waiting =
        tokio::spawn(async move { mutex.try_lock_for(secs(1800)).await.unwrap().is_some() });
    fake.advance(secs(1799)).await;
    assert!(!waiting.is_finished());
    fake.advance(secs(2)).await;
    assert!(!within("the end of a wait", waiting).await.unwrap());
    theirs.release().await;
}

/// A lease that its holder does not renew ends for those who wait, too.
#[tokio::test]
async fn a_waiter_gets_what_has_expired() {
    let fake = Fake::new();
    let (here, there) = (fake.locks().await.unwrap(), fake.locks().await.unwrap());
    let first = here.mutex("a").lock().lease(secs(60)).await.unwrap();
    let mutex = there.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    fake.advance(secs(59)).await;
    assert!(!waiting.is_finished());
    fake.advance(secs(2)).await;
    let second = within("the lock", waiting).await.unwrap().unwrap();
    assert!(second.token() > first.token());
    assert!(!first.is_held());
}

#[tokio::test]
async fn somebody_else_holds_what_the_test_says() {
    let fake = Fake::new();
    let locks = fake.locks().await.unwrap();
    let held = fake.hold("a").await;
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    fake.advance(secs(120)).await;
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    drop(held);
    assert!(
        within("the lock", locks.mutex("a").lock().into_future())
            .await
            .is_ok()
    );

    let shared = fake.hold_shared("b").await;
    assert!(locks.rw_lock("b").try_read().await.unwrap().is_some());
    assert!(locks.rw_lock("b").try_write().await.unwrap().is_none());
    shared.release().await;
    let exclusive = fake.hold_exclusive("b").await;
    assert!(locks.rw_lock("b").try_read().await.unwrap().is_none());
    exclusive.release().await;
    assert!(locks.rw_lock("b").try_write().await.unwrap().is_some());

    let permits = fake.hold_permits("c", 2, 3).await;
    assert_eq!(locks.semaphore("c", 3).available().await.unwrap(), 1);
    permits.release().await;
    assert_eq!(locks.semaphore("c", 3).available().await.unwrap(), 3);
}

#[tokio::test]
#[should_panic(expected = "`a` is held already")]
async fn what_is_held_cannot_be_held_by_somebody_else() {
    let fake = Fake::new();
    let locks = fake.locks().await.unwrap();
    let _guard = locks.mutex("a").lock().await.unwrap();
    let _ = fake.hold("a").await;
}

/// A job that must stop when its lock is lost, as a user would test it.
#[tokio::test]
async fn a_job_stops_when_its_lock_is_lost() {
    async fn job(
        locks: Locks,
        done: Arc<AtomicU64>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let guard = locks.mutex("job").lock().await?;
        guard
            .run(async {
                loop {
                    done.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await?
    }
    for reason in [
        LostReason::Stolen,
        LostReason::Expired,
        LostReason::NodeGone,
    ] {
        let fake = Fake::new();
        let done = Arc::new(AtomicU64::new(0));
        let locks = fake.locks().await.unwrap();
        let running = tokio::spawn(job(locks, Arc::clone(&done)));
        until("the job", async || done.load(Ordering::Relaxed) > 2).await;
        assert_eq!(fake.lose("job", reason).await, 1);
        let ended = within("the job", running).await.unwrap().unwrap_err();
        let lost = ended.downcast::<leasehold::Lost>().unwrap();
        assert_eq!(lost.reason(), reason);
        // It is free for the next one.
        let next = fake.locks().await.unwrap();
        assert!(
            within("the lock", next.mutex("job").lock().into_future())
                .await
                .is_ok()
        );
    }
}

#[tokio::test]
async fn all_primitives_lose_what_the_test_says() {
    let fake = Fake::new();
    let locks = fake.locks().await.unwrap();
    let read = locks.rw_lock("rw").read().await.unwrap();
    let permit = locks.semaphore("s", 2).acquire().await.unwrap();
    let fair = locks.fair_mutex("fair").lock().await.unwrap();
    let plain = locks.plain_mutex("plain").lock().await.unwrap();
    let multi = locks.multi(["x", "y"]).lock().await.unwrap();
    for name in ["rw", "s", "fair", "plain", "x"] {
        assert_eq!(fake.lose(name, LostReason::Stolen).await, 1, "{name}");
    }
    assert_eq!(read.lost().await, LostReason::Stolen);
    assert_eq!(permit.lost().await, LostReason::Stolen);
    assert_eq!(fair.lost().await, LostReason::Stolen);
    assert_eq!(plain.lost().await, LostReason::Stolen);
    assert_eq!(multi.lost().await, LostReason::Stolen);
    assert_eq!(
        fake.lose("rw", LostReason::Stolen).await,
        0,
        "it is lost already"
    );
    until("what was lost to be free", async || {
        locks.semaphore("s", 2).available().await.unwrap() == 2
    })
    .await;
}

/// The retry loop of a user's program.
#[tokio::test]
async fn what_is_lost_is_free_also_if_it_was_to_stay_taken() {
    let fake = Fake::new();
    let (ours, theirs) = (fake.locks().await.unwrap(), fake.locks().await.unwrap());
    for reason in [LostReason::Stolen, LostReason::Expired, LostReason::Closed] {
        let guard = ours.mutex("a").lock().at_least(secs(60)).await.unwrap();
        assert_eq!(fake.lose("a", reason).await, 1);
        let next = theirs.mutex("a").try_lock_for(secs(5)).await.unwrap();
        let next = next.unwrap_or_else(|| panic!("{reason}: it is not free"));
        drop(guard);
        assert_eq!(next.release().await.unwrap(), Release::Released);
        let again = ours.mutex("a").try_lock_for(secs(5)).await.unwrap();
        assert!(again.is_some(), "{reason}");
    }
}

#[tokio::test]
async fn a_call_fails_as_the_test_says_and_the_next_one_does_not() {
    async fn with_retries(locks: &Locks, tries: &mut u32) -> Result<leasehold::Guard, Error> {
        loop {
            *tries += 1;
            match locks.mutex("a").lock().await {
                Err(error) if error.kind() == ErrorKind::Unavailable && *tries < 3 => {}
                outcome => return outcome,
            }
        }
    }
    let fake = Fake::new();
    let locks = fake.locks().await.unwrap();
    let mut tries = 0;
    fake.fail_next(ErrorKind::Unavailable);
    fake.fail_next(ErrorKind::Unavailable);
    let _guard = with_retries(&locks, &mut tries).await.unwrap();
    assert_eq!(tries, 3);

    let kinds = [
        ErrorKind::Lost,
        ErrorKind::Unknown,
        ErrorKind::NotReplicated,
        ErrorKind::WrongType,
        ErrorKind::NoExpiry,
        ErrorKind::Denied,
        ErrorKind::Server,
        ErrorKind::CapacityDisagrees {
            server: 2,
            yours: 3,
        },
    ];
    for kind in kinds {
        fake.fail_next_on("b", kind);
        assert!(
            locks.mutex("c").lock().await.is_ok(),
            "it is of another name"
        );
        let error = locks.mutex("b").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(
            error.to_string().contains("`b`") || error.to_string().contains('b'),
            "{error}"
        );
        assert!(locks.mutex("b").try_lock().await.unwrap().is_some());
    }
    // What others hold and give back does not use it up.
    fake.fail_next(ErrorKind::Denied);
    fake.hold("d").await.release().await;
    let latch = locks.latch("l").try_set_count(1).await;
    assert_eq!(latch.unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_release_that_fails_is_made_in_the_background() {
    let fake = Fake::new();
    let locks = fake.locks().await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    fake.fail_next(ErrorKind::Unknown);
    assert_eq!(
        guard.release().await.unwrap_err().kind(),
        ErrorKind::Unknown
    );
    let _next = within("the lock", locks.mutex("a").lock().into_future())
        .await
        .unwrap();
}

#[tokio::test]
async fn the_history_tells_what_happened_in_which_order() {
    let fake = Fake::new();
    let (here, there) = (fake.locks().await.unwrap(), fake.locks().await.unwrap());
    let a = here.mutex("a").lock().await.unwrap();
    let token = a.token();
    fake.advance(secs(5)).await;
    let b = there.rw_lock("b").write().await.unwrap();
    a.release().await.unwrap();
    fake.lose("b", LostReason::Stolen).await;
    let permits = here.semaphore("c", 3).acquire_many(2).await.unwrap();
    let seen: Vec<_> = fake
        .history()
        .iter()
        .map(|event| {
            (
                event.name().to_owned(),
                event.primitive(),
                event.what(),
                event.client() == here.client_id(),
            )
        })
        .collect();
    let expected = [
        ("a", Primitive::Mutex, What::Taken, true),
        ("b", Primitive::Write, What::Taken, false),
        ("a", Primitive::Mutex, What::Released, true),
        ("b", Primitive::Write, What::Lost(LostReason::Stolen), false),
        ("c", Primitive::Semaphore, What::Taken, true),
    ];
    assert_eq!(
        seen,
        expected.map(|(name, primitive, what, here)| (name.to_owned(), primitive, what, here))
    );
    let history = fake.history();
    assert_eq!(history[0].token(), Some(token));
    assert_eq!(history[4].token(), None);
    assert!(history[1].after() >= history[0].after() + secs(5));
    drop((b, permits));
}

#[tokio::test]
async fn a_server_that_forgets_everything_is_noticed_at_the_next_renewal() {
    let fake = Fake::new();
    let locks = fake.locks().await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    fake.flush();
    assert!(guard.is_held(), "nobody was told");
    fake.advance(secs(12)).await;
    assert_eq!(guard.lost().await, LostReason::Stolen);
}

#[tokio::test]
async fn fakes_know_nothing_of_each_other() {
    let (one, other) = (Fake::new(), Fake::new());
    let (here, there) = (one.locks().await.unwrap(), other.locks().await.unwrap());
    let a = here.mutex("a").lock().lease(secs(10)).await.unwrap();
    let b = there.mutex("a").lock().lease(secs(10)).await.unwrap();
    one.advance(secs(20)).await;
    assert!(!a.is_held() && b.is_held());
    one.fail_next(ErrorKind::Denied);
    assert!(there.mutex("b").lock().await.is_ok());
    assert_eq!(other.history().len(), 2 + 1, "taken twice, released once");
}

/// What a test waits for ends after as much time as it says, also if it does not move the clock.
#[tokio::test]
async fn the_clock_runs_by_itself() {
    let fake = Fake::new();
    let locks = fake.locks().await.unwrap();
    let _theirs = fake.hold("a").await;
    let since = Instant::now();
    let wait = Duration::from_millis(200);
    assert!(locks.mutex("a").try_lock_for(wait).await.unwrap().is_none());
    assert!(since.elapsed() >= wait);
    let guard = locks.mutex("b").lock().lease(wait).await.unwrap();
    assert_eq!(within("the end", guard.lost()).await, LostReason::Expired);
}

/// Time that is paused goes on where nothing is left to do; the clock of the fake goes with it.
#[tokio::test(start_paused = true)]
async fn paused_time_and_the_clock_of_the_fake_go_together() {
    let since = Instant::now();
    let fake = Fake::new();
    let locks = fake.locks().await.unwrap();
    let theirs = fake.hold("a").await;
    let renewed = locks.mutex("renewed").lock().await.unwrap();
    let fixed = locks.mutex("fixed").lock().lease(secs(45)).await.unwrap();
    assert!(
        locks
            .mutex("a")
            .try_lock_for(secs(60))
            .await
            .unwrap()
            .is_none()
    );
    assert!(renewed.is_held(), "renewed on the way");
    assert_eq!(fixed.lost().await, LostReason::Expired);

    let mutex = locks.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    tokio::time::sleep(secs(5)).await;
    theirs.release().await;
    within("the lock", waiting).await.unwrap().unwrap();

    tokio::time::sleep(secs(600)).await;
    fake.advance(secs(600)).await;
    assert!(renewed.is_held());
    assert_eq!(renewed.release().await.unwrap(), Release::Released);
    assert!(since.elapsed() < secs(60), "by the clock on the wall");
}

/// What a shutdown waits for is done by a thread, whose time is not paused: the time of the runtime must not run away meanwhile.
#[tokio::test(start_paused = true)]
async fn a_shutdown_in_paused_time_waits_for_what_is_released_in_the_background() {
    for _ in 0..20 {
        let fake = Fake::new();
        let locks = fake.locks().await.unwrap();
        let renewed = locks.mutex("renewed").lock().await.unwrap();
        let guard = locks.mutex("a").lock().await.unwrap();
        fake.fail_next_on("a", ErrorKind::Unknown);
        assert!(guard.release().await.is_err());
        locks.shutdown().await.unwrap();
        assert_eq!(renewed.lost().await, LostReason::Closed);
        let next = fake.locks().await.unwrap();
        for name in ["a", "renewed"] {
            assert!(next.mutex(name).try_lock().await.unwrap().is_some());
        }
        assert!(next.process_of(locks.client_id()).await.unwrap().is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_of_two_processes_exclude_each_other_and_none_is_forgotten() {
    let fake = Fake::new();
    let (here, there) = (fake.locks().await.unwrap(), fake.locks().await.unwrap());
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for n in 0..16 {
        let locks = if n % 2 == 0 {
            here.clone()
        } else {
            there.clone()
        };
        let count = Arc::clone(&count);
        tasks.push(tokio::spawn(async move {
            for _ in 0..25 {
                let guard = locks.mutex("a").lock().await.unwrap();
                let seen = count.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                count.store(seen + 1, Ordering::Relaxed);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        within("a task", task).await.unwrap();
    }
    assert_eq!(count.load(Ordering::Relaxed), 400);
}

#[test]
fn a_fake_that_is_dropped_leaves_no_thread() {
    in_own_process(async {
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        let fake = Fake::new();
        let locks = fake.locks().await.unwrap();
        let guard = locks.mutex("a").lock().await.unwrap();
        fake.advance(secs(60)).await;
        assert_eq!(threads(), before + 1, "one renews");
        guard.release().await.unwrap();
        drop((locks, fake));
        until("the end of the thread", async || threads() == before).await;
    });
}

#[test]
fn tokens_for_tests_are_those_of_the_storage() {
    assert_eq!(FencingToken::for_tests(7).as_u64(), 7);
    assert!(FencingToken::for_tests(7) < FencingToken::for_tests(8));
}
