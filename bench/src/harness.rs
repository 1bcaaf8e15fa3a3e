//! Rounds of samples: every candidate once a round, so that disturbances of the machine affect all
//! alike.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::io::{Error, IsTerminal, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::cpu;
use crate::sample::{Figures, Request};
use crate::server::Server;

/// CPUs that other processes may keep busy during a sample; above it, the sample is repeated.
const DISTURBANCE: f64 = 0.12;

/// The extent of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Under three minutes in all, for a first look.
    Quick,
    /// For figures that are kept.
    Normal,
    /// The same, and clean builds as well.
    Full,
}

/// The CPU of the client; the server is always on the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Both on one: repeatable, and shows the client's own cost.
    SameCpu,
    /// Each on its own: they can work at the same time.
    CrossCpu,
    /// Not pinned, as the nodes of a cluster.
    Anywhere,
}

/// A run: the server, and how samples are taken.
pub struct Harness {
    /// The private server.
    pub server: Server,
    /// The extent of the run.
    pub effort: Effort,
    cluster: OnceCell<Cluster>,
    program: PathBuf,
    first_cpu: usize,
    last_cpu: usize,
    samples: Cell<u32>,
    disturbed: Cell<u32>,
}

impl Harness {
    /// Starts the server.
    pub fn start(effort: Effort) -> Result<Self> {
        let (first_cpu, last_cpu) = cpu::first_and_last()?;
        Ok(Self {
            server: Server::start(first_cpu)?,
            effort,
            cluster: OnceCell::new(),
            program: std::env::current_exe()?,
            first_cpu,
            last_cpu,
            samples: Cell::new(0),
            disturbed: Cell::new(0),
        })
    }

    /// Three masters without replicas, never replaced; started at the first use.
    pub fn cluster(&self) -> Result<&Cluster> {
        if let Some(cluster) = self.cluster.get() {
            return Ok(cluster);
        }
        let cluster = Cluster::start(&self.server.program, 3, false, Duration::from_secs(60))?;
        Ok(self.cluster.get_or_init(|| cluster))
    }

    /// The CPU of the server.
    pub fn server_cpu(&self) -> usize {
        self.first_cpu
    }

    /// Whether client and server can have a CPU each.
    pub fn has_two_cpus(&self) -> bool {
        self.first_cpu != self.last_cpu
    }

    /// Number of samples, and of those that other processes disturbed to the end.
    pub fn counts(&self) -> (u32, u32) {
        (self.samples.get(), self.disturbed.get())
    }

    /// `normal` rounds, or two.
    pub fn rounds(&self, normal: usize) -> usize {
        if self.effort == Effort::Quick {
            2
        } else {
            normal
        }
    }

    /// Milliseconds of a sample.
    pub fn millis(&self, normal: u64) -> u64 {
        if self.effort == Effort::Quick {
            normal / 6
        } else {
            normal
        }
    }

