//! Random operations of several processes on semaphores of a real server, against a count and a queue in memory.
//!
//! 1,000 sequences. After each operation the server has the permits of the reference, and its line.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::IntoFuture;

use leasehold::{Error, Interop, Locks, Permit, Release, Semaphore};
use leasehold_testkit::{Raw, RawValue};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::place::Place;
use crate::support::within;

const CLIENTS: usize = 3;
const SEQUENCES: u32 = 1_000;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A client waits for permits, unless it does already.
    Acquire { client: usize, permits: u32 },
    /// A client wants them now.
    Try { client: usize, permits: u32 },
    /// One of the holds is given back: waits for the answer, or drops it.
    Release { which: usize, awaited: bool },
    /// A part of one becomes a hold of its own.
    Split { which: usize, permits: usize },
    /// Two of one client become one.
    Merge { which: usize, other: usize },
    /// One of those who wait gives up.
    Cancel(usize),
    /// There are so many in all from now on.
    Set { client: usize, permits: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let client = || 0..CLIENTS;
    let any_permits = || prop_oneof![4 => Just(1_u32), 3 => 2..4_u32, 1 => 4..6_u32];
    prop_oneof![
        8 => (client(), any_permits()).prop_map(|(client, permits)| Op::Acquire { client, permits }),
        4 => (client(), any_permits()).prop_map(|(client, permits)| Op::Try { client, permits }),
        8 => (0..8_usize, any::<bool>()).prop_map(|(which, awaited)| Op::Release { which, awaited }),
        2 => (0..8_usize, 0..4_usize).prop_map(|(which, permits)| Op::Split { which, permits }),
        2 => (0..8_usize, 0..8_usize).prop_map(|(which, other)| Op::Merge { which, other }),
        2 => (0..4_usize).prop_map(Op::Cancel),
        1 => (client(), 1..6_u32).prop_map(|(client, permits)| Op::Set { client, permits }),
    ]
}

struct Waiter {
    client: usize,
    permits: u32,
    task: JoinHandle<Result<Permit, Error>>,
}

/// The reference: how many permits there are, who holds some, and who waits.
struct Model<'a> {
    clients: &'a [Locks],
    raw: &'a mut Raw,
    name: String,
    capacity: u32,
    held: Vec<(usize, Permit)>,
    waiting: VecDeque<Waiter>,
}

