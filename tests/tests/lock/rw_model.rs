//! Random operations of several processes on read-write locks of a real server, against a reference in memory.
//!
//! 1,000 sequences. After each operation the lock and its line are those of the reference.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

use leasehold::{Error, Locks, ReadGuard, Release, RwLock, WriteGuard};
use leasehold_testkit::{Raw, RawValue};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::place::Place;
use crate::support::within;

const CLIENTS: usize = 4;
const SEQUENCES: u32 = 1_000;

/// What a client does, if it can.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// It waits to read; one that reads already reads once more.
    Read(usize),
    Write(usize),
    TryRead(usize),
    TryWrite(usize),
    /// It stops reading once, or writing.
    Release(usize),
    Downgrade(usize),
    Upgrade(usize),
    /// It waits no more.
    Cancel(usize),
    /// It removes the lock from all who hold it.
    Force(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS;
    prop_oneof![
        8 => client.clone().prop_map(Op::Read),
        6 => client.clone().prop_map(Op::Write),
        2 => client.clone().prop_map(Op::TryRead),
        2 => client.clone().prop_map(Op::TryWrite),
        12 => client.clone().prop_map(Op::Release),
        3 => client.clone().prop_map(Op::Downgrade),
        3 => client.clone().prop_map(Op::Upgrade),
        3 => client.clone().prop_map(Op::Cancel),
        1 => client.prop_map(Op::Force),
    ]
}

/// One process, as the reference has it.
#[derive(Default)]
enum State {
    #[default]
    Idle,
    WaitsToRead(JoinHandle<Result<ReadGuard, Error>>),
    WaitsToWrite(JoinHandle<Result<WriteGuard, Error>>),
    Reads(Vec<ReadGuard>),
    Writes(WriteGuard),
}

struct Model<'a> {
    locks: Vec<RwLock>,
    ids: &'a [Locks],
    raw: &'a mut Raw,
    name: String,
    states: [State; CLIENTS],
    line: VecDeque<usize>,
    /// Of the latest writer.
    token: u64,
}

