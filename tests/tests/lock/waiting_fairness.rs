//! Fairness between processes that want the same lock all the time.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Locks, Mutex};
use leasehold_testkit::{Fault, Proxy, Server};
use tokio::task::JoinHandle;

use crate::support::{locks, ms, within};

/// How long two of them fight.
const FIGHT: Duration = Duration::from_secs(8);

/// One process that takes a lock over and over.
struct Contender {
    grants: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
enum Means {
    Lock,
    TryLock,
}

impl Contender {
    /// Holds the lock for a millisecond each time.
    fn start(mutex: Mutex, means: Means) -> Self {
        let (grants, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let task = tokio::spawn({
            let (grants, stop) = (Arc::clone(&grants), Arc::clone(&stop));
            async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = match means {
                        Means::Lock => Some(mutex.lock().await.unwrap()),
                        Means::TryLock => mutex.try_lock().await.unwrap(),
                    };
                    grants.fetch_add(usize::from(guard.is_some()), Ordering::SeqCst);
                    tokio::time::sleep(ms(1)).await;
                    drop(guard);
                }
            }
        });
        Self { grants, stop, task }
    }

    async fn finish(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        within("the last turn", self.task).await.unwrap();
        self.grants.load(Ordering::SeqCst)
    }
}

/// Locks this far away from the server, in each direction.
async fn away(proxy: &Proxy, distance: Duration) -> Locks {
    let locks = Locks::connect(proxy.url()).await.unwrap();
    proxy.to_server(Fault::Delay(distance));
    proxy.to_client(Fault::Delay(distance));
    locks
}

/// Each of both gets at least a fifth of all grants. The bound is generous: the machine is busy
/// with other tests.
async fn fight(near: Means, distance: Duration) {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let (ours, theirs) = (locks(&server).await, away(&proxy, distance).await);
    let near = Contender::start(ours.mutex("a"), near);
    tokio::time::sleep(ms(100)).await;
    let far = Contender::start(theirs.mutex("a"), Means::Lock);
    tokio::time::sleep(FIGHT).await;
    let grants = [near.finish().await, far.finish().await];
    let fair = grants.iter().sum::<usize>() / 5;
    assert!(
        grants.iter().all(|&grants| grants > 0 && grants >= fair),
        "near and {distance:?} away: {grants:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_nearby_leaves_its_share_to_one_that_is_far_away() {
    fight(Means::Lock, ms(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_of_attempts_leaves_its_share_to_one_that_is_far_away() {
    fight(Means::TryLock, ms(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hot_names_of_a_process_do_not_switch_its_fairness_off() {
    let index = |name: &str| {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        hasher.finish() % 64
    };
    // Two names that a small table of hashes would take for one another.
    let other = (0..)
        .map(|n| format!("n{n}"))
        .find(|name| index(name) == index("a"))
        .unwrap();
    let server = Server::start().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let hogs = [
        Contender::start(ours.mutex("a"), Means::Lock),
        Contender::start(ours.mutex(&other), Means::Lock),
    ];
    let mut longest = Duration::ZERO;
    let began = Instant::now();
    let mut turns = 0;
    while began.elapsed() < FIGHT {
        let asked = Instant::now();
        let guard = theirs.mutex("a").lock().into_future();
        drop(within("a turn", guard).await.unwrap());
        longest = longest.max(asked.elapsed());
        turns += 1;
    }
    for hog in hogs {
        hog.finish().await;
    }
    // A turn of the hog takes some 50 ms.
    assert!(
        turns >= 5 && longest < ms(3_000),
        "{turns} turns, the longest wait was {longest:?}"
    );
}
