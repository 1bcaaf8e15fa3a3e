//! The cancellation harness drops a future at each of its await points, once.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use leasehold_testkit::cancel::{at_every_await, cancel_at};
use tokio::task::yield_now;

#[tokio::test]
async fn every_await_point_is_visited_once_and_in_order() {
    let step = Cell::new(0);
    let dropped_after = RefCell::new(Vec::new());
    let operation = || async {
        step.set(0);
        for n in 1..=3 {
            yield_now().await;
            step.set(n);
        }
        "done"
    };
    let (output, points) = at_every_await(operation, |_| {
        dropped_after.borrow_mut().push(step.get());
        async {}
    })
    .await;
    assert_eq!((output, points), ("done", 3));
    assert_eq!(*dropped_after.borrow(), [0, 1, 2]);
}

#[tokio::test]
async fn a_future_is_really_dropped_at_its_await_point() {
    struct Guard<'a>(&'a Cell<bool>);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let dropped = Cell::new(false);
    let waiting = async {
        let _guard = Guard(&dropped);
        std::future::pending::<()>().await;
    };
    assert_eq!(cancel_at(waiting, 0).await, None);
    assert!(dropped.get());
}

#[tokio::test]
async fn a_future_without_await_points_completes_at_once() {
    assert_eq!(cancel_at(async { 7 }, 0).await, Some(7));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "neither done nor pending")]
async fn a_future_that_hangs_is_noticed() {
    cancel_at(std::future::pending::<()>(), 5).await;
}

#[tokio::test(start_paused = true)]
async fn under_paused_time_the_count_is_the_same_each_run() {
    let operation = || async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    for _ in 0..3 {
        assert_eq!(at_every_await(operation, |_| async {}).await.1, 5);
    }
}