    /// Takes `rounds` samples of every candidate, in turn.
    pub fn interleave(
        &self,
        rounds: usize,
        candidates: &[&'static str],
        mut sample: impl FnMut(&'static str) -> Result<Figures>,
    ) -> Result<Samples> {
        let mut samples = Samples::default();
        for round in 0..rounds {
            for candidate in candidates {
                progress(&format!("  round {} of {rounds}: {candidate}", round + 1));
                samples
                    .by_candidate
                    .entry(candidate)
                    .or_default()
                    .push(sample(candidate)?);
            }
        }
        progress("");
        Ok(samples)
    }

    /// One sample, repeated while others use the machine.
    pub fn sample(&self, placement: Placement, request: &Request) -> Result<Figures> {
        let mut command = Command::new(&self.program);
        command.arg("sample").args(request.to_args());
        let output = self.undisturbed(placement, &mut command)?;
        parse(&output)
    }

    /// One sample by another program, which prints its figures likewise.
    pub fn foreign_sample(&self, placement: Placement, command: &mut Command) -> Result<Figures> {
        parse(&self.undisturbed(placement, command)?)
    }

    /// One sample that mostly waits: it is not repeated when other processes use the machine.
    pub fn patient_sample(&self, request: &Request) -> Result<Figures> {
        self.samples.set(self.samples.get() + 1);
        parse(
            &self.run(
                Placement::Anywhere,
                Command::new(&self.program)
                    .arg("sample")
                    .args(request.to_args()),
            )?,
        )
    }

    /// The standard output of `command` on the client's CPU; run again while others use the
    /// machine.
    pub fn undisturbed(&self, placement: Placement, command: &mut Command) -> Result<String> {
        let tries = if self.effort == Effort::Quick { 1 } else { 4 };
        self.samples.set(self.samples.get() + 1);
        for left in (0..tries).rev() {
            let (output, others) = self.watch(placement, command)?;
            if others <= DISTURBANCE {
                return Ok(output);
            }
            if left == 0 {
                self.disturbed.set(self.disturbed.get() + 1);
                return Ok(output);
            }
        }
        unreachable!("there is at least one try")
    }

    /// Runs `command`; its output, and the number of CPUs that were busy with other processes
    /// meanwhile.
    fn watch(&self, placement: Placement, command: &mut Command) -> Result<(String, f64)> {
        let cluster = || self.cluster.get().map_or(0.0, Cluster::cpu_seconds);
        let busy =
            || cpu::of_everybody() - cpu::of_children() - self.server.cpu_seconds() - cluster();
        let start = Instant::now();
        let before = busy();
        let output = self.run(placement, command)?;
        let others = (busy() - before) / start.elapsed().as_secs_f64();
        Ok((output, others))
    }

    /// Runs `command` on the client's CPU; its standard output.
    pub fn run(&self, placement: Placement, command: &mut Command) -> Result<String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = match placement {
            Placement::SameCpu => cpu::pinned(self.first_cpu, || command.spawn())?,
            Placement::CrossCpu => cpu::pinned(self.last_cpu, || command.spawn())?,
            Placement::Anywhere => command.spawn()?,
        };
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(Error::other(format!("{command:?}: {}", output.status)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The path of this program, for programs that wrap it.
    pub fn program(&self) -> &Path {
        &self.program
    }
}

/// The samples of one work.
#[derive(Debug, Default)]
pub struct Samples {
    by_candidate: BTreeMap<&'static str, Vec<Figures>>,
}

impl Samples {
    /// The median of a figure over the rounds.
    pub fn median(&self, candidate: &str, figure: &str) -> Option<f64> {
        median(self.values(candidate, figure).collect())
    }

    /// The median over the rounds of the figure's ratio to another candidate's in the same round.
    pub fn ratio(&self, candidate: &str, to: &str, figure: &str) -> Option<f64> {
        self.ratio_to(candidate, figure, to, figure)
    }

    /// The same between two figures.
    pub fn ratio_to(
        &self,
        candidate: &str,
        figure: &str,
        to: &str,
        to_figure: &str,
    ) -> Option<f64> {
        median(
            self.values(candidate, figure)
                .zip(self.values(to, to_figure))
                .map(|(a, b)| a / b)
                .collect(),
        )
    }

    fn values(&self, candidate: &str, figure: &str) -> impl Iterator<Item = f64> {
        let rounds = self
            .by_candidate
            .get(candidate)
            .map_or(&[][..], Vec::as_slice);
        rounds
            .iter()
            .filter_map(move |figures| figures.get(figure).copied())
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[n / 2]),
        n => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}

/// Shows the progress on a terminal.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}

/// Lines of a name and a value.
fn parse(output: &str) -> Result<Figures> {
    output
        .lines()
        .map(|line| {
            let (name, value) = line
                .split_once(' ')
                .ok_or_else(|| Error::other(format!("sample said {line:?}")))?;
            Ok((name.to_owned(), value.parse().map_err(Error::other)?))
        })
        .collect()
}
