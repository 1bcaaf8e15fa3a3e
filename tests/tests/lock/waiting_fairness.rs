//! Fairness between processes that want the same lock: those that wait are served in the order in
//! which they came, and nobody passes a ticket in line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{Locks, Mutex};
use leasehold_testkit::{Fault, Proxy, Raw, Server};
use tokio::task::JoinHandle;

use crate::support::{in_line, its_turn, line, locks, ms, until, within};

/// How long processes compete.
const FIGHT: Duration = Duration::from_secs(3);

/// One process that takes a lock over and over.
struct Contender {
    turns: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
enum Means {
    Lock,
    TryLock,
}

impl Contender {
    /// Holds the lock for `hold` each time.
    fn start(mutex: Mutex, means: Means, hold: Duration) -> Self {
        let (turns, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let task = tokio::spawn({
            let (turns, stop) = (Arc::clone(&turns), Arc::clone(&stop));
            async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = match means {
                        Means::Lock => Some(mutex.lock().await.unwrap()),
                        Means::TryLock => mutex.try_lock().await.unwrap(),
                    };
                    turns.fetch_add(usize::from(guard.is_some()), Ordering::SeqCst);
                    if !hold.is_zero() {
                        tokio::time::sleep(hold).await;
                    }
                    drop(guard);
                }
            }
        });
        Self { turns, stop, task }
    }

    fn turns(&self) -> usize {
        self.turns.load(Ordering::SeqCst)
    }

    async fn finish(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        within("the last turn", self.task).await.unwrap();
        self.turns.load(Ordering::SeqCst)
    }
}

async fn clients(server: &Server, count: usize) -> Vec<Locks> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(locks(server).await);
    }
    clients
}

/// Locks this far away from the server, in each direction.
async fn away(proxy: &Proxy, distance: Duration) -> Locks {
    let locks = Locks::connect(proxy.url()).await.unwrap();
    proxy.to_server(Fault::Delay(distance));
    proxy.to_client(Fault::Delay(distance));
    locks
}

/// Jain's index: 1 if all have the same number of turns, 1/n if one has them all.
fn jain(turns: &[usize]) -> f64 {
    let sum: f64 = turns.iter().map(|&turns| turns as f64).sum();
    let squares: f64 = turns.iter().map(|&turns| (turns as f64).powi(2)).sum();
    sum.powi(2) / (turns.len() as f64 * squares)
}

/// A turn of `locks`. Returns how many turns `others` had from when its ticket was seen in line.
async fn passed_by(raw: &mut Raw, locks: &Locks, others: &[Contender]) -> usize {
    let waiter = tokio::spawn(locks.mutex("a").lock().into_future());
    let turns = || others.iter().map(Contender::turns).sum::<usize>();
    let mut before = None;
    until("its ticket, or its turn", async || {
        let line = line(raw, "a").await;
        let is_ours = |ticket: &String| ticket.starts_with(locks.client_id());
        before = line.iter().any(is_ours).then(turns);
        before.is_some() || waiter.is_finished()
    })
    .await;
    let guard = its_turn(waiter).await;
    let passed = before.map_or(0, |before| turns() - before);
    drop(guard);
    passed
}

#[tokio::test]
async fn waiters_of_several_processes_are_served_in_the_order_in_which_they_came() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for count in [2, 5] {
        let clients = clients(&server, count).await;
        // Another order each time.
        for round in 0..5 {
            let holder = locks(&server).await;
            let mut held = holder.mutex("a").lock().await.unwrap();
            let order: Vec<&Locks> = (0..count)
                .map(|n| &clients[(n * 3 + round) % count])
                .collect();
            let mut waiters = Vec::new();
            for locks in &order {
                waiters.push(in_line(&mut raw, locks, "a").await);
            }
            for (locks, waiter) in order.iter().zip(waiters) {
                let token = held.token();
                held.release().await.unwrap();
                held = its_turn(waiter).await;
                assert!(held.token() > token);
                let holder = holder.mutex("a").holder().await.unwrap().unwrap();
                assert_eq!(holder.client(), locks.client_id());
            }
            held.release().await.unwrap();
        }
    }
}

/// The holder, whose turn may not be counted yet when the ticket is seen in line, and each of the
/// others ahead of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_in_line_is_passed_by_each_other_process_once_at_most() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for count in [1, 4] {
        let (others, ours) = (clients(&server, count).await, locks(&server).await);
        let others: Vec<_> = others
            .iter()
            .map(|locks| Contender::start(locks.mutex("a"), Means::Lock, Duration::ZERO))
            .collect();
        for _ in 0..50 {
            let passed = passed_by(&mut raw, &ours, &others).await;
            assert!(passed <= count, "{count} passed by {passed} times");
        }
        for other in others {
            assert!(other.finish().await > 0);
        }
    }
}

/// A process that is near the server, and never rests, against one far away.
async fn starve(near: Means, distance: Duration) {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.addr());
    let (ours, theirs) = (locks(&server).await, away(&proxy, distance).await);
    let near = [Contender::start(ours.mutex("a"), near, Duration::ZERO)];
    for _ in 0..20 {
        let passed = passed_by(&mut raw, &theirs, &near).await;
        assert!(passed <= 1, "{distance:?} away, passed by {passed} times");
    }
    for near in near {
        assert!(near.finish().await > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_process_nearby_does_not_starve_one_that_waits_far_away() {
    starve(Means::Lock, ms(10)).await;
    starve(Means::Lock, ms(40)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_of_attempts_takes_no_lock_for_which_somebody_waits_far_away() {
    starve(Means::TryLock, ms(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_lock_in_loops_have_the_same_number_of_turns() {
    let server = Server::start().await;
    for count in [2, 5, 8] {
        let clients = clients(&server, count).await;
        let contenders: Vec<_> = clients
            .iter()
            .map(|locks| Contender::start(locks.mutex("a"), Means::Lock, ms(1)))
            .collect();
        let turns = || contenders.iter().map(Contender::turns).collect::<Vec<_>>();
        // From when all of them take part.
        until("a turn each", async || {
            turns().iter().all(|&turns| turns > 0)
        })
        .await;
        let before = turns();
        tokio::time::sleep(FIGHT).await;
        let had: Vec<usize> = turns()
            .iter()
            .zip(before)
            .map(|(now, then)| now - then)
            .collect();
        for contender in contenders {
            contender.finish().await;
        }
        assert!(jain(&had) >= 0.99, "{had:?}");
    }
}