impl Model<'_> {
    fn is_written(&self) -> bool {
        let mut states = self.states.iter();
        states.any(|state| matches!(state, State::Writes(_)))
    }

    fn is_held(&self) -> bool {
        let mut states = self.states.iter();
        states.any(|state| matches!(state, State::Writes(_) | State::Reads(_)))
    }

    fn may_read(&self) -> bool {
        self.line.is_empty() && !self.is_written()
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Read(client) => self.read(client).await,
            Op::Write(client) => {
                if matches!(self.states[client], State::Idle) {
                    let task = tokio::spawn(self.locks[client].write().into_future());
                    self.states[client] = State::WaitsToWrite(task);
                    self.line.push_back(client);
                    self.let_in().await;
                }
            }
            Op::TryRead(client) => self.try_read(client).await,
            Op::TryWrite(client) => self.try_write(client).await,
            Op::Release(client) => self.release(client).await,
            Op::Downgrade(client) => self.downgrade(client).await,
            Op::Upgrade(client) => self.upgrade(client).await,
            Op::Cancel(client) => self.cancel(client).await,
            Op::Force(client) => {
                let forced = within("a removal", self.locks[client].force_unlock()).await;
                assert_eq!(forced.unwrap(), self.is_held());
                for state in &mut self.states {
                    if matches!(state, State::Reads(_) | State::Writes(_)) {
                        *state = State::Idle;
                    }
                }
                self.let_in().await;
            }
        }
        self.check().await;
    }

    async fn read(&mut self, client: usize) {
        match &self.states[client] {
            State::Idle => {
                let task = tokio::spawn(self.locks[client].read().into_future());
                self.states[client] = State::WaitsToRead(task);
                self.line.push_back(client);
                self.let_in().await;
            }
            State::Reads(_) if self.line.is_empty() => {
                let read = within("one more", self.locks[client].read().into_future()).await;
                self.reads(client, read.unwrap());
            }
            _ => {}
        }
    }

    async fn try_read(&mut self, client: usize) {
        let may_read = self.may_read();
        match &self.states[client] {
            State::Idle => {}
            State::Reads(_) if may_read => {}
            // A writer may wait of which this process has not heard yet.
            _ => return,
        }
        let read = within("a try", self.locks[client].try_read().into_future()).await;
        let read = read.unwrap();
        assert_eq!(read.is_some(), may_read);
        if let Some(read) = read {
            self.reads(client, read);
        }
    }

    async fn try_write(&mut self, client: usize) {
        let write = within("a try", self.locks[client].try_write().into_future()).await;
        let write = write.unwrap();
        assert_eq!(write.is_some(), self.line.is_empty() && !self.is_held());
        if let Some(write) = write {
            self.writes(client, write);
        }
    }

    async fn release(&mut self, client: usize) {
        match std::mem::take(&mut self.states[client]) {
            State::Reads(mut guards) => {
                let guard = guards.pop().unwrap();
                let released = within("a release", guard.release()).await.unwrap();
                if guards.is_empty() {
                    assert_eq!(released, Release::Released);
                } else {
                    assert_ne!(released, Release::AlreadyGone);
                    self.states[client] = State::Reads(guards);
                }
            }
            State::Writes(guard) => {
                let released = within("a release", guard.release()).await;
                assert_eq!(released.unwrap(), Release::Released);
            }
            other => self.states[client] = other,
        }
        self.let_in().await;
    }

    async fn downgrade(&mut self, client: usize) {
        match std::mem::take(&mut self.states[client]) {
            State::Writes(guard) => {
                let read = within("a downgrade", guard.downgrade()).await.unwrap();
                self.reads(client, read);
                self.let_in().await;
            }
            other => self.states[client] = other,
        }
    }

    async fn upgrade(&mut self, client: usize) {
        let holders = self.states.iter().map(|state| match state {
            State::Reads(guards) => guards.len(),
            _ => 0,
        });
        let is_alone = holders.sum::<usize>() == 1;
        match std::mem::take(&mut self.states[client]) {
            State::Reads(mut guards) => {
                let guard = guards.pop().unwrap();
                match within("an upgrade", guard.try_upgrade()).await.unwrap() {
                    Ok(write) => {
                        assert!(is_alone);
                        self.writes(client, write);
                    }
                    Err(read) => {
                        assert!(!is_alone);
                        guards.push(read);
                        self.states[client] = State::Reads(guards);
                    }
                }
            }
            other => self.states[client] = other,
        }
    }

    async fn cancel(&mut self, client: usize) {
        match std::mem::take(&mut self.states[client]) {
            State::WaitsToRead(task) => {
                task.abort();
                assert!(task.await.is_err_and(|error| error.is_cancelled()));
            }
            State::WaitsToWrite(task) => {
                task.abort();
                assert!(task.await.is_err_and(|error| error.is_cancelled()));
            }
            other => {
                self.states[client] = other;
                return;
            }
        }
        self.line.retain(|&other| other != client);
        self.let_in().await;
    }

    /// Those at the front of the line enter as far as they can.
    async fn let_in(&mut self) {
        while let Some(&client) = self.line.front() {
            let may_enter = match self.states[client] {
                State::WaitsToRead(_) => !self.is_written(),
                _ => !self.is_held(),
            };
            if !may_enter {
                return;
            }
            self.line.pop_front();
            match std::mem::take(&mut self.states[client]) {
                State::WaitsToRead(task) => {
                    let read = within("its turn to read", task).await.unwrap();
                    self.reads(client, read.unwrap());
                }
                State::WaitsToWrite(task) => {
                    let write = within("its turn to write", task).await.unwrap();
                    self.writes(client, write.unwrap());
                }
                _ => panic!("it waits"),
            }
        }
    }

    fn reads(&mut self, client: usize, guard: ReadGuard) {
        assert!(guard.is_held());
        if self.token > 0 {
            assert_eq!(guard.token().as_u64(), self.token);
        }
        match &mut self.states[client] {
            State::Reads(guards) => guards.push(guard),
            other => *other = State::Reads(vec![guard]),
        }
    }

    fn writes(&mut self, client: usize, guard: WriteGuard) {
        assert!(guard.is_held());
        assert!(guard.token().as_u64() > self.token, "tokens grow");
        self.token = guard.token().as_u64();
        self.states[client] = State::Writes(guard);
    }

    /// The server has what the reference has, soon: those who wait, and those who gave up, are on their way.
    async fn check(&mut self) {
        let id = |client: usize| self.ids[client].client_id();
        let held: BTreeSet<String> = (0..CLIENTS)
            .filter_map(|client| match self.states[client] {
                State::Reads(_) => Some(format!("{} r", id(client))),
                State::Writes(_) => Some(format!("{} w", id(client))),
                _ => None,
            })
            .collect();
        let waiting: Vec<String> = self
            .line
            .iter()
            .map(|&client| id(client).to_owned())
            .collect();
        let line = format!("leasehold_line:{{{}}}", self.name);
        for round in 0.. {
            let tickets = self.raw.cmd(&["ZRANGE", &line, "0", "-1"]).await;
            let client = |ticket: &RawValue| ticket.str().split(':').next().unwrap().to_owned();
            let tickets: Vec<String> = tickets.array().iter().map(client).collect();
            let fields = self.raw.cmd(&["HKEYS", &self.name]).await;
            let fields = fields.array().iter().filter(|field| field.str() != "mode");
            let holders: BTreeSet<String> = fields
                .map(|field| {
                    let kind = if field.str().ends_with(":write") {
                        "w"
                    } else {
                        "r"
                    };
                    format!("{} {kind}", client(field))
                })
                .collect();
            if tickets == waiting && holders == held {
                return;
            }
            assert!(
                round < 20_000,
                "{holders:?} {tickets:?}, not {held:?} {waiting:?}"
            );
        }
    }

    /// All have their turns, and nothing is left.
    async fn finish(mut self) {
        while self.is_held() {
            for client in 0..CLIENTS {
                self.release(client).await;
            }
        }
        self.check().await;
        assert!(self.line.is_empty());
        let keys = [
            self.name.clone(),
            format!("leasehold_line:{{{}}}", self.name),
        ];
        for key in keys {
            assert_eq!(self.raw.cmd(&["EXISTS", &key]).await.int(), 0, "{key}");
        }
    }
}

