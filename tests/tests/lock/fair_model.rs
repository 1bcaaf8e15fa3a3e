//! Random operations of several processes on fair locks of a real server, against a queue in memory.
//!
//! 1,000 sequences. After each operation the lock is the reference's first, and the line its rest.

use std::collections::VecDeque;
use std::future::IntoFuture;

use leasehold::{Error, Guard, Interop, Locks, Release};
use leasehold_testkit::{Raw, RawValue};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::place::Place;
use crate::support::{ms, within};

const CLIENTS: usize = 3;
const SEQUENCES: u32 = 1_000;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A client waits for the lock.
    Lock(usize),
    /// A client wants it now.
    Try(usize),
    /// A client waits, but not long.
    TryFor(usize),
    /// The holder releases it: waits for the answer, or drops the guard.
    Release { awaited: bool },
    /// One of those who wait gives up.
    Cancel(usize),
    /// A client removes it from its holder.
    Force(usize),
    /// The server forgets who holds it.
    Forget,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (0..CLIENTS).prop_map(Op::Lock),
        2 => (0..CLIENTS).prop_map(Op::Try),
        1 => (0..CLIENTS).prop_map(Op::TryFor),
        8 => any::<bool>().prop_map(|awaited| Op::Release { awaited }),
        3 => (0..8_usize).prop_map(Op::Cancel),
        1 => (0..CLIENTS).prop_map(Op::Force),
        1 => Just(Op::Forget),
    ]
}

struct Waiter {
    client: usize,
    task: JoinHandle<Result<Guard, Error>>,
}

/// The reference: who holds the lock, and who waits.
struct Model<'a> {
    clients: &'a [Locks],
    raw: &'a mut Raw,
    name: String,
    held: Option<(usize, Guard)>,
    waiting: VecDeque<Waiter>,
    token: u64,
}

