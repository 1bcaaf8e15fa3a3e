//! Tasks that meet: at the barrier of all processes, and at latches of their own.

use std::time::Duration;

use leasehold_testkit::history::{Recorder, What, now};
use leasehold_testkit::storm::{BARRIER, PARTIES};

use crate::Worker;

/// Time to wait for others.
const PATIENCE: Duration = Duration::from_millis(300);
/// How often a latch is counted down.
const COUNT: u32 = 3;

/// Waits at the barrier for a while.
pub(crate) async fn barrier(worker: &Worker, recorder: &Recorder, task: u64) {
    let (key, parties) = (BARRIER.to_owned(), PARTIES);
    recorder.record(What::Arrive {
        key: key.clone(),
        parties,
    });
    let barrier = worker.locks.barrier(BARRIER, PARTIES);
    let passed = if task == 0 {
        // One that is given up at whichever await point it has reached.
        match tokio::time::timeout(PATIENCE, barrier.wait()).await {
            Ok(passed) => passed.ok(),
            Err(_) => None,
        }
    } else {
        barrier.wait_for(PATIENCE).await.ok().flatten()
    };
    recorder.record(match passed {
        Some(passed) => What::Passed {
            key,
            generation: passed.generation(),
            leader: passed.is_leader(),
        },
        None => What::Withdrawn { key },
    });
}

/// Sets a latch, waits for it and counts it down. An error ends it: nobody knows then what was counted.
pub(crate) async fn latch(worker: &Worker, recorder: &Recorder, number: u64) {
    let key = format!("family:latch:{number:x}");
    let latch = worker.locks.latch(&key).expiry(Duration::from_secs(60));
    recorder.record(What::SetCount {
        key: key.clone(),
        count: COUNT,
    });
    if !latch.try_set_count(COUNT.into()).await.is_ok_and(|set| set) {
        return;
    }
    let counts = async {
        for participant in 0..COUNT {
            recorder.record(What::CountDown { key: key.clone() });
            let participant = format!("{participant}");
            // Repeated until it is answered: a participant is counted once.
            while latch.count_down_as(&participant).await.is_err() {
                if worker.is_over() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            recorder.record(What::Counted { key: key.clone() });
            let (key, asked) = (key.clone(), now());
            if let Ok(count) = latch.count().await {
                let count = u32::try_from(count).expect("a small count");
                recorder.record(What::Counts { key, asked, count });
            }
        }
    };
    let waits = async {
        recorder.record(What::Awaits { key: key.clone() });
        for _ in 0..100 {
            match latch.wait_for(Duration::from_secs(1)).await {
                Ok(true) => {
                    recorder.record(What::Opened { key: key.clone() });
                    return;
                }
                Ok(false) | Err(_) if worker.is_over() => return,
                Ok(false) | Err(_) => {}
            }
        }
    };
    tokio::join!(counts, waits);
}