#[test]
fn random_operations_are_those_of_a_reference_in_memory() {
    random_operations_are_those_of_a_reference(Place::server());
}

fn random_operations_are_those_of_a_reference(place: impl Future<Output = Place>) {
    let runtime = Runtime::new().unwrap();
    let (place, clients, raw) = runtime.block_on(async {
        let place = place.await;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(Locks::connect(place.url()).await.unwrap());
        }
        let raw = place.raw().await;
        (place, clients, raw)
    });
    let mut runner = TestRunner::new(Config {
        cases: place.sequences(SEQUENCES),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    });
    let (sequence, raw) = (RefCell::new(0), RefCell::new(raw));
    let result = runner.run(&vec(op(), 1..16), |ops| {
        *sequence.borrow_mut() += 1;
        let name = format!("rw-{}", sequence.borrow());
        let mut raw = raw.borrow_mut();
        runtime.block_on(async {
            let mut model = Model {
                locks: clients.iter().map(|locks| locks.rw_lock(&name)).collect(),
                ids: &clients,
                raw: &mut raw,
                name,
                states: Default::default(),
                line: VecDeque::new(),
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

#[cfg(feature = "testing")]
#[test]
fn random_operations_at_the_fake_are_those_of_a_reference_in_memory_too() {
    random_operations_are_those_of_a_reference(Place::fake());
}
