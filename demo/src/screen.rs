//! Output: in place on a terminal, line after line elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::fleet::State;
use crate::stats::{Stats, Summary};
use crate::{LEASE, LOCKS, TASKS, WORKERS};

/// Interval between two frames on a terminal, and between two lines elsewhere.
const FRAME: Duration = Duration::from_millis(100);
const LINE: Duration = Duration::from_secs(1);

/// The output of the orchestrator.
pub(crate) struct Screen {
    started: Instant,
    in_place: bool,
    title: String,
    /// Notable events, with the second in which they happened.
    notes: Vec<String>,
    /// Number of lines of the current frame, which the next one overwrites.
    drawn: usize,
    next: Instant,
}

impl Screen {
    /// `server` describes the server under test.
    pub(crate) fn new(server: &str) -> Self {
        let title = format!(
            "leasehold: {WORKERS} processes of {TASKS} tasks fight over {} locks, lease {} s, {server}",
            LOCKS.len(),
            LEASE.as_secs(),
        );
        let in_place = io::stdout().is_terminal();
        if !in_place {
            print(&format!("{title}\n"));
        }
        let started = Instant::now();
        let next = if in_place { started } else { started + LINE };
        Self {
            started,
            in_place,
            title,
            notes: Vec::new(),
            drawn: 0,
            next,
        }
    }

    /// Adds a notable event.
    pub(crate) fn note(&mut self, text: &str) {
        let note = format!("{:5.1} s  {text}", self.started.elapsed().as_secs_f64());
        if !self.in_place {
            print(&format!("{note}\n"));
        }
        self.notes.push(note);
        if self.in_place {
            // At once, rather than with the next frame.
            self.next = Instant::now();
        }
    }

    /// Shows the current state, if it is time to.
    pub(crate) fn show(&mut self, stats: &mut Stats, states: impl Iterator<Item = State>) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let rate = stats.rate(now);
        if self.in_place {
            self.next = now + FRAME;
            let picture = self.picture(stats, rate, states);
            self.draw(&picture);
        } else {
            self.next = now + LINE;
            let holders: Vec<String> = (0..LOCKS.len())
                .map(|lock| format!("{} {}", LOCKS[lock], who(stats, lock)))
                .collect();
            print(&format!(
                "{:5.1} s  {rate} hand-offs a second  ({})\n",
                self.started.elapsed().as_secs_f64(),
                holders.join(", ")
            ));
        }
    }

    /// Shows the final state.
    pub(crate) fn last(&mut self, stats: &mut Stats, states: impl Iterator<Item = State>) {
        if self.in_place {
            self.next = Instant::now();
            self.show(stats, states);
        }
    }

    fn picture(
        &self,
        stats: &Stats,
        rate: u64,
        states: impl Iterator<Item = State>,
    ) -> Vec<String> {
        let mut lines = vec![self.title.clone(), String::new()];
        lines.push(format!(
            "{:<10} {:<20} {:<18} {:>10}",
            "lock", "holder", "fencing token", "hand-offs"
        ));
        for (lock, name) in LOCKS.iter().enumerate() {
            let token = stats.holder(lock).map_or(0, |holder| holder.token);
            let count = grouped(stats.holds_of(lock));
            lines.push(format!(
                "{name:<10} {:<20} {token:<18} {count:>10}",
                who(stats, lock)
            ));
        }
        let states: Vec<String> = states
            .enumerate()
            .map(|(worker, state)| {
                let state = match state {
                    State::Running => "running",
                    State::Killed => "KILLED",
                    State::Frozen => "FROZEN",
                };
                format!("process {} {state}", worker + 1)
            })
            .collect();
        lines.push(String::new());
        lines.push(states.join("   "));
        lines.push(format!(
            "{:5.1} s   {} hand-offs a second   stale writes refused: {}   longest wait: {}",
            self.started.elapsed().as_secs_f64(),
            grouped(rate),
            stats.refused(),
            span(stats.longest_wait()),
        ));
        lines.push(String::new());
        lines.extend(self.notes.iter().cloned());
        lines
    }

    /// Overwrites the last frame. A line that is wider than the terminal would wrap and break the
    /// count of lines, so wrapping is off meanwhile.
    fn draw(&mut self, lines: &[String]) {
        let mut frame = String::from("\x1b[?7l");
        if self.drawn > 0 {
            frame.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in lines {
            frame.push_str(line);
            frame.push_str("\x1b[K\n");
        }
        frame.push_str("\x1b[?7h");
        print(&frame);
        self.drawn = lines.len();
    }
}

/// The closing table. `commands` are those that the server got during the run, if they were
/// counted.
pub(crate) fn table(summary: &Summary, commands: Option<u64>) {
    let mut rows = vec![
        ("updates in the ledgers", grouped(summary.updates)),
        ("lost updates", grouped(summary.lost)),
    ];
    // Without locks there is nothing to hand over.
    if summary.handoffs > 0 {
        rows.extend([
            (
                "stale writes refused by the ledger",
                grouped(summary.refused),
            ),
            (
                "take-overs after a lease ran out",
                grouped(summary.takeovers),
            ),
            ("longest wait for a lock", span(summary.longest_wait)),
            ("hand-offs", grouped(summary.handoffs)),
            ("hand-off, p50", span(summary.p50)),
            ("hand-off, p99", span(summary.p99)),
            ("hand-offs to another process", grouped(summary.crossings)),
            (
                "hand-off to another process, p50",
                span(summary.crossing_p50),
            ),
        ]);
        if let Some(commands) = commands {
            // In hundredths, to stay with whole numbers.
            let each = commands * 100 / summary.handoffs;
            rows.push((
                "server commands per hand-off",
                format!("{}.{:02}", each / 100, each % 100),
            ));
        }
    }
    let table: String = rows
        .iter()
        .map(|(name, value)| format!("{name:<36} {value:>12}\n"))
        .collect();
    print(&format!("\n{table}"));
}

fn who(stats: &Stats, lock: usize) -> String {
    match stats.holder(lock) {
        Some(holder) if holder.holds => {
            format!("process {} task {}", holder.worker + 1, holder.task + 1)
        }
        _ => "-".to_owned(),
    }
}

/// Microseconds in a suitable unit.
pub(crate) fn span(micros: u64) -> String {
    if micros < 10_000 {
        format!("{micros} µs")
    } else {
        format!("{} ms", micros / 1000)
    }
}

/// Digits in groups of three.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Standard output may be closed, as by `| head`; the run goes on without it.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
