//! The state machines of this layer under faults: many processes and a model of the server in virtual time, on one thread.
//!
//! The tickets, holds, deadlines, schedules and tables are the real ones. The driver around them does what the engine does, in
//! the same order, and is named after its files; the server's scripts are those of the protocol, in the model of
//! [`server`]. Each seed draws which faults there are and how many. A seed that fails is printed with its faults, and
//! `LEASEHOLD_SEED=<seed>` runs it alone and prints what happens.

mod acquire;
mod asking;
mod broken;
mod call;
mod checks;
mod connection;
mod executor;
mod faults;
mod java;
mod keeper;
mod open_attempt;
mod process;
mod profile;
mod queue;
mod random;
mod release;
mod rules;
mod server;
mod user;
mod world;

use executor::SECOND;
use profile::{Broken, Profile};
use random::Random;
use world::{Outcome, World};

/// Seeds of the test that runs each time, and of the one that runs when there is time.
const SEEDS: u64 = 2_000;
const MANY_SEEDS: u64 = 100_000;

fn run(seed: u64, profile: Option<Profile>, broken: Option<Broken>) -> Outcome {
    World::new(seed, profile, broken).run()
}

/// Figures of many seeds.
#[derive(Debug, Default)]
struct Sum {
    served: u64,
    longest_free: u64,
    bypass: u64,
    failed: Vec<(u64, Vec<String>)>,
}

/// Runs these seeds on all processors.
fn run_all(seeds: std::ops::Range<u64>) -> Sum {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let run_some = |first: u64| {
        let mut sum = Sum::default();
        for seed in (seeds.start + first..seeds.end).step_by(threads as usize) {
            sum.add(seed, run(seed, None, None));
        }
        sum
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || run_some(first)))
            .collect();
        let sums = threads.into_iter().map(|thread| thread.join().unwrap());
        sums.fold(Sum::default(), Sum::and)
    })
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.served += outcome.served;
        self.longest_free = self.longest_free.max(outcome.longest_free);
        self.bypass = self.bypass.max(outcome.bypass);
        if !outcome.violations.is_empty() {
            self.failed.push((seed, outcome.violations));
        }
    }

    fn and(mut self, other: Self) -> Self {
        self.served += other.served;
        self.longest_free = self.longest_free.max(other.longest_free);
        self.bypass = self.bypass.max(other.bypass);
        self.failed.extend(other.failed);
        self
    }
}

#[test]
fn no_seed_breaks_a_promise() {
    let seed = std::env::var("LEASEHOLD_SEED").ok();
    let seeds = match seed.map(|seed| seed.parse().expect("a number")) {
        Some(seed) => seed..seed + 1,
        None if std::env::var_os("LEASEHOLD_LONG").is_some() => 0..MANY_SEEDS,
        None => 0..SEEDS,
    };
    let sum = run_all(seeds);
    println!(
        "{} served; free beside a waiter for {} ms at most",
        sum.served,
        sum.longest_free / 1000
    );
    let failed = sum.failed.len();
    for (seed, violations) in sum.failed.iter().take(10) {
        println!("LEASEHOLD_SEED={seed} shows: {}", violations.join("; "));
    }
    assert_eq!(failed, 0, "seeds that break a promise");
}

/// Requests of a calm run for each time that the lock was had.
fn requests_each(profile: Profile) -> f64 {
    let outcome = run(1, Some(profile), None);
    assert_eq!(outcome.violations, Vec::<String>::new());
    outcome.requests as f64 / outcome.served as f64
}

#[test]
fn a_hand_over_takes_two_requests() {
    let requests = requests_each(Profile::calm(8, 1));
    assert!(requests <= 2.05, "{requests}");
}

#[test]
fn a_hand_over_inside_a_process_takes_none() {
    for processes in [1, 8] {
        let requests = requests_each(Profile {
            brief: true,
            faults_ms: 1_000,
            ..Profile::calm(processes, 16)
        });
        assert!(requests <= 0.1, "{requests} with {processes} processes");
    }
}

#[test]
fn redisson_gets_its_turn() {
    let outcome = run(
        1,
        Some(Profile {
            redisson: true,
            ..Profile::calm(8, 1)
        }),
        None,
    );
    assert_eq!(outcome.violations, Vec::<String>::new());
    assert!(outcome.java_served > 10, "{outcome:?}");
    assert!(outcome.java_longest_wait < SECOND, "{outcome:?}");
}

/// The rules that `rules` does not test.
#[test]
fn a_promise_is_broken_without_each_of_its_rules() {
    for broken in [
        Broken::DeadlineFromReceipt,
        Broken::NoTimeFloor,
        Broken::ReleaseByAnybody,
        Broken::ConfirmCreates,
        Broken::NoBackstop,
        Broken::DeadlineFromConfirmReceipt,
        Broken::TokenOfMessage,
        Broken::RateWrongWay,
        Broken::ReplicatedUnconfirmed,
        Broken::LookJumps,
    ] {
        let is_noticed = |seed: &u64| {
            let profile = Profile::draw_for(&Random::new(*seed), broken);
            !run(*seed, Some(profile), Some(broken))
                .violations
                .is_empty()
        };
        let seed = (0..SEEDS).find(is_noticed);
        println!("{broken:?} is noticed by seed {seed:?}");
        assert!(seed.is_some(), "{broken:?}");
    }
}
