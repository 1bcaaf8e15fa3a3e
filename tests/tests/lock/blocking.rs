//! Locks for code without an async runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::blocking::Locks;
use leasehold::{ErrorKind, LostReason, Release, Replicas};
use leasehold_testkit::own_process::in_a_fork;
use leasehold_testkit::ports::Port;
use leasehold_testkit::{Server, in_own_process, ms};

/// Long enough for everything here.
const PATIENCE: Duration = Duration::from_secs(20);

fn server() -> Server {
    Server::builder().start_blocking()
}

fn connect(server: &Server) -> Locks {
    Locks::connect(server.url()).expect("the server is up")
}

/// The lock is free, or becomes so.
fn assert_free(locks: &Locks, name: &str) {
    let guard = locks.mutex(name).try_lock_for(PATIENCE).unwrap();
    guard.expect("it is free").release().unwrap();
}

#[test]
fn the_family_excludes_others_and_says_how_it_ends() {
    let server = server();
    let (ours, theirs) = (connect(&server), connect(&server));
    for (mine, other) in [
        (ours.mutex("m"), theirs.mutex("m")),
        (ours.fair_mutex("f"), theirs.fair_mutex("f")),
        (ours.plain_mutex("p"), theirs.plain_mutex("p")),
    ] {
        let guard = mine.lock().unwrap();
        assert!(guard.is_held());
        assert!(other.try_lock().unwrap().is_none());
        assert!(other.try_lock_for(ms(30)).unwrap().is_none());
        let token = guard.token();
        assert_eq!(guard.release().unwrap(), Release::Released);
        let next = other.try_lock_for(PATIENCE).unwrap().unwrap();
        assert!(next.token() > token);
        drop(next);
        let job = mine.clone().at_least(PATIENCE).lock().unwrap();
        assert!(matches!(job.release().unwrap(), Release::Kept { .. }));
        assert!(mine.try_lock().unwrap().is_none());
    }
    let read = ours.read_lock("rw").lock().unwrap();
    let other = theirs.read_lock("rw").lock().unwrap();
    assert!(theirs.write_lock("rw").try_lock().unwrap().is_none());
    drop((read, other));
    let write = ours.write_lock("rw").try_lock_for(PATIENCE).unwrap();
    let read = ours.wait(write.unwrap().into_async().downgrade()).unwrap();
    assert!(theirs.read_lock("rw").try_lock().unwrap().is_some());
    ours.wait(read.release()).unwrap();

    let mut two = ours.permits("s", 3, 2).lock().unwrap();
    assert!(theirs.permits("s", 3, 2).try_lock().unwrap().is_none());
    drop(two.split(1));
    let more = theirs.permits("s", 3, 2).try_lock_for(PATIENCE).unwrap();
    assert_eq!(more.unwrap().num_permits(), 2);
}

