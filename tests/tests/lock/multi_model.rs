//! Random operations of several processes on several locks at once, and on single ones of them, of real servers, against a
//! reference in memory.
//!
//! Who of those who may go on does so first is not settled, so the reference follows the library there, and checks: no two hold
//! the same lock, none waits whose locks are free, those who wait hold nothing, and the servers have what the reference has.
//! 1,000 sequences at one server, and some in a cluster with locks of three masters.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::IntoFuture;

use leasehold::{Error, Guard, Interop, Locks, MultiGuard, Release};
use leasehold_testkit::{Cluster, Raw, RawValue};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::place::Place;
use crate::support::{ms, within};

const CLIENTS: usize = 3;
const NAMES: usize = 5;
const SEQUENCES: u32 = 1_000;
const IN_A_CLUSTER: u32 = 150;

/// Indices of locks.
type Names = BTreeSet<usize>;

#[derive(Clone, Debug)]
enum Op {
    /// A client waits for these locks.
    Lock(usize, Names),
    /// A client waits for a lock alone.
    LockOne(usize, usize),
    /// A client wants these now.
    Try(usize, Names),
    /// A client waits for these, but not long.
    TryFor(usize, Names),
    /// One of the holders releases what it has: waits for the answer, or drops the guard.
    Release { which: usize, awaited: bool },
    /// One of those who wait gives up.
    Cancel(usize),
    /// A client removes a lock from its holder.
    Force(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let client = || 0..CLIENTS;
    let some = || proptest::collection::btree_set(0..NAMES, 1..NAMES);
    prop_oneof![
        8 => (client(), some()).prop_map(|(client, some)| Op::Lock(client, some)),
        4 => (client(), 0..NAMES).prop_map(|(client, name)| Op::LockOne(client, name)),
        3 => (client(), some()).prop_map(|(client, some)| Op::Try(client, some)),
        2 => (client(), some()).prop_map(|(client, some)| Op::TryFor(client, some)),
        9 => (0..6_usize, any::<bool>()).prop_map(|(which, awaited)| Op::Release { which, awaited }),
        3 => (0..6_usize).prop_map(Op::Cancel),
        1 => (client(), 0..NAMES).prop_map(|(client, name)| Op::Force(client, name)),
    ]
}

/// What one of the clients has.
enum Kept {
    One(Guard),
    Several(MultiGuard),
}

struct Hold {
    client: usize,
    names: Names,
    kept: Kept,
}

struct Waiter {
    client: usize,
    names: Names,
    task: JoinHandle<Result<Kept, Error>>,
}

/// The servers, as a client sees them that shares no code with the library.
struct Eyes {
    /// Of each lock its server.
    raw: Vec<Raw>,
    /// Of each lock its hash tag.
    tags: Vec<String>,
}

impl Eyes {
    /// The clients that hold a lock, and those in line for it.
    async fn see(&mut self, at: usize, name: &str) -> [Vec<String>; 2] {
        const SEE: &str =
            "return {redis.call('HKEYS', KEYS[1]), redis.call('ZRANGE', KEYS[2], 0, -1)}";
        let line = format!("leasehold_line:{name}");
        let seen = self.raw[at].cmd(&["EVAL", SEE, "2", name, &line]).await;
        let client = |id: &RawValue| id.str().split(':').next().unwrap().to_owned();
        let clients = |ids: &RawValue| ids.array().iter().map(client).collect();
        [clients(&seen.array()[0]), clients(&seen.array()[1])]
    }
}

/// The reference: who holds which locks, and who waits for which.
struct Model<'a> {
    clients: &'a [Locks],
    eyes: &'a mut Eyes,
    names: Vec<String>,
    held: Vec<Hold>,
    waiting: Vec<Waiter>,
    /// The latest token of each lock.
    tokens: [u64; NAMES],
}

