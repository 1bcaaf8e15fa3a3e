//! The latch and Redisson's.

use leasehold::Latch;
use tokio::task::JoinHandle;

use crate::stage::everywhere;
use crate::support::{ms, within};

fn wait(latch: &Latch) -> JoinHandle<()> {
    let latch = latch.clone();
    tokio::spawn(async move { latch.wait().await.unwrap() })
}

#[tokio::test]
async fn a_latch_is_set_and_counted_by_both_and_opens_for_both() {
    everywhere(async |stage| {
        let name = stage.name("latch");
        let [java, waiter] = [0, 1].map(|n| stage.java[n].thread());
        let theirs = format!("latch({name})");
        let ours = stage.locks.latch(&name);
        if stage.is_cluster() && stage.is_tagged() {
            // Its channel is in another slot than its key; ours works on such names.
            let set = java.call(format!("{theirs}.trySetCount(2)")).await;
            assert!(
                set.threw("RedisException") && set.result.contains("CROSSSLOT"),
                "{set:?}"
            );
            assert!(ours.try_set_count(1).await.unwrap());
            let opens = wait(&ours);
            assert_eq!(ours.count_down().await.unwrap(), 0);
            return within("the latch opens", opens).await.unwrap();
        }
        for round in 0..4 {
            let by_java = round % 2 == 0;
            let set = if by_java {
                java.says(format!("{theirs}.trySetCount(3)")).await
            } else {
                ours.try_set_count(3).await.unwrap()
            };
            assert!(set);
            assert!(!java.says(format!("{theirs}.trySetCount(9)")).await);
            assert!(!ours.try_set_count(9).await.unwrap());
            let mut awaits = waiter.begin(format!("{theirs}.await()"));
            let opens = wait(&ours);
            waiter.sleeps().await;

            java.ok(format!("{theirs}.countDown()")).await;
            assert_eq!(ours.count().await.unwrap(), 2);
            assert_eq!(ours.count_down().await.unwrap(), 1);
            assert_eq!(java.ok(format!("{theirs}.getCount()")).await, "1");
            assert!(!opens.is_finished());
            awaits.is_blocked_for(ms(10)).await;
            // The last one is of either kind.
            if round < 2 {
                java.ok(format!("{theirs}.countDown()")).await;
            } else {
                assert_eq!(ours.count_down().await.unwrap(), 0);
            }
            awaits.answer().await.ok();
            within("the latch opens", opens).await.unwrap();
            assert_eq!(java.ok(format!("{theirs}.getCount()")).await, "0");
        }
        // `await` of Redisson's hangs when a latch is deleted; ours does not.
        assert!(java.says(format!("{theirs}.trySetCount(1)")).await);
        let opens = wait(&ours);
        tokio::time::sleep(ms(60)).await;
        assert!(java.says(format!("{theirs}.delete()")).await);
        within("the latch opens", opens).await.unwrap();
    })
    .await;
}