impl Model<'_> {
    async fn apply(&mut self, op: Op) {
        match op {
            Op::Lock(client) => {
                let fair = self.clients[client].fair_mutex(&self.name);
                let task = tokio::spawn(fair.lock().into_future());
                self.waiting.push_back(Waiter { client, task });
                if self.held.is_none() {
                    self.next().await;
                }
            }
            Op::Try(client) => {
                let fair = self.clients[client].fair_mutex(&self.name);
                let tried = within("a try", fair.try_lock().into_future()).await;
                self.took(client, tried.unwrap());
            }
            Op::TryFor(client) => {
                let fair = self.clients[client].fair_mutex(&self.name);
                // Two milliseconds may be over before an answer is here.
                let wait = if self.held.is_some() {
                    ms(2)
                } else {
                    ms(10_000)
                };
                let tried = within("a short wait", fair.try_lock_for(wait).into_future()).await;
                self.took(client, tried.unwrap());
            }
            Op::Release { awaited } => {
                let Some((_, guard)) = self.held.take() else {
                    return;
                };
                if awaited {
                    let released = within("a release", guard.release()).await;
                    assert_eq!(released.unwrap(), Release::Released);
                } else {
                    drop(guard);
                }
                self.next().await;
            }
            Op::Cancel(which) => {
                if which < self.waiting.len() {
                    let waiter = self.waiting.remove(which).unwrap();
                    waiter.task.abort();
                    assert!(waiter.task.await.unwrap_err().is_cancelled());
                }
            }
            Op::Force(client) => {
                let fair = self.clients[client].fair_mutex(&self.name);
                let removed = within("its removal", fair.force_unlock()).await;
                assert_eq!(removed.unwrap(), self.held.is_some());
                self.over().await;
            }
            Op::Forget => {
                // Nobody is told, so it is for those only who do not wait for it.
                if self.waiting.is_empty() {
                    self.raw.cmd(&["DEL", &self.name]).await;
                    self.over().await;
                }
            }
        }
        self.check().await;
    }

    /// A try or a short wait has this result.
    fn took(&mut self, client: usize, guard: Option<Guard>) {
        assert_eq!(guard.is_some(), self.held.is_none());
        if let Some(guard) = guard {
            self.hold(client, guard);
        }
    }

    /// The present hold is gone from the server.
    async fn over(&mut self) {
        if let Some((_, guard)) = self.held.take() {
            let released = within("a release", guard.release()).await;
            assert_eq!(released.unwrap(), Release::AlreadyGone);
            self.next().await;
        }
    }

    /// The first of those who wait has it now.
    async fn next(&mut self) {
        if let Some(Waiter { client, task }) = self.waiting.pop_front() {
            let guard = within("its turn", task).await.unwrap().unwrap();
            self.hold(client, guard);
        }
    }

    fn hold(&mut self, client: usize, guard: Guard) {
        assert!(guard.is_held());
        assert!(guard.token().as_u64() > self.token, "tokens grow");
        self.token = guard.token().as_u64();
        self.held = Some((client, guard));
    }

    /// The server has what the reference has, soon: those who wait, and those who gave up, are on their
    /// way.
    async fn check(&mut self) {
        let line = format!("leasehold_line:{{{}}}", self.name);
        let clients = self.waiting.iter().map(|waiter| waiter.client);
        let waiting: Vec<_> = clients
            .map(|client| self.clients[client].client_id())
            .collect();
        let held = self
            .held
            .as_ref()
            .map(|(client, _)| self.clients[*client].client_id());
        for round in 0.. {
            let seen = self.raw.cmd(&["ZRANGE", &line, "0", "-1"]).await;
            let seen = seen.array().iter().map(RawValue::str);
            let tickets: Vec<_> = seen
                .filter_map(|ticket| Some(ticket.split_once(':')?.0.to_owned()))
                .collect();
            let holder = self.raw.cmd(&["HKEYS", &self.name]).await;
            let holder = holder.array().first().map(RawValue::str);
            let holder = holder.and_then(|holder| Some(holder.split_once(':')?.0));
            if tickets == waiting && holder == held {
                return;
            }
            assert!(
                round < 20_000,
                "{holder:?} {tickets:?}, not {held:?} {waiting:?}"
            );
        }
    }

    /// All have their turns, and nothing is left.
    async fn finish(mut self) {
        while self.held.is_some() {
            self.apply(Op::Release { awaited: true }).await;
        }
        assert!(self.waiting.is_empty());
        for prefix in [
            "leasehold_line",
            "redisson_lock_queue",
            "redisson_lock_timeout",
        ] {
            let key = format!("{prefix}:{{{}}}", self.name);
            assert_eq!(self.raw.cmd(&["EXISTS", &key]).await.int(), 0, "{key}");
        }
    }
}

fn random_operations_are_those_of_a_queue(place: impl Future<Output = Place>, interop: Interop) {
    let runtime = Runtime::new().unwrap();
    let (place, clients, mut raw) = runtime.block_on(async {
        let place = place.await;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let locks = Locks::builder(place.url()).interop(interop);
            clients.push(locks.connect().await.unwrap());
        }
        let raw = place.raw().await;
        (place, clients, raw)
    });
    let mut runner = TestRunner::new(Config {
        cases: place.sequences(SEQUENCES / 2),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    });
    let mut sequence = 0;
    let raw = std::cell::RefCell::new(&mut raw);
    let sequence = std::cell::RefCell::new(&mut sequence);
    let result = runner.run(&vec(op(), 1..16), |ops| {
        let mut sequence = sequence.borrow_mut();
        **sequence += 1;
        let mut raw = raw.borrow_mut();
        runtime.block_on(async {
            let mut model = Model {
                clients: &clients,
                raw: &mut raw,
                name: format!("fair-{}", **sequence),
                held: None,
                waiting: VecDeque::new(),
                token: 0,
            };
            for op in ops {
                model.apply(op).await;
            }
            model.finish().await;
        });
        Ok(())
    });
    drop(place);
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn random_operations_are_those_of_a_queue_in_memory() {
    random_operations_are_those_of_a_queue(Place::server(), Interop::Off);
}

#[test]
fn random_operations_are_those_of_a_queue_in_memory_with_redisson_in_the_fleet() {
    random_operations_are_those_of_a_queue(Place::server(), Interop::Redisson);
}

#[cfg(feature = "testing")]
#[test]
fn random_operations_at_the_fake_are_those_of_a_queue_in_memory_too() {
    random_operations_are_those_of_a_queue(Place::fake(), Interop::Redisson);
}