impl Model<'_> {
    async fn apply(&mut self, op: Op) {
        match op {
            Op::Acquire { client, permits } => self.acquire(client, permits).await,
            Op::Try { client, permits } if permits <= self.capacity => {
                let tried = self.of(client).try_acquire_many(permits).into_future();
                let tried = within("a try", tried).await.unwrap();
                let expected = self.waiting.is_empty() && self.free() >= i64::from(permits);
                assert_eq!(tried.is_some(), expected);
                self.held.extend(tried.map(|permit| (client, permit)));
            }
            Op::Release { which, awaited } if which < self.held.len() => {
                let (_, permit) = self.held.swap_remove(which);
                let permits = permit.num_permits();
                if awaited && permits > 0 {
                    let released = within("a release", permit.release()).await;
                    assert_eq!(released.unwrap(), Release::Released);
                } else {
                    drop(permit);
                }
                self.serve().await;
            }
            Op::Split { which, permits } if which < self.held.len() => {
                let (client, permit) = &mut self.held[which];
                let has = permit.num_permits();
                let part = permit.split(permits);
                assert_eq!(part.is_some(), permits <= has);
                let client = *client;
                self.held.extend(part.map(|part| (client, part)));
            }
            Op::Merge { which, other } if which.max(other) < self.held.len() && which != other => {
                if self.held[which].0 == self.held[other].0 {
                    let (first, last) = (which.min(other), which.max(other));
                    let (_, merged) = self.held.swap_remove(last);
                    self.held[first].1.merge(merged);
                }
            }
            Op::Cancel(which) if which < self.waiting.len() => {
                let waiter = self.waiting.remove(which).unwrap();
                waiter.task.abort();
                assert!(waiter.task.await.unwrap_err().is_cancelled());
                self.serve().await;
            }
            Op::Set { client, permits } if self.waiting.is_empty() => {
                let set = self.of(client);
                within("another number", set.set_permits(permits))
                    .await
                    .unwrap();
                self.capacity = permits;
            }
            _ => return,
        }
        self.check().await;
    }

    async fn acquire(&mut self, client: usize, permits: u32) {
        let waits = |waiter: &Waiter| waiter.client == client;
        if permits > self.capacity || self.waiting.iter().any(waits) {
            return;
        }
        let task = tokio::spawn(self.of(client).acquire_many(permits).into_future());
        self.waiting.push_back(Waiter {
            client,
            permits,
            task,
        });
        self.serve().await;
    }

    /// The first of those who wait have their permits as long as there are enough.
    async fn serve(&mut self) {
        while let Some(first) = self.waiting.front()
            && self.free() >= i64::from(first.permits)
        {
            let Waiter { client, task, .. } = self.waiting.pop_front().unwrap();
            let permit = within("its turn", task).await.unwrap().unwrap();
            self.held.push((client, permit));
        }
    }

    /// The server has what the reference has, soon. Who stands first keeps what is free.
    async fn check(&mut self) {
        let line = format!("leasehold_line:{{{}}}", self.name);
        let taken = format!("{{{}}}:timeout", self.name);
        let clients = self.waiting.iter().map(|waiter| waiter.client);
        let waiting: Vec<_> = clients
            .map(|client| self.clients[client].client_id())
            .collect();
        let held = i64::from(self.capacity) - self.free();
        let expected = if waiting.is_empty() {
            held
        } else {
            held.max(i64::from(self.capacity))
        };
        for round in 0.. {
            let seen = self.raw.cmd(&["ZRANGE", &line, "0", "-1"]).await;
            let seen = seen.array().iter().map(RawValue::str);
            let tickets: Vec<_> = seen
                .filter_map(|ticket| Some(ticket.split_once(':')?.0.to_owned()))
                .collect();
            let count = self.raw.cmd(&["ZCARD", &taken]).await.int();
            if tickets == waiting && count == expected {
                break;
            }
            assert!(
                round < 20_000,
                "{count} taken, {tickets:?}, not {expected}, {waiting:?}"
            );
        }
        assert!(self.held.iter().all(|(_, permit)| permit.is_held()));
        assert!(self.waiting.iter().all(|waiter| !waiter.task.is_finished()));
        let (free, expected) = (self.of(0).available().await.unwrap(), self.free().max(0));
        let expected = if waiting.is_empty() { expected } else { 0 };
        assert_eq!(i64::from(free), expected);
    }

    /// All have their turns, and nothing is left.
    async fn finish(mut self) {
        while !self.held.is_empty() {
            let op = Op::Release {
                which: 0,
                awaited: true,
            };
            self.apply(op).await;
        }
        assert!(self.waiting.is_empty());
        let all = self.of(0).available().await.unwrap();
        assert_eq!(all, self.capacity);
    }

    fn of(&self, client: usize) -> Semaphore {
        self.clients[client].semaphore(&self.name, self.capacity)
    }

    fn free(&self) -> i64 {
        let held = self.held.iter().map(|(_, permit)| permit.num_permits());
        i64::from(self.capacity) - held.sum::<usize>() as i64
    }
}

fn random_operations_are_those_of_a_count(place: impl Future<Output = Place>, interop: Interop) {
    let runtime = Runtime::new().unwrap();
    let (place, clients, raw) = runtime.block_on(async {
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
    let state = RefCell::new((raw, 0));
    let play = |ops: Vec<Op>| {
        let mut state = state.borrow_mut();
        let (raw, sequence) = &mut *state;
        *sequence += 1;
        runtime.block_on(async {
            let mut model = Model {
                clients: &clients,
                raw,
                name: format!("counted-{sequence}"),
                capacity: 4,
                held: Vec::new(),
                waiting: VecDeque::new(),
            };
            for op in ops {
                model.apply(op).await;
            }
            model.finish().await;
        });
    };
    play(MERGED.into());
    let result = runner.run(&vec(op(), 1..16), |ops| {
        play(ops);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Permits that were merged come back by two requests: the one who is first needs both, and learns of the first meanwhile.
const MERGED: [Op; 6] = [
    Op::Acquire {
        client: 1,
        permits: 2,
    },
    Op::Try {
        client: 1,
        permits: 1,
    },
    Op::Acquire {
        client: 0,
        permits: 1,
    },
    Op::Acquire {
        client: 0,
        permits: 3,
    },
    Op::Merge { which: 1, other: 0 },
    Op::Acquire {
        client: 1,
        permits: 1,
    },
];

#[test]
fn random_operations_are_those_of_a_count_in_memory() {
    random_operations_are_those_of_a_count(Place::server(), Interop::Off);
}

#[test]
fn random_operations_are_those_of_a_count_in_memory_with_redisson_in_the_fleet() {
    random_operations_are_those_of_a_count(Place::server(), Interop::Redisson);
}

#[cfg(feature = "testing")]
#[test]
fn random_operations_at_the_fake_are_those_of_a_count_in_memory_too() {
    random_operations_are_those_of_a_count(Place::fake(), Interop::Off);
}