impl Model<'_> {
    async fn apply(&mut self, op: Op) {
        match op {
            Op::Lock(client, names) => {
                let lock = self.clients[client].multi(self.named(&names)).lock();
                let task = tokio::spawn(async move { lock.await.map(Kept::Several) });
                self.waiting.push(Waiter {
                    client,
                    names,
                    task,
                });
            }
            Op::LockOne(client, name) => {
                let lock = self.clients[client].mutex(&self.names[name]).lock();
                let task = tokio::spawn(async move { lock.await.map(Kept::One) });
                let names = BTreeSet::from([name]);
                self.waiting.push(Waiter {
                    client,
                    names,
                    task,
                });
            }
            Op::Try(client, names) => self.try_lock(client, names).await,
            Op::TryFor(client, names) => {
                let multi = self.clients[client].multi(self.named(&names));
                let tried = within("a short wait", multi.try_lock_for(ms(2)).into_future()).await;
                if let Some(guard) = tried.unwrap() {
                    self.hold(client, names, Kept::Several(guard));
                }
            }
            Op::Release { which, awaited } if which < self.held.len() => {
                let hold = self.held.swap_remove(which);
                release(hold.kept, awaited, Release::Released).await;
            }
            Op::Cancel(which) if which < self.waiting.len() => {
                let waiter = self.waiting.swap_remove(which);
                waiter.task.abort();
                assert!(waiter.task.await.is_err_and(|error| error.is_cancelled()));
            }
            Op::Force(client, name) => {
                let holder = self.held.iter().position(|hold| hold.names.contains(&name));
                // For ten milliseconds after a grant a hold is passed on inside its process without asking the server, so a
                // release need not notice there that it was removed.
                let passes = |at: usize| {
                    let mut waiting = self.waiting.iter();
                    waiting.any(|waiter| {
                        waiter.client == self.held[at].client && waiter.names.contains(&name)
                    })
                };
                if holder.is_some_and(passes) {
                    return;
                }
                let mutex = self.clients[client].mutex(&self.names[name]);
                let forced = within("a removal", mutex.force_unlock()).await;
                assert_eq!(forced.unwrap(), holder.is_some());
                if let Some(at) = holder {
                    let hold = self.held.swap_remove(at);
                    release(hold.kept, true, Release::AlreadyGone).await;
                }
            }
            Op::Release { .. } | Op::Cancel(_) => return,
        }
        self.settle().await;
    }

    /// Those that are free are had. A waiter that could not go on may have one of them for a moment, and gives it back.
    async fn try_lock(&mut self, client: usize, names: Names) {
        let multi = self.clients[client].multi(self.named(&names));
        for round in 0.. {
            let tried = within("a try", multi.try_lock().into_future())
                .await
                .unwrap();
            if let Some(guard) = tried {
                return self.hold(client, names, Kept::Several(guard));
            }
            if !self.are_free(&names) {
                return;
            }
            assert!(round < 5_000, "{names:?} are free, and not to be had");
            tokio::time::sleep(ms(1)).await;
        }
    }

    fn named(&self, names: &Names) -> Vec<&str> {
        names.iter().map(|&name| &*self.names[name]).collect()
    }

    fn are_free(&self, names: &Names) -> bool {
        self.held.iter().all(|hold| hold.names.is_disjoint(names))
    }

    fn hold(&mut self, client: usize, names: Names, kept: Kept) {
        assert!(self.are_free(&names), "two hold one of {names:?}");
        for &name in &names {
            let (is_held, token) = match &kept {
                Kept::One(guard) => (guard.is_held(), guard.token()),
                Kept::Several(guard) => (guard.is_held(), guard.tokens()[&*self.names[name]]),
            };
            assert!(is_held);
            assert!(token.as_u64() > self.tokens[name], "tokens grow");
            self.tokens[name] = token.as_u64();
        }
        self.held.push(Hold {
            client,
            names,
            kept,
        });
    }

    /// Those who may go on do so, and then the servers have what the reference has.
    async fn settle(&mut self) {
        for round in 0..20_000 {
            let is_finished = |waiter: &Waiter| waiter.task.is_finished();
            while let Some(at) = self.waiting.iter().position(is_finished) {
                let waiter = self.waiting.swap_remove(at);
                let kept = waiter.task.await.unwrap().unwrap();
                self.hold(waiter.client, waiter.names, kept);
            }
            let may_go_on = |waiter: &Waiter| self.are_free(&waiter.names);
            if !self.waiting.iter().any(may_go_on) && self.is_as_expected().await {
                return;
            }
            if round > 50 {
                tokio::time::sleep(ms(1)).await;
            }
        }
        panic!("{}", self.describe().await);
    }

    async fn is_as_expected(&mut self) -> bool {
        let mut in_line = BTreeSet::new();
        for at in 0..NAMES {
            let [holders, tickets] = self.eyes.see(at, &self.names[at]).await;
            let holder = self.held.iter().find(|hold| hold.names.contains(&at));
            let expected = holder.map(|hold| self.clients[hold.client].client_id());
            if !holders.iter().eq(expected) {
                return false;
            }
            // Nobody is in line for a free lock, or for one that it does not want.
            let wants = |client: &String| {
                let mut waiting = self.waiting.iter();
                waiting.any(|waiter| {
                    *client == self.clients[waiter.client].client_id() && waiter.names.contains(&at)
                })
            };
            if !tickets.is_empty() && (holder.is_none() || !tickets.iter().all(wants)) {
                return false;
            }
            in_line.extend(tickets);
        }
        // Who waits for locks of other processes alone is in line for one of them.
        self.waiting.iter().all(|waiter| {
            let blocks = |hold: &&Hold| !hold.names.is_disjoint(&waiter.names);
            let mut blocking = self.held.iter().filter(blocks);
            let is_local = blocking.any(|hold| hold.client == waiter.client);
            is_local || in_line.contains(self.clients[waiter.client].client_id())
        })
    }

    async fn describe(&mut self) -> String {
        let mut text = String::from("they differ:");
        for at in 0..NAMES {
            let seen = self.eyes.see(at, &self.names[at]).await;
            text += &format!("\n{at}: held and waited for by {seen:?}");
        }
        for hold in &self.held {
            let client = self.clients[hold.client].client_id();
            text += &format!("\n{client} holds {:?}", hold.names);
        }
        for waiter in &self.waiting {
            let client = self.clients[waiter.client].client_id();
            text += &format!("\n{client} waits for {:?}", waiter.names);
        }
        text
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
        for at in 0..NAMES {
            let seen = self.eyes.see(at, &self.names[at]).await;
            assert!(seen.iter().all(Vec::is_empty), "{at}: {seen:?}");
        }
    }
}

