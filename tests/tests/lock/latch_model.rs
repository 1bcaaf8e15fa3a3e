//! Random sequences of operations on a latch, ours and Redisson's, against one in memory.

use std::collections::BTreeSet;

use leasehold::{ErrorKind, Interop, Latch, Locks};
use leasehold_testkit::Raw;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::place::Place;
use crate::support::ms;

#[derive(Clone, Copy, Debug)]
enum Op {
    TrySet(u64),
    Reset(u64),
    Count,
    CountAs(u8),
    Look,
    WaitBriefly,
    /// Redisson's.
    JavaSet(u64),
    JavaCount,
    /// The count vanishes: evicted, or deleted by hand.
    Evict,
}

/// A latch in memory.
#[derive(Debug, Default)]
struct Reference {
    beside_redisson: bool,
    count: u64,
    /// What the latest change of ours has left.
    noted: u64,
    participants: BTreeSet<u8>,
    lost: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Number(u64),
    Is(bool),
    Lost,
}

impl Reference {
    fn run(&mut self, op: Op) -> Told {
        match op {
            Op::TrySet(_) if self.count > 0 => Told::Is(false),
            Op::TrySet(n) => {
                self.set(n);
                Told::Is(true)
            }
            Op::Reset(n) => {
                self.set(n);
                Told::Is(true)
            }
            Op::Count => self.count_down(None),
            Op::CountAs(participant) => self.count_down(Some(participant)),
            Op::Look if self.lost => Told::Lost,
            Op::Look => Told::Number(self.count),
            Op::WaitBriefly if self.lost => Told::Lost,
            Op::WaitBriefly => Told::Is(self.count == 0),
            Op::JavaSet(_) if self.count > 0 || !self.beside_redisson => Told::Is(false),
            Op::JavaSet(n) => {
                self.count = n;
                Told::Is(true)
            }
            Op::JavaCount => {
                if self.beside_redisson {
                    self.count = self.count.saturating_sub(1);
                }
                Told::Is(true)
            }
            Op::Evict => {
                self.count = 0;
                self.lost = !self.beside_redisson && self.noted > 0;
                Told::Is(true)
            }
        }
    }

    fn set(&mut self, n: u64) {
        self.participants.clear();
        (self.count, self.noted, self.lost) = (n, n, false);
    }

    fn count_down(&mut self, participant: Option<u8>) -> Told {
        if self.lost {
            return Told::Lost;
        }
        if self.count == 0 {
            return Told::Number(0);
        }
        if self.noted > 0 && self.count > self.noted {
            // Redisson has set it anew.
            self.participants.clear();
        }
        if participant.is_none_or(|participant| self.participants.insert(participant)) {
            self.count -= 1;
            self.noted = self.count;
        }
        if self.count == 0 {
            self.participants.clear();
        }
        Told::Number(self.count)
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        2 => (1..4_u64).prop_map(Op::TrySet),
        1 => (1..4_u64).prop_map(Op::Reset),
        3 => Just(Op::Count),
        4 => (0..3_u8).prop_map(Op::CountAs),
        2 => Just(Op::Look),
        1 => Just(Op::WaitBriefly),
        1 => (1..4_u64).prop_map(Op::JavaSet),
        2 => Just(Op::JavaCount),
        1 => Just(Op::Evict),
    ];
    vec(op, 1..16)
}

/// Two clients of each kind, a raw connection for Redisson's commands and evictions.
struct Real {
    clients: [[Locks; 2]; 2],
    raw: Raw,
    next: usize,
}

impl Real {
    async fn start(place: &Place) -> Self {
        let connect = async |interop| {
            let builder = Locks::builder(place.url()).interop(interop);
            builder.connect().await.unwrap()
        };
        let mut clients = Vec::new();
        for interop in [Interop::Off, Interop::Redisson] {
            clients.push([connect(interop).await, connect(interop).await]);
        }
        let clients = clients.try_into().map_err(|_| "two").unwrap();
        Self {
            clients,
            raw: place.raw().await,
            next: 0,
        }
    }

    async fn run(&mut self, latch: &Latch, op: Op, beside_redisson: bool) -> Told {
        let told = match op {
            Op::TrySet(n) => latch.try_set_count(n).await.map(Told::Is),
            Op::Reset(n) => latch.reset(n).await.map(|()| Told::Is(true)),
            Op::Count => latch.count_down().await.map(Told::Number),
            Op::CountAs(n) => latch.count_down_as(n.to_string()).await.map(Told::Number),
            Op::Look => latch.count().await.map(Told::Number),
            Op::WaitBriefly => latch.wait_for(ms(0)).await.map(Told::Is),
            Op::JavaSet(n) if beside_redisson => {
                let set = ["SET", latch.key(), &n.to_string(), "NX"];
                Ok(Told::Is(self.raw.cmd(&set).await.is_ok()))
            }
            Op::JavaSet(_) => Ok(Told::Is(false)),
            Op::JavaCount => {
                const COUNT: &str = "if redis.call('DECR', KEYS[1]) <= 0 then \
                                     redis.call('DEL', KEYS[1]) end";
                if beside_redisson {
                    self.raw.cmd(&["EVAL", COUNT, "1", latch.key()]).await;
                }
                Ok(Told::Is(true))
            }
            Op::Evict => {
                self.raw.cmd(&["DEL", latch.key()]).await;
                Ok(Told::Is(true))
            }
        };
        told.unwrap_or_else(|error| {
            assert_eq!(error.kind(), ErrorKind::Broken, "{error}");
            Told::Lost
        })
    }
}

#[test]
fn random_sequences_of_operations_do_what_a_latch_in_memory_does() {
    random_sequences(Place::server());
}

fn random_sequences(place: impl Future<Output = Place>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (place, mut real) = runtime.block_on(async {
        let place = place.await;
        let real = Real::start(&place).await;
        (place, real)
    });
    let mut runner = TestRunner::new(Config {
        cases: place.sequences(1_000),
        failure_persistence: None,
        ..Config::default()
    });
    let real = std::cell::RefCell::new(&mut real);
    runner
        .run(&(ops(), any::<bool>()), |(ops, beside_redisson)| {
            let mut real = real.borrow_mut();
            let mut reference = Reference {
                beside_redisson,
                ..Reference::default()
            };
            real.next += 1;
            let name = format!("latch{}", real.next);
            let clients = real.clients[usize::from(beside_redisson)].clone();
            runtime.block_on(async {
                for (n, &op) in ops.iter().enumerate() {
                    let latch = clients[n % 2].latch(&name);
                    let (told, expected) = (
                        real.run(&latch, op, beside_redisson).await,
                        reference.run(op),
                    );
                    prop_assert_eq!(told, expected, "{:?}", op);
                }
                Ok(())
            })
        })
        .unwrap();
    runtime.block_on(async { drop(place) });
}

#[cfg(feature = "testing")]
#[test]
fn random_operations_at_the_fake_are_those_of_a_latch_in_memory_too() {
    random_sequences(Place::fake());
}
