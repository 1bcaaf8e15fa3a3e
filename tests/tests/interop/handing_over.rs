//! Hand-offs between the two, by message.

use leasehold::{Acquire, Error};
use leasehold_testkit::history::now;

use crate::jvm::Thread;
use crate::stage::Stage;
use crate::support::{HandOffs, until, within};

/// Hands the lock `name` so many times from Redisson's `lock` (`kind(name)`) to ours and back.
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
    let in_line = async || stage.tickets(name).await == 1;
    to_and_fro(stage.label, &java, lock, rounds, in_line, acquire).await;
}

/// The same between this thread of Redisson's and ours. `in_line` tells whether ours waits.
pub(crate) async fn to_and_fro<G, F>(
    label: &str,
    java: &Thread,
    lock: &str,
    rounds: usize,
    mut in_line: impl AsyncFnMut() -> bool,
    acquire: impl Fn() -> Acquire<G>,
) where
    Acquire<G>: IntoFuture<Output = Result<G, Error>, IntoFuture = F>,
    F: Future<Output = Result<G, Error>> + Send + 'static,
    G: Send + 'static,
{
    let kind = lock.split('(').next().unwrap_or_default();
    let mut to_us = HandOffs::new(format!("from Redisson's {kind}: {label}"));
    let mut to_java = HandOffs::new(format!("to Redisson's {kind}: {label}"));
    while to_us.are_fewer_than(rounds) || to_java.are_fewer_than(rounds) {
        java.ok(format!("{lock}.lock()")).await;
        let began = now();
        let ours = tokio::spawn(acquire().into_future());
        until("a ticket", &mut in_line).await;
        let unlocked = java.call(format!("{lock}.unlock()")).await;
        unlocked.ok();
        let guard = within("our turn", ours).await.unwrap().unwrap();
        to_us.add(began, unlocked.begin, now());

        let began = now();
        let waits = java.begin(format!("{lock}.lock()"));
        java.sleeps().await;
        let released = now();
        drop(guard);
        let locked = waits.answer().await;
        locked.ok();
        to_java.add(began, released, locked.end);
        java.ok(format!("{lock}.unlock()")).await;
    }
    to_us.print();
    to_java.print();
}