async fn release(kept: Kept, awaited: bool, expected: Release) {
    if !awaited {
        return drop(kept);
    }
    let released = match kept {
        Kept::One(guard) => within("a release", guard.release()).await,
        Kept::Several(guard) => within("a release", guard.release()).await,
    };
    assert_eq!(released.unwrap(), expected);
}

async fn clients(url: String, interop: Interop) -> Vec<Locks> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let locks = Locks::builder(url.clone()).interop(interop);
        clients.push(locks.connect().await.unwrap());
    }
    clients
}

fn random_operations(runtime: &Runtime, clients: &[Locks], eyes: Eyes, sequences: u32) {
    let mut runner = TestRunner::new(Config {
        cases: sequences,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    });
    let state = RefCell::new((eyes, 0));
    let result = runner.run(&vec(op(), 1..16), |ops| {
        let mut state = state.borrow_mut();
        let (eyes, sequence) = &mut *state;
        *sequence += 1;
        let tags = eyes.tags.iter().enumerate();
        let names = tags.map(|(at, tag)| format!("{{{tag}}}:{sequence}:{at}"));
        let names = names.collect();
        runtime.block_on(async {
            let mut model = Model {
                clients,
                eyes,
                names,
                held: Vec::new(),
                waiting: Vec::new(),
                tokens: [0; NAMES],
            };
            for op in ops {
                model.apply(op).await;
            }
            model.finish().await;
        });
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

fn at_one_server(place: impl Future<Output = Place>, interop: Interop) {
    let runtime = Runtime::new().unwrap();
    let (place, clients, eyes) = runtime.block_on(async {
        let place = place.await;
        let mut raw = Vec::new();
        for _ in 0..NAMES {
            raw.push(place.raw().await);
        }
        let tags = vec!["t".into(); NAMES];
        let clients = clients(place.url(), interop).await;
        (place, clients, Eyes { raw, tags })
    });
    let sequences = place.sequences(SEQUENCES / 2);
    random_operations(&runtime, &clients, eyes, sequences);
}

#[test]
fn random_operations_are_those_of_a_reference_in_memory() {
    at_one_server(Place::server(), Interop::Off);
}

#[test]
fn random_operations_are_those_of_a_reference_in_memory_with_redisson_in_the_fleet() {
    at_one_server(Place::server(), Interop::Redisson);
}

#[test]
fn random_operations_are_those_of_a_reference_in_memory_for_locks_of_several_slots() {
    let runtime = Runtime::new().unwrap();
    let (_cluster, clients, eyes) = runtime.block_on(async {
        let cluster = Cluster::builder().replicas(0).start().await;
        let (mut raw, mut tags) = (Vec::new(), Vec::new());
        for at in 0..NAMES {
            raw.push(cluster.raw(at % 3).await);
            tags.push(cluster.key_at(at % 3, &format!("t{at}")).await);
        }
        let clients = clients(cluster.url(), Interop::Off).await;
        (cluster, clients, Eyes { raw, tags })
    });
    random_operations(&runtime, &clients, eyes, IN_A_CLUSTER);
}

#[cfg(feature = "testing")]
#[test]
fn random_operations_at_the_fake_are_those_of_a_reference_in_memory_too() {
    at_one_server(Place::fake(), Interop::Off);
}
