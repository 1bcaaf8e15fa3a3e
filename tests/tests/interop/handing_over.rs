//! Hand-offs between the two, by message.

use leasehold::{Acquire, Error};
use leasehold_testkit::history::now;

use crate::stage::Stage;
use crate::support::{HandOffs, ms, until, within};

/// Hands the lock `name` so many times from Redisson's `lock` (`kind(name)`) to ours and back. All leases are of 30 s, and each
/// wait begins when the other holds, so only a message can be in time.
pub(crate) async fn hand_over<G, F>(
    stage: &Stage,
    name: &str,
    lock: &str,
    rounds: usize,
    acquire: impl Fn() -> Acquire<G>,
) where
    Acquire<G>: IntoFuture<Output = Result<G, Error>, IntoFuture = F>,
    F: Future<Output = Result<G, Error>> + Send + 'static,
    G: Send + 'static,
{
    let java = stage.java[0].thread();
    let kind = lock.split('(').next().unwrap_or_default();
    let mut to_us = HandOffs::new(format!("from Redisson's {kind}: {}", stage.label));
    let mut to_java = HandOffs::new(format!("to Redisson's {kind}: {}", stage.label));
    for _ in 0..rounds {
        java.ok(format!("{lock}.lock()")).await;
        let ours = tokio::spawn(acquire().into_future());
        until("a ticket", async || stage.tickets(name).await == 1).await;
        let unlocked = java.call(format!("{lock}.unlock()")).await;
        unlocked.ok();
        let guard = within("our turn", ours).await.unwrap().unwrap();
        to_us.until_now(unlocked.begin);

        let mut waits = java.begin(format!("{lock}.lock()"));
        waits.is_blocked_for(ms(60)).await;
        let released = now();
        drop(guard);
        let locked = waits.answer().await;
        locked.ok();
        to_java.add(released, locked.end);
        java.ok(format!("{lock}.unlock()")).await;
    }
    to_us.were_by_message();
    to_java.were_by_message();
}