#[test]
fn threads_take_turns() {
    let server = server();
    let (ours, theirs) = (connect(&server), connect(&server));
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for locks in [&ours, &ours, &theirs, &theirs] {
            scope.spawn(|| {
                let lock = locks.mutex("a");
                for _ in 0..20 {
                    let _guard = lock.lock().unwrap();
                    let seen = count.load(Ordering::SeqCst);
                    std::thread::yield_now();
                    count.store(seen + 1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 80);
}

#[test]
fn conditions_and_losses_are_told() {
    let server = server();
    let (ours, theirs) = (connect(&server), connect(&server));
    let guard = ours.mutex("a").lease(ms(300)).lock().unwrap();
    assert_eq!(guard.wait_lost(ms(1)), None);
    let lost = guard.cancellation();
    assert_eq!(guard.wait_lost(PATIENCE), Some(LostReason::Expired));
    assert!(lost.is_cancelled() && !guard.is_held());

    let short = ours.mutex("b").max_hold(ms(100)).lock().unwrap();
    assert_eq!(short.wait_lost(PATIENCE), Some(LostReason::MaxHold));
    let error = ours.mutex("c").at_least(ms(200)).max_hold(ms(100));
    assert_eq!(error.lock().unwrap_err().kind(), ErrorKind::BadLease);
    // There is no replica that could confirm it.
    let replicated = ours.mutex("d").replicated(Replicas::All).try_lock();
    assert!(!matches!(replicated, Ok(Some(_))), "{replicated:?}");

    // All else is done by waiting for it.
    let latch = ours.asynchronous().latch("l");
    ours.wait(latch.try_set_count(1)).unwrap();
    assert!(ours.wait_for(ms(30), latch.wait()).is_none());
    theirs
        .wait(theirs.asynchronous().latch("l").count_down())
        .unwrap();
    ours.wait(latch.wait()).unwrap();

    let last = ours.mutex("e").lock().unwrap();
    ours.shutdown().unwrap();
    assert!(!last.is_held());
    assert_eq!(
        ours.mutex("e").lock().unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert_free(&theirs, "e");
}

#[test]
fn what_is_dropped_last_is_released() {
    let server = server();
    let theirs = connect(&server);
    let ours = connect(&server);
    let (guard, lock) = (ours.mutex("a").lock().unwrap(), ours.mutex("b"));
    drop(ours);
    // The handle and the guard keep the thread.
    drop(lock.lock().unwrap());
    drop(lock);
    assert!(theirs.mutex("a").try_lock().unwrap().is_none());
    drop(guard);
    assert_free(&theirs, "a");
    assert_free(&theirs, "b");

    // A guard without the thread: it is released all the same.
    let ours = connect(&server);
    let guard = ours.mutex("c").lock().unwrap().into_async();
    drop(ours);
    drop(guard);
    assert_free(&theirs, "c");
}

#[test]
fn inside_of_a_runtime_it_panics_with_a_reason_and_guards_can_be_dropped() {
    let server = server();
    let locks = connect(&server);
    let (guard, last) = (locks.mutex("a").lock().unwrap(), connect(&server));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let panic = catch_unwind(AssertUnwindSafe(|| locks.mutex("b").lock())).unwrap_err();
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
            .expect("a message");
        assert!(text.contains("from within a runtime"), "{text}");
        drop(guard);
        // The last handle ends its thread from here.
        drop(last);
        let lock = locks.mutex("b");
        let taken = tokio::task::spawn_blocking(move || lock.lock().map(|guard| guard.is_held()));
        assert!(taken.await.unwrap().unwrap());
    });
    assert_free(&locks, "a");
    assert_free(&locks, "b");
}

#[test]
fn an_unusable_server_is_an_error() {
    let nobody = Port::reserve();
    let url = format!("redis://127.0.0.1:{}", nobody.number());
    let error = Locks::connect(url).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(
        Locks::connect("nonsense").unwrap_err().kind(),
        ErrorKind::Config
    );
}

/// Threads of this process with the name of those that serve blocking locks, as far as the system keeps it.
fn serving() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads of this process");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names
        .filter(|name| name.starts_with("leasehold-block"))
        .count()
}

#[test]
fn a_fork_has_none_of_the_locks_and_the_thread_ends_with_them() {
    in_own_process(async {
        let done = tokio::task::spawn_blocking(|| {
            let server = server();
            let locks = connect(&server);
            let guard = locks.mutex("a").lock().unwrap();
            let code = in_a_fork(|| async {
                let blocking = || {
                    assert!(!guard.is_held());
                    let error = locks.mutex("b").lock().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Forked, "{error}");
                    let anew = connect(&server);
                    assert!(anew.mutex("a").try_lock().unwrap().is_none());
                    anew.mutex("b").lock().unwrap().release().unwrap();
                };
                std::thread::scope(|scope| scope.spawn(blocking).join()).unwrap();
            });
            assert_eq!(code, 0);
            assert!(guard.is_held());
            drop((guard, locks));
            let until = std::time::Instant::now() + PATIENCE;
            while serving() > 0 {
                assert!(std::time::Instant::now() < until, "the thread never ends");
                std::thread::sleep(ms(10));
            }
        });
        done.await.unwrap();
    });
}
