//! One candidate measured once, in a process of its own, so that no allocator, thread or cache is
//! shared.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use crate::cpu;

/// The figures of a sample, by name.
pub type Figures = BTreeMap<String, f64>;

/// The task of a sample process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The work, by the name of its module.
    pub work: String,
    /// The candidate.
    pub candidate: String,
    /// A variant of the work, if it has some.
    pub variant: String,
    /// The server's port.
    pub port: u16,
    /// Threads of the runtime; 1 is the current-thread runtime.
    pub workers: usize,
    /// The duration, for works that are limited by time.
    pub millis: u64,
    /// The count, for works that are limited by a count.
    pub count: u64,
}

impl Request {
    /// As arguments of this program.
    pub fn to_args(&self) -> Vec<String> {
        let Self {
            work,
            candidate,
            variant,
            port,
            workers,
            millis,
            count,
        } = self;
        [work.clone(), candidate.clone(), variant.clone()]
            .into_iter()
            .chain([u64::from(*port), *workers as u64, *millis, *count].map(|n| n.to_string()))
            .collect()
    }

    /// The reverse of [`to_args`](Self::to_args).
    pub fn from_args(args: &[String]) -> Option<Self> {
        let [work, candidate, variant, port, workers, millis, count] = args else {
            return None;
        };
        Some(Self {
            work: work.clone(),
            candidate: candidate.clone(),
            variant: variant.clone(),
            port: port.parse().ok()?,
            workers: workers.parse().ok()?,
            millis: millis.parse().ok()?,
            count: count.parse().ok()?,
        })
    }

    /// The duration.
    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// Runs `future` as a task: what `block_on` runs is not a worker, and would pay a wake-up
    /// across threads each time.
    pub fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime();
        runtime.block_on(async { tokio::spawn(future).await.expect("a sample does not panic") })
    }

    fn runtime(&self) -> Runtime {
        let mut builder = if self.workers > 1 {
            Builder::new_multi_thread()
        } else {
            Builder::new_current_thread()
        };
        builder
            .worker_threads(self.workers.max(1))
            .enable_all()
            .build()
            .expect("a runtime")
    }
}

/// Figures from pairs of a name and a value.
pub fn figures<const N: usize>(pairs: [(&str, f64); N]) -> Figures {
    pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Repeats `step` for `duration`; returns the CPU seconds of one step on average, which other
/// processes affect less than wall time. A step should take a microsecond at least, for the clock
/// is read after each.
pub fn cpu_seconds_per_step(duration: Duration, mut step: impl FnMut()) -> f64 {
    let warm = Instant::now();
    while warm.elapsed() < duration / 10 {
        step();
    }
    let (start, cpu) = (Instant::now(), cpu::of_this_process());
    let mut steps = 0_u64;
    while start.elapsed() < duration {
        step();
        steps += 1;
    }
    (cpu::of_this_process() - cpu) / steps as f64
}

/// The value below which `share` of `values` lie; sorts them.
pub fn percentile(values: &mut [u64], share: f64) -> f64 {
    values.sort_unstable();
    values
        .get((values.len() as f64 * share) as usize)
        .map_or(f64::NAN, |&value| value as f64)
}
